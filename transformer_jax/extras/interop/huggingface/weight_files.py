"""Names of the files that hold the weights of a Hugging Face directory."""

from pathlib import Path

from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface.settings import read_json

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
# Weights of other frameworks that a directory may have instead.
_UNREADABLE = {
    "tf_model.h5": "TensorFlow",
    "flax_model.msgpack": "Flax",
    "rust_model.ot": "rust-bert",
}


def find(folder: epath.Path) -> tuple[str, list[str]]:
    """The kind of a directory's weights, and the files that hold them: one file or its parts.

    Raises:
      UserError: there are none, or one is missing.
    """
    for name in (SAFETENSORS, PICKLE):
        if (folder / name).exists():
            return name, [name]
        index = folder / f"{name}.index.json"
        if index.exists():
            parts = _parts(index)
            for part in parts:
                if not (folder / part).exists():
                    raise UserError(
                        f"{folder} has no {part}; copy the model again, with all its files."
                    )
            return name, parts
    others = [f"{name} ({tool})" for name, tool in _UNREADABLE.items() if (folder / name).exists()]
    only = f"; {', '.join(others)} cannot be read" if others else ""
    raise UserError(f"{folder} has no {SAFETENSORS} and no {PICKLE}{only}.")


def _parts(index: epath.Path) -> list[str]:
    """Names of the files that an index lists.

    Raises:
      UserError: it lists none, or a name is not that of a file in the folder of the index.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no `weight_map`, which names the file of each tensor.")
    for part in weight_map.values():
        if not isinstance(part, str) or part in ("", "..") or Path(part).name != part:
            raise UserError(
                f"{index} names the file {part!r}; the parts of a model must be in its folder."
            )
    return sorted(set(weight_map.values()))
