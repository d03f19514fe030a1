"""The corpus and the batch plan that each step of a run uses.

In: the corpora of `sources`, tokenizers, config. Out: `Epochs`, which maps the number of a training
step to an `EpochData` (token ids and batch plan) and to the number of a batch in that plan.

One `EpochData` serves every epoch, unless subword sampling or noise (`data.augment`) gives each
epoch other tokens: a drawn epoch. All epochs have as many batches as epoch 0, so batch `t` needs
none of the batches before it. Where the tokens of a later epoch need more rows, those are left out
of that epoch; where they need fewer, some rows are seen twice.
"""

import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import sentencepiece

from transformer_jax.config import Config
from transformer_jax.data import token_cache
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.corpus_shares import make_stages
from transformer_jax.data.plans import batch_plan
from transformer_jax.data.plans.batch_shapes import BatchPlan
from transformer_jax.data.plans.pair_selection import SelectionCounts, select_pairs
from transformer_jax.data.plans.permutation import make_key
from transformer_jax.data.plans.plan_files import PlanFiles
from transformer_jax.data.prepared_folder import PLANS, PreparedFolder
from transformer_jax.data.shards import shard_mirror
from transformer_jax.data.token_cache import TokenizedCorpus
from transformer_jax.data.tokenizer import UNSEEDED_SAMPLING, Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.data.workers import IN_THIS_PROCESS, Workers
from transformer_jax.errors import UserError

KEPT_EPOCHS = 3  # drawn epochs in the token cache: the previous, the current and the next one


@dataclasses.dataclass(frozen=True)
class EpochData:
    """A tokenised corpus and the plan of its batches."""

    corpus: TokenizedCorpus
    plan: BatchPlan


class Epochs:
    """The data of every epoch; drawn epochs are prepared by a thread, one epoch ahead.

    Args:
      first: data of epoch 0, and of all epochs if `load` is None.
      load: returns the data of a drawn epoch, given its number from 1.
      remove: deletes the token cache of a drawn epoch.
      num_steps: length of the run; epochs that begin after it are not prepared ahead.
    """

    def __init__(
        self,
        first: EpochData,
        load: Callable[[int], EpochData] | None = None,
        remove: Callable[[int], None] = lambda epoch: None,
        num_steps: int = 0,
    ):
        self.first = first
        self._load, self._remove, self._num_steps = load, remove, num_steps
        self._steps_per_epoch = math.ceil(first.plan.batches_per_epoch)
        self._futures: dict[int, Future[EpochData]] = {}
        self._lock = threading.Lock()

    def at(self, t: int) -> tuple[EpochData, int]:
        """The data that batch `t` of the run is taken from, and the batch's number in its plan."""
        if self._load is None:
            return self.first, t
        epoch, batch = divmod(t, self._steps_per_epoch)
        current = self._prepare(epoch, self._load) if epoch else None
        if (epoch + 1) * self._steps_per_epoch < self._num_steps:
            self._prepare(epoch + 1, self._load)
        return (current.result() if current else self.first), batch

    def close(self) -> None:
        """Removes all drawn epochs but the first from the token cache."""
        with self._lock:
            futures, self._futures = self._futures, {}

        def remove_when_loaded(epoch: int) -> None:
            futures[epoch].add_done_callback(lambda _: self._remove(epoch))

        for epoch in futures:
            remove_when_loaded(epoch)

    def _prepare(self, epoch: int, load: Callable[[int], EpochData]) -> Future[EpochData]:
        """Starts a thread that loads `epoch`, unless one was started, and drops an old epoch."""
        future: Future[EpochData] = Future()
        with self._lock:
            if epoch in self._futures:
                return self._futures[epoch]
            self._futures[epoch] = future
            self._futures.pop(epoch - KEPT_EPOCHS, None)

        def run() -> None:
            try:
                data = load(epoch)
                if epoch > KEPT_EPOCHS:  # epoch 0 stays in the cache, for the next start
                    self._remove(epoch - KEPT_EPOCHS)
                future.set_result(data)
            except BaseException as error:
                future.set_exception(error)

        # A daemon thread: an interrupted run does not wait for the next epoch.
        threading.Thread(target=run, daemon=True).start()
        return future


@dataclasses.dataclass(frozen=True)
class PlanFacts:
    """What is worth knowing about the plan of the first epoch.

    Attributes:
      counts: of the pairs.
      padding: share of padding among all positions, 0 .. 1.
    """

    counts: SelectionCounts
    padding: float


def prepare_epochs(
    corpora: Sequence[Corpus],
    tokenizers: TokenizerPair,
    config: Config,
    row_multiple: int = 1,
    workers: Workers | None = None,
) -> tuple[Epochs, PlanFacts]:
    """Tokenises the corpora, selects pairs and plans batches.

    Args:
      corpora, tokenizers, config: of the run.
      row_multiple: batches get empty rows up to a multiple of this number.
      workers: what tokenises and plans; None: as many processes as the config says.

    Raises:
      UserError: where no pair is left, or the tokenizer cannot sample.
    """
    data = config.data

    def tokenize(seed: int | None) -> TokenizedCorpus:
        return token_cache.tokenize_corpora(
            corpora, tokenizers, data, seed, config.train.alignment_weight > 0, workers
        )

    def epoch_seed(epoch: int) -> int:
        return int(make_key(config.seed, epoch)) >> 1  # keys are unsigned, seeds of plans signed

    sampled = data.subword_sampling > 0
    for tokenizer in (tokenizers.source, tokenizers.target):
        if sampled and type(tokenizer) is not Tokenizer:
            raise UserError(
                f"config.data.subword_sampling={data.subword_sampling:g} needs a plain "
                "SentencePiece tokenizer; the one of the imported model cannot sample. Set it to 0."
            )
    if sampled and UNSEEDED_SAMPLING:
        logging.warning(
            "SentencePiece %s ignores the seed of config.data.subword_sampling. If this run is "
            "resumed, its batches differ, unless the tokens of their epoch are still in the cache. "
            "To have exact batches, install sentencepiece==0.2.1.",
            sentencepiece.__version__,
        )
    drawn = data.tokens_differ_by_epoch
    corpus = tokenize(epoch_seed(0) if drawn else None)
    plan, facts = _make_plan(corpora, corpus, config, None, row_multiple, workers)
    first = EpochData(corpus, plan)
    if not drawn:
        return Epochs(first), facts

    def load(epoch: int) -> EpochData:
        corpus = tokenize(epoch_seed(epoch))
        epoch_config = dataclasses.replace(config, seed=epoch_seed(epoch))
        # A pool of processes would compete with the training, and keep it from ending.
        epoch_plan, _ = _make_plan(corpora, corpus, epoch_config, plan, workers=IN_THIS_PROCESS)
        return EpochData(corpus, epoch_plan)

    def remove(epoch: int) -> None:
        token_cache.remove(corpora, tokenizers, data, epoch_seed(epoch))

    return Epochs(first, load, remove, config.train.num_steps), facts


def _make_plan(
    corpora: Sequence[Corpus],
    tokenized: TokenizedCorpus,
    config: Config,
    like: BatchPlan | None,
    row_multiple: int = 1,
    workers: Workers | None = None,
) -> tuple[BatchPlan, PlanFacts]:
    data = config.data
    if data.plan_version < 3:
        selection = select_pairs(
            tokenized.source.lengths,
            tokenized.target.lengths,
            data.max_len,
            tokenized.corpus_sizes,
            data.train_weights,
            data.max_ratio,
        )
        plan = batch_plan.make_plan(selection, config, like)
        padding = batch_plan.padding_share(plan, selection, row_multiple)
        return plan, PlanFacts(selection.counts, padding)
    parts = [list(part) for part in tokenized.shards]
    stages = make_stages(data, corpora, tokenized.corpus_sizes)
    if stages is None:  # all pairs equally often: one corpus
        parts, stages = [[shard for part in parts for shard in part]], [(0, [1.0])]
    sizes = [shard.num_pairs for part in parts for shard in part]
    starts = iter((np.cumsum(sizes) - sizes).tolist())
    first_pairs = [[next(starts) for _ in part] for part in parts]
    # Plans of drawn tokens serve one epoch only.
    folder = None if data.tokens_differ_by_epoch else token_cache.folder_of(data) / "plans"
    with token_cache.write_errors(folder):
        files = PlanFiles(folder, workers or Workers.of(data.num_workers))
        if data.source == "prepared":
            prepared = PreparedFolder.open(data.train)
            fetch = prepared.fetch_plan if prepared.remote else None
            files = dataclasses.replace(files, prepared=prepared.path / PLANS, fetch=fetch)
        stream_plan = batch_plan.make_stream_plan(
            parts, first_pairs, stages, config, files, like, shard_mirror.fetch_some_ahead
        )
    padding = batch_plan.padding_share(stream_plan, None, row_multiple)
    return stream_plan, PlanFacts(stream_plan.counts, padding)
