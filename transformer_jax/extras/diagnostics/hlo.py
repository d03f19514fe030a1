"""A compiled program, read from its text (HLO): its computations, and what they communicate.

XLA's own cost analysis counts the body of a loop once. Here it counts as often as it runs.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16, "c64": 64, "c128": 128}
# Element type, sizes, and the layout up to its memory space: S(1) is a TPU's vector memory.
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+(?:e\dm\d\w*)?)\[([\d,]*)\](\{[^}]*\})?")
_INSTRUCTION = re.compile(
    r"\s+(?P<root>ROOT )?%(?P<name>\S+) = (?P<result>.*?) (?P<kind>[a-z][\w\-]*)\("
    r"(?P<operands>[^)]*)\)(?P<rest>.*)"
)
_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) .*\{\s*$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_CHAIN = re.compile(r'chain_id="(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of an instruction's result."""

    num_bytes: int
    in_main_memory: bool  # False: in a chip's own memory, such as the vector memory of a TPU


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    kind: str
    result: str
    operands: tuple[str, ...]
    line: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> list[Array]:
        """Those of the result."""
        return [
            Array(
                _bits(kind) * math.prod(int(n) for n in sizes.split(",") if n) // 8,
                not layout or "S(" not in layout,
            )
            for kind, sizes, layout in _ARRAY.findall(self.result)
        ]

    @functools.cached_property
    def called(self) -> list[str]:
        """Names of the computations that it calls."""
        names = _CALLED.findall(self.line)
        for branches in _BRANCHES.findall(self.line):
            names += [name.strip().lstrip("%") for name in branches.split(",")]
        return names


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Attributes:
      kind: one of `COLLECTIVES`.
      num_bytes: of all arrays that one device sums, gathers, or moves.
      times: how often one execution of the program runs it.
      in_loop: whether it is in a loop.
      overlapped: whether matrix products run between its start and its end.
    """

    kind: str
    num_bytes: int
    times: int
    in_loop: bool
    overlapped: bool


class Program:
    """The computations of a program, and how often one execution runs each.

    Args:
      text: `compiled.as_text()`, HLO after partitioning and scheduling.

    Attributes:
      computations: their instructions, by name.
    """

    def __init__(self, text: str):
        self.computations, entry = _computations(text)
        self._times: collections.Counter[str] = collections.Counter()
        self._looping: set[str] = set()
        self._fused: set[str] = set()  # parts of one instruction
        self._visit(entry, 1, False)

    def _visit(self, name: str, count: int, in_loop: bool) -> None:
        self._times[name] += count
        if in_loop:
            self._looping.add(name)
        for instruction in self.computations.get(name, ()):
            is_loop = instruction.kind == "while"
            trips = self._num_trips(instruction) if is_loop else 1
            if instruction.kind not in ("while", "conditional", "call"):
                self._fused.update(instruction.called)
            for called in instruction.called:
                self._visit(called, count * trips, in_loop or is_loop)

    def _num_trips(self, loop: Instruction) -> int:
        """How often a loop runs; 1 where the program does not say."""
        known = _TRIPS.search(loop.line)
        if known:
            return int(known[1])
        # libtpu leaves it out. A loop of `lax.scan` compares its counter with one constant.
        condition = _CONDITION.search(loop.line)
        instructions = self.computations.get(condition[1], ()) if condition else ()
        limits = [
            int(number[1])
            for instruction in instructions
            if (number := re.search(r"s32\[\]\S* constant\((\d+)\)", instruction.line))
        ]
        is_below = any("direction=LT" in instruction.line for instruction in instructions)
        return limits[0] if is_below and len(limits) == 1 else 1

    def scheduled(self) -> Iterable[tuple[list[Instruction], int]]:
        """The computations that are not parts of an instruction, and how often each runs."""
        for name, instructions in self.computations.items():
            if self._times[name] and name not in self._fused:
                yield instructions, self._times[name]

    def collectives(self) -> list[Collective]:
        """The collective operations, in no particular order."""
        operations: dict[str, Collective] = {}
        chains = self._overlapped_chains()
        for name, instructions in self.computations.items():
            for position, instruction in enumerate(instructions if self._times[name] else ()):
                kind = instruction.kind.removesuffix("-start")
                if kind not in COLLECTIVES:
                    continue
                # The TPU compiler can overlap one operation with several kernels. Each of them
                # then contains it, with the same chain id.
                chain = _CHAIN.search(instruction.line)
                overlapped = chain is not None and chain[1] in chains
                if kind != instruction.kind:
                    overlapped = self._multiplies(_until_done(instructions, position))
                key = f"chain {chain[1]}" if chain else f"{name} {instruction.name}"
                operations[key] = Collective(
                    kind,
                    _sent_bytes(instruction),
                    self._times[name],
                    name in self._looping,
                    overlapped,
                )
        return list(operations.values())

    def _overlapped_chains(self) -> set[str]:
        """Ids of the chains with matrix products in their kernels, or between them."""
        overlapped = set()
        chain_of = {
            name: chain[1]
            for name, instructions in self.computations.items()
            for instruction in instructions
            if (chain := _CHAIN.search(instruction.line))
        }
        for instructions, _ in self.scheduled():
            places: dict[str, list[int]] = {}
            for position, instruction in enumerate(instructions):
                for called in instruction.called:
                    if called in chain_of:
                        places.setdefault(chain_of[called], []).append(position)
            for number, positions in places.items():
                if self._multiplies(instructions[min(positions) : max(positions) + 1]):
                    overlapped.add(number)
        return overlapped

    def _multiplies(self, instructions: Iterable[Instruction]) -> bool:
        """Whether matrix products are among the instructions, or in what they call."""
        return any(
            instruction.kind in ("dot", "convolution")
            or any(self._multiplies(self.computations.get(n, ())) for n in instruction.called)
            for instruction in instructions
        )


def collectives(text: str) -> list[Collective]:
    """The collective operations of the program with this text, in no particular order."""
    return Program(text).collectives()


def total_bytes(operations: list[Collective]) -> dict[str, int]:
    """Bytes by kind, of one execution of the program on one device."""
    totals: collections.Counter[str] = collections.Counter()
    for operation in operations:
        totals[operation.kind] += operation.num_bytes * operation.times
    return dict(totals)


def overlapped_share(operations: list[Collective]) -> float:
    """Share of the bytes that are communicated while matrix products run, 0 .. 1."""
    total = sum(x.num_bytes * x.times for x in operations)
    overlapped = sum(x.num_bytes * x.times for x in operations if x.overlapped)
    return overlapped / total if total else 0.0


def _computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Instructions of each computation by name, and the name of the entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, instructions = "", None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            instructions = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            instructions = None
        elif instructions is not None and (match := _INSTRUCTION.match(line)):
            instructions.append(
                Instruction(
                    match["name"],
                    match["kind"],
                    match["result"],
                    tuple(_NAME.findall(match["operands"])),
                    line,
                    bool(match["root"]),
                )
            )
    return computations, entry


def _until_done(instructions: list[Instruction], start: int) -> list[Instruction]:
    """The instructions between one that starts in the background and the one that awaits it."""
    name = instructions[start].name
    for end in range(start + 1, len(instructions)):
        if name in instructions[end].operands:
            return instructions[start + 1 : end]
    return []


def _sent_bytes(instruction: Instruction) -> int:
    sizes = [x.num_bytes for x in instruction.arrays]
    if instruction.kind in ("all-gather-start", "collective-permute-start"):
        sizes = sizes[len(sizes) // 2 :]  # operands come before results
    total = sum(sizes)
    is_scatter = instruction.kind.startswith("reduce-scatter")
    return total * _group_size(instruction.line) if is_scatter else total


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
