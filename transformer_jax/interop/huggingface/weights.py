"""Tensors of a Hugging Face directory as our parameters, without torch."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
from etils import epath

from transformer_jax.config import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.interop import layout
from transformer_jax.interop.huggingface import names
from transformer_jax.interop.huggingface.settings import OWN_KEY, Settings, model_config, read_json
from transformer_jax.ops.positional import sinusoids

Tensors = dict[str, np.ndarray]
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
ROUNDING = 1e-5  # between two computations of the same sinusoids in float32


def read_tensors(folder: epath.Path, allow_pickle: bool) -> Tensors:
    """All tensors of `model.safetensors`, its parts, or `pytorch_model.bin`.

    Raises:
      UserError: where there are none, they are damaged, or would need a pickle without permission.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return _read_safetensors(folder / "model.safetensors")
    if index.exists():
        return _read_parts(index, _read_safetensors)
    pickle = functools.partial(_read_pickle, allow_pickle=allow_pickle)
    if (folder / "pytorch_model.bin").exists():
        return pickle(folder / "pytorch_model.bin")
    if (folder / "pytorch_model.bin.index.json").exists():
        return _read_parts(folder / "pytorch_model.bin.index.json", pickle)
    raise UserError(f"{folder} has no model.safetensors (and no pytorch_model.bin).")


def _read_parts(index: epath.Path, read: Callable[[epath.Path], Tensors]) -> Tensors:
    """The tensors of a model whose weights lie in several files."""
    tensors: Tensors = {}
    for part in sorted(set(read_json(index)["weight_map"].values())):
        tensors |= read(index.parent / part)
    return tensors


def _read_safetensors(path: epath.Path) -> Tensors:
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}.")
    try:
        stored = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    tensors = {}
    for name, view in stored:
        if view["dtype"] not in _DTYPES:
            raise UserError(f"{path}: {name} has numbers of type {view['dtype']}.")
        flat: Any = np.frombuffer(view["data"], _DTYPES[view["dtype"]])
        tensors[name] = flat.reshape(view["shape"])
    return tensors


def _read_pickle(path: epath.Path, allow_pickle: bool) -> Tensors:
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}.")
    if not allow_pickle:
        raise UserError(
            f"{path} is a pickle, which may hold a program; allow it explicitly (allow_pickle) if "
            "you trust its source, or save the model as model.safetensors."
        )
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} can only be read with torch; install it (pip install "
            "'transformer-jax[interop]'), or save the model as model.safetensors."
        ) from error
    try:
        stored = torch.load(str(path), map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no base of what it raises on damage
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is damaged ({reason}); copy it again.") from error
    if not all(isinstance(tensor, torch.Tensor) for tensor in stored.values()):
        raise UserError(f"{path} holds something else than tensors by name.")
    return {name: tensor.float().numpy() for name, tensor in stored.items()}


def read_model(settings: Settings, tensors: Tensors) -> tuple[ModelConfig, layout.Params]:
    """The model that the tensors hold.

    Raises:
      UserError: naming a tensor that is missing, of another shape, or not part of the model.
    """
    used: set[str] = set()
    tables = _embeddings(settings, tensors, used)
    positional, positions, permuted = _positions(settings, tensors, used)
    config = model_config(settings, positional, _tying(settings, tables))
    own = settings.raw.get(OWN_KEY) or {}
    for name in ("positional_base", "position_offset"):
        if positional == own.get("positional") and name in own:
            setattr(config, name, own[name])
    leaves: dict[layout.Path, np.ndarray] = {
        (f"{side}_embedding",): tables[side] for side in _kept_tables(config)
    }
    if positional == "learned":
        leaves |= {(f"embed_{s}", "positions"): positions[s] for s in ("source", "target")}
    bias = _output_bias(settings, tensors, used)
    config.output_bias = bool(np.any(bias) or own.get("output_bias"))
    if config.output_bias:
        leaves[("output_bias",)] = bias
    for path, name, shape in names.layer_tensors(config):
        value = _take(settings, tensors, used, name, names.torch_shape(path, shape))
        leaves[path] = names.from_torch(path, value, shape)
    extra = sorted(set(tensors) - used)
    if extra:
        raise UserError(f"{settings.folder}: the model has no place for the tensor {extra[0]}.")
    # In the order of a fresh model's tree, so that the two are one structure.
    params = layout.unflatten({path: leaves[path] for path in names.shapes(config)})
    if permuted:
        inverse = np.argsort(layout.interleaved_to_halves(config.d_model))
        params = layout.permute_model(params, inverse)
    return config, params


def _take(settings, tensors: Tensors, used: set[str], name: str, shape: tuple[int, ...]):
    if name not in tensors:
        raise UserError(f"{settings.folder}: the weights have no tensor {name}.")
    used.add(name)
    value = tensors[name]
    if value.shape != shape:
        raise UserError(
            f"{settings.folder}: tensor {name} has shape {list(value.shape)}, "
            f"but the config makes it {list(shape)}."
        )
    return np.asarray(value, np.float32)


def _embeddings(settings: Settings, tensors: Tensors, used: set[str]) -> dict[str, np.ndarray]:
    """The three tables; those that the config ties are one and the same array."""
    d_model = settings.need("d_model")
    sizes = {"source": settings.need("vocab_size"), "target": settings.decoder_vocab_size,
             "output": settings.decoder_vocab_size}  # fmt: skip
    own = {"source": names.SOURCE, "target": names.TARGET, "output": names.OUTPUT}
    # Which tables are one: where several are stored nonetheless, they must agree.
    groups = [["source"], ["target"], ["output"]]
    if settings.tied_output:
        groups = [["source"], ["target", "output"]]
        if settings.shared:
            groups = [["source", "target", "output"]]
    tables: dict[str, np.ndarray] = {}
    for group in groups:
        candidates = [own[side] for side in group]
        if settings.shared and group != ["output"]:
            candidates.append(names.SHARED)
        stored = [name for name in candidates if name in tensors] or candidates[:1]
        shape = (sizes[group[0]], d_model)
        values = [_take(settings, tensors, used, name, shape) for name in stored]
        # Untied but shared in name: Hugging Face reads each one's own, `shared` not at all.
        for name, value in zip(stored[1:], values[1:], strict=True):
            if settings.tied_output and not np.array_equal(values[0], value):
                raise UserError(
                    f"{settings.folder}: config.json ties {stored[0]} and {name}, but their "
                    "values differ."
                )
        tables |= dict.fromkeys(group, values[0])
    return tables


def _tying(settings: Settings, tables: dict[str, np.ndarray]) -> str:
    if tables["target"] is not tables["output"]:
        return "none"
    return "all" if tables["source"] is tables["target"] else "decoder"


def _kept_tables(config: ModelConfig) -> list[str]:
    kept = {"all": ["target"], "decoder": ["target", "source"]}
    return kept.get(config.tie_embeddings, ["target", "source", "output"])


def _output_bias(settings: Settings, tensors: Tensors, used: set[str]) -> np.ndarray:
    size = settings.decoder_vocab_size
    if not settings.family.has_output_bias or names.OUTPUT_BIAS not in tensors:
        return np.zeros(size, np.float32)
    return _take(settings, tensors, used, names.OUTPUT_BIAS, (1, size))[0]


def _positions(
    settings: Settings, tensors: Tensors, used: set[str]
) -> tuple[str, dict[str, np.ndarray], bool]:
    """Our name for the positions, stored tables, and whether our export permuted the model.

    A stored table is used as it is, as Hugging Face does; one that holds the class's own sinusoids
    is the same as none.
    """
    family, own = settings.family, settings.raw.get(OWN_KEY) or {}
    stored = [name for name in names.POSITIONS if name in tensors]
    if not family.stores_positions:
        # M2M-100 files may keep a table that the class does not read.
        used.update(f"{name}s" for name in names.POSITIONS)
        return family.positional, {}, False
    length, d_model = settings.need("max_position_embeddings"), settings.need("d_model")
    permuted = bool(own.get("permuted"))
    if not stored:
        return ("interleaved" if permuted else family.positional), {}, permuted
    both = [_take(settings, tensors, used, name, (length, d_model)) for name in names.POSITIONS]

    def hold(table: np.ndarray) -> bool:
        return all(np.max(np.abs(stored - table)) <= ROUNDING for stored in both)

    if d_model % 2 == 0 and hold(sinusoids(length, d_model, "halves")):
        return ("interleaved" if permuted else "halves"), {}, permuted
    kind = own.get("positional")
    if kind == "none" and hold(np.zeros((length, d_model), np.float32)):
        return kind, {}, False
    if kind in ("interleaved", "halves", "tensor2tensor"):
        base, offset = own.get("positional_base", 1e4), own.get("position_offset", 0)
        if hold(sinusoids(length + offset, d_model, kind, base)[offset:]):
            return kind, {}, False
    return "learned", dict(zip(("source", "target"), both, strict=True)), False
