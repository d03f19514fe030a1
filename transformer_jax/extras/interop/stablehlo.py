"""Export as `jax.export` artifacts: encode, init_cache and decode_step, of any batch and length.

They run with JAX and flatbuffers, without this package.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.foreign_tokenizers import ByteTokenizer, JsonTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import capabilities, layout, stablehlo_program
from transformer_jax.extras.interop.parity import Batch, Examples, Reference
from transformer_jax.model import decoder_weights, incremental
from transformer_jax.model.transformer import Transformer, param_shapes

PROGRAM = "translate.py"  # in an export; it is `stablehlo_program.py`
PLATFORMS = ("cpu", "cuda", "tpu")
FUNCTIONS = {
    "encode": "(params, inputs [b, s], mask [b, s]) -> encoded [b, s, m]",
    "init_cache": "(params, encoded, mask, beams [k], steps [t]) -> cache of k hypotheses a "
    "sentence and t steps; of beams and steps only the shapes matter",
    "decode_step": "(params, cache, tokens [b, k]) -> logits [b, k, v], cache",
}


def require() -> None:
    """Raises a `UserError` if flatbuffers is not installed."""
    try:
        import flatbuffers  # noqa: F401
    except ImportError as error:
        raise UserError(
            "JAX writes and reads exported functions with flatbuffers; install it: "
            "pip install 'flatbuffers>=25'."
        ) from error


def export_functions(
    model: ModelConfig, params: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, bytes]:
    """The functions of a model, serialised, with symbolic batch, length, beams and steps.

    Args:
      model: its shape; the computation is in float32, whatever its `dtype`.
      params: shapes by flat names, as `split_params` returns them.
    """
    model = dataclasses.replace(model, dtype="float32", attention="xla")
    module = Transformer(model)

    def encode(params, inputs, mask):
        tree, _ = _join(model, params)
        return module.apply({"params": tree}, inputs, segment_ids=mask, method="encode")

    def init_cache(params, encoded, mask, beams, steps):
        _, weights = _join(model, params)
        sizes = beams.shape[0], steps.shape[0]
        cache = incremental.init_cache(model, weights, encoded, mask.astype(bool), *sizes)
        return _to_plain(cache)

    def decode_step(params, cache, tokens):
        _, weights = _join(model, params)
        cache = _from_plain(cache)
        logits, cache = incremental.decode_step(model, weights, cache, tokens.reshape(-1))
        return logits.T.reshape(*tokens.shape, -1), _to_plain(cache)  # --> [b, k, v]

    def integers(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    # Each function has its own symbols: a constraint may only name symbols of its arguments.
    limit = f"s <= {model.max_len}", f"t <= {model.max_len}"
    b, s = jax.export.symbolic_shape("b, s", constraints=limit[:1])
    arguments: dict[Callable, tuple] = {encode: (params, integers(b, s), integers(b, s))}
    # A step's keys fit into the cache, which JAX cannot derive.
    b, s, k, t = jax.export.symbolic_shape("b, s, k, t", constraints=(*limit, "k*t >= k"))
    encoded = jax.ShapeDtypeStruct((b, s, model.d_model), jnp.float32)
    arguments[init_cache] = (params, encoded, integers(b, s), integers(k), integers(t))
    cache = jax.eval_shape(init_cache, *arguments[init_cache])
    arguments[decode_step] = (params, cache, integers(b, k))
    exported = {}
    for function, args in arguments.items():
        jitted = jax.jit(function, keep_unused=True)
        artifact = jax.export.export(jitted, platforms=PLATFORMS)(*args)
        exported[function.__name__] = bytes(artifact.serialize())
    return exported


def split_params(model: ModelConfig, params: layout.Params) -> dict[str, jax.Array]:
    """Arguments of the functions, by flat names such as `encoder_norm/norm/scale`.

    The decoder's weights are below `decoder/`. Tables that encoder and decoder share are present
    once.
    """
    model = dataclasses.replace(model, dtype="float32")
    weights = decoder_weights.for_inference(model, dict(params))
    flat = {"/".join(path): x for path, x in layout.flatten(weights.others).items()}
    leaves = jax.tree_util.tree_flatten_with_path(weights.decoder)[0]
    return flat | {_file_name(path): x for path, x in leaves}


# Fields of `LayerWeights` that have another name in params.npz.
FILE_NAMES = {"self_query_key_value": "self", "cross_query": "cross", "cross_key_value": "source"}
# Names below `decoder/` of weights that are parameters without any change -> the parameter.
SHARED = {"decoder/table": "target_embedding", "decoder/output": "output_embedding"}


def _file_name(path: jax.tree_util.KeyPath) -> str:
    """Name in params.npz of a leaf of `DecoderWeights`."""
    fields = [jax.tree_util.keystr((key,), simple=True) for key in path]
    name = "/".join(["decoder", *(FILE_NAMES.get(field, field) for field in fields)])
    return SHARED.get(name, name)


def _join(
    model: ModelConfig, flat: dict[str, jax.Array]
) -> tuple[layout.Params, decoder_weights.DecoderWeights]:
    """Inverse of `split_params`: parameters without the decoder's, and the decoder's weights."""
    params = layout.unflatten(
        {tuple(name.split("/")): x for name, x in flat.items() if not name.startswith("decoder/")}
    )
    shapes = jax.eval_shape(lambda p: decoder_weights.prepare(model, p), param_shapes(model))
    return params, jax.tree.map_with_path(lambda path, _: flat[_file_name(path)], shapes)


def _to_plain(cache: incremental.DecoderCache) -> dict[str, Any]:
    """The cache as dicts and lists, so that an export runs without our classes."""
    return {
        "index": cache.index,
        "ancestors": cache.ancestors,
        "self": [{"key": c.key, "value": c.value} for c in cache.self_attention],
        "cross": [{"key": c.key, "value": c.value} for c in cache.cross_attention],
        "source_mask": cache.source_mask,
    }


def _from_plain(cache: dict[str, Any]) -> incremental.DecoderCache:
    """Inverse of `_to_plain`."""
    return incremental.DecoderCache(
        index=cache["index"],
        self_attention=[incremental.KeyValue(**c) for c in cache["self"]],
        cross_attention=[incremental.KeyValue(**c) for c in cache["cross"]],
        source_mask=cache["source_mask"],
        ancestors=cache["ancestors"],
        coverage=None,
    )


def write_directory(
    folder: epath.Path, config: Config, tokenizers: TokenizerPair, params: layout.Params
) -> None:
    """Writes the functions, `params.npz`, the tokenizer, `manifest.json` and `translate.py`.

    Raises:
      UserError: the tokenizer is not a SentencePiece model.
    """
    capabilities.check("stablehlo", config.model)
    if isinstance(tokenizers.source, JsonTokenizer | ByteTokenizer):
        raise UserError("`format=stablehlo` cannot express a tokenizer other than SentencePiece.")
    folder.mkdir(parents=True, exist_ok=True)
    flat = {name: np.asarray(x) for name, x in split_params(config.model, params).items()}
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in flat.items()}
    for name, data in export_functions(config.model, shapes).items():
        (folder / f"{name}.jax").write_bytes(data)
    with (folder / "params.npz").open("wb") as out:
        np.savez(out, allow_pickle=False, **flat)
    for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
        (folder / f"{side}.model").write_bytes(tokenizer.model)
    (folder / PROGRAM).write_text(
        Path(stablehlo_program.__file__).read_text(encoding="utf-8"), encoding="utf-8"
    )
    manifest = _manifest(config, tokenizers)
    manifest["sha256"] = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _manifest(config: Config, tokenizers: TokenizerPair) -> dict[str, Any]:
    source, target = tokenizers.source, tokenizers.target
    prefixes: tuple[list[int], list[int]] = ([], [])
    if config.data.target_language_tags:
        prefixes = tokenizers.language_tags(config.data.source_lang, config.data.target_lang)
    prefixes = tokenizers.with_prefix(prefixes, config.data.source_prefix)
    return {
        "functions": FUNCTIONS,
        "platforms": PLATFORMS,
        "jax": jax.__version__,
        "max_len": config.model.max_len,
        "source_vocab_size": source.vocab_size,
        "target_vocab_size": target.vocab_size,
        "lowercase": source.lowercase,
        "source_prefix": prefixes[0],
        "target_prefix": prefixes[1],
        "source_eos_id": source.eos_id,
        "source_pad_id": source.pad_id,
        "source_unk_id": source.unk_id,
        "language_codes": bool(
            source.state.get("language_codes")
        ),  # a text may begin with ">>xx<<"
        "target_eos_id": target.eos_id,
        "target_pad_id": target.pad_id,
        "decoder_start_id": config.model.decoder_start_id,
        "suppressed_ids": config.decode.suppressed_ids,
        # Ids of tokens; None: those of the SentencePiece model.
        "source_vocabulary": source.state.get("vocabulary"),
        "target_vocabulary": target.state.get("vocabulary"),
    }


class StableHloPeer:
    """The exported files, as `jax.export` loads them."""

    measure = "logit"
    tolerance = 1e-3

    def __init__(self, folder: epath.Path, reference: Reference, examples: Examples):
        self.name = f"jax.export {jax.__version__}"
        self._examples, self._reference = examples, reference
        functions = {
            n: jax.export.deserialize(bytearray((folder / f"{n}.jax").read_bytes()))
            for n in FUNCTIONS
        }
        self._encode, self._init_cache, self._decode_step = (
            jax.jit(functions[name].call) for name in ("encode", "init_cache", "decode_step")
        )
        # Float32 products are exact on CPU, also where the machine has an accelerator.
        self._device = jax.devices("cpu")[0]
        with (folder / "params.npz").open("rb") as file:
            self._params = jax.device_put(dict(np.load(file)), self._device)

    def _begin(self, batch: Batch, steps: int) -> dict[str, jax.Array]:
        encoded = self._encode(self._params, batch.source, batch.source_mask)
        sizes = np.zeros(1, np.int32), np.zeros(steps, np.int32)
        return self._init_cache(self._params, encoded, batch.source_mask, *sizes)

    def largest_difference(self, batch: Batch) -> float:
        with jax.default_device(self._device):
            return self._largest_difference(batch)

    def _largest_difference(self, batch: Batch) -> float:
        cache, largest = self._begin(batch, batch.inputs.shape[1]), 0.0
        for t in range(batch.inputs.shape[1]):
            logits, cache = self._decode_step(self._params, cache, batch.inputs[:, t, None])
            difference = np.abs(np.asarray(logits)[:, 0] - batch.logits[:, t])[batch.mask[:, t]]
            largest = max(largest, float(np.max(difference, initial=0.0)))
        return largest

    def outputs(self, batch: Batch) -> list[list[int]]:
        with jax.default_device(self._device):
            return self._outputs(batch)

    def _outputs(self, batch: Batch) -> list[list[int]]:
        examples, ids = self._examples, self._reference.engine.ids
        cache = self._begin(batch, examples.max_decode_len)
        suppressed = list(self._reference.config.decode.suppressed_ids)
        tokens = np.full((len(batch.source), 1), ids.decoder_start, np.int32)
        rows: list[list[int]] = [[] for _ in batch.rows]
        for t in range(examples.max_decode_len):
            logits, cache = self._decode_step(self._params, cache, tokens)
            logits = np.array(logits)
            logits[..., suppressed] = -np.inf
            tokens = np.argmax(logits, axis=-1).astype(np.int32)
            if t < len(examples.target_prefix):
                tokens[:] = examples.target_prefix[t]
                continue
            for row, token in zip(rows, tokens, strict=False):
                row.append(int(token[0]))
            if all(ids.target_eos in row for row in rows):
                break
        ends = [row.index(ids.target_eos) if ids.target_eos in row else len(row) for row in rows]
        return [row[:end] for row, end in zip(rows, ends, strict=True)]
