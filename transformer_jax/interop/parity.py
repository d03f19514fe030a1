"""Whether a model that was carried out says what it said here."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.config import Config
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding.engine import Engine
from transformer_jax.errors import UserError
from transformer_jax.model import Transformer

LISTED = 5  # differing outputs that are shown


@dataclasses.dataclass(frozen=True)
class Examples:
    """What our own model makes of some sentences, in float32 at the highest precision."""

    source_ids: list[list[int]]  # prefix and end symbol included
    target_prefix: list[int]
    output_ids: list[list[int]]  # greedy, behind the prefix, the end symbol not included
    log_probs: list[float]  # of output and end
    max_decode_len: int


class Reference:
    """Our model as the parity checks ask it."""

    def __init__(self, config: Config, tokenizers: TokenizerPair, params: Any):
        self.config = dataclasses.replace(
            config, model=dataclasses.replace(config.model, dtype="float32")
        )
        self.params = params
        self.engine = Engine(self.config, tokenizers)

    def examples(self, sentences: Sequence[str]) -> Examples:
        """Greedy translations of sentences.

        Raises:
          UserError: where no sentence is left after dropping empty and over-long ones.
        """
        source_prefix, target_prefix = self.engine.prefixes()
        limit, eos = self.config.model.max_len - 1, self.engine.ids.source_eos
        encoded = self.engine.encode_source(sentences, source_prefix)
        kept = [(s, ids) for s, ids in zip(sentences, encoded, strict=True) if 0 < len(ids) <= limit]
        if not kept:
            raise UserError("There is no sentence to check the exported model with (--sentences).")
        max_decode_len = min(self.config.decode.max_decode_len, self.config.model.max_len - 1)
        decode = dataclasses.replace(
            self.config.decode, beam_size=1, length_penalty=0.0, max_decode_len=max_decode_len,
            max_decode_ratio=float(self.config.model.max_len),
        )  # fmt: skip
        with jax.default_matmul_precision("highest"):
            outputs = list(self.engine.translate(self.params, [s for s, _ in kept], decode))
        return Examples(
            source_ids=[[*ids, eos] for _, ids in kept],
            target_prefix=target_prefix,
            output_ids=[list(best[0].ids) for best in outputs],
            log_probs=[best[0].log_prob for best in outputs],
            max_decode_len=max_decode_len,
        )

    def decoder_inputs(self, examples: Examples) -> list[list[int]]:
        """Teacher-forced decoder inputs of each output."""
        start = self.config.model.decoder_start_id
        return [[start, *examples.target_prefix, *ids] for ids in examples.output_ids]

    def logits(self, source: np.ndarray, source_mask: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Logits `[B, T, V]` of padded ids `[B, S]` and decoder inputs `[B, T]`."""
        with jax.default_matmul_precision("highest"):
            return np.asarray(self._logits(self.params, source, source_mask, target))

    @functools.cached_property
    def _logits(self) -> Any:
        model = Transformer(self.config.model)

        def logits(params, source, source_mask, target):
            apply: Any = functools.partial(model.apply, {"params": params})
            segments = source_mask.astype("int32")
            encoded = apply(source, None, segments, method="encode")
            return apply(apply(encoded, target, segments, method="decode"), method="logits")

        return jax.jit(logits)


@dataclasses.dataclass(frozen=True)
class Parity:
    """Result of a comparison."""

    peer: str  # name and version
    largest_difference: float  # of logits or log-probabilities
    measure: str
    tolerance: float
    identical: int  # greedy outputs
    total: int
    differing: tuple[str, ...]  # described, with how far apart they score
    largest_gap: float  # between the scores of two differing outputs

    @property
    def holds(self) -> bool:
        return self.largest_difference <= self.tolerance and self.largest_gap <= self.tolerance

    def describe(self) -> str:
        lines = [
            f"parity with {self.peer}: largest {self.measure} difference "
            f"{self.largest_difference:.2e} (tolerance {self.tolerance:g}), identical outputs "
            f"{self.identical} of {self.total}"
        ]
        lines += [f"  {text}" for text in self.differing[:LISTED]]
        if len(self.differing) > LISTED:
            lines.append(f"  and {len(self.differing) - LISTED} more")
        return "\n".join(lines)


def compare_outputs(
    examples: Examples, theirs: Sequence[Sequence[int]], gaps: Sequence[float]
) -> tuple[int, tuple[str, ...], float]:
    """Identical outputs, descriptions of the others, and their largest gap.

    Args:
      examples: ours.
      theirs: output ids of the peer, in the same form.
      gaps: for each output, our score of ours less our score of theirs.
    """
    differing, largest = [], 0.0
    for number, (ours, other) in enumerate(zip(examples.output_ids, theirs, strict=True)):
        if list(ours) != list(other):
            gap = abs(gaps[number])
            largest = max(largest, gap)
            differing.append(f"sentence {number + 1}: outputs differ, {gap:.2e} nats apart")
    return len(theirs) - len(differing), tuple(differing), largest


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as one array `[B, L]`, and a mask of the same shape, 1 where a row has content."""
    length = max(len(row) for row in rows)
    ids = np.full((len(rows), length), pad_id, np.int32)
    mask = np.zeros((len(rows), length), np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask
