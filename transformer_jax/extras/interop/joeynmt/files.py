"""Files of JoeyNMT's model folders."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import yaml_settings
from transformer_jax.workdir.directory_kinds import JOEYNMT_CONFIG

PICKLES, CONVERTED = ".ckpt", ".safetensors"


def checkpoint(folder: epath.Path, settings: Mapping[str, Any]) -> epath.Path:
    """The checkpoint that JoeyNMT would translate with: `testing.load_model`, or the best, or the
    latest, or the only one.

    A `.safetensors` file that `transformer-jax convert` made of it is in its place, unless the
    checkpoint is newer.

    Args:
      folder: of the model.
      settings: its config.

    Raises:
      UserError: there is none, or several without a best or latest.
    """
    name = yaml_settings.get(settings, "testing.load_model")
    if name:
        stem = epath.Path(str(name)).stem
        if not _stored(folder / stem):
            named_file(folder, name, "testing.load_model")
        return _stored(folder / stem)[0]
    for stem in ("best", "latest"):
        if _stored(folder / stem):
            return _stored(folder / stem)[0]
    stems = {
        path.stem
        for ending in (CONVERTED, PICKLES)
        for path in paths.matching(folder, f"*{ending}")
    }
    if len(stems) == 1:
        return _stored(folder / stems.pop())[0]
    if stems:
        raise UserError(
            f"{folder} has several checkpoints ({', '.join(sorted(stems))}); name one "
            f"best{PICKLES}, or in testing.load_model of {JOEYNMT_CONFIG}."
        )
    raise UserError(f"{folder} has no checkpoint, best{PICKLES}; copy all files of the model.")


def _stored(stem: epath.Path) -> list[epath.Path]:
    """The files of a checkpoint that are there, the newest first."""
    paths = [stem.parent / f"{stem.name}{ending}" for ending in (CONVERTED, PICKLES)]
    return sorted((p for p in paths if p.exists()), key=lambda p: -p.stat().mtime)


def named_file(folder: epath.Path, name: object, setting: str) -> epath.Path:
    """A file that `config.yaml` names. JoeyNMT copies it into the folder of the model.

    Raises:
      UserError: it is not there.
    """
    if not isinstance(name, str):
        raise UserError(f"{folder / JOEYNMT_CONFIG}: {setting}={name!r} must name a file.")
    path = folder / epath.Path(name).name
    if not path.exists():
        raise UserError(
            f"{folder / JOEYNMT_CONFIG}: {setting} names {name}, and {path} is missing; copy all "
            "files of the model."
        )
    return path
