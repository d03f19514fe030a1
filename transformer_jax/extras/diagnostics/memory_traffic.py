"""Bytes that a compiled program reads from a device's main memory, and writes to it."""

import re
from collections.abc import Iterable

from transformer_jax.extras.diagnostics.hlo import Instruction, Program

# Instructions that move no data, or whose data is counted in the computations that they call.
_FREE = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "parameter",
    "partition-id",
    "tuple",
    "while",
}


def memory_bytes(program: Program) -> int:
    """Bytes of one execution on one device, loops as often as they run.

    An instruction reads its operands and writes its result. What is fused into an instruction
    stays in registers; of an operand that is only sliced, the slices are read.
    """
    total = 0
    for instructions, times in program.scheduled():
        by_name = {instruction.name: instruction for instruction in instructions}
        for instruction in instructions:
            operands = [by_name[name] for name in instruction.operands if name in by_name]
            total += times * _moved(instruction, operands, program)
    return total


def _moved(instruction: Instruction, operands: list[Instruction], program: Program) -> int:
    """Bytes that one execution of an instruction reads and writes."""
    if instruction.kind in _FREE or instruction.kind.endswith("-done"):
        return 0
    kind = instruction.kind.removesuffix("-start")
    if kind == "dynamic-update-slice":
        return 2 * _main_memory(operands[1:2])
    if kind in ("copy", "slice", "dynamic-slice"):
        return _copied(instruction, operands)
    total = _main_memory([instruction, *operands])
    for called in instruction.called if kind == "fusion" else ():
        total -= _spared(program.computations.get(called, []), operands)
    return max(total, 0)


def _copied(instruction: Instruction, operands: list[Instruction]) -> int:
    """Bytes of a copy or a slice, also of one that runs in the background."""
    if instruction.kind == "copy-start":  # its result: the copy, the operand, a counter
        copy, source, *_ = instruction.arrays
    elif instruction.kind == "slice-start":  # the operand, the slice, a counter
        source, copy, *_ = instruction.arrays
    else:
        copy = instruction.arrays[0]
        source = operands[0].arrays[0] if operands and operands[0].arrays else copy
    return copy.num_bytes * (copy.in_main_memory + source.in_main_memory)


def _main_memory(instructions: Iterable[Instruction]) -> int:
    """Bytes of the results that are in main memory."""
    return sum(x.num_bytes for i in instructions for x in i.arrays if x.in_main_memory)


def _spared(fused: list[Instruction], operands: list[Instruction]) -> int:
    """Bytes of a fusion's operands and results that it neither reads nor writes.

    They are those around the slices that it reads from an operand, or writes into one in place.
    """
    spared = 0
    by_name = {i.name: i for i in fused}
    users: dict[str, list[Instruction]] = {}
    for instruction in fused:
        for name in instruction.operands:
            users.setdefault(name, []).append(instruction)
    for parameter in (i for i in fused if i.kind == "parameter"):
        number = int(re.findall(r"parameter\((\d+)\)", parameter.line)[0])
        size = _main_memory(operands[number : number + 1])
        used_by = _users(users, parameter.name)
        if {user.kind for user in used_by} == {"dynamic-slice"}:
            spared += max(size - sum(x.num_bytes for u in used_by for x in u.arrays), 0)
        elif [user.kind for user in used_by] == ["dynamic-update-slice"] and size:
            update = by_name.get(used_by[0].operands[1])
            written = sum(x.num_bytes for x in update.arrays) if update else 0
            spared += max(2 * size - written, 0)
    return spared


def _users(users: dict[str, list[Instruction]], name: str) -> list[Instruction]:
    """The instructions that use a value, also through a bitcast."""
    used_by = []
    for instruction in users.get(name, ()):
        through = instruction.kind == "bitcast"
        used_by += _users(users, instruction.name) if through else [instruction]
    return used_by
