"""Translates and scores batches with the package ctranslate2, on the CPU."""

import collections
import dataclasses
import os
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np
from etils import epath

from transformer_jax.config import Config, validate
from transformer_jax.data import shortlist
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.ctranslate2 import package, reading, search
from transformer_jax.extras.interop.ctranslate2.reading import Directory
from transformer_jax.search.hypotheses import length_penalty
from transformer_jax.translator import ranking
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_runner import ScoreBatch, TranslateBatch
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.requests import EncodedText
from transformer_jax.translator.scheduler import NUM_WORKERS
from transformer_jax.translator.scoring import Pair, TokenScores
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.workdir import digests, machine

# More in a call bring nothing: of 1, 2, 4, … 64, single sentences were fastest with 8 and 16.
MOST_ROWS = 16


class CTranslate2BatchRunner:
    """A `BatchRunner` of a CTranslate2 directory. It has its own parameters, and compiles nothing.

    Weights keep the type that they have in the directory, such as int8.

    Args:
      directory: with the tokenizers and sizes of the model.

    Raises:
      UserError: the package is missing.
    """

    kind = "ctranslate2"
    phrase_room: tuple[int, int, int] | None = None
    num_compiled = 0
    num_devices = 1
    compiles = spans_processes = False
    step_rows = 1.0

    def __init__(self, directory: Directory):
        library = package.require(f"{directory.path}, a CTranslate2 model,")
        self._directory = directory
        self.config, self.tokenizers = directory.config, directory.tokenizers
        self.max_len = self.config.model.max_len
        self._target_ids = {token: i for i, token in enumerate(directory.target_tokens)}
        # The scheduler has as many batches at once, each in a translator's thread.
        threads = max(1, num_cores() // NUM_WORKERS)
        self._translator = library.Translator(
            str(directory.path),
            device="cpu",
            inter_threads=min(NUM_WORKERS, num_cores()),
            intra_threads=threads,
        )

    @property
    def alignment(self) -> AttentionChoice | None:
        """The attention that the directory has; None: of several heads, but not of all."""
        directory, num_heads = self._directory, self.config.model.for_decoder().num_heads
        head = {num_heads: None, 1: 0}.get(directory.attention_heads, -1)
        if head == -1:
            return None
        return AttentionChoice(directory.attention_layer, head, directory.attention_shift)

    def freeze(self) -> None:
        """Nothing is ever compiled."""

    def describe(self, params: Any, has_shortlist: bool = False) -> dict[str, Any]:
        """Digests of the model's file, and of its shortlist."""
        del params
        learned = shortlist.file_in(self._directory.path) if has_shortlist else None
        files = {"parameters": self._directory.path / "model.bin", "shortlist": learned}
        by_name = {name: digests.of_file(file) for name, file in files.items() if file}
        return {"engine": "ctranslate2", **by_name}

    def check(self, settings: TranslationSettings, given: Collection[str] = ()) -> None:
        """Refuses what CTranslate2 cannot do.

        Raises:
          UserError: naming the setting.
        """
        if settings.decode.shortlist and not shortlist.file_in(self._directory.path):
            raise UserError(
                f"`shortlist=True` needs {self._directory.path / shortlist.VOCABULARY_MAP}: run "
                "`transformer-jax shortlist` with this folder, or with the run before its export."
            )
        decoder = self.config.model.for_decoder()
        search.check(
            settings,
            given,
            self._directory.attention_layer,
            decoder.num_decoder_layers,
            self._directory.attention_heads,
            decoder.num_heads,
        )

    def why_no_phrases(self, method: str) -> str:
        """It never can place phrases."""
        del method
        return search.NO_PHRASES

    def batch_limits(self, settings: TranslationSettings) -> tuple[int, int, int]:
        """Longest source, positions of a batch, and number of devices."""
        batch_tokens = max(1, settings.decode.batch_tokens // settings.search.beam_size)
        return self.max_len, batch_tokens, self.num_devices

    def row_options(self, settings: TranslationSettings, length: int) -> Sequence[int]:
        """Any number of rows, because none is padded."""
        return range(1, 1 + max(1, min(MOST_ROWS, self.batch_limits(settings)[1] // length)))

    def shapes(
        self, settings: TranslationSettings, length: int, num_texts: int
    ) -> list[tuple[int, int]]:
        """None, because nothing is compiled."""
        del settings, length, num_texts
        return []

    def vocabulary_sizes(self, settings: TranslationSettings) -> list[int]:
        """Nothing is compiled."""
        del settings
        return []

    def lane_key(self, settings: TranslationSettings) -> Hashable:
        """Equal for settings that differ in languages only, because a call has one search."""
        return dataclasses.replace(settings, source_lang="", target_lang=""), self._bleu(settings)

    def _bleu(self, settings: TranslationSettings) -> str:
        return ranking.choose_bleu_tokenizer(settings, self.config.data)

    def translate_batch(self, params: Any, settings: TranslationSettings) -> TranslateBatch:
        """What translates batches of texts with these settings; there are no `params`."""
        del params
        bleu_tokenizer = self._bleu(settings)

        def translate(batch: Batch, texts: Sequence[EncodedText]) -> list[list[Translation]]:
            del batch  # nothing is padded
            results: dict[int, list[Translation]] = {}
            # Where any text of a call has a prefix, CTranslate2 searches the others differently.
            for has_prefix in (False, True):
                rows = [i for i, text in enumerate(texts) if bool(text.prefix) == has_prefix]
                group = [texts[i] for i in rows]
                if group:
                    outputs = self._translate_group(group, bleu_tokenizer)
                    results |= zip(rows, outputs, strict=True)
            return [results[i] for i in range(len(texts))]

        return translate

    def _translate_group(
        self, texts: Sequence[EncodedText], bleu_tokenizer: str
    ) -> list[list[Translation]]:
        """Translations of texts of which all or none have a prefix."""
        translations = [
            self._translations(text, result, cost, bleu_tokenizer)
            for text, result, cost in zip(
                texts, self._search(texts), self._prefix_costs(texts), strict=True
            )
        ]
        if texts[0].settings.attention:
            self._explain(texts, translations)
        return translations

    def _search(self, texts: Sequence[EncodedText]) -> list[Any]:
        """CTranslate2's result for each text.

        A call has one limit of the length. Texts that reach their own are searched again with it.
        """
        limits = [
            max(t.settings.length_limits(t.own_length, self.max_len)[1], t.min_output(()))
            for t in texts
        ]
        results = self._call(texts, max(limits))
        again = collections.defaultdict(list)
        for row, (result, limit) in enumerate(zip(results, limits, strict=True)):
            if limit < max(limits) and max(map(len, result.hypotheses)) >= limit:
                again[limit].append(row)
        for limit, rows in again.items():
            for row, result in zip(rows, self._call([texts[i] for i in rows], limit), strict=True):
                results[row] = result
        return results

    def _call(self, texts: Sequence[EncodedText], limit: int) -> list[Any]:
        settings = texts[0].settings
        options = search.arguments(
            settings.decode,
            settings.search.beam_size,
            self._directory.target_tokens,
        )
        prefixes = [self._target_tokens(text.prefix) for text in texts]
        return self._translator.translate_batch(
            [self._source_tokens(text.source) for text in texts],
            target_prefix=prefixes if any(prefixes) else None,
            max_decoding_length=limit,
            **options | {"min_decoding_length": min(options["min_decoding_length"], limit)},
        )

    def _prefix_costs(self, texts: Sequence[EncodedText]) -> list[float]:
        """The log-probability of each text's prefix, which CTranslate2's score leaves out.

        Language tags cost nothing.
        """
        costs = [0.0] * len(texts)
        rows = [i for i, text in enumerate(texts) if len(text.prefix) > text.num_target_tags]
        if rows:
            scored = self._translator.score_batch(
                [self._source_tokens(texts[i].source) for i in rows],
                [self._target_tokens(texts[i].prefix) for i in rows],
                max_input_length=0,
            )
            for i, result in zip(rows, scored, strict=True):
                counted = result.log_probs[texts[i].num_target_tags : len(texts[i].prefix)]
                costs[i] = float(np.sum(counted))
        return costs

    def _translations(
        self, text: EncodedText, result: Any, prefix_cost: float, bleu_tokenizer: str
    ) -> list[Translation]:
        """The translations of a text.

        Args:
          text: the text.
          result: of CTranslate2.
          prefix_cost: log-probability of the prefix.
          bleu_tokenizer: for `mbr`.
        """
        decode = text.settings.decode
        divisor = search.length_divisor(decode)
        hypotheses: list[tuple[Sequence[str], float, float]] = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            length: Any = float(len(tokens))  # with the end symbol
            log_prob = score * length**divisor + prefix_cost
            penalty: Any = length_penalty(length, decode.length_penalty, decode.length_penalty_kind)
            hypotheses.append((tokens, log_prob, log_prob / penalty))
        if decode.method == "beam":
            hypotheses.sort(key=lambda one: -one[-1])
        translations = (self._translation(text, *one) for one in hypotheses)
        return ranking.best_translations(translations, text.settings, bleu_tokenizer)

    def _translation(
        self, text: EncodedText, tokens: Sequence[str], log_prob: float, score: float
    ) -> Translation:
        target = self.tokenizers.target
        ids = [self._target_ids[token] for token in tokens[text.num_target_tags :]]
        if ids and ids[-1] == target.eos_id:
            ids.pop()
        return Translation(
            target.decode(ids), score, log_prob, tuple(target.tokens(ids)), tuple(ids)
        )

    def _explain(self, texts: Sequence[EncodedText], results: Sequence[list[Translation]]) -> None:
        """Adds its attention to the source and its log-probabilities to each best translation.

        The outputs are given to a greedy search as prefixes. CTranslate2 4.8 mixes up the attention
        of a batch's texts in the first step of a beam search.
        """
        outputs = [
            [*text.prefix[: text.num_target_tags], *best.ids]
            for text, (best, *_) in zip(texts, results, strict=True)
        ]
        forced = self._translator.translate_batch(
            [self._source_tokens(text.source) for text in texts],
            target_prefix=[self._target_tokens(output) for output in outputs],
            beam_size=1,
            max_decoding_length=max(map(len, outputs)) + 1,
            max_input_length=0,
            return_attention=True,
        )
        scored = self._translator.score_batch(
            [self._source_tokens(text.source) for text in texts],
            [self._target_tokens(output) for output in outputs],
            max_input_length=0,
        )
        choice = texts[0].settings.attention
        assert choice is not None
        for text, translations, result, scores in zip(texts, results, forced, scored, strict=True):
            best, source = translations[0], text.source[text.num_before : -1]
            columns = slice(text.num_before, text.num_before + len(source))
            rows = result.attention[0][text.num_target_tags :]
            # An output that was cut at its limit has no step that reads its last token.
            rows = (rows + rows[-1:])[choice.shift :] if choice.shift else rows
            weights = np.array([row[columns] for row in rows[: len(best.ids)]], np.float32)
            translations[0] = dataclasses.replace(
                best,
                source_tokens=tuple(self.tokenizers.source.tokens(source)),
                attention=weights.reshape(len(best.ids), len(source)),
                token_log_probs=tuple(map(float, scores.log_probs[text.num_target_tags :])),
            )

    def score_batch(self, params: Any) -> ScoreBatch:
        """What scores batches of pairs; there are no `params`."""
        del params

        def score(batch: Batch, pairs: Sequence[Pair]) -> list[TokenScores]:
            del batch
            results = self._translator.score_batch(
                [self._source_tokens(source) for source, _ in pairs],
                [self._target_tokens(target[:-1]) for _, target in pairs],
                max_input_length=0,
            )
            return [TokenScores(np.array(r.log_probs, np.float32), None) for r in results]

        return score

    def _source_tokens(self, ids: Sequence[int]) -> list[str]:
        """CTranslate2's names of a source, whose end symbol it may add itself."""
        names = self._directory.source_tokens
        return [names[i] for i in (ids[:-1] if self._directory.adds_source_eos else ids)]

    def _target_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._directory.target_tokens[i] for i in ids]


def load(path: epath.PathLike, config: Config | None = None) -> CTranslate2BatchRunner:
    """The runner of a CTranslate2 directory.

    Args:
      path: of the directory.
      config: replaces the directory's config, for other languages or search settings.

    Raises:
      UserError: the package or a file is missing, or something is damaged or not supported.
    """
    package.require(f"{path}, a CTranslate2 model,")
    directory = reading.read_directory(path)
    if config is not None:
        adapted = dataclasses.replace(config, model=directory.config.model)
        directory = dataclasses.replace(directory, config=validate(adapted))
    return CTranslate2BatchRunner(directory)


def num_cores() -> int:
    """Cores to use: OMP_NUM_THREADS, or all that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given):
        return int(given)
    return machine.num_cores()
