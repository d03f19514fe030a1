"""The host's memory: on a machine without an accelerator, malloc keeps what XLA frees."""

import ctypes
import glob
import mmap
import os
import sys

# Device files of NVIDIA and AMD GPUs, and of older and newer TPU machines.
ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
HUGE_PAGE = 2**21  # bytes
# From glibc's <malloc.h>: never map a single block, never return memory, use one arena.
_MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_ARENA_MAX": (-8, 1)}


def keep_freed_memory() -> bool:
    """Makes malloc keep freed memory, for the rest of the process.

    The commands, `training.loop.train` and `Translator.load` call it. The environment variable
    `GLIBC_TUNABLES`, even empty, prevents it. A server of CTranslate2 models does without it: their
    threads would wait for each other at the one arena, a fifth of their time.

    XLA on CPU allocates and frees all of its buffers at every step. By default glibc returns large
    ones to the system, which then fills new pages with zeros: a fifth of a small model's time.

    Only the main arena can keep large blocks, so there is only one. Threads that tokenise for an
    accelerator would wait for each other there, so machines with one keep glibc's defaults.

    New pages of the heap are huge where the system allows it, which saves page faults and misses of
    the address cache.

    Returns:
      Whether malloc does now. Without glibc, nothing changes.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    if any(glob.glob(pattern) for pattern in ACCELERATORS):
        return False
    if not all(libc.mallopt(name, value) for name, value in _MALLOPT.values()):
        return False
    _use_huge_pages(libc)
    return True


def return_freed_memory() -> None:
    """Returns all freed memory to the system, once; also where `keep_freed_memory` was called.

    For what needs much memory at its beginning alone. Without glibc, nothing happens.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _use_huge_pages(libc: ctypes.CDLL) -> None:
    """Advises huge pages for the part of the heap that the process will grow into.

    A block of that size is allocated, advised, and freed without being touched. So no memory is
    used, and malloc gives later blocks out of it.
    """
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    block = libc.malloc(size)
    if not block:  # a limit of the process: its heap has pages of the usual size
        return
    start = -(-block // HUGE_PAGE) * HUGE_PAGE
    libc.madvise(start, (block + size - start) // HUGE_PAGE * HUGE_PAGE, mmap.MADV_HUGEPAGE)
    libc.free(block)
