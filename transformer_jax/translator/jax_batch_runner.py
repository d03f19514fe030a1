"""Runs batches with compiled programs of this package's models, on the local devices."""

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair, special_ids
from transformer_jax.errors import UserError
from transformer_jax.model import decoder_weights
from transformer_jax.model.choices import compute_dtype
from transformer_jax.model.transformer import Params
from transformer_jax.ops import platforms
from transformer_jax.search.processors import Processor
from transformer_jax.translator import alignment, batching, ranking, vocabulary_subset
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_functions import DeviceParams, ModelParams
from transformer_jax.translator.batch_runner import ScoreBatch, TranslateBatch
from transformer_jax.translator.batch_translator import BatchTranslator
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.phrases import starts_word
from transformer_jax.translator.programs import Programs, with_context
from transformer_jax.translator.requests import PHRASES_NEED_BEAMS
from transformer_jax.translator.scoring import Pair, TokenScores
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.workdir import digests

# Of single texts in a batch, whose lengths differ. On two cores of a CPU, 16 rows had the highest
# rate of 1, 4, 16 and 64, and the texts of a large batch wait for its longest.
_MOST_ROWS_OF_CPU = 16


class JaxBatchRunner:
    """A `BatchRunner` of JAX programs, one for each shape.

    Args:
      config: of the run, with the model's sizes. As many local devices as `parallel` asks for share
        the batches.
      tokenizers: of the model.
      others: further models of the same vocabularies, whose probabilities are averaged with it.
        Parameters are then a tuple, of the model and of the others.
      processors: decoding rules besides those of the settings.
      shortlist: gives that of the model, when a search first asks for it; None: it has none.
      shardings: as of `Programs`; None: devices have the whole model.
    """

    kind = "jax"
    compiles = True

    def __init__(
        self,
        config: Config,
        tokenizers: TokenizerPair,
        others: Sequence[ModelConfig] = (),
        processors: Sequence[Processor] = (),
        shortlist: Callable[[], Shortlist] | None = None,
        shardings: Params | None = None,
    ):
        self.spans_processes = shardings is not None
        self._config, self._tokenizers = config, tokenizers
        self._shortlist = shortlist
        devices, parallel = platforms.local_devices(), config.parallel
        # Fixed now, because a later caller may have another default device.
        platform = platforms.of(devices[0])
        self.models = tuple(
            dataclasses.replace(model, dtype=compute_dtype(model, platform).name)  # type: ignore[arg-type]
            for model in (config.model, *others)
        )
        self.max_len = min(model.max_len for model in self.models)
        sizes = (parallel.data, parallel.fsdp, parallel.tensor)
        if -1 not in sizes:
            devices = devices[: math.prod(sizes)]
        self.device = devices[0]
        may_follow = starts_word(tokenizers.target, config.model.target_vocab_size)
        ids = special_ids(tokenizers, config.model)
        self.programs = Programs(self.models, ids, devices, may_follow, processors, shardings)
        self.phrase_room: tuple[int, int, int] | None = None

    @property
    def num_devices(self) -> int:
        """Devices that share a batch."""
        return self.programs.num_devices

    @property
    def alignment(self) -> AttentionChoice:
        """The head that has learned to align; else the default."""
        return alignment.of_model(self._config)

    @property
    def step_rows(self) -> float:
        """Of a CPU, measured: 1, 4 and 16 rows take 8, 16 and 56 ms. Others gain more by rows."""
        return 1.0 if self.device.platform == "cpu" else 16.0

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled, or read from JAX's persistent cache."""
        return self.programs.num_compiled

    def freeze(self) -> None:
        """Lets nothing compile any more."""
        self.programs.freeze()

    def take(self, params: Params | tuple[Params, ...]) -> DeviceParams:
        """Lays parameters out on the devices; the trees are emptied, to hold a model once."""
        return self.programs.take(params if isinstance(params, tuple) else (params,))

    def restore(self, params: DeviceParams) -> Params | tuple[Params, ...]:
        """The parameters as `Transformer` reads them, from what `take` returned."""
        trees = tuple(map(decoder_weights.restore, self.models, params.models))
        return trees if len(trees) > 1 else trees[0]

    def describe(self, params: ModelParams, has_shortlist: bool = False) -> dict[str, Any]:
        """Digests of parameters and shortlist, sizes of the models, and precision of products."""
        learned = dataclasses.asdict(self._shortlist()) if has_shortlist and self._shortlist else {}
        return {
            **({"shortlist": digests.of_arrays(learned)} if learned else {}),
            "parameters": digests.of_arrays(params),
            "matmul_precision": str(platforms.matmul_precision()),
            "models": {str(i): dataclasses.asdict(model) for i, model in enumerate(self.models)},
        }

    def check(self, settings: TranslationSettings, given: Collection[str] = ()) -> None:
        """Refuses attention that the model does not have, and a shortlist that is not there.

        Raises:
          UserError: naming it.
        """
        del given
        self._shortlist_for(settings)
        if settings.attention:
            for model in self.models:
                settings.attention.check(model)

    def why_no_phrases(self, method: str) -> str:
        """Why a search cannot place phrases: only beam search can; "" for that."""
        return "" if method == "beam" else PHRASES_NEED_BEAMS.format(method=method)

    def batch_limits(self, settings: TranslationSettings) -> tuple[int, int, int]:
        """Longest source, positions of a batch on a device, and number of devices."""
        batch_tokens = max(1, settings.decode.batch_tokens // settings.search.beam_size)
        return self.max_len, batch_tokens, self.programs.num_devices

    def row_options(self, settings: TranslationSettings, length: int) -> list[int]:
        """Numbers of rows of batches of single texts of a padded length, rising."""
        _, batch_tokens, num_devices = self.batch_limits(settings)
        options = batching.all_row_options(length, batch_tokens, num_devices)
        most = _MOST_ROWS_OF_CPU if self.device.platform == "cpu" else math.inf
        most = min(most, settings.most_rows or math.inf)
        return [rows for rows in options if rows <= most] or options[:1]

    def shapes(
        self, settings: TranslationSettings, length: int, num_texts: int
    ) -> list[tuple[int, int]]:
        """(rows, padded length) of every batch that calls of `num_texts` can form."""
        return batching.shapes(length, num_texts, *self.batch_limits(settings))

    def lane_key(self, settings: TranslationSettings) -> Hashable:
        """Equal for settings that have one program for each shape, and one metric of `mbr`."""
        return self._bleu_tokenizer(settings), platforms.matmul_precision(), settings.shared

    def translate_batch(self, params: ModelParams, settings: TranslationSettings) -> TranslateBatch:
        """`BatchTranslator.translate_batch` with these parameters.

        Args:
          params: the model's; a tuple for an ensemble.
          settings: of the texts.
        """
        translator = BatchTranslator(
            self.programs,
            self.programs.put_on_devices(params),
            self._tokenizers,
            self.max_len,
            self._bleu_tokenizer(settings),
            self.phrase_room,
            self._shortlist_for(settings),
        )
        return with_context(self.device, translator.translate_batch)

    def _shortlist_for(self, settings: TranslationSettings) -> Shortlist | None:
        """The shortlist, if the settings ask for it.

        Raises:
          UserError: the model has none, or processors that know the entire vocabulary.
        """
        if not settings.decode.shortlist:
            return None
        if self._shortlist is None:
            raise UserError(
                "`shortlist=True` needs the shortlist of the model, and it has none: run "
                "`transformer-jax shortlist --workdir=DIR` once."
            )
        if self.programs.functions.processors:
            raise UserError(
                "`shortlist=True` searches among some tokens, and `processors` get those of the "
                "entire vocabulary: use one of them."
            )
        return self._shortlist()

    def vocabulary_sizes(self, settings: TranslationSettings) -> list[int]:
        """Numbers of target tokens that a program may be compiled for; 0: all, always."""
        has_subsets = self._shortlist_for(settings) is not None
        return vocabulary_subset.sizes(self.programs.vocab_size) if has_subsets else [0]

    def _bleu_tokenizer(self, settings: TranslationSettings) -> str:
        return ranking.choose_bleu_tokenizer(settings, self._config.data)

    def cross_attention(
        self, params: Params, source: Sequence[int], target: Sequence[int]
    ) -> np.ndarray:
        """Attention of all layers and heads to the source, `[L, H, T, S]`.

        Args:
          params: the model's.
          source: token ids, with language tags and end symbol.
          target: the same of its translation.
        """
        ids = self.programs.ids
        sides = (source, ids.source_pad), (target, ids.target_pad)
        lengths = [batching.padded_length(len(side), self.max_len) for side, _ in sides]
        rows = (
            batching.pad_rows([side], 1, length, pad)
            for (side, pad), length in zip(sides, lengths, strict=True)
        )
        weights = self.programs.run(
            self.programs.functions.cross_attention, self.programs.put_on_devices(params), *rows
        )
        return np.asarray(weights)[0, :, :, : len(target), : len(source)]

    def score_batch(self, params: ModelParams) -> ScoreBatch:
        """What scores batches of pairs with these parameters."""
        scorer = _BatchScorer(self.programs, self.programs.put_on_devices(params))
        return with_context(self.device, scorer.score_batch)


@dataclasses.dataclass(frozen=True)
class _BatchScorer:
    programs: Programs
    params: DeviceParams

    def score_batch(self, batch: Batch, pairs: Sequence[Pair]) -> list[TokenScores]:
        """Scores of each target token of the pairs."""
        ids = self.programs.ids
        sources, targets = zip(*pairs, strict=True)
        scores = self.programs.run(
            self.programs.functions.score,
            self.params,
            batching.pad_rows(sources, batch.rows, batch.length, ids.source_pad),
            batching.pad_rows(targets, batch.rows, batch.length, ids.target_pad),
        )
        log_probs, correct = np.asarray(scores.log_probs), np.asarray(scores.correct)
        return [
            TokenScores(log_probs[row, : len(target)], correct[row, : len(target)])
            for row, target in enumerate(targets)
        ]
