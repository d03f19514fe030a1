"""How the corpus is cut into tokens while a run goes on, and the batches of each way.

Without subword sampling there is one segmentation for all steps. With it each epoch has its own,
made ahead by a thread. So that batch `t` is found without those before it, every epoch has as many
batches as the first: where a later segmentation needs more rows, those are left out of that epoch,
and where it needs fewer, some are seen twice.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from transformer_jax.config import Config
from transformer_jax.data import batch_plan, token_cache
from transformer_jax.data.batch_shapes import BatchPlan
from transformer_jax.data.pair_selection import CorpusSelection, select_pairs
from transformer_jax.data.permutation import make_key
from transformer_jax.data.sources import Corpus
from transformer_jax.data.token_cache import TokenizedCorpus
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

KEPT = 3  # segmentations: of the present epoch, the one before and the one after


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """A corpus as tokens, and its batches."""

    corpus: TokenizedCorpus
    plan: BatchPlan

    @property
    def first(self) -> "Segmentation":
        return self

    def at(self, t: int) -> tuple["Segmentation", int]:
        return self, t

    def finish(self) -> None:
        pass


class Segmentations(Protocol):
    """What the batches of a run are made of."""

    @property
    def first(self) -> Segmentation: ...

    def at(self, t: int) -> tuple[Segmentation, int]:
        """The segmentation that batch `t` of the run belongs to, and its number there."""
        ...

    def finish(self) -> None:
        """Says that the run is over: what was cached for later steps is removed."""
        ...


class SampledSegmentations:
    """A segmentation for each epoch, the next one being made while the present one is in use.

    Args:
      first: number 0.
      make: makes number `n`.
      forget: is told the number of one that is no longer needed.
      num_steps: of the run; none is made ahead that begins behind it.
    """

    def __init__(
        self,
        first: Segmentation,
        make: Callable[[int], Segmentation],
        forget: Callable[[int], None],
        num_steps: int,
    ):
        self.first = first
        self._period = math.ceil(first.plan.batches_per_epoch)
        self._make, self._forget, self._num_steps = make, forget, num_steps
        self._made: dict[int, Future[Segmentation]] = {}
        self._lock = threading.Lock()

    def at(self, t: int) -> tuple[Segmentation, int]:
        number, within = divmod(t, self._period)
        made = self._expect(number) if number else None
        if (number + 1) * self._period < self._num_steps:
            self._expect(number + 1)
        return (made.result() if made else self.first), within

    def finish(self) -> None:
        with self._lock:
            made, self._made = self._made, {}

        def forget(number: int) -> None:
            made[number].add_done_callback(lambda _: self._forget(number))

        for number in made:
            forget(number)

    def _expect(self, number: int) -> Future[Segmentation]:
        """Has `number` made, unless it is; gives up one that is old."""
        future: Future[Segmentation] = Future()
        with self._lock:
            if number in self._made:
                return self._made[number]
            self._made[number] = future
            self._made.pop(number - KEPT, None)

        def make() -> None:
            try:
                made = self._make(number)
                if number > KEPT:  # the first stays, for the next start
                    self._forget(number - KEPT)
                future.set_result(made)
            except BaseException as error:
                future.set_exception(error)

        # A daemon: a run that is interrupted does not wait for what it will not need.
        threading.Thread(target=make, daemon=True).start()
        return future


def segment(
    corpora: Sequence[Corpus], tokenizers: TokenizerPair, config: Config
) -> tuple[Segmentations, CorpusSelection]:
    """The segmentations of a run, and which pairs are trained on (in the first of them).

    Raises:
      UserError: where no pair is left, or the tokenizer cannot sample.
    """
    data = config.data

    def tokenize(seed: int | None) -> tuple[TokenizedCorpus, CorpusSelection]:
        corpus = token_cache.tokenize_corpora(corpora, tokenizers, data, seed)
        selection = select_pairs(
            corpus.source.lengths, corpus.target.lengths, data.max_len, corpus.corpus_sizes,
            data.train_weights, data.max_ratio,
        )  # fmt: skip
        return corpus, selection

    def seed(number: int) -> int:
        return int(make_key(config.seed, number)) >> 1  # as a seed of plans it is signed

    if not data.subword_sampling:
        corpus, selection = tokenize(None)
        return Segmentation(corpus, batch_plan.make_plan(selection, config)), selection
    for tokenizer in (tokenizers.source, tokenizers.target):
        if type(tokenizer) is not Tokenizer:
            raise UserError(
                f"config.data.subword_sampling={data.subword_sampling:g} needs a plain "
                "SentencePiece tokenizer; the one of the imported model cannot sample."
            )
    corpus, selection = tokenize(seed(0))
    plan = batch_plan.make_plan(selection, config)

    def make(number: int) -> Segmentation:
        corpus, selection = tokenize(seed(number))
        own = dataclasses.replace(config, seed=seed(number))
        return Segmentation(corpus, batch_plan.make_plan(selection, own, like=plan))

    def forget(number: int) -> None:
        token_cache.forget(corpora, tokenizers, data, seed(number))

    first = Segmentation(corpus, plan)
    return SampledSegmentations(first, make, forget, config.train.num_steps), selection
