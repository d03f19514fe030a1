"""The machine that a program runs on, for records and reports."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

CONTROL_GROUP = Path("/sys/fs/cgroup")

if TYPE_CHECKING:  # lists of runs are shown without it
    import jax


def cpu_name() -> str:
    """The model of the processor; its architecture where the system does not tell more."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def num_cores() -> int:
    """Processor cores that this process may use, by its affinity and its container's quota."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    quota, _, period = _of_container("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory() -> int:
    """Bytes of memory that this process may use: of the machine, or of its container if less."""
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _of_container("memory.max") or _of_container("memory/memory.limit_in_bytes")
    return min(of_machine, int(limit)) if limit.isdigit() else of_machine


def _of_container(name: str) -> str:
    """A limit of this process's control group as Linux shows it in a container, or nothing."""
    path = CONTROL_GROUP / name
    return path.read_text().strip() if path.exists() else ""


def describe(devices: Sequence["jax.Device"], num_processes: int = 1) -> dict[str, Any]:
    """Machine and versions as JSON.

    Args:
      devices: on which the program computes, of all processes.
      num_processes: of the run.
    """
    return {
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "num_devices": len(devices),
        "num_processes": num_processes,
        "cpu": cpu_name(),
        "cores": num_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": metadata.version("jax"),
    }


def sentence(machine: dict[str, Any]) -> str:
    """The result of `describe` in one line: "4 x NVIDIA H100, 2 processes" or the processor."""
    cores = machine["cores"]
    cpu = f"{machine['cpu']}, {cores} {'core' if cores == 1 else 'cores'}"
    if machine["platform"] == "cpu":
        return cpu
    processes = machine["num_processes"]
    several = f", {processes} processes" if processes > 1 else ""
    return f"{machine['num_devices']} × {machine['device']}{several} ({cpu})"
