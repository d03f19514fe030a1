"""Files of Marian's models: `decoder.yml` lists the others."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.workdir.directory_kinds import MARIAN_DECODER


def find_decoder(path: epath.Path) -> epath.Path:
    """The `decoder.yml` of a model.

    Raises:
      UserError: a folder has several.
    """
    if path.is_file():
        return path
    if (path / MARIAN_DECODER).exists():
        return path / MARIAN_DECODER
    files = paths.matching(path, f"*{MARIAN_DECODER}")
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        raise UserError(f"{path} has several models ({listed}); name one of these files.")
    return files[0]


def model_file(search: epath.Path, options: Mapping[str, Any]) -> epath.Path:
    """The one model that `decoder.yml` lists.

    Raises:
      UserError: it lists none or several, or another format.
    """
    models = options.get("models")
    if not isinstance(models, list) or len(models) != 1:
        count = f"{len(models)} models" if isinstance(models, list) else "no `models`"
        raise UserError(f"{search} lists {count}; list one. `ensemble` takes several folders.")
    path = listed_file(search, models[0])
    if path.suffix != ".npz":
        raise UserError(f"{path} cannot be read; name Marian's .npz file in {search}.")
    return path


def listed_file(search: epath.Path, name: Any) -> epath.Path:
    """A file that `decoder.yml` names: relative to it, or, where that is missing, next to it.

    Raises:
      UserError: there is no such file.
    """
    path = search.parent / str(name)
    path = path if path.exists() else search.parent / epath.Path(str(name)).name
    if not path.exists():
        raise UserError(f"{search} names {name}, which is not there; copy all files of the model.")
    return path
