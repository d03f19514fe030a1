"""Writes the tensors of a pickle as safetensors: a program of its own, the only one with torch.

    python -P pickle_process.py PICKLE SAFETENSORS [PICKLE SAFETENSORS …]

It prints the name of each pickle before it reads it. If one fails, the last line says why, and the
status is one of those below. `pickles.py` starts it.
"""

import contextlib
import ctypes
import pickle
import shutil
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

# Python itself ends with 1 after an error that nothing catches, and with 2 or 120 after others.
NO_TORCH, UNSAFE, UNREADABLE, UNWRITABLE, NO_MEMORY, DAMAGED, BROKEN_TORCH = 3, 4, 5, 6, 7, 8, 9
SAFE_TORCH = (2, 6)  # older ones can be made to run code in spite of weights_only (CVE-2025-32434)
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000  # of Linux's <sched.h>
# Of tensors that share their memory, the first of these is kept, as transformers does.
_KEPT = (
    "shared.weight",
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)

_MODEL_STATE = "model_state"  # of JoeyNMT's checkpoints


def main(paths: list[str]) -> None:
    """Converts each pickle of (pickle, safetensors, pickle, safetensors, …)."""
    leave_network()
    with _exits({ModuleNotFoundError: NO_TORCH}, BROKEN_TORCH):
        import torch

        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < SAFE_TORCH:
            sys.exit(NO_TORCH)
        from safetensors.torch import save_file
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        print(source, flush=True)  # the process may be killed
        with _exits({pickle.UnpicklingError: UNSAFE, OSError: UNREADABLE}, DAMAGED):
            tensors = _distinct(_load(source))
        with _exits({}, UNWRITABLE):
            save_file(tensors, target, metadata={"format": "pt"})
            shutil.copymode(source, target)  # its readers can read the new file too


@contextlib.contextmanager
def _exits(statuses: dict[type[Exception], int], other: int) -> Iterator[None]:
    """Ends the process with the status of an error, after printing its first line."""
    try:
        yield
    except Exception as error:  # torch raises many types of errors
        text = str(error)
        print((text.splitlines() or [""])[0] or type(error).__name__)
        if isinstance(error, MemoryError) or "t allocate memory" in text:
            sys.exit(NO_MEMORY)
        sys.exit(next((n for kind, n in statuses.items() if isinstance(error, kind)), other))


def leave_network() -> None:
    """Gives this process a network without interfaces, where the system permits that."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        if libc.unshare(_NEW_NETWORK):  # needs more rights than in a user namespace of its own
            libc.unshare(_NEW_USER | _NEW_NETWORK)


def _load(path: str) -> dict[str, Any]:
    import torch

    # Files from before torch 1.6 cannot be mapped into memory.
    mmap = zipfile.is_zipfile(path)
    stored = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    if isinstance(stored, dict) and _MODEL_STATE in stored:
        stored = stored[_MODEL_STATE]  # next to the state of a training
    if not isinstance(stored, dict) or not all(
        isinstance(x, torch.Tensor) for x in stored.values()
    ):
        raise ValueError("it must contain tensors by name and nothing else: a model's state_dict")
    return stored


def _distinct(stored: dict[str, Any]) -> dict[str, Any]:
    """The tensors as floats, without those that are another one under a second name."""
    import torch

    kept: dict[str, Any] = {}
    views = set()
    for name in sorted(stored, key=lambda n: (_KEPT.index(n) if n in _KEPT else len(_KEPT), n)):
        tensor = stored[name]
        view = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if view not in views:
            tensor = tensor if tensor.is_floating_point() else tensor.float()
            shares = tensor.untyped_storage().nbytes() != tensor.nbytes
            kept[name] = (
                tensor.clone(memory_format=torch.contiguous_format)
                if shares
                else tensor.contiguous()
            )
        views.add(view)
    return kept


if __name__ == "__main__":
    main(sys.argv[1:])
