"""The direction of imports, and packages that an import must not load."""

import ast
import importlib
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

from transformer_jax.commands import command_line
from transformer_jax.translator import model_formats

ROOT = Path(__file__).parent.parent / "transformer_jax"
# Each room imports only from those before it, or from itself. The wall is between the lines.
CORE = [
    "errors", "interrupts", "units", "waiting", "config", "paths", "ops", "model", "data",
    "distributed", "workdir", "search", "evaluation", "translator", "training",
]  # fmt: skip
ORDER = [
    *CORE, "extras.diagnostics", "extras.recipes", "extras.documents", "extras.interop",
    "extras.corpora", "extras.serving", "extras.plotting", "configs", "commands",
]  # fmt: skip
FIRST_NAMES = {name.partition(".")[0] for name in ORDER}
# Code lines, without comments and docstrings, that an import may load.
MOST_LINES = {
    "ops": 1700,
    "model.transformer": 3550,
    "training.step": 4050,
    "search.search": 5550,
    "training.loop": 11_100,
    "translator.translator": 10_950,
}


def place(module: str) -> int:
    """Index in `ORDER` of the room of a module, which is given without its first name."""
    parts = module.split(".")
    names = [name for name in (".".join(parts[:2]), parts[0]) if name in ORDER]
    return ORDER.index(names[0])


def edges():
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.parent in (ROOT, ROOT / "extras") and path.stem.startswith("__"):  # entry points
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                package, _, target = name.partition(".")
                if package == "transformer_jax" and target.partition(".")[0] in FIRST_NAMES:
                    yield module, target, path


def test_imports_follow_the_order():
    imports = list(edges())
    assert len(imports) > 30
    wrong = [
        f"{path.relative_to(ROOT)} imports {target}"
        for module, target, path in imports
        if place(target) > place(module)
    ]
    assert not wrong


def test_import_order_names_every_module():
    modules = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert modules - {"__init__", "__main__"} == FIRST_NAMES
    extras = {p.name for p in (ROOT / "extras").iterdir() if (p / "__init__.py").exists()}
    assert extras == {name.partition(".")[2] for name in ORDER if name.startswith("extras.")}


def code_lines(path: Path) -> int:
    """Lines of a file that have code: without blank lines, comments and docstrings."""
    source = path.read_text()
    lines: set[int] = set()
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*no_code, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        has_docstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, has_docstring) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_core_loads_nothing_beyond_the_wall_and_not_more_than_it_may():
    codes = [f"import transformer_jax.{module}" for module in MOST_LINES]
    everything = "\n".join(f"import transformer_jax.{module}" for module in modules_of(CORE))
    *each, core = loaded_by(*codes, everything, full_names=True)
    assert not {name for name in core if name.startswith("transformer_jax.extras")}
    assert not {name for name in core if name.startswith("transformer_jax.commands")}
    files = {
        f"transformer_jax.{name}".removesuffix(".__init__"): path for name, path in all_files()
    }
    loads = {
        module: sum(code_lines(files[name]) for name in loaded & files.keys())
        for module, loaded in zip(MOST_LINES, each, strict=True)
    }
    assert all(loads[name] <= most for name, most in MOST_LINES.items()), loads
    ops = each[0]
    assert not {name for name in ops if name.startswith(("flax", "transformer_jax.config"))}


def all_files() -> list[tuple[str, Path]]:
    """Name, without its first part, and path of each module of the package."""
    paths = sorted(ROOT.rglob("*.py"))
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in paths]


def modules_of(rooms: list[str]) -> list[str]:
    """The modules of rooms that are named by the first part of their modules."""
    names = [name.removesuffix(".__init__") for name, _ in all_files()]
    return [name for name in names if name.partition(".")[0] in rooms]


def test_modules_that_the_core_imports_by_name_exist():
    named = {
        name
        for module, path in all_files()
        if module.partition(".")[0] in CORE
        for name in re.findall(r"transformer_jax\.extras[\w.]*", path.read_text())
    }
    assert named == {
        "transformer_jax.extras.corpora.tables",
        "transformer_jax.extras.documents.document_translation",
        "transformer_jax.extras.interop",
    }
    for one in model_formats.FORMATS:
        reader = one.reader()
        assert callable(reader.read_config)
        assert callable(reader.read_model)
        assert not one.engine or callable(one.load_engine().load)
    assert callable(importlib.import_module("transformer_jax.extras.corpora.tables").fetch_hint)


def test_every_package_is_installed():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    packages = {
        ".".join(p.parent.relative_to(ROOT.parent).parts) for p in ROOT.rglob("__init__.py")
    }
    assert packages == {*project["tool"]["setuptools"]["packages"]}


EACH_IN_A_FORK = """
import json, os, sys
for code in json.loads(sys.argv[1]):
    if not os.fork():
        exec(code, {"__name__": "__main__"})
        print("", json.dumps([*sys.modules]), sep=chr(10), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(code)
"""


def loaded_by(*codes, full_names=False):
    """For each code, the packages that a fresh Python has loaded after it, or its modules."""
    command = [sys.executable, "-c", EACH_IN_A_FORK, json.dumps(codes)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    loaded = [{*json.loads(line)} for line in done.stdout.splitlines() if line.startswith('["')]
    assert len(loaded) == len(codes)
    assert all("transformer_jax" in names for names in loaded)
    return loaded if full_names else [{name.partition(".")[0] for name in one} for one in loaded]


HELP = """
import sys; sys.argv = ["transformer-jax", *"--help".split()]
from transformer_jax.commands import main
try:
    main.main()
except SystemExit as end:
    assert end.code == 0
"""
WRONG_SETTING = """
import sys; sys.argv = ["transformer-jax", "train", "--config=tiny", "--workdir=w",
                        "--config.model.num_heads=7"]
from transformer_jax.commands import main
try:
    main.main()
except SystemExit as end:
    assert end.code == 2
"""
# Packages that take longer to load than a command's help should.
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "numpy", "scipy", "ml_collections",
         "sentencepiece", "sacrebleu", "tensorboardX", "tensorflow_datasets", "etils", "tqdm",
         "tensorstore", "array_record", "google"}  # fmt: skip


# Packages of extras only, by the names of their imports.
EXTRAS = ("ctranslate2", "eflomal", "fastapi", "gcsfs", "huggingface_hub", "matplotlib",
          "markdown_it", "prometheus_client", "py3langid", "pyarrow", "ray", "sacremoses",
          "sentencex", "tokenizers", "torch", "transformers", "uvicorn", "zstandard")  # fmt: skip


def test_commands_are_importable_without_extras():
    code = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({EXTRAS}))  # None: not there
import transformer_jax.commands as commands
for module in pkgutil.iter_modules(commands.__path__):
    if module.name != "__main__":
        importlib.import_module(f"transformer_jax.commands.{{module.name}}")
"""
    (loaded,) = loaded_by(code)
    assert "jax" in loaded


def test_import_and_help_load_nothing_heavy():
    for loaded in loaded_by("import transformer_jax", HELP):
        assert not loaded & HEAVY


def test_help_of_a_command_does_not_load_jax():
    codes = [HELP.replace("--help", f"{command} --help") for command in command_line.COMMANDS]
    heavy = {"jax", "orbax", "flax", "scipy", "grain", "matplotlib", "torch"}
    for command, loaded in zip(command_line.COMMANDS, loaded_by(*codes), strict=True):
        assert not loaded & heavy, command


def test_import_loads_no_other_framework():
    modules = (*MOST_LINES, "commands.main", "data.number_words", "extras.plotting")
    code = "\n".join(f"import transformer_jax.{module}" for module in modules)
    (loaded,) = loaded_by(code)
    assert not loaded & {"tensorflow", "torch", "matplotlib", "tensorflow_text", "clu"}


def test_version_is_the_same_everywhere():
    root = ROOT.parent
    done = subprocess.run(
        [sys.executable, "-c", HELP.replace("--help", "--version")],
        capture_output=True, text=True, check=True, cwd=root,
    )  # fmt: skip
    version = done.stdout.split()[1]
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    newest = (root / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith(f"[{version.split('.dev')[0]}] - ")


def test_settings_that_are_impossible_are_refused_before_jax_is_loaded():
    (loaded,) = loaded_by(WRONG_SETTING)
    assert not loaded & {"jax", "flax", "orbax"}
