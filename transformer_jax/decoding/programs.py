"""The compiled programs of decoding: search, scoring, attention of a batch, on local devices."""

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.decoding.beam import BeamSearch
from transformer_jax.decoding.hypotheses import Hypotheses
from transformer_jax.decoding.processors import SearchConstraints
from transformer_jax.decoding.sampling import Sampling
from transformer_jax.decoding.search_settings import structure_of, values_of
from transformer_jax.decoding.stepping import ModelStepper, cache_sizes
from transformer_jax.model import incremental
from transformer_jax.model.transformer import Transformer
from transformer_jax.ops import losses

AXIS = "data"
LOGITS_AT_ONCE = 2**24  # of scoring, on a device: 64 MB in float32, whatever the vocabulary
# Compiled programs that are kept, those used last: a structure of settings has about two for each
# of about ten lengths.
MAX_PROGRAMS = 256


@flax.struct.dataclass
class Placed:
    """Parameters on the devices: of each model as trained, and as its decoder wants them."""

    params: tuple[Any, ...]
    weights: tuple[Any, ...]


@flax.struct.dataclass
class TokenScores:
    """Teacher-forced, for each place of a target; what stands behind its length means nothing."""

    log_probs: jax.Array  # [B, T]
    correct: jax.Array  # [B, T] whether the token was the likeliest


class Programs:
    """Runs batches; each shape is compiled once, on first use, by whichever thread comes first.

    The last `MAX_PROGRAMS` programs used are kept.

    Rows are spread over `devices` where they divide; each device then searches by itself.

    Args:
      models: one, or several of one vocabulary whose probabilities are averaged.
      ids: special ids.
      devices: local ones.
      may_follow: `[V]` boolean, tokens that may follow a phrase.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        ids: SpecialIds,
        devices: Sequence[jax.Device],
        may_follow: Any = None,
    ):
        self._may_follow = may_follow
        self._models = tuple(models)
        self.ids = ids
        self.num_devices = len(devices)
        self._mesh = jax.make_mesh(
            (len(devices),), (AXIS,), (jax.sharding.AxisType.Auto,), devices=devices
        )
        self._lock = threading.Lock()  # of compilations
        self._placing = threading.Lock()
        self._kept: collections.OrderedDict[Any, Any] = collections.OrderedDict()  # newest last
        self._keeping = threading.Lock()  # of `_kept`
        self._newest: tuple[Any, Placed] | None = None
        self.num_compiled = 0  # programs ever compiled or loaded
        self.num_loaded = 0  # of them, from the persistent cache

    def place(self, params: Any) -> Placed:
        """Lays parameters out on the devices; those of the last call are kept.

        Any number of threads may call it: they wait for each other and share one copy.

        Args:
          params: of the model, or a tuple of them for several.
        """
        with self._placing:
            if self._newest is None or self._newest[0] is not params:
                trees = params if isinstance(params, tuple) else (params,)
                if len(trees) != len(self._models):
                    raise ValueError(f"{len(trees)} parameter trees for {len(self._models)} models")
                trees = jax.device_put(trees, NamedSharding(self._mesh, PartitionSpec()))
                self._newest = params, Placed(trees, _prepare(trees, self._models))
            return self._newest[1]

    def release(self) -> None:
        """Lets the parameters of the last call go."""
        with self._placing:
            self._newest = None

    def search(
        self,
        placed: Placed,
        inputs: Any,
        lengths: Any,
        constraints: SearchConstraints,
        *,
        decode: DecodeConfig,
        max_decode_len: int,
        num_hypotheses: int = 1,
        free_prefix: int = 0,
    ) -> Hypotheses:
        """Outputs of sources `inputs` `[B, S]` of `lengths` `[B]`, on the host.

        Only the structure of `decode` and `max_decode_len` shape a program. Its numbers are read
        from `constraints.values`, which may differ by row; where these are None, all rows have
        those of `decode`.
        """
        structure = structure_of(decode)
        if constraints.values is None:
            values = values_of(decode, len(lengths))
            constraints = dataclasses.replace(constraints, values=values)
        needed = np.full(len(lengths), num_hypotheses, np.int32)
        constraints = dataclasses.replace(constraints, num_hypotheses=needed)
        return self._run(
            _search, placed, (inputs, lengths, constraints), structure=structure,
            max_decode_len=max_decode_len, free_prefix=free_prefix,
        )  # fmt: skip

    def score(self, placed: Placed, *sides: Any) -> TokenScores:
        """Scores of targets; `sides` are ids and lengths of sources, then of targets."""
        return self._run(_score, placed, sides)

    def attention(self, placed: Placed, *sides: Any, layer: int, head: int | None) -> Any:
        """Attention `[B, T, S]` of targets to their sources; without `head`, the heads' mean."""
        return self._run(_attention, placed, sides, layer=layer, head=head)

    def _run(self, function: Callable, placed: Placed, arrays: tuple, **static: Any) -> Any:
        rows = jax.tree.leaves(arrays)[0].shape[0]
        spread = self.num_devices > 1 and rows % self.num_devices == 0
        if self.num_devices > 1 and not spread:
            placed = jax.tree.map(lambda x: x.addressable_data(0), placed)
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(arrays))
        key = (function.__name__, tuple(static.items()), shapes, jax.tree.structure(arrays),
               matmul_precision())  # fmt: skip
        program = self._find(key)
        if program is None:
            with self._lock:
                program = self._find(key)
                if program is None:
                    program = self._compile(function, placed, arrays, static, spread)
                    self._keep(key, program)
        return jax.device_get(program(placed, *arrays))

    def _find(self, key: Any) -> Any:
        with self._keeping:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Any, program: Any) -> None:
        with self._keeping:
            self._kept[key] = program
            self.num_compiled += 1
            if len(self._kept) > MAX_PROGRAMS:
                self._kept.popitem(last=False)

    def _compile(self, function, placed, arrays, static, spread) -> Any:
        if function is _search:
            static = {**static, "may_follow": self._may_follow}
        bound = functools.partial(function, self._models, self.ids, **static)
        bound.__name__ = function.__name__.strip("_")  # type: ignore[attr-defined]
        if spread:
            by_row = PartitionSpec(AXIS)
            bound = jax.shard_map(
                bound, mesh=self._mesh, in_specs=(PartitionSpec(), *[by_row] * len(arrays)),
                out_specs=by_row, check_vma=False,
            )  # fmt: skip
        loaded = _CacheHits.count
        program = jax.jit(bound).lower(placed, *arrays).compile()
        self.num_loaded += _CacheHits.count > loaded
        return program


def matmul_precision() -> Any:
    """What `jax.default_matmul_precision` says in this thread."""
    return getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009


class _CacheHits:
    """Programs that JAX has read from its persistent cache in this process."""

    count = 0

    @classmethod
    def listen(cls, event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            cls.count += 1


jax.monitoring.register_event_listener(_CacheHits.listen)


@functools.partial(jax.jit, static_argnums=1)
def _prepare(trees: tuple[Any, ...], models: tuple[ModelConfig, ...]) -> tuple[Any, ...]:
    return tuple(incremental.prepare(m, tree) for m, tree in zip(models, trees, strict=True))


def _mask(lengths: jax.Array, size: int) -> jax.Array:
    return jnp.arange(size) < lengths[:, None]


def _encode(models, placed: Placed, inputs, lengths) -> list[jax.Array]:
    segments = _mask(lengths, inputs.shape[1]).astype(jnp.int32)
    encoded: list[Any] = [
        Transformer(model).apply({"params": params}, inputs, None, segments, method="encode")
        for model, params in zip(models, placed.params, strict=True)
    ]
    return encoded


def _search(
    models, ids, placed, inputs, lengths, constraints, *, structure, max_decode_len, free_prefix,
    may_follow,
):  # fmt: skip
    encoded = _encode(models, placed, inputs, lengths)
    stepper = ModelStepper(models, placed.weights)
    cache = stepper.begin(
        encoded, _mask(lengths, inputs.shape[1]), structure.beam_size,
        cache_sizes(max_decode_len)[0], coverage=structure.coverage_penalty,
        independent=structure.is_sampling or structure.beam_size == 1,
    )  # fmt: skip
    own = stepper, constraints, ids, structure, max_decode_len
    if structure.is_sampling:
        found = Sampling(*own, free_prefix).run(cache)
    else:
        found = BeamSearch(*own, free_prefix, may_follow).run(cache)
    return dataclasses.replace(found, steps=found.steps[None])  # --> [1] a device


def _teacher_forced(models, ids, placed, inputs, lengths, targets, target_lengths, **options):
    """`Transformer.decode` of each model over targets."""
    start = jnp.full((targets.shape[0], 1), ids.decoder_start, targets.dtype)
    decoder_inputs = jnp.concatenate([start, targets[:, :-1]], axis=1)
    source = _mask(lengths, inputs.shape[1]).astype(jnp.int32)
    target = _mask(target_lengths, targets.shape[1]).astype(jnp.int32)
    for model, params, encoded in zip(
        models, placed.params, _encode(models, placed, inputs, lengths), strict=True
    ):
        apply = functools.partial(Transformer(model).apply, {"params": params})
        yield (
            apply,
            apply(encoded, decoder_inputs, source, None, target, method="decode", **options),
        )


def _projection(apply, dtype):
    """Table `[V, M]` of the projection to the vocabulary in `dtype`, and its bias."""
    table, bias = apply(method="output_projection")
    return table.astype(dtype), bias


def _score(models, ids, placed, inputs, lengths, targets, target_lengths):
    sides = inputs, lengths, targets, target_lengths
    decoded = [
        (hidden.reshape(-1, hidden.shape[-1]), *_projection(apply, hidden.dtype))
        for apply, hidden in _teacher_forced(models, ids, placed, *sides)
    ]  # hidden: [B, T, M] --> [B * T, M]
    vocab = max(model.target_vocab_size for model in models)
    chunk_size = min(targets.size, max(1, LOGITS_AT_ONCE // vocab))

    def score_chunk(chunk):
        hiddens, chunk_targets = chunk
        found = [
            jax.nn.log_softmax(losses.projected_logits(hidden, table, bias))
            for hidden, (_, table, bias) in zip(hiddens, decoded, strict=True)
        ]  # [chunk, V] each
        log_probs = found[0]
        if len(found) > 1:
            log_probs = jax.nn.logsumexp(jnp.stack(found), axis=0) - jnp.log(len(found))
        own = jnp.take_along_axis(log_probs, chunk_targets[:, None], axis=-1)[:, 0]
        return own, own >= jnp.max(log_probs, axis=-1)

    def chunked(x):
        x = jnp.pad(x, [(0, -targets.size % chunk_size)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, chunk_size, *x.shape[1:])

    chunks = jax.tree.map(chunked, ([hidden for hidden, *_ in decoded], targets.reshape(-1)))
    found = jax.lax.map(score_chunk, chunks)
    return TokenScores(*(x.reshape(-1)[: targets.size].reshape(targets.shape) for x in found))


def _attention(models, ids, placed, inputs, lengths, targets, target_lengths, *, layer, head):
    sides = inputs, lengths, targets, target_lengths
    found = []
    for _, (_, collected) in _teacher_forced(
        models, ids, placed, *sides, mutable=["intermediates"]
    ):
        by_layer = collected["intermediates"]
        number = layer % len(by_layer)
        (weights,) = by_layer[f"decoder_layers_{number}"]["cross_attention"]["weights"]
        found.append(jnp.mean(weights, axis=1) if head is None else weights[:, head])
    return sum(found) / len(found)
