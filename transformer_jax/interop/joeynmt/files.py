"""Files of JoeyNMT's model folders."""

from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.runs.directory_kinds import JOEYNMT_CONFIG

PICKLES, CONVERTED = ".ckpt", ".safetensors"


def checkpoint(folder: epath.Path) -> epath.Path:
    """The checkpoint that JoeyNMT would translate with: the best, or the latest, or the only one.

    A `.safetensors` file that `transformer-jax convert` made of a checkpoint is in its place.

    Raises:
      UserError: there is none, or several without a best or latest.
    """
    for stem in ("best", "latest"):
        for ending in (CONVERTED, PICKLES):
            if (folder / f"{stem}{ending}").exists():
                return folder / f"{stem}{ending}"
    for ending in (CONVERTED, PICKLES):
        paths = sorted(folder.glob(f"*{ending}"), key=str)
        if len(paths) == 1:
            return paths[0]
        if paths:
            listed = ", ".join(path.name for path in paths)
            raise UserError(f"{folder} has several checkpoints ({listed}); name one best{ending}.")
    raise UserError(f"{folder} has no checkpoint, best{PICKLES}; copy all files of the model.")


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
