"""The device that settings are chosen for."""

import dataclasses
import math

from transformer_jax import units
from transformer_jax.extras.recipes.sizing import Machine


@dataclasses.dataclass(frozen=True)
class Device:
    """What is known of the device that trains.

    Attributes:
      machine: which table of sizes it has.
      description: in words.
      is_here: whether it is this machine's, so that a run can be measured.
      num_units: cores of a CPU, or accelerators; infinite if it is not here.
      memory: bytes of each; None if unknown.
    """

    machine: Machine
    description: str
    is_here: bool = False
    num_units: float = math.inf
    memory: int | None = None


def find_device(name: str = "here") -> Device:
    """The device `here`, of this machine, or one of the kind `cpu`, `gpu` or `tpu`."""
    from transformer_jax.ops import platforms
    from transformer_jax.workdir import machine

    platform = platforms.current()
    of_platform = "gpu" if platform == "rocm" else platform
    if name not in ("here", of_platform):
        return Device("cpu" if name == "cpu" else "accelerator", f"{name}, not of this machine")
    if platform == "cpu":
        cores, memory = machine.num_cores(), machine.memory()
        description = f"cpu, {cores} cores, {units.size(memory)} of memory"
        return Device("cpu", description, True, cores, memory)
    devices = platforms.all_devices()
    stats = devices[0].memory_stats() or {}
    limit = stats.get("bytes_limit")
    description = f"{len(devices)} x {devices[0].device_kind}"
    if limit:
        description += f", {units.size(limit)} of memory each"
    return Device("accelerator", description, True, len(devices), limit)
