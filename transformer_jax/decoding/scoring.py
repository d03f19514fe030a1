"""Teacher-forced scores of sentence pairs."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from transformer_jax.decoding import batching, workers
from transformer_jax.decoding.batch_functions import DeviceParams
from transformer_jax.decoding.batching import Batch
from transformer_jax.decoding.programs import Programs, matmul_precision
from transformer_jax.decoding.requests import RequestEncoder, warn

Pair = tuple[list[int], list[int]]  # ids of source and target, end symbols included


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Scores of the target of one sentence pair, its end symbol included."""

    log_prob: float
    num_tokens: int
    num_correct: int
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]  # of each token


@dataclasses.dataclass(frozen=True)
class PairScorer:
    """Scores pairs with one set of parameters.

    Args:
      programs: run the model's functions.
      params: the model's parameters, on the devices.
      encoder: turns texts into token ids, with the tags of the languages.
      device: JAX's default device while a batch is scored.
    """

    programs: Programs
    params: DeviceParams
    encoder: RequestEncoder
    device: jax.Device

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_tokens: int
    ) -> list[PairScores]:
        """Scores of each pair, in order; too long sides are cut, with a message.

        Args:
          sources: texts.
          targets: as many texts.
          batch_tokens: positions in a batch on one device.
        """
        pairs = self._encode(sources, targets)
        lengths = [max(len(source), len(target)) for source, target in pairs]
        limits = self.encoder.max_len, batch_tokens, self.programs.num_devices
        results: dict[int, PairScores] = {}
        batches = batching.group_by_length(lengths, *limits)
        for batch in batches:
            call = (batch, [pairs[i] for i in batch.indices])
            # On a worker, so that batches of all users take turns; one at a time, to save memory.
            (scores,) = workers.run(self.device, matmul_precision(), self._score_batch, [call])
            results |= zip(batch.indices, scores, strict=True)
        return [results[i] for i in range(len(pairs))]

    def _encode(self, sources: Sequence[str], targets: Sequence[str]) -> list[Pair]:
        """Ids of each pair, cut to what the model reads."""
        ids, limit, num_cut = self.programs.ids, self.encoder.max_len - 1, 0
        pairs = []
        target_ids = self.encoder.tokenizers.target.encode_batch(list(targets))
        for source, text in zip(self.encoder.source_ids(sources), target_ids, strict=True):
            target = [*self.encoder.target_tags, *text]
            num_cut += max(len(source), len(target)) > limit
            pairs.append(([*source[:limit], ids.source_eos], [*target[:limit], ids.target_eos]))
        if num_cut:
            warn(
                f"{num_cut} sentence pairs exceed the model's {self.encoder.max_len} tokens: "
                "scored as cut."
            )
        return pairs

    def _score_batch(self, batch: Batch, pairs: Sequence[Pair]) -> list[PairScores]:
        """Scores of the pairs of one batch; language tags do not count."""
        ids = self.programs.ids
        sources, targets = zip(*pairs, strict=True)
        scores = self.programs.run(
            self.programs.functions.score,
            self.params,
            batching.pad_rows(sources, batch.rows, batch.length, ids.source_pad),
            batching.pad_rows(targets, batch.rows, batch.length, ids.target_pad),
        )
        results = []
        for row, target in enumerate(targets):
            counted = slice(len(self.encoder.target_tags), len(target))
            log_probs = scores.log_probs[row, counted]
            results.append(
                PairScores(
                    log_prob=float(log_probs.sum(dtype=np.float64)),
                    num_tokens=log_probs.size,
                    num_correct=int(scores.correct[row, counted].sum()),
                    tokens=tuple(self.encoder.tokenizers.target.tokens(target[counted])),
                    log_probs=tuple(map(float, log_probs)),
                )
            )
        return results
