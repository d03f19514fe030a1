"""Whether a model that was carried out says what it said here."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from transformer_jax.config import Config, DecodeConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding.batch_translator import TranslationSettings
from transformer_jax.decoding.engine import Engine
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import Transformer

BATCH = 16
LISTED = 5  # differing outputs that are shown


@dataclasses.dataclass(frozen=True)
class Examples:
    """What our own model makes of some sentences, in float32 at the highest precision."""

    sentences: list[str]
    source_ids: list[list[int]]  # language tag and end symbol included
    target_prefix: list[int]  # forced
    output_ids: list[list[int]]  # greedy, behind the prefix, without the end symbol
    max_decode_len: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some examples as arrays, their outputs teacher-forced; all batches have one shape."""

    rows: list[int]  # numbers of the examples; the arrays may have more rows
    source: np.ndarray  # [B, S] ids
    source_mask: np.ndarray  # [B, S], 1 where there is content
    inputs: np.ndarray  # [B, T] decoder inputs: start, prefix, output
    targets: np.ndarray  # [B, T]: prefix, output, end
    mask: np.ndarray  # [B, T] boolean
    logits: np.ndarray  # [B, T, V], ours


class Peer(Protocol):
    """The other side of a comparison."""

    name: str
    measure: str
    tolerance: float

    def largest_difference(self, batch: Batch) -> float:
        """Between their numbers and ours, teacher-forced."""

    def outputs(self, batch: Batch) -> list[list[int]]:
        """Their greedy outputs for `batch.rows`, behind the prefix, without the end symbol."""


class Reference:
    """Our own model as the comparison asks it."""

    def __init__(self, config: Config, tokenizers: TokenizerPair, params: Any):
        self.config = dataclasses.replace(
            config, model=dataclasses.replace(config.model, dtype="float32")
        )
        self.params = params
        self.engine = Engine(self.config, tokenizers)

    def examples(self, sentences: Sequence[str]) -> Examples:
        """Greedy translations of sentences; empty and over-long ones are left out.

        Raises:
          UserError: where none is left.
        """
        _, target_prefix = self.engine.language_tags()
        limit, eos = self.config.model.max_len - 1, self.engine.ids.source_eos
        encoded = self.engine.encoder().source_ids(sentences)
        kept = [
            (s, ids) for s, ids in zip(sentences, encoded, strict=True) if 0 < len(ids) <= limit
        ]
        if not kept:
            raise UserError("There is no sentence to check the exported model with (--sentences).")
        max_decode_len = min(self.config.decode.max_decode_len, limit)
        decode = dataclasses.replace(
            DecodeConfig(), beam_size=1, length_penalty=0.0, max_decode_len=max_decode_len,
            max_decode_ratio=float(self.config.model.max_len),
            suppressed_ids=self.config.decode.suppressed_ids,
            batch_tokens=self.config.decode.batch_tokens,
        )  # fmt: skip
        with jax.default_matmul_precision("highest"):
            outputs = list(
                self.engine.translate(
                    self.params, [s for s, _ in kept], TranslationSettings(decode)
                )
            )
        return Examples(
            sentences=[s for s, _ in kept],
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
            source, source_mask = _pad([examples.source_ids[i] for i in filled], lengths[0],
                                       ids.source_pad)  # fmt: skip
            # Behind the end stands the end symbol: M2M-100 numbers positions by its padding id.
            inputs, mask = _pad([[start, *outputs[i]] for i in filled], lengths[1], ids.target_eos)
            targets, _ = _pad([[*outputs[i], ids.target_eos] for i in filled], lengths[1],
                              ids.target_eos)  # fmt: skip
            with jax.default_matmul_precision("highest"):
                logits = np.asarray(self._logits(self.params, source, source_mask, inputs))
            yield Batch(rows, source, source_mask, inputs, targets, mask.astype(bool), logits)

    @functools.cached_property
    def _logits(self) -> Any:
        model = Transformer(self.config.model)

        def logits(params, source, source_mask, inputs):
            apply: Any = functools.partial(model.apply, {"params": params})
            encoded = apply(source, None, source_mask, method="encode")
            return apply(apply(encoded, inputs, source_mask, method="decode"), method="logits")

        return jax.jit(logits)


@dataclasses.dataclass(frozen=True)
class Parity:
    """Result of a comparison."""

    peer: str  # name and version
    measure: str
    largest_difference: float
    tolerance: float
    identical: int  # greedy outputs
    total: int
    differing: tuple[tuple[int, float], ...]  # example, nats by which we prefer our token

    @property
    def holds(self) -> bool:
        """Numbers within the tolerance, and outputs that part only where tokens nearly tie."""
        ties = all(gap <= 2 * self.tolerance for _, gap in self.differing)
        return self.largest_difference <= self.tolerance and ties

    def describe(self) -> str:
        lines = [
            f"parity with {self.peer}: largest {self.measure} difference "
            f"{self.largest_difference:.2e} (tolerance {self.tolerance:g}), identical outputs "
            f"{self.identical} of {self.total}"
        ]
        for number, gap in self.differing[:LISTED]:
            lines.append(f"  sentence {number + 1}: outputs part where two tokens are "
                         f"{gap:.2e} nats apart")  # fmt: skip
        if len(self.differing) > LISTED:
            lines.append(f"  and {len(self.differing) - LISTED} more")
        return "\n".join(lines)


def compare(reference: Reference, examples: Examples, peer: Peer) -> Parity:
    """Asks both sides about every example."""
    largest, differing = 0.0, []
    for batch in reference.batches(examples):
        largest = max(largest, peer.largest_difference(batch))
        for row, (number, theirs) in enumerate(zip(batch.rows, peer.outputs(batch), strict=True)):
            gap = _gap_where_they_part(batch, row, examples, examples.output_ids[number], theirs)
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


def _gap_where_they_part(
    batch: Batch, row: int, examples: Examples, ours: Sequence[int], theirs: Sequence[int]
) -> float | None:
    """By how much our model prefers its token at the first difference; None where there is none.

    The last place of a full-length output is left out: there, some let the end symbol stand.
    """
    before = len(examples.target_prefix)
    places = examples.max_decode_len - before - 1
    wanted = batch.targets[row, before:]
    for t, token in enumerate([*ours, int(wanted[len(ours)])][:places]):
        other = theirs[t] if t < len(theirs) else int(wanted[len(ours)])
        if token != other:
            logits = batch.logits[row, before + t]
            return float(logits[token] - logits[other])
    return None


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log probabilities over the last axis."""
    logits = logits.astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _pad(rows: list[list[int]], length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((len(rows), length), pad_id, np.int32)
    mask = np.zeros((len(rows), length), np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask
