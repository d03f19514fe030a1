"""The compiled programs of decoding: search, scoring and attention of a batch."""

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.decoding.decoder import ModelDecoder, cache_sizes
from transformer_jax.decoding.hypotheses import Hypotheses
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_settings import SearchConstraints, SearchStructure
from transformer_jax.model import incremental
from transformer_jax.model.transformer import Params, Transformer
from transformer_jax.ops import losses

AXIS = "data"
LOGITS_AT_ONCE = 2**24  # of scoring, on a device: 64 MB in float32, whatever the vocabulary
# Compiled programs that are kept, those used last: a structure of settings has about two for each
# of about ten lengths.
MAX_PROGRAMS = 256

Models = tuple[ModelConfig, ...]


@flax.struct.dataclass
class DeviceParams:
    """What programs read besides the batch, on the devices."""

    params: tuple[Params, ...]  # of each model of an ensemble
    weights: tuple[incremental.DecoderWeights, ...]  # of each decoder, laid out for its steps
    starts_word: jax.Array | None  # [V] tokens that may follow a phrase; None: all


@flax.struct.dataclass
class TokenScores:
    """Teacher-forced scores of each position; those after a target's length mean nothing."""

    log_probs: jax.Array  # [B, T]
    correct: jax.Array  # [B, T] whether the token was the likeliest


class ProgramCache:
    """The compiled programs that were used last; safe to use from several threads."""

    def __init__(self, max_programs: int):
        self._max_programs = max_programs
        self._programs: collections.OrderedDict[Hashable, Callable] = collections.OrderedDict()
        self._lock = threading.Lock()  # of `_programs`
        self._compiling = threading.Lock()
        self.num_compiled = 0

    def get(self, key: Hashable, compile_fn: Callable[[], Callable]) -> Callable:
        """The program of `key`; the first thread that asks compiles it, others wait for it."""
        program = self._find(key)
        if program is not None:
            return program
        with self._compiling:
            program = self._find(key)
            if program is None:
                program = compile_fn()
                with self._lock:
                    self._programs[key] = program
                    self.num_compiled += 1
                    if len(self._programs) > self._max_programs:
                        self._programs.popitem(last=False)
        return program

    def _find(self, key: Hashable) -> Callable | None:
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
            return self._programs.get(key)


class Programs:
    """Runs batches on the local devices; each shape is compiled once, on first use.

    Rows are sharded over the devices if their number divides; each device then searches by itself.

    Args:
      models: one, or an ensemble of one vocabulary.
      ids: special ids.
      devices: local ones.
      starts_word: `[V]` boolean, tokens that may follow a phrase; None: all.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        ids: SpecialIds,
        devices: Sequence[jax.Device],
        starts_word: np.ndarray | None = None,
    ):
        self.ids = ids
        self.num_devices = len(devices)
        self._models, self._starts_word = tuple(models), starts_word
        self._mesh = jax.make_mesh(
            (len(devices),), (AXIS,), (jax.sharding.AxisType.Auto,), devices=devices
        )
        self._cache = ProgramCache(MAX_PROGRAMS)
        # Of the last call: what was given, and its copy.
        self._device_params: tuple[Params | tuple[Params, ...], DeviceParams] | None = None
        self._device_params_lock = threading.Lock()

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled, or read from JAX's persistent cache."""
        return self._cache.num_compiled

    def put_on_devices(self, params: Params | tuple[Params, ...]) -> DeviceParams:
        """Copies parameters to the devices. The last call's are kept, and shared by all threads.

        Args:
          params: of the model, or a tuple of them for an ensemble.
        """
        with self._device_params_lock:
            if self._device_params is None or self._device_params[0] is not params:
                trees = params if isinstance(params, tuple) else (params,)
                if len(trees) != len(self._models):
                    raise ValueError(f"{len(trees)} parameter trees for {len(self._models)} models")
                trees, starts_word = jax.device_put(
                    (trees, self._starts_word), NamedSharding(self._mesh, PartitionSpec())
                )
                weights = _prepare(trees, self._models)
                self._device_params = params, DeviceParams(trees, weights, starts_word)
            _, device_params = self._device_params
            return device_params

    def release(self) -> None:
        """Frees the parameters of the last `put_on_devices`."""
        with self._device_params_lock:
            self._device_params = None

    def search(
        self,
        params: DeviceParams,
        inputs: np.ndarray,
        lengths: np.ndarray,
        constraints: SearchConstraints,
        structure: SearchStructure,
        max_decode_len: int,
    ) -> Hypotheses:
        """Outputs of sources `inputs` `[B, S]` of `lengths` `[B]`, on the host."""
        batch = inputs, lengths, constraints
        return self._run(
            search_batch, params, batch, structure=structure, max_decode_len=max_decode_len
        )

    def score(
        self,
        params: DeviceParams,
        inputs: np.ndarray,
        lengths: np.ndarray,
        targets: np.ndarray,
        target_lengths: np.ndarray,
    ) -> TokenScores:
        """Scores of `targets` `[B, T]` of `target_lengths` `[B]`, on the host."""
        return self._run(score_batch, params, (inputs, lengths, targets, target_lengths))

    def attention(
        self,
        params: DeviceParams,
        inputs: np.ndarray,
        lengths: np.ndarray,
        targets: np.ndarray,
        target_lengths: np.ndarray,
        layer: int,
        head: int | None,
    ) -> np.ndarray:
        """Attention `[B, T, S]` of targets to sources; without `head`, the mean of all heads."""
        batch = inputs, lengths, targets, target_lengths
        return self._run(attend_batch, params, batch, layer=layer, head=head)

    def _run(
        self, function: Callable, params: DeviceParams, batch: tuple[Any, ...], **static: Hashable
    ) -> Any:
        """Results of `function` on the host, by a program compiled for these shapes."""
        several = self.num_devices > 1
        sharded = several and len(batch[0]) % self.num_devices == 0
        if several and not sharded:
            params = jax.tree.map(lambda x: x.addressable_data(0), params)
        leaves, structure = jax.tree.flatten(batch)
        shapes = tuple((x.shape, str(x.dtype)) for x in leaves)
        key = (function, tuple(static.items()), shapes, structure, matmul_precision())
        program = self._cache.get(
            key, lambda: self._compile(function, params, batch, static, sharded)
        )
        return jax.device_get(program(params, *batch))

    def _compile(
        self,
        function: Callable,
        params: DeviceParams,
        batch: tuple[Any, ...],
        static: dict[str, Hashable],
        sharded: bool,
    ) -> Callable:
        bound = functools.partial(function, self._models, self.ids, **static)
        bound.__name__ = function.__name__  # type: ignore[attr-defined]  # of the program
        if sharded:
            by_row = PartitionSpec(AXIS)
            bound = jax.shard_map(
                bound,
                mesh=self._mesh,
                in_specs=(PartitionSpec(), *[by_row] * len(batch)),
                out_specs=by_row,
                check_vma=False,
            )
        return jax.jit(bound).lower(params, *batch).compile()


def matmul_precision() -> str | None:
    """What `jax.default_matmul_precision` says in this thread."""
    return getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009


@functools.partial(jax.jit, static_argnames="models")
def _prepare(trees: tuple[Params, ...], models: Models) -> tuple[incremental.DecoderWeights, ...]:
    return tuple(incremental.prepare(m, tree) for m, tree in zip(models, trees, strict=True))


# --- What is compiled ------------------------------------------------------------------------


def search_batch(
    models: Models,
    ids: SpecialIds,
    params: DeviceParams,
    inputs: jax.Array,
    lengths: jax.Array,
    constraints: SearchConstraints,
    *,
    structure: SearchStructure,
    max_decode_len: int,
) -> Hypotheses:
    """Encodes the sources `inputs` `[B, S]` and searches for their outputs."""
    encoded = _encode(models, params, inputs, lengths)
    decoder = ModelDecoder(models, params.weights)
    cache = decoder.init_cache(
        encoded,
        _mask(lengths, inputs.shape[1]),
        structure.beam_size,
        cache_sizes(max_decode_len)[0],
        coverage=structure.coverage_penalty,
        independent=structure.is_sampling or structure.beam_size == 1,
    )
    hypotheses = search(
        decoder, cache, constraints, ids, structure, max_decode_len, params.starts_word
    )
    steps = hypotheses.steps[None]  # --> [1] on each device
    return dataclasses.replace(hypotheses, steps=steps)


def score_batch(
    models: Models,
    ids: SpecialIds,
    params: DeviceParams,
    inputs: jax.Array,
    lengths: jax.Array,
    targets: jax.Array,
    target_lengths: jax.Array,
) -> TokenScores:
    """Teacher-forced scores of `targets` `[B, T]`; logits of a chunk of positions at a time."""
    hiddens, projections = [], []
    for apply, hidden in _decode(models, ids, params, inputs, lengths, targets, target_lengths):
        table, bias = apply(method="output_projection")
        hiddens.append(hidden.reshape(-1, hidden.shape[-1]))  # [B, T, M] --> [B * T, M]
        projections.append((table.astype(hidden.dtype), bias))
    vocab = max(model.target_vocab_size for model in models)
    chunk_size = min(targets.size, max(1, LOGITS_AT_ONCE // vocab))

    def score_chunk(chunk):
        chunk_hiddens, chunk_targets = chunk
        by_model = [
            jax.nn.log_softmax(losses.projected_logits(hidden, table, bias))
            for hidden, (table, bias) in zip(chunk_hiddens, projections, strict=True)
        ]  # [chunk, V] each
        log_probs = by_model[0]
        if len(by_model) > 1:
            log_probs = jax.nn.logsumexp(jnp.stack(by_model), axis=0) - jnp.log(len(by_model))
        token_log_probs = jnp.take_along_axis(log_probs, chunk_targets[:, None], axis=-1)[:, 0]
        return token_log_probs, token_log_probs >= jnp.max(log_probs, axis=-1)

    def split(x):
        x = jnp.pad(x, [(0, -targets.size % chunk_size)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, chunk_size, *x.shape[1:])

    chunks = jax.tree.map(split, (hiddens, targets.reshape(-1)))
    scores = jax.lax.map(score_chunk, chunks)
    return TokenScores(*(x.reshape(-1)[: targets.size].reshape(targets.shape) for x in scores))


def attend_batch(
    models: Models,
    ids: SpecialIds,
    params: DeviceParams,
    inputs: jax.Array,
    lengths: jax.Array,
    targets: jax.Array,
    target_lengths: jax.Array,
    *,
    layer: int,
    head: int | None,
) -> jax.Array:
    """Cross-attention `[B, T, S]` of a decoder layer, averaged over models."""
    by_model = []
    for _, (_, collected) in _decode(
        models, ids, params, inputs, lengths, targets, target_lengths, mutable=["intermediates"]
    ):
        by_layer = collected["intermediates"]
        number = layer % len(by_layer)
        (weights,) = by_layer[f"decoder_layers_{number}"]["cross_attention"]["weights"]
        by_model.append(jnp.mean(weights, axis=1) if head is None else weights[:, head])
    return sum(by_model[1:], start=by_model[0]) / len(by_model)


def _mask(lengths: jax.Array, size: int) -> jax.Array:
    """`[B, size]` boolean, True within the lengths `[B]`."""
    return jnp.arange(size) < lengths[:, None]


def _encode(
    models: Models, params: DeviceParams, inputs: jax.Array, lengths: jax.Array
) -> list[jax.Array]:
    """Encoder output `[B, S, M]` of each model."""
    segment_ids = _mask(lengths, inputs.shape[1]).astype(jnp.int32)
    encoded: list[Any] = [
        Transformer(model).apply({"params": tree}, inputs, None, segment_ids, method="encode")
        for model, tree in zip(models, params.params, strict=True)
    ]
    return encoded


def _decode(
    models: Models,
    ids: SpecialIds,
    params: DeviceParams,
    inputs: jax.Array,
    lengths: jax.Array,
    targets: jax.Array,
    target_lengths: jax.Array,
    **options: Any,
) -> Iterator[tuple[Callable, Any]]:
    """Of each model, its `apply` and the result of `Transformer.decode` over targets."""
    start = jnp.full((targets.shape[0], 1), ids.decoder_start, targets.dtype)
    decoder_inputs = jnp.concatenate([start, targets[:, :-1]], axis=1)
    source_segment_ids = _mask(lengths, inputs.shape[1]).astype(jnp.int32)
    segment_ids = _mask(target_lengths, targets.shape[1]).astype(jnp.int32)
    encoded = _encode(models, params, inputs, lengths)
    for model, tree, model_encoded in zip(models, params.params, encoded, strict=True):
        apply = functools.partial(Transformer(model).apply, {"params": tree})
        decoded = apply(
            model_encoded, decoder_inputs, source_segment_ids, None, segment_ids, method="decode",
            **options,
        )  # fmt: skip
        yield apply, decoded
