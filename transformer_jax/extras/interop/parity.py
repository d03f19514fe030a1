"""Comparison of an exported model, loaded by another tool, with ours."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import flax.linen as nn
import jax
import numpy as np

from transformer_jax.config import Config, DecodeConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Params, Transformer
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.workdir import host_memory

BATCH = 16
MAX_LISTED = 5  # differing outputs in a report


@dataclasses.dataclass(frozen=True)
class Examples:
    """Sentences and our model's greedy translations, in float32 at the highest precision."""

    sentences: list[str]
    source_ids: list[list[int]]  # with language tag and end symbol
    target_prefix: list[int]  # forced at the beginning of each output
    output_ids: list[list[int]]  # without prefix and end symbol
    max_decode_len: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some examples as arrays, with our teacher-forced logits. All batches have one shape."""

    rows: list[int]  # indices of the examples; the arrays have more rows in the last batch
    source: np.ndarray  # [B, S] ids
    source_mask: np.ndarray  # [B, S], 1 where there is content
    inputs: np.ndarray  # [B, T] decoder inputs: start, prefix, output
    targets: np.ndarray  # [B, T]: prefix, output, end
    mask: np.ndarray  # [B, T] boolean
    logits: np.ndarray  # [B, T, V], ours


class Peer(Protocol):
    """A model as another tool loads it."""

    name: str
    measure: str  # what `largest_difference` is about: logit or log-probability

    @property
    def tolerance(self) -> float | None:
        """Of `largest_difference`; None: the numbers cannot be judged."""

    def largest_difference(self, batch: Batch) -> float:
        """Largest absolute difference between the tool's teacher-forced numbers and ours."""

    def outputs(self, batch: Batch) -> list[list[int]]:
        """The tool's greedy outputs for `batch.rows`, without prefix and end symbol."""


class Reference:
    """Our model in float32, for comparisons."""

    def __init__(self, config: Config, tokenizers: TokenizerPair, params: Params):
        self.config = dataclasses.replace(
            config, model=dataclasses.replace(config.model, dtype="float32")
        )
        self.params = params
        self._runner = JaxBatchRunner(self.config, tokenizers)
        self.engine = Engine(self.config, tokenizers, self._runner)

    def fits(self, source_ids: Sequence[list[int]]) -> list[bool]:
        """Whether the model reads each sentence, given without its end symbol."""
        return [0 < len(ids) < self.config.model.max_len for ids in source_ids]

    def examples(self, sentences: Sequence[str]) -> Examples:
        """Greedy translations; sentences that are empty or too long are left out.

        Raises:
          UserError: no sentence is left.
        """
        _, target_prefix = self.engine.language_tags()
        limit, eos = self.config.model.max_len - 1, self.engine.ids.source_eos
        encoded = self.engine.encoder().source_ids(sentences)
        pairs = zip(sentences, encoded, strict=True)
        kept = [pair for pair, fits in zip(pairs, self.fits(encoded), strict=True) if fits]
        if not kept:
            raise UserError(
                f"No sentence has 1 to {limit} tokens: there is nothing to compare the exported "
                "model on. Set `sentences` to a file of source text."
            )
        max_decode_len = min(self.config.decode.max_decode_len, limit)
        decode = DecodeConfig(
            beam_size=1,
            length_penalty=0.0,
            max_decode_len=max_decode_len,
            max_decode_ratio=float(self.config.model.max_len),
            suppressed_ids=self.config.decode.suppressed_ids,
            batch_tokens=self.config.decode.batch_tokens,
        )
        with jax.default_matmul_precision("highest"):
            # Laid out for this one call, and freed before another tool holds its own weights.
            laid_out = self._runner.take(dict(self.params))
            texts = [s for s, _ in kept]
            outputs = list(self.engine.translate(laid_out, texts, TranslationSettings(decode)))
            del laid_out
            host_memory.return_freed_memory()
        return Examples(
            sentences=texts,
            source_ids=[[*ids, eos] for _, ids in kept],
            target_prefix=target_prefix,
            output_ids=[list(best[0].ids) for best in outputs],
            max_decode_len=max_decode_len,
        )

    def batches(self, examples: Examples) -> Iterator[Batch]:
        """The examples in batches of one shape."""
        ids, start = self.engine.ids, self.config.model.decoder_start_id
        outputs = [[*examples.target_prefix, *output] for output in examples.output_ids]
        lengths = max(map(len, examples.source_ids)), max(map(len, outputs)) + 1
        for first in range(0, len(outputs), BATCH):
            rows = list(range(first, min(first + BATCH, len(outputs))))
            filled = rows + [rows[-1]] * (BATCH - len(rows))
            source, source_mask = _pad(
                [examples.source_ids[i] for i in filled], lengths[0], ids.source_pad
            )
            # Padded with the end symbol: M2M-100 derives positions from the padding id.
            inputs, mask = _pad([[start, *outputs[i]] for i in filled], lengths[1], ids.target_eos)
            targets, _ = _pad(
                [[*outputs[i], ids.target_eos] for i in filled], lengths[1], ids.target_eos
            )
            with jax.default_matmul_precision("highest"):
                logits = np.asarray(self._logits(self.params, source, source_mask, inputs))
            yield Batch(rows, source, source_mask, inputs, targets, mask.astype(bool), logits)

    @functools.cached_property
    def _logits(self) -> Callable[[Params, np.ndarray, np.ndarray, np.ndarray], jax.Array]:
        """Compiled: (params, source `[B, S]`, mask `[B, S]`, inputs `[B, T]`) -> `[B, T, V]`."""

        def logits(model: Transformer, source, source_mask, inputs) -> jax.Array:
            encoded = model.encode(source, segment_ids=source_mask)
            return model.logits(model.decode(encoded, inputs, source_segment_ids=source_mask))

        apply = nn.apply(logits, Transformer(self.config.model))
        return jax.jit(lambda params, *arrays: apply({"params": params}, *arrays))


@dataclasses.dataclass(frozen=True)
class Parity:
    """Result of a comparison."""

    peer: str  # name and version
    measure: str
    largest_difference: float
    tolerance: float | None
    identical: int  # number of identical greedy outputs
    total: int
    differing: tuple[tuple[int, float], ...]  # (example, nats by which we prefer our token)

    @property
    def holds(self) -> bool:
        """Whether numbers are within the tolerance and outputs differ only at near ties."""
        if self.tolerance is None:
            return True
        largest_gap = max((gap for _, gap in self.differing), default=0.0)
        return self.largest_difference <= self.tolerance and largest_gap <= 2 * self.tolerance

    def describe(self) -> str:
        """The result as lines for the user."""
        limit = "not judged: weights are rounded"
        if self.tolerance is not None:
            limit = f"tolerance {self.tolerance:g}"
        lines = [
            f"parity with {self.peer}: largest {self.measure} difference "
            f"{self.largest_difference:.2e} ({limit}), identical outputs "
            f"{self.identical} of {self.total}"
        ]
        for number, gap in self.differing[:MAX_LISTED]:
            lines.append(
                f"  sentence {number + 1}: outputs first differ where two tokens are "
                f"{gap:.2e} nats apart"
            )
        if len(self.differing) > MAX_LISTED:
            lines.append(f"  and {len(self.differing) - MAX_LISTED} more")
        return "\n".join(lines)


def compare(reference: Reference, examples: Examples, peer: Peer) -> Parity:
    """Compares numbers and greedy outputs of `peer` and `reference` on all examples."""
    largest, differing = 0.0, []
    for batch in reference.batches(examples):
        largest = max(largest, peer.largest_difference(batch))
        for row, (number, theirs) in enumerate(zip(batch.rows, peer.outputs(batch), strict=True)):
            gap = _gap_at_first_difference(
                batch, row, examples, examples.output_ids[number], theirs
            )
            if gap is not None:
                differing.append((number, gap))
    return Parity(
        peer=peer.name,
        measure=peer.measure,
        largest_difference=largest,
        tolerance=peer.tolerance,
        identical=len(examples.output_ids) - len(differing),
        total=len(examples.output_ids),
        differing=tuple(differing),
    )


def _gap_at_first_difference(
    batch: Batch, row: int, examples: Examples, ours: Sequence[int], theirs: Sequence[int]
) -> float | None:
    """Nats by which our model prefers its token where the outputs first differ; None: nowhere.

    The last position of an output of full length is ignored: some tools force the end symbol there.
    """
    start = len(examples.target_prefix)
    end_symbol = int(batch.targets[row, start + len(ours)])
    for t, token in enumerate([*ours, end_symbol][: examples.max_decode_len - start - 1]):
        other = theirs[t] if t < len(theirs) else end_symbol
        if token != other:
            logits = batch.logits[row, start + t]
            return float(logits[token] - logits[other])
    return None


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log probabilities over the last axis, in float64."""
    logits = logits.astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _pad(rows: list[list[int]], length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, both `[B, length]` int32."""
    ids = np.full((len(rows), length), pad_id, np.int32)
    mask = np.zeros((len(rows), length), np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask
