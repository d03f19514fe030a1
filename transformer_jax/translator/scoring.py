"""Teacher-forced scores of sentence pairs."""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.errors import UserError
from transformer_jax.ops import platforms
from transformer_jax.translator import batching, scheduler
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.futures import gather
from transformer_jax.translator.requests import RequestEncoder, warn
from transformer_jax.translator.text_queue import Lane

BATCH_TOKENS = 4096  # positions of each side of a batch on one device, where nothing else is said
Pair = tuple[list[int], list[int]]  # ids of source and target, end symbols included


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """Scores of the target tokens of one pair, language tags and end symbol included."""

    log_probs: np.ndarray  # [T]
    # [T] boolean: whether the token is the likeliest; None: the engine does not say.
    is_likeliest: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Scores of the target of one sentence pair, its end symbol included."""

    log_prob: float
    num_tokens: int
    num_correct: int | None  # tokens that are the likeliest; None: the engine does not say
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]  # of each token


@dataclasses.dataclass(frozen=True)
class PairScorer:
    """Scores pairs with one set of parameters.

    Args:
      encoder: turns texts into token ids, with the tags of the languages.
      ids: special ids of the model.
      num_devices: that share a batch.
      score_batch: run by the scheduler; gives the scores of each pair of a batch.
    """

    encoder: RequestEncoder
    ids: SpecialIds
    num_devices: int
    score_batch: Callable[[Batch, Sequence[Pair]], list[TokenScores]]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_tokens: int,
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[PairScores]:
        """Scores of each pair, in order; too long sides are cut, with a message.

        Args:
          sources: texts.
          targets: as many texts.
          batch_tokens: positions in a batch on one device.
          contexts: sentences before each source; empty: none have any.
        """
        pairs = self._encode(sources, targets, contexts)
        lengths = [max(len(source), len(target)) for source, target in pairs]
        limits = self.encoder.max_len, batch_tokens, self.num_devices
        results: dict[int, PairScores] = {}
        batches = batching.group_by_length(lengths, *limits)
        # Batches of all callers take turns; one at a time, to save memory.
        all_scores = scheduler.of_process().run(
            self.score_batch,
            ((batch, [pairs[i] for i in batch.indices]) for batch in batches),
            num_ahead=0,
        )
        for batch, scores in zip(batches, all_scores, strict=True):
            for i, token_scores in zip(batch.indices, scores, strict=True):
                results[i] = self._pair_scores(pairs[i][1], token_scores)
        return [results[i] for i in range(len(pairs))]

    def submit(
        self, model: Hashable, pair: tuple[str, str], batch_tokens: int, **waiting: Any
    ) -> concurrent.futures.Future[PairScores]:
        """The future scores of one pair, which may share a batch with those of other callers.

        Args:
          model: equal for pairs that can share a batch.
          pair: source and target.
          batch_tokens: positions of each side of a batch on one device.
          **waiting: arguments of `Scheduler.submit`.

        Raises:
          UserError: a side is longer than the model reads.
          QueueFullError: too many texts wait.
        """
        source = self.encoder.source_ids([pair[0]])[0]
        target = [*self.encoder.target_tags, *self.encoder.tokenizers.target.encode(pair[1])]
        most = self.encoder.max_len - 1
        for name, ids in (("source", source), ("target", target)):
            if len(ids) > most:
                raise UserError(f"the {name} has {len(ids)} tokens; {most} can be scored.")
        encoded = ([*source, self.ids.source_eos], [*target, self.ids.target_eos])
        size = max(map(len, encoded))
        future = scheduler.of_process().submit(
            Lane(
                ("score", model, platforms.matmul_precision()),
                functools.partial(self.row_options, batch_tokens),
                self.score_batch,
            ),
            encoded,
            batching.padded_length(size, self.encoder.max_len),
            size,
            **waiting,
        )
        return gather([future], lambda results: self._pair_scores(encoded[1], results[0]))

    def row_options(self, batch_tokens: int, length: int) -> list[int]:
        """Numbers of rows that batches of `submit` may have, rising."""
        return batching.all_row_options(length, batch_tokens, self.num_devices)

    def _encode(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[Pair]:
        """Ids of each pair, cut to what the model reads."""
        ids, limit, num_cut = self.ids, self.encoder.max_len - 1, 0
        pairs = []
        target_ids = self.encoder.tokenizers.target.encode_batch(list(targets))
        source_ids = self.encoder.source_ids(sources)
        if contexts:
            source_ids = [
                self.encoder.with_context(one, before)[0]
                for one, before in zip(source_ids, contexts, strict=True)
            ]
        for source, text in zip(source_ids, target_ids, strict=True):
            target = [*self.encoder.target_tags, *text]
            num_cut += max(len(source), len(target)) > limit
            pairs.append(([*source[:limit], ids.source_eos], [*target[:limit], ids.target_eos]))
        if num_cut:
            warn(
                f"{num_cut} sentence pairs exceed the model's {self.encoder.max_len} tokens: "
                "scored as cut."
            )
        return pairs

    def _pair_scores(self, target: Sequence[int], scores: TokenScores) -> PairScores:
        """Scores of a target; language tags do not count."""
        counted = slice(len(self.encoder.target_tags), len(target))
        log_probs, likeliest = scores.log_probs[counted], scores.is_likeliest
        return PairScores(
            log_prob=float(log_probs.sum(dtype=np.float64)),
            num_tokens=log_probs.size,
            num_correct=None if likeliest is None else int(likeliest[counted].sum()),
            tokens=tuple(self.encoder.tokenizers.target.tokens(target[counted])),
            log_probs=tuple(map(float, log_probs)),
        )
