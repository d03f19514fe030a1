"""The collective operations of a compiled program, read from its text (HLO)."""

import collections
import dataclasses
import math
import re

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+(?:e\dm\d\w*)?)\[([\d,]*)\]")
_INSTRUCTION = re.compile(
    rf"%(?P<name>\S+) = (?P<result>.*?) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\("
)
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_BODY = re.compile(r"body=%([\w.\-]+)")
_CHAIN = re.compile(r'chain_id="(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Attributes:
      kind: one of `KINDS`.
      num_bytes: of all arrays that one device sums, gathers, or moves.
      times: how often one execution of the program runs it.
      in_loop: whether it is in a loop.
    """

    kind: str
    num_bytes: int
    times: int
    in_loop: bool


def collectives(text: str) -> list[Collective]:
    """The collective operations of a program, in no particular order.

    Args:
      text: `compiled.as_text()`, HLO after partitioning.
    """
    computations, entry = _computations(text)
    times: collections.Counter[str] = collections.Counter()
    looping: set[str] = set()

    def visit(name: str, count: int, in_loop: bool) -> None:
        times[name] += count
        if in_loop:
            looping.add(name)
        for line in computations.get(name, ()):
            body = _BODY.search(line)
            trips = _TRIPS.search(line)
            for called in _called(line):
                is_body = body is not None and called == body[1]
                repeats = int(trips[1]) if is_body and trips else 1
                visit(called, count * repeats, in_loop or is_body)

    visit(entry, 1, False)
    operations: dict[str, Collective] = {}
    for name, lines in computations.items():
        for line in lines if times[name] else ():
            match = _INSTRUCTION.search(line)
            if match:
                # The TPU compiler can overlap one operation with several kernels. Each of them
                # then contains it, with the same chain id.
                chain = _CHAIN.search(line)
                key = f"chain {chain[1]}" if chain else f"{name} {match['name']}"
                operations[key] = Collective(
                    match["kind"], _num_bytes(match, line), times[name], name in looping
                )
    return list(operations.values())


def total_bytes(operations: list[Collective]) -> dict[str, int]:
    """Bytes by kind, of one execution of the program on one device."""
    totals: collections.Counter[str] = collections.Counter()
    for operation in operations:
        totals[operation.kind] += operation.num_bytes * operation.times
    return dict(totals)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Lines of each computation by name, and the name of the entry."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", None
    for line in text.splitlines():
        header = re.match(r"(ENTRY )?%([\w.\-]+) .*\{\s*$", line)
        if header and not line.startswith(" "):
            lines = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            lines = None
        elif lines is not None:
            lines.append(line)
    return computations, entry


def _called(line: str) -> list[str]:
    """Names of the computations that an instruction calls."""
    names = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
        names += [name.strip().lstrip("%") for name in branches.split(",")]
    return names


def _num_bytes(instruction: re.Match[str], line: str) -> int:
    arrays = [
        _bits(kind) * math.prod(int(n) for n in dims.split(",") if n) // 8
        for kind, dims in _ARRAY.findall(instruction["result"])
    ]
    if instruction["start"] and instruction["kind"] in ("all-gather", "collective-permute"):
        arrays = arrays[len(arrays) // 2 :]  # operands come before results
    total = sum(arrays)
    return total * _group_size(line) if instruction["kind"] == "reduce-scatter" else total


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    return int(re.findall(r"\d+", kind)[0])


def _group_size(line: str) -> int:
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed:
        return len(listed[1].split(","))
    shaped = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    if shaped:
        return int(shaped[2])
    named = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line)
    if named is None:
        return 1
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
