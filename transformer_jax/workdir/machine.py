"""The machine that a program runs on, for records and reports."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

CONTROL_GROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")

if TYPE_CHECKING:  # lists of runs are shown without it
    import jax


def cpu_name() -> str:
    """The model of the processor; its architecture where the system does not tell more."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Instructions of the processor that decide the speed of products, as Linux names them."""
    names = _cpu_field("flags") or _cpu_field("Features")  # of x86, of Arm
    kinds = ("avx", "amx", "fma", "asimd", "sve", "bf16", "i8mm")
    return sorted(name for name in names.split() if name.startswith(kinds))


def _cpu_field(name: str) -> str:
    """A field of the first processor as Linux describes it, or nothing."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.exists() else []
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")


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
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def host() -> dict[str, Any]:
    """Processor, system and Python as JSON."""
    return {
        "cpu": cpu_name(),
        "cpu_features": cpu_features(),
        "cores": num_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


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
        **host(),
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
