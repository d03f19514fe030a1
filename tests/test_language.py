"""Plain English in code and documents, and short functions.

To list what a file or folder still breaks:

    python tests/test_language.py transformer_jax/translator tests/test_search.py
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("transformer_jax", "configs", "benchmarks", "examples", "tests", "docs")

# Regular expression -> what to write instead. Case is ignored.
WORDS = {
    r"\b(go|goes|going|gone|went) on\b": "continue, resume",
    r"\bwork(s|ed|ing)? off\b": "process",
    r"\blooked up in turn\b": "in order",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bparted\b": "sharded, split",
    r"\btold\b": "stated, shown, passed",
    r"\bbeside\b": "compared with, next to",
    r"\bstands?\b(?! for|-in)": "is",
    r"\b(lies|lie)\b": "is",
    r"\bbehind\b": "after",
    r"\banew\b": "again",
    r"\bpriced\b": "scored",
    r"\bbut for\b": "except",
    r"\bso many\b": "name the number",
    r"\bas many\b.*\bas make\b": "name the number",
    r"\bexchang(e|es|ed)\b": "communicate, all-reduce",
    r"\b(come|comes|came) about\b": "name the event",
    r"\bsee to it\b": "make sure",
    r"\bwho stands where\b": "positions",
    r"\b(nobody|whoever)\b": "name the caller or user",
    r"\bmeanwhile\b": "name the time",
    r"\bpieces?\b": "token (piece is for SentencePiece's own API)",
}
ANY_WORD = re.compile("|".join(WORDS), re.IGNORECASE)
# (path, regular expression of a line) that may have such a word: quotations and other APIs.
ALLOWED = (
    ("tests/test_language.py", r""),
    ("", r"(?i)sentencepiece"),
)
NAMES = {
    "found", "own", "told", "made", "late", "held", "must", "taken", "priced", "whole", "stands",
    "lies", "beside", "behind", "parted", "mended", "anew",
}  # fmt: skip
VAGUE_TEST = re.compile(r"test_(it|what|nothing|nobody|that|who)_")
# Files whose tables of data keep their lines by `# fmt: skip`.
TABLES = (
    "transformer_jax/evaluation/bleu_tokenizers.py",
    "transformer_jax/extras/interop/capabilities.py",
    "transformer_jax/extras/interop/huggingface/settings.py",
    "transformer_jax/extras/recipes/sizing.py",
    "tests/test_imports.py",
    "tests/test_language.py",
)
MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 60
# Longer functions of the package, with the reason.
LONG: dict[str, str] = {}


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file; several checks walk it."""
    return list(ast.walk(ast.parse(path.read_text())))


def files() -> list[Path]:
    """Python and Markdown of the repository, without the history of changes."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("*.md")]
    for folder in FOLDERS:
        paths += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]
    return sorted(path for path in paths if path.name != "CHANGELOG.md")


def problems(path: Path) -> Iterator[str]:
    """Each a line `path:line: what is wrong`."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text()
    for number, line in enumerate(text.splitlines(), start=1):
        for problem in line_problems(name, line):
            yield f"{name}:{number}: {problem}"
    if path.suffix == ".py":
        for number, problem in code_problems(nodes(path)):
            yield f"{name}:{number}: {problem}"
    if name.startswith("transformer_jax/"):
        yield from length_problems(name, nodes(path) if path.suffix == ".py" else [])


def line_problems(name: str, line: str) -> Iterator[str]:
    for pattern, better in WORDS.items() if ANY_WORD.search(line) else ():
        match = re.search(pattern, line, re.IGNORECASE)
        if match and not any(name.startswith(p) and re.search(r, line) for p, r in ALLOWED):
            yield f"{match[0]!r}: write {better}"
    is_table = line.lstrip().startswith("|")
    if name.endswith(".md") and len(line) > MAX_COLUMNS and not is_table and " " in line.strip():
        yield f"{len(line)} columns"
    if re.search(r"# fmt: skip\s*$", line) and name not in TABLES:
        yield "'# fmt: skip' is for tables of data: run `ruff format`, or add the file to TABLES"


def code_problems(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if name.strip("_").lower() in NAMES:
            yield node.lineno, f"{name!r}: name the thing"
        if VAGUE_TEST.match(name):
            yield node.lineno, f"{name!r}: name the feature first"


def length_problems(name: str, nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and _reads_text_by_locale(node):
            yield f"{name}:{node.lineno}: text without an encoding follows the locale"
        if isinstance(node, ast.FunctionDef):
            num_lines = node.end_lineno - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES and f"{name}:{node.name}" not in LONG:
                yield f"{name}:{node.lineno}: {node.name} has {num_lines} lines"


def _reads_text_by_locale(call: ast.Call) -> bool:
    """Whether a call opens a text file, or a program's output, without `encoding`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    given = {keyword.arg for keyword in call.keywords}
    if "encoding" in given:
        return False
    if name in ("read_text", "write_text"):
        return len(call.args) < 2
    return "text" in given and name in ("run", "Popen", "check_output")


def test_code_and_documents_are_in_plain_english():
    wrong = [problem for path in files() for problem in problems(path)]
    assert not wrong, "\n".join(wrong)


def test_errors_of_the_package_name_arguments_not_flags():
    """The commands turn the former into the latter (`commands.main.with_flags`)."""
    wrong = []
    for path in sorted((ROOT / "transformer_jax").rglob("*.py")):
        if "commands" in path.parts:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith("User"):
                text = "".join(
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )
                is_shell = re.search(r"\b(transformer-jax|tfds|hf) [a-z]+ ", text)
                if re.search(r"(^|[\s(`])--[a-z]", text) and not is_shell:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    wanted = tuple(argument.rstrip("/") for argument in sys.argv[1:]) or ("",)
    chosen = [path for path in files() if path.relative_to(ROOT).as_posix().startswith(wanted)]
    lines = [problem for path in chosen for problem in problems(path)]
    print(*lines, f"{len(lines)} in {len(chosen)} files", sep="\n")
