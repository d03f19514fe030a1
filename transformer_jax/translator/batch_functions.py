"""The functions of a batch that are compiled: search, teacher-forced scores, attention."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.model import decoder_weights
from transformer_jax.model.transformer import Params, Transformer
from transformer_jax.ops.dense import projected_logits
from transformer_jax.search.decoder import ModelDecoder, cache_sizes, mean_log_probs
from transformer_jax.search.hypotheses import Hypotheses
from transformer_jax.search.processors import Processor
from transformer_jax.search.search import search
from transformer_jax.search.search_settings import SearchConstraints, SearchStructure
from transformer_jax.translator import vocabulary_subset
from transformer_jax.translator.batching import TokenRows

LOGITS_AT_ONCE = 2**24  # of scoring, on a device: 64 MB in float32, whatever the vocabulary


@flax.struct.dataclass
class DeviceParams:
    """What is read besides the batch, on the devices."""

    models: tuple[decoder_weights.InferenceParams, ...]  # of each model of an ensemble
    starts_word: jax.Array | None  # [V] tokens that may follow a phrase; None: all


# Of a model, or of each of an ensemble; or laid out already.
ModelParams = Params | tuple[Params, ...] | DeviceParams


@flax.struct.dataclass
class TokenScores:
    """Teacher-forced scores of each position; those after a target's length mean nothing."""

    log_probs: jax.Array  # [B, T]
    correct: jax.Array  # [B, T] whether the token was the likeliest


@flax.struct.dataclass
class Explanation:
    """What a model says of given outputs; positions after an output's length mean nothing."""

    attention: jax.Array  # [B, T, S] of a decoder layer, to the source
    log_probs: jax.Array  # [B, T] of each token


@dataclasses.dataclass(frozen=True)
class BatchFunctions:
    """Pure functions of parameters and a batch of B rows.

    Args:
      models: one, or an ensemble of one vocabulary whose probabilities are averaged.
      ids: special ids.
      processors: of log-probabilities, besides those of the settings.
    """

    models: tuple[ModelConfig, ...]
    ids: SpecialIds
    processors: tuple[Processor, ...] = ()

    def search(
        self,
        params: DeviceParams,
        sources: TokenRows,
        constraints: SearchConstraints,
        subset: jax.Array | None = None,
        *,
        structure: SearchStructure,
        max_decode_len: int,
    ) -> Hypotheses:
        """Encodes the sources and searches for their outputs.

        Args:
          params: of the models.
          sources: the token ids.
          constraints: of each row; with a subset, as `vocabulary_subset.renumber` gives them.
          subset: `[1, C]` tokens to search among, on each device; None: all.
          structure, max_decode_len: static parts of the settings.
        """
        ids, starts_word = self.ids, params.starts_word
        weights = tuple(model.decoder for model in params.models)
        if subset is not None:
            ids = vocabulary_subset.renumbered_ids(ids)
            weights = tuple(vocabulary_subset.select_weights(one, subset[0]) for one in weights)
            starts_word = None if starts_word is None else starts_word[subset[0]]
        allowed = constraints.is_allowed
        if allowed is not None:
            allowed = jnp.repeat(allowed.T, structure.beam_size, axis=1)  # [R, C] --> [C, R * K]
        decoder = ModelDecoder(self.models, weights, allowed)
        cache = decoder.init_cache(
            self._encode(params, sources),
            sources.mask(),
            structure.beam_size,
            cache_sizes(max_decode_len)[0],
            coverage=structure.has_coverage_penalty,
            independent=structure.is_sampling or structure.beam_size == 1,
        )
        hypotheses = search(
            decoder,
            cache,
            constraints,
            ids,
            structure,
            max_decode_len,
            starts_word,
            self.processors,
        )
        steps = hypotheses.steps[None]  # --> [1] on each device
        tokens = hypotheses.tokens if subset is None else subset[0][hypotheses.tokens]
        return dataclasses.replace(hypotheses, tokens=tokens, steps=steps)

    def score(self, params: DeviceParams, sources: TokenRows, targets: TokenRows) -> TokenScores:
        """Teacher-forced scores."""
        return self._scores(self._decode(params, sources, targets), targets)

    def _scores(
        self, decoded: Iterable[tuple[Callable, jax.Array]], targets: TokenRows
    ) -> TokenScores:
        """Scores of the targets, with the logits of one chunk of positions at a time.

        Args:
          decoded: of each model, its `apply` and its decoder's output `[B, T, M]`.
          targets: the token ids.
        """
        hiddens, projections = [], []
        for apply, hidden in decoded:
            table, bias = apply(method="output_projection")
            hiddens.append(hidden.reshape(-1, hidden.shape[-1]))  # [B, T, M] --> [B * T, M]
            projections.append((table.astype(hidden.dtype), bias))
        vocab = max(model.target_vocab_size for model in self.models)
        num_positions = targets.ids.size
        chunk_size = min(num_positions, max(1, LOGITS_AT_ONCE // vocab))

        def score_chunk(chunk: tuple[list[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array]:
            chunk_hiddens, chunk_targets = chunk
            logits = [
                projected_logits(hidden, table, bias, model.logit_softcap)
                for model, hidden, (table, bias) in zip(
                    self.models, chunk_hiddens, projections, strict=True
                )
            ]  # [chunk, V] each
            is_ensemble = len(logits) > 1
            log_probs = mean_log_probs(logits, -1) if is_ensemble else jax.nn.log_softmax(logits[0])
            scores = jnp.take_along_axis(log_probs, chunk_targets[:, None], axis=-1)[:, 0]
            return scores, scores >= jnp.max(log_probs, axis=-1)

        def split(x: jax.Array) -> jax.Array:
            x = jnp.pad(x, [(0, -num_positions % chunk_size)] + [(0, 0)] * (x.ndim - 1))
            return x.reshape(-1, chunk_size, *x.shape[1:])

        chunks = jax.tree.map(split, (hiddens, targets.ids.reshape(-1)))
        scores = jax.lax.map(score_chunk, chunks)
        return TokenScores(
            *(x.reshape(-1)[:num_positions].reshape(targets.ids.shape) for x in scores)
        )

    def explain(
        self,
        params: DeviceParams,
        sources: TokenRows,
        targets: TokenRows,
        *,
        layer: int,
        head: int | None,
    ) -> Explanation:
        """Log-probabilities of outputs, and attention of a decoder layer to their sources.

        Without `head`, it is the mean of all heads.
        """
        by_model, decoded = [], []
        for apply, (hidden, collected) in self._decode(
            params, sources, targets, mutable=["intermediates"]
        ):
            by_layer = collected["intermediates"]
            number = layer % len(by_layer)
            (weights,) = by_layer[f"decoder_layers_{number}"]["cross_attention"]["weights"]
            by_model.append(jnp.mean(weights, axis=1) if head is None else weights[:, head])
            decoded.append((apply, hidden))
        attention = sum(by_model[1:], start=by_model[0]) / len(by_model)
        return Explanation(attention, self._scores(decoded, targets).log_probs)

    def cross_attention(
        self, params: DeviceParams, sources: TokenRows, targets: TokenRows
    ) -> jax.Array:
        """Attention to the source `[B, L, H, T, S]`, all layers and heads of the first model."""
        (_, (_, collected)), *_ = self._decode(params, sources, targets, mutable=["intermediates"])
        by_layer = collected["intermediates"]
        weights = (
            by_layer[f"decoder_layers_{layer}"]["cross_attention"]["weights"][0]
            for layer in range(len(by_layer))
        )
        return jnp.stack(list(weights), axis=1)

    def _encode(self, params: DeviceParams, sources: TokenRows) -> list[jax.Array]:
        """Encoder output `[B, S, M]` of each model."""
        segment_ids = sources.mask().astype(jnp.int32)
        encoded: list[Any] = [
            Transformer(model).apply(
                {"params": weights.others}, sources.ids, segment_ids=segment_ids, method="encode"
            )
            for model, weights in zip(self.models, params.models, strict=True)
        ]
        return encoded

    def _decode(
        self, params: DeviceParams, sources: TokenRows, targets: TokenRows, **options: Any
    ) -> Iterator[tuple[Callable, Any]]:
        """Of each model, its `apply` and the result of `Transformer.decode` over the targets."""
        start = jnp.full((targets.ids.shape[0], 1), self.ids.decoder_start, targets.ids.dtype)
        decoder_inputs = jnp.concatenate([start, targets.ids[:, :-1]], axis=1)
        source_segment_ids = sources.mask().astype(jnp.int32)
        segment_ids = targets.mask().astype(jnp.int32)
        encoded = self._encode(params, sources)
        for model, weights, model_encoded in zip(self.models, params.models, encoded, strict=True):
            tree = decoder_weights.restore(model, weights)
            apply = functools.partial(Transformer(model).apply, {"params": tree})
            decoded = apply(
                model_encoded,
                decoder_inputs,
                segment_ids=segment_ids,
                source_segment_ids=source_segment_ids,
                method="decode",
                **options,
            )
            yield apply, decoded
