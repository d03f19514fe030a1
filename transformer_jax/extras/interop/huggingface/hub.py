"""Models by their name on the Hugging Face Hub, from the local cache or downloaded."""

import os
import re
import sys

from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import weight_files

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ("*.json", "*.model", "*.spm", "merges.txt")
# Read in this order.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def locate(path: epath.PathLike) -> epath.Path:
    """The local folder of a model.

    Args:
      path: a folder, or OWNER/NAME of a model on the Hugging Face Hub. If a folder OWNER exists, it
        is a folder.

    Returns:
      The folder, or the local copy of the model with that name.

    Raises:
      UserError: no model of that name is in the cache, and it cannot be downloaded.
    """
    name, folder = os.fspath(path), epath.Path(path)
    if not _NAME.fullmatch(name) or folder.parent.exists():
        return folder
    cached = _cached(name)
    return cached if cached is not None and _is_complete(cached) else _download(name)


def cache_folder() -> epath.Path:
    """The folder of Hugging Face's cache, as their tools determine it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return epath.Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return epath.Path(home).expanduser() / "hub"


def _cached(name: str) -> epath.Path | None:
    """The cached snapshot of the model's branch `main`; None: it is not in the cache."""
    folder = cache_folder() / f"models--{name.replace('/', '--')}"
    reference = folder / "refs" / "main"
    if not reference.exists():
        return None
    return folder / "snapshots" / reference.read_text(encoding="utf-8").strip()


def _is_complete(folder: epath.Path) -> bool:
    """Whether config and weights are present; another tool may have downloaded a single file."""
    return (folder / "config.json").exists() and _has_weights(folder)


def _has_weights(folder: epath.Path) -> bool:
    """Whether all files of one kind of weights are present."""
    try:
        weight_files.find(folder)
    except UserError:
        return False
    return True


def _download(name: str) -> epath.Path:
    missing = (
        f"There is no folder {name}, and no model of this name in the Hugging Face cache "
        f"{cache_folder()}"
    )
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            f"{missing}. Install huggingface_hub, and this command downloads it: pip install "
            f"'huggingface_hub>=1.0'. {_elsewhere(name)}"
        ) from error
    print(f"looking for {name} on the Hugging Face Hub", file=sys.stderr, flush=True)
    try:
        for weights in _WEIGHTS:  # the second kind only if the first is missing
            folder = huggingface_hub.snapshot_download(
                name, allow_patterns=[*_SMALL_FILES, weights], cache_dir=str(cache_folder())
            )
            if _has_weights(epath.Path(folder)):
                break
    except Exception as error:  # of many packages: no network, no such model, a full disk
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{missing}; downloading it failed ({reason[:300]}). {_elsewhere(name)}"
        ) from error
    return epath.Path(folder)


def _elsewhere(name: str) -> str:
    """How to bring a model to a machine that cannot download it."""
    patterns = " ".join(f"--include '{p}'" for p in (*_SMALL_FILES, *_WEIGHTS))
    folder = name.split("/")[1]
    return (
        "Or download it on a machine with a network, copy the folder here and give its path: "
        f"hf download {name} {patterns} --local-dir {folder}"
    )
