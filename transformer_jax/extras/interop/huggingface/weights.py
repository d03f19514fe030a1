"""Converts the tensors of a Hugging Face directory to our parameters, without torch."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.config.fields import Positional, TieEmbeddings
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import layout
from transformer_jax.extras.interop.huggingface import names
from transformer_jax.extras.interop.huggingface.model_settings import model_config, tensor_names
from transformer_jax.extras.interop.huggingface.settings import OWN_KEY, Settings
from transformer_jax.extras.interop.huggingface.tensor_files import Tensors
from transformer_jax.model.transformer import param_shapes
from transformer_jax.ops.positional import sinusoids
from transformer_jax.translator.pretrained import Shapes

# Sides whose tables are one, by `tie_embeddings`.
_GROUPS: dict[TieEmbeddings, list[list[str]]] = {
    "all": [["source", "target", "output"]],
    "decoder": [["source"], ["target", "output"]],
    "inputs": [["source", "target"], ["output"]],
    "none": [["source"], ["target"], ["output"]],
}
ROUNDING = 1e-5  # largest difference between two float32 computations of the same sinusoids


def read_model(
    settings: Settings, tensors: Tensors, shapes: Shapes = param_shapes
) -> tuple[ModelConfig, layout.Params]:
    """Shape and parameters of the model.

    All names and shapes are checked first. Then each tensor is read, converted, put on the devices
    and released before the next, so the host never has more than one, besides those that are
    compared because they must be equal.

    Args:
      settings: of the directory.
      tensors: of the directory.
      shapes: of the parameters, as they are read.

    Raises:
      UserError: naming a tensor that is missing, of another shape, or not part of the model.
    """
    their_shared = tensor_names(settings).shared
    if their_shared not in tensors and their_shared.removeprefix(names.BASE) in tensors:
        tensors = tensors.with_prefix(names.BASE)
    used: set[str] = set()
    tying, tables = _embeddings(settings, tensors, used)
    positional, positions, permuted = _positions(settings, tensors, used)
    bias = _output_bias(settings, tensors, used)
    ours = settings.raw.get(OWN_KEY) or {}
    changes: dict[str, Any] = {"output_bias": bool(np.any(bias) or ours.get("output_bias"))}
    if positional == ours.get("positional"):
        changes |= {n: ours[n] for n in ("positional_base", "position_offset") if n in ours}
    config = model_config(settings, positional, tying)
    config = dataclasses.replace(config, **changes)
    leaves: dict[layout.Path, Callable[[], np.ndarray]] = {
        (f"{side}_embedding",): functools.partial(_read, tensors, tables[side])
        for side in names.TABLES[config.tie_embeddings]
    }
    if positional == "learned":
        for side in ("source", "target"):
            leaves[(f"embed_{side}", "positions")] = functools.partial(positions.__getitem__, side)
    if config.output_bias:
        leaves[("output_bias",)] = lambda: bias
    for path, name, shape in names.layer_tensors(tensor_names(settings), config):
        _check(settings, tensors, used, name, names.torch_shape(path, shape))
        leaves[path] = functools.partial(_read_layer, tensors, path, name, shape)
    extra = sorted(set(tensors) - used - names.UNREAD)
    if extra:
        raise UserError(f"{settings.folder}: the tensor {extra[0]} is not part of the model.")
    inverse = np.argsort(layout.interleaved_to_halves(config.d_model)) if permuted else None
    by_path = layout.flatten(shapes(config))
    params = {}
    # In the order of a fresh model's tree, so that both have one structure.
    for path in names.shapes(config):
        leaf = leaves[path]()
        leaf = leaf if inverse is None else layout.permute(path, leaf, inverse)
        params[path] = layout.put(leaf, by_path[path])
    return config, layout.unflatten(params)


def _check(
    settings: Settings, tensors: Tensors, used: set[str], name: str, shape: tuple[int, ...]
) -> None:
    """Checks that a tensor is there and its shape; adds its name to `used`."""
    if name not in tensors:
        raise UserError(f"{settings.folder}: the weights have no tensor {name}.")
    used.add(name)
    if tensors.shapes[name] != shape:
        raise UserError(
            f"{settings.folder}: tensor {name} has shape {list(tensors.shapes[name])}, "
            f"but config.json implies {list(shape)}."
        )


def _read(tensors: Tensors, name: str) -> np.ndarray:
    return np.asarray(tensors[name], np.float32)


def _read_layer(
    tensors: Tensors, path: layout.Path, name: str, shape: tuple[int, ...]
) -> np.ndarray:
    return names.from_torch(path, _read(tensors, name), shape)


def _take(
    settings: Settings, tensors: Tensors, used: set[str], name: str, shape: tuple[int, ...]
) -> np.ndarray:
    """A tensor as float32, checked as by `_check`."""
    _check(settings, tensors, used, name, shape)
    return _read(tensors, name)


def _embeddings(
    settings: Settings, tensors: Tensors, used: set[str]
) -> tuple[TieEmbeddings, dict[str, str]]:
    """How the tables are tied, and the tensors that hold those of source, target and output."""
    d_model = settings.need("d_model")
    sizes = {
        "source": settings.need("vocab_size"),
        "target": settings.decoder_vocab_size,
        "output": settings.decoder_vocab_size,
    }
    their_names = tensor_names(settings)
    tying = settings.tying(_output_is_tied(settings, tensors))
    tables: dict[str, str] = {}
    for group in _GROUPS[tying]:
        candidates = [their_names.tables[side] for side in group]
        if settings.shared and group != ["output"]:
            candidates.append(their_names.shared)
        stored = [name for name in candidates if name in tensors] or candidates[:1]
        shape = (sizes[group[0]], d_model)
        for name in stored:
            _check(settings, tensors, used, name, shape)
        # If several tied tables are stored, they must be equal. If nothing is tied, Hugging Face
        # reads the table of each side and ignores `shared`.
        for name in stored[1:]:
            if len(group) > 1 and not np.array_equal(tensors[stored[0]], tensors[name]):
                raise UserError(
                    f"{settings.folder}: config.json ties {stored[0]} and {name}, but their "
                    "values differ."
                )
        tables |= dict.fromkeys(group, stored[0])
    return tying, tables


def _output_is_tied(settings: Settings, tensors: Tensors) -> bool:
    """Whether the projection to the vocabulary is the target's table.

    Of a T5, the weights decide, as in transformers: its configs have another use for the key.
    """
    if not settings.family.is_t5:
        return settings.tied_output
    their_names = tensor_names(settings)
    output = their_names.tables["output"]
    tables = (their_names.shared, their_names.tables["target"], their_names.tables["source"])
    target = next((name for name in tables if name in tensors), None)  # one or all are stored
    return output not in tensors or (
        target is not None and np.array_equal(tensors[output], tensors[target])
    )


def _output_bias(settings: Settings, tensors: Tensors, used: set[str]) -> np.ndarray:
    size = settings.decoder_vocab_size
    if not settings.family.has_output_bias or names.OUTPUT_BIAS not in tensors:
        return np.zeros(size, np.float32)
    return _take(settings, tensors, used, names.OUTPUT_BIAS, (1, size))[0]


def _positions(
    settings: Settings, tensors: Tensors, used: set[str]
) -> tuple[Positional, dict[str, np.ndarray], bool]:
    """Our name for the positions, stored tables, and whether our export permuted the model.

    Stored tables are used unchanged, as Hugging Face does. Tables that equal the sinusoids that the
    class would compute are left out.
    """
    family, ours = settings.family, settings.raw.get(OWN_KEY) or {}
    their_names = tensor_names(settings).positions
    stored = [name for name in their_names if name in tensors]
    if not family.stores_positions:
        # M2M-100's files may contain tables that the class does not read.
        used.update(f"{name}s" for name in their_names)
        return family.positional, {}, False
    length, d_model = settings.need("max_position_embeddings"), settings.need("d_model")
    permuted = bool(ours.get("permuted"))
    if not stored and family.positional != "learned":
        return ("interleaved" if permuted else family.positional), {}, permuted
    unused = family.unused_positions
    shape = (length + unused, d_model)
    both = [_take(settings, tensors, used, name, shape)[unused:] for name in their_names]

    def equals(table: np.ndarray) -> bool:
        return all(np.max(np.abs(stored - table)) <= ROUNDING for stored in both)

    if d_model % 2 == 0 and equals(sinusoids(length, d_model, "halves")):
        return ("interleaved" if permuted else "halves"), {}, permuted
    kind = ours.get("positional")
    if kind == "none" and equals(np.zeros((length, d_model), np.float32)):
        return kind, {}, False
    if kind in ("interleaved", "halves", "tensor2tensor"):
        base, offset = ours.get("positional_base", 1e4), ours.get("position_offset", 0)
        if equals(sinusoids(length + offset, d_model, kind, base)[offset:]):
            return kind, {}, False
    return "learned", dict(zip(("source", "target"), both, strict=True)), False
