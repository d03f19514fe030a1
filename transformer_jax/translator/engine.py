"""Text in, text out: a model, or an ensemble, with its tokenizers."""

import concurrent.futures
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from transformer_jax.config import Config
from transformer_jax.data.tokenizer_pair import TokenizerPair, special_ids
from transformer_jax.errors import UserError
from transformer_jax.translator import ON_ERROR, WINDOW, batching, call_settings, scheduler
from transformer_jax.translator.batch_functions import ModelParams
from transformer_jax.translator.batch_runner import BatchRunner
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.futures import gather
from transformer_jax.translator.in_order import Call, translate_windows
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.phrases import Phrase
from transformer_jax.translator.requests import (
    EncodedText,
    RefusedItem,
    Request,
    RequestEncoder,
    check_text,
    item_error,
    place_of,
    read_requests,
    windows,
)
from transformer_jax.translator.scoring import BATCH_TOKENS, PairScorer, PairScores
from transformer_jax.translator.text_queue import Lane
from transformer_jax.translator.translation import Translation, join_hypotheses
from transformer_jax.translator.translation_settings import TranslationSettings


class Engine:
    """Translates and scores with given parameters.

    It reads, checks and encodes texts, forms batches of them and schedules these. Its runner
    computes them.

    Args:
      config: of the run, with the default search settings.
      tokenizers: turn text into the model's token ids, and back.
      runner: computes batches; None: compiled programs of the one model of `config`.
    """

    def __init__(
        self, config: Config, tokenizers: TokenizerPair, runner: BatchRunner | None = None
    ):
        self.config, self.tokenizers = config, tokenizers
        self.ids = special_ids(tokenizers, config.model)
        self.runner = runner or JaxBatchRunner(config, tokenizers)

    @property
    def max_len(self) -> int:
        """Tokens that are read and written at once, the end symbol included."""
        return self.runner.max_len

    def limit_len(self, max_len: int) -> None:
        """Lets the engine read and write at most `max_len` tokens at once from now on."""
        self.runner.max_len = min(self.runner.max_len, max_len)

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled so far."""
        return self.runner.num_compiled

    def freeze(self) -> None:
        """Lets nothing compile any more: what needs another program fails."""
        self.runner.freeze()

    def language_tags(
        self, target_lang: str = "", source_lang: str = ""
    ) -> tuple[list[int], list[int]]:
        """Ids before every source and every target: language tags, and `data.source_prefix`.

        Raises:
          UserError: a language that the model does not know.
        """
        data = self.config.data
        tags: tuple[list[int], list[int]] = ([], [])
        is_given = bool(target_lang or source_lang)
        if data.target_language_tags or (is_given and self.tokenizers.has_language_tags):
            tags = self.tokenizers.language_tags(
                source_lang or data.source_lang, target_lang or data.target_lang
            )
        else:
            for name, given in (("source_lang", source_lang), ("target_lang", target_lang)):
                if given not in ("", getattr(data, name)):
                    raise UserError(
                        f"`{name}={given}`: this model translates from {data.source_lang} to "
                        f"{data.target_lang} only; omit `{name}`."
                    )
        return self.tokenizers.with_prefix(tags, data.source_prefix)

    def encoder(self, target_lang: str = "", source_lang: str = "") -> RequestEncoder:
        """Encodes text for these languages; without any, texts may begin with their tags."""
        needs_tag = self.tokenizers.needs_tag(self.config.data, target_lang)
        tags = ([], []) if needs_tag else self.language_tags(target_lang, source_lang)
        return RequestEncoder(self.tokenizers, tags, self.max_len, self.ids.source_eos, needs_tag)

    # --- Translation ---------------------------------------------------------------------------

    def translate(
        self,
        params: ModelParams,
        texts: Iterable[str | Request],
        settings: TranslationSettings,
        window: int = WINDOW,
        on_error: str = "raise",
        ready: Callable[[], bool] | None = None,
    ) -> Iterator[list[Translation]]:
        """Translations of each text, best first, one list a text, in order, as batches finish.

        An empty text gives one empty translation. A text longer than the model reads is translated
        in parts, with a message on standard error; its one translation joins the parts. Texts that
        are the same are translated once a window.

        Args:
          params: the model's; a tuple for an ensemble.
          texts: any iterable of text. A list is checked before anything runs, other iterables
            window by window.
          settings: of the search, and more.
          window: texts that are read ahead, to be sorted by length.
          on_error: what a text that cannot be translated gives: `raise`, or `skip`, an empty
            translation with its `error`.
          ready: whether the next text can be read without waiting. While it cannot, the texts read
            so far are translated first. None: always.

        Raises:
          UserError: an item that is no text, with its place.
        """
        if on_error not in ON_ERROR:
            raise UserError(f"`on_error={on_error}` must be one of {', '.join(ON_ERROR)}.")
        window = call_settings.count("window", window)
        requests = read_requests(texts, self.runner.why_no_phrases(settings.decode.method))
        if isinstance(texts, Collection):
            items = list(requests)
            for index, item in enumerate(items):
                if isinstance(item, RefusedItem) and on_error == "raise":
                    raise item_error(item.error, place_of(item, index))
            requests = iter(items)
        call = Call(
            self.encoder(settings.target_lang, settings.source_lang),
            settings,
            self.runner.batch_limits(settings),
            self.runner.translate_batch(params, settings),
            on_error,
            num_ahead=0 if self.runner.spans_processes else None,
        )
        return translate_windows(call, windows(requests, window, ready))

    def submit(
        self,
        params: ModelParams,
        text: str | Request,
        settings: TranslationSettings,
        **waiting: Any,
    ) -> concurrent.futures.Future[list[Translation]]:
        """The future translations of a text, best first; cancelling it frees its place.

        Texts of several callers share batches. As `translate` does, it translates a text that is
        too long in parts.

        Args:
          params: the model's; a tuple for an ensemble.
          text: to translate.
          settings: of the search, and more.
          **waiting: arguments of `Scheduler.submit`, such as `client` and `deadline`.

        Raises:
          UserError: what is no text, or cannot be translated with these settings.
          QueueFullError: more texts than `max_waiting` wait.
        """
        (item,) = read_requests([text], self.runner.why_no_phrases(settings.decode.method))
        if isinstance(item, RefusedItem):
            raise item_error(item.error, "the text")
        encoder = self.encoder(settings.target_lang, settings.source_lang)
        (parts,) = encoder.encode([item], settings)
        if isinstance(parts, UserError):
            raise parts
        most = waiting.get("max_waiting", math.inf)
        if len(parts) > most:
            raise UserError(
                f"the text is translated in {len(parts):,} parts of {self.max_len} tokens, and at "
                f"most {most:,} texts may wait: shorten it."
            )
        lane = self._lane(params, settings)
        submitted: list[concurrent.futures.Future[list[Translation]]] = []
        try:
            for part in parts:
                length = batching.padded_length(len(part.source), self.max_len)
                submitted.append(
                    scheduler.of_process().submit(lane, part, length, len(part.source), **waiting)
                )
        except BaseException:
            for future in submitted:
                future.cancel()
            raise
        return gather(submitted, join_hypotheses)

    def _lane(
        self, params: ModelParams, settings: TranslationSettings
    ) -> Lane[EncodedText, list[Translation]]:
        """Of texts that can share a batch with those of these settings."""
        return Lane(
            (id(self), id(params), self.runner.lane_key(settings)),
            functools.partial(self.runner.row_options, settings),
            self.runner.translate_batch(params, settings),
            self.runner.step_rows,
        )

    def warmup(
        self,
        params: ModelParams,
        lengths: Iterable[int],
        num_texts: int,
        settings: TranslationSettings,
    ) -> int:
        """Compiles what calls of `translate` need, runs each program once, and counts the shapes.

        Args:
          params: the model's; a tuple for an ensemble.
          lengths: tokens of the longest text of a batch, tags and end symbol included.
          num_texts: most texts of a call.
          settings: of the calls.

        Raises:
          UserError: a length that the model does not read.
        """
        calls = self.warmup_calls(params, lengths, num_texts, settings)
        # In this thread, so that no thread of the scheduler waits for a compilation.
        for call in calls.values():
            call()
        return len(calls)

    def warmup_calls(
        self,
        params: ModelParams,
        lengths: Iterable[int],
        num_texts: int,
        settings: TranslationSettings,
        phrases: tuple[Phrase, ...] = (),
    ) -> dict[tuple[int, int], Callable[[], Any]]:
        """For each batch shape (rows, length), what compiles and runs it.

        Several threads may share the calls. Arguments are those of `warmup`, and `phrases` whose
        search is compiled too.
        """
        shapes: set[tuple[int, int]] = set()
        for index, value in enumerate(lengths):
            length = call_settings.count(f"lengths[{index}]", value)
            if length > self.max_len:
                raise UserError(
                    f"No text has {length} tokens; the model reads 1 to {self.max_len}."
                )
            shapes |= set(self.runner.shapes(settings, length, num_texts))
        # An empty text ends the search soon; the shape alone decides what is compiled.
        text = self.encoder(settings.target_lang, settings.source_lang).empty_text(settings)
        text = dataclasses.replace(text, phrases=phrases)
        translate_batch = self.runner.translate_batch(params, settings)

        def compile_and_run(shape: tuple[int, int]) -> None:
            for size in self.runner.vocabulary_sizes(settings):
                translate_batch(Batch([0], *shape, least_tokens=size), [text])

        return {shape: functools.partial(compile_and_run, shape) for shape in sorted(shapes)}

    # --- Scoring -------------------------------------------------------------------------------

    def score(
        self,
        params: ModelParams,
        sources: Sequence[str],
        targets: Sequence[str],
        target_lang: str = "",
        batch_tokens: int = BATCH_TOKENS,
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[PairScores]:
        """Teacher-forced scores of pairs, in order; too long sides are cut, with a message.

        Raises:
          UserError: an item that is no text, with its place; before anything runs.
        """
        for name, texts in (("sources", sources), ("targets", targets)):
            for index, text in enumerate(texts):
                try:
                    check_text(text)
                except UserError as error:
                    raise item_error(error, place_of(text, index, name)) from error
        scorer = self._pair_scorer(params, target_lang, source_lang)
        return scorer.score(sources, targets, batch_tokens, contexts)

    def submit_pair(
        self,
        params: ModelParams,
        pair: tuple[str, str],
        languages: tuple[str, str],
        batch_tokens: int,
        **waiting: Any,
    ) -> concurrent.futures.Future[PairScores]:
        """The future scores of a (source, target) pair; cancelling it frees its place.

        Args:
          params: the model's; a tuple for an ensemble.
          pair: of texts.
          languages: of target and source; "": the config's.
          batch_tokens: positions of each side of a batch on one device.
          **waiting: arguments of `Scheduler.submit`, such as `client` and `deadline`.

        Raises:
          UserError: what is no text, or longer than the model reads.
          QueueFullError: more texts than `max_waiting` wait.
        """
        for name, text in zip(("source", "target"), pair, strict=True):
            try:
                check_text(text)
            except UserError as error:
                raise item_error(error, f"the {name}") from error
        scorer = self._pair_scorer(params, *languages)
        return scorer.submit((id(self), id(params)), pair, batch_tokens, **waiting)

    def warmup_score_calls(
        self, params: ModelParams, lengths: Iterable[int], batch_tokens: int
    ) -> dict[tuple[int, int], Callable[[], Any]]:
        """For each batch shape of `submit_pair`, what compiles and runs it; as `warmup_calls`."""
        scorer, pair = self._pair_scorer(params), ([self.ids.source_eos], [self.ids.target_eos])
        return {
            (rows, length): functools.partial(scorer.score_batch, Batch([0], rows, length), [pair])
            for length in lengths
            for rows in scorer.row_options(batch_tokens, length)
        }

    def _pair_scorer(
        self, params: ModelParams, target_lang: str = "", source_lang: str = ""
    ) -> PairScorer:
        return PairScorer(
            self.encoder(target_lang, source_lang),
            self.ids,
            self.runner.num_devices,
            self.runner.score_batch(params),
        )
