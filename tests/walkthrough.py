"""Follows a document word by word: runs its command blocks and compares what they print.

A fenced block is, by its language,

- `sh` or `python`: run, in the order of the document, in one shell. Standard output and error are
  read together, as in a terminal.
- none: what the block before it prints. See `difference`.
- `text`: neither.
"""

import dataclasses
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

RUNNABLE = ("sh", "python")
LANGUAGES = (*RUNNABLE, "", "text")
TOLERANCE = 0.05  # of numbers with a decimal point
# Speeds and times depend on the machine: any number matches.
OF_THE_MACHINE = re.compile(
    r"\d[\d,.]*(?= target tokens/s| tokens/s|x real time)"
    r"|(?:\d+ (?:d|h|min) )+\d+ (?:h|min|s)\b|\d[\d,.]* ?(?:seconds|minutes|min|ms|s)\b"
    r"|\d+:\d\d(?::\d\d)?\b"
)
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]?\d+)?")
BEGIN = "@@ block {}"


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a document; `line` is that of its fence."""

    line: int
    language: str
    text: str


@dataclasses.dataclass(frozen=True)
class Substitution:
    """What a test runs in place of a part of a document's commands, and why."""

    document: str
    old: str
    new: str
    why: str


def read_blocks(markdown: str) -> list[Block]:
    """All fenced blocks.

    Raises:
      ValueError: a block has another language, or output does not follow a runnable block.
    """
    blocks: list[Block] = []
    for match in re.finditer(r"^```(\S*)\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL):
        block = Block(markdown.count("\n", 0, match.start()) + 1, match[1], match[2])
        if block.language not in LANGUAGES:
            raise ValueError(f"line {block.line}: mark a block of {block.language!r} as `text`")
        if block.language == "" and not (blocks and blocks[-1].language in RUNNABLE):
            raise ValueError(f"line {block.line}: no command before this output; `text`?")
        blocks.append(block)
    return blocks


def substitute(blocks: Sequence[Block], substitutions: Sequence[Substitution]) -> list[Block]:
    """The blocks with every substitution made in the one runnable block that it is for.

    Raises:
      ValueError: the old text of a substitution does not occur exactly once.
    """
    result = list(blocks)
    for item in substitutions:
        places = [
            index
            for index, block in enumerate(result)
            if block.language in RUNNABLE
            for _ in range(block.text.count(item.old))
        ]
        if len(places) != 1:
            raise ValueError(f"{item.document}: {item.old!r} occurs {len(places)} times, not once")
        block = result[places[0]]
        result[places[0]] = dataclasses.replace(block, text=block.text.replace(item.old, item.new))
    return result


def run(blocks: Sequence[Block], folder: Path, environment: Mapping[str, str]) -> dict[int, str]:
    """Runs the blocks in one shell; returns what each printed, by its line.

    Raises:
      AssertionError: a command failed. The message has the block and the end of its output.
    """
    script = ["set -eo pipefail"]
    for block in blocks:
        if block.language in RUNNABLE:
            script.append(f"printf '\\n{BEGIN}\\n'".format(block.line))
            is_python = block.language == "python"
            script.append(f"python - <<'PYTHON'\n{block.text}PYTHON" if is_python else block.text)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    begin = re.escape(BEGIN).replace(r"\{\}", r"(\d+)")
    parts = re.split(rf"\n{begin}\n", done.stdout)
    outputs = {int(line): text for line, text in zip(parts[1::2], parts[2::2], strict=True)}
    if done.returncode:
        last = max(outputs, default=0)
        end = outputs.get(last, "")[-3000:]
        raise AssertionError(f"status {done.returncode} in the block of line {last}:\n{end}")
    return outputs


def difference(shown: str, printed: str) -> str:
    """The first shown line that was not printed, or nothing.

    Lines follow each other as shown; a line `...` leaves out any number of lines, and `...` in a
    line any text. Runs of spaces are equal. Whole numbers must be equal, numbers with a decimal
    point differ by at most `TOLERANCE` of their value, and speeds and times may be anything.
    """
    rest = [line.rstrip() for line in printed.splitlines()]
    may_skip = True
    for line in shown.splitlines():
        if line.strip() == "...":
            may_skip = True
            continue
        candidates = range(len(rest)) if may_skip else range(min(1, len(rest)))
        index = next((i for i in candidates if _line_matches(line.rstrip(), rest[i])), None)
        if index is None:
            return line
        rest, may_skip = rest[index + 1 :], False
    return ""


def _line_matches(shown: str, printed: str) -> bool:
    shown, printed = (OF_THE_MACHINE.sub("<time>", text) for text in (shown, printed))
    pattern, end = "", 0
    for number in NUMBER.finditer(shown):
        pattern += _literal(shown[end : number.start()]) + f"({NUMBER.pattern})"
        end = number.end()
    match = re.fullmatch(pattern + _literal(shown[end:]), printed)
    if match is None:
        return False
    return all(map(_numbers_match, NUMBER.findall(shown), match.groups()))


def _literal(text: str) -> str:
    escaped = re.escape(text).replace(re.escape("..."), ".*")
    return re.sub(r"(\\ |\\\t)+", r"\\s+", escaped)


def _numbers_match(shown: str, printed: str) -> bool:
    if "." not in shown:
        return shown == printed
    want, have = (float(text.replace(",", "")) for text in (shown, printed))
    return math.isclose(want, have, rel_tol=TOLERANCE)
