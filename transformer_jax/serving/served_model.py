"""A model that is served: what is compiled for it, and texts on their way through the scheduler.

Everything is compiled before a model answers, and nothing afterwards. So a client may choose among
the searches that the server was started with. Settings that are numbers of a search, such as the
length penalty, may differ from request to request.
"""

import concurrent.futures
import functools
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from transformer_jax.api import Translator
from transformer_jax.decoding import batching, scheduler
from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.decoding.requests import check_text
from transformer_jax.decoding.scoring import PairScores
from transformer_jax.decoding.search_settings import TranslationSettings
from transformer_jax.decoding.text_queue import QueueFullError
from transformer_jax.decoding.translation import Translation
from transformer_jax.errors import UserError
from transformer_jax.serving.errors import ServiceError
from transformer_jax.serving.jobs import Job, Limits, ScoreJob
from transformer_jax.serving.submitted import Submitted, cancel

Item = TypeVar("Item")
Result = TypeVar("Result")
# Positions of a batch of pairs that are scored; each has a probability for every token.
_SCORED_TOKENS = 1024
_MAX_SETTINGS = 256  # that are kept, checked: those used last
_MAX_SETTINGS_CHARS = 10_000  # of a request's settings, as JSON


class ServedModel:
    """A model with its compiled searches.

    Args:
      name: in requests.
      translator: of the model; from now on it reads `limits.max_tokens` at once.
      searches: settings of each search that is compiled, besides the model's own.
      limits: of requests.

    Raises:
      UserError: a search that the model cannot do.
    """

    def __init__(
        self,
        name: str,
        translator: Translator,
        searches: Sequence[Mapping[str, Any]] = (),
        limits: Limits | None = None,
    ):
        self.name, self.translator = name, translator
        self.limits = limits = limits or Limits()
        self.is_ready = False
        self.num_tokens = 0  # that were written
        self._counting = threading.Lock()
        engine = translator.engine
        engine.limit_len(limits.max_tokens)
        self.searches = ({}, *searches)
        self._scored_tokens = min(_SCORED_TOKENS, translator.config.decode.batch_tokens)
        self.can_align = self._can_align()
        self._compiled = {self._program_key(settings) for settings in self._compiled_settings()}
        # Checking settings takes longer than all else of a request.
        self._kept_settings = functools.lru_cache(_MAX_SETTINGS)(self._compiled_settings_of)

    def prepare(self, report: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Compiles all that requests need; returns the number of programs.

        Args:
          report: called with how many batch shapes are compiled, and how many there are.
        """
        calls = self._warmup_calls()
        # One after the other: XLA compiles a program on several cores itself.
        for done, call in enumerate(calls, start=1):
            call()
            report(done, len(calls))
        self.translator.engine.freeze()
        self.is_ready = True
        return self.num_compiled

    def _warmup_calls(self) -> list[Callable[[], Any]]:
        """What compiles each batch shape: the largest, which needs most memory, then short ones."""
        engine, params = self.translator.engine, self.translator.params
        if not engine.compiles:
            return []
        lengths = batching.padded_lengths(engine.max_len)
        calls: list[tuple[tuple[int, int], Callable[[], Any]]] = []
        for settings in self._compiled_settings():
            # With attention, the same program searches.
            if settings.attention or not self.can_align:
                shapes = engine.warmup_calls(params, lengths, sys.maxsize, settings)
                calls += (
                    (shape, call)
                    for shape, call in shapes.items()
                    if shape[0] in engine.runner.row_options(settings, shape[1])
                )
        calls += engine.warmup_score_calls(params, lengths, self._scored_tokens).items()
        calls.sort(key=lambda one: one[0][::-1])  # by length, then by rows
        return [call for _, call in (*calls[-1:], *calls[:-1])]

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled."""
        return self.translator.engine.num_compiled

    def _compiled_settings(self) -> Iterator[TranslationSettings]:
        with_attention = (False, True) if self.can_align else (False,)
        for search, alignment in itertools.product(self.searches, with_attention):
            numbers = {name: value for name, value in search.items() if name != "n_best"}
            yield self._settings(
                Job((), n_best=search.get("n_best", 1), alignment=alignment, search=numbers)
            )

    def _can_align(self) -> bool:
        """Whether the engine gives attention from which words are linked."""
        try:
            self._settings(Job((), n_best=1, alignment=True))
        except UserError:
            return False
        return True

    def _settings(self, job: Job) -> TranslationSettings:
        attention = AttentionChoice() if job.alignment else None
        return self.translator.settings(
            job.n_best, job.target_lang, job.source_lang, attention, job.search
        )

    def _compiled_settings_of(
        self, n_best: int, alignment: bool, source_lang: str, target_lang: str, search: str
    ) -> TranslationSettings:
        """The settings of a job, whose `search` is given as JSON.

        Raises:
          ServiceError: there are no such settings, or nothing is compiled for them.
        """
        job = Job((), None, n_best, alignment, source_lang, target_lang, json.loads(search))
        try:
            settings = self._settings(job)
            self.translator.engine.language_tags(target_lang, source_lang)
        except UserError as error:
            raise ServiceError(400, str(error)) from error
        if not self.translator.engine.compiles:
            self._check_beams(settings)
        elif self._program_key(settings) not in self._compiled:
            raise ServiceError(
                400,
                "No search like this was compiled at the start. There are "
                f"{self.describe()}; the server's flag --search adds one.",
                reason="search_not_compiled",
            )
        return settings

    def _check_beams(self, settings: TranslationSettings) -> None:
        """Refuses more hypotheses of a text than fit into a batch, whatever its length."""
        usual = self._settings(Job(()))
        batch_tokens = settings.decode.batch_tokens
        most = max(usual.search.beam_size, batch_tokens // self.translator.engine.max_len)
        if settings.search.beam_size > most:
            raise ServiceError(
                400, f"{settings.search.beam_size:,} hypotheses of a text; at most {most:,}."
            )

    def _program_key(self, settings: TranslationSettings) -> Hashable:
        """Equal for settings that need the same programs."""
        engine = self.translator.engine
        rooms = tuple(
            settings.output_room(length, engine.max_len)
            for length in batching.padded_lengths(engine.max_len)
        )
        return settings.shared, rooms

    def submit(self, job: Job) -> Submitted:
        """The future translations of each text, best first.

        Raises:
          ServiceError: the request cannot be answered; nothing of it waits then.
        """
        translator = self.translator
        languages = (job.source_lang, job.target_lang)
        search = json.dumps(dict(job.search), sort_keys=True)
        if len(search) > _MAX_SETTINGS_CHARS:
            raise ServiceError(
                400,
                f"The settings of the search have {len(search):,} characters; at most "
                f"{_MAX_SETTINGS_CHARS:,}.",
            )
        settings = self._kept_settings(job.n_best, job.alignment, *languages, search)

        def submit_one(text: str, **waiting: Any) -> concurrent.futures.Future[list[Translation]]:
            future = translator.engine.submit(translator.params, text, settings, **waiting)
            future.add_done_callback(self._count_tokens)
            return future

        return self._submit(job.texts, submit_one, job.client, job.timeout_ms)

    def submit_pairs(self, job: ScoreJob) -> list[concurrent.futures.Future[PairScores]]:
        """The future scores of each pair.

        Raises:
          ServiceError: the request cannot be answered; nothing of it waits then.
        """
        engine, params = self.translator.engine, self.translator.params

        def submit_one(
            pair: tuple[str, str], **waiting: Any
        ) -> concurrent.futures.Future[PairScores]:
            languages = (job.target_lang, job.source_lang)
            return engine.submit_pair(params, pair, languages, self._scored_tokens, **waiting)

        return self._submit(job.pairs, submit_one, job.client, job.timeout_ms)

    def _submit(
        self,
        items: Sequence[Item],
        submit_one: Callable[..., concurrent.futures.Future[Result]],
        client: Hashable,
        timeout_ms: float | None,
    ) -> list[concurrent.futures.Future[Result]]:
        """The future result of each item; all of them wait, or none."""
        limits = self.limits
        self.check_room(len(items))
        wait = limits.timeout_ms if timeout_ms is None else min(timeout_ms, limits.timeout_ms)
        room: dict[str, Any] = {
            "client": client,
            "deadline": time.monotonic() + wait / 1000,
            "max_waiting": limits.max_queue,
        }
        waiting = {**room, "wait_seconds": min(limits.batch_wait_ms, wait / 2) / 1000}
        submitted: list[concurrent.futures.Future[Result]] = []
        try:
            if items:
                # A server that has too much to do refuses before it tokenises.
                scheduler.of_process().check_room(**room)
            for item in items:
                submitted.append(submit_one(item, **waiting))
        except BaseException as error:
            cancel(submitted)
            if isinstance(error, QueueFullError):
                raise ServiceError(
                    429,
                    "Too many texts wait; try again.",
                    retry_after=max(1, math.ceil(error.retry_seconds)),
                    reason="queue_full",
                ) from error
            if isinstance(error, UserError):
                raise ServiceError(400, str(error), item=len(submitted)) from error
            raise
        return submitted

    def _count_tokens(self, future: concurrent.futures.Future[list[Translation]]) -> None:
        if not future.cancelled() and future.exception() is None:
            num_tokens = sum(len(one.tokens) for one in future.result()[:1])
            with self._counting:  # threads of the scheduler count
                self.num_tokens += num_tokens

    def check_room(self, num_sentences: int) -> None:
        """Refuses a request of more sentences than may ever wait.

        Raises:
          ServiceError: it has more.
        """
        most = self.limits.max_queue
        if num_sentences > most:
            raise ServiceError(
                413, f"{num_sentences:,} sentences; at most {most:,} may wait. Send fewer at once."
            )

    def check_size(self, texts: Sequence[str], per_item: int = 1) -> None:
        """Checks number and length of texts.

        Args:
          texts: of a request.
          per_item: texts that an item of the request has.

        Raises:
          ServiceError: they are too many or too long, or one is no valid text.
        """
        limits, num_items = self.limits, len(texts) // per_item
        if num_items > limits.max_texts:
            raise ServiceError(
                413, f"{num_items:,} texts; a request has at most {limits.max_texts:,}."
            )
        num_chars = sum(map(len, texts))
        if num_chars > limits.max_chars:
            raise ServiceError(
                413, f"{num_chars:,} characters; a request has at most {limits.max_chars:,}."
            )
        for index, text in enumerate(texts):
            try:
                check_text(text)
            except UserError as error:
                raise ServiceError(400, f"The text {error}", item=index // per_item) from error

    def translates(self, source_lang: str = "", target_lang: str = "") -> bool:
        """Whether it translates between these languages; "" is any."""
        sources, targets = self.languages
        return (not source_lang or source_lang in sources) and (
            not target_lang or target_lang in targets
        )

    @property
    def most_alternatives(self) -> int:
        """Further translations that its own search can give."""
        decode = self.translator.config.decode
        return {"beam": decode.beam_size, "mbr": decode.mbr_samples}.get(decode.method, 1) - 1

    @property
    def languages(self) -> tuple[list[str], list[str]]:
        """Codes of the languages that it reads, and that it writes."""
        data, tokenizers = self.translator.config.data, self.translator.tokenizers
        tagged = tokenizers.languages
        sources = tagged if tokenizers.tags.both_sides else [data.source_lang]
        return sources, tagged or [data.target_lang]

    def describe(self) -> str:
        """The searches that are compiled, in words."""
        names = (
            ", ".join(f"{name}={value}" for name, value in search.items())
            or "the model's own search"
            for search in self.searches
        )
        return "; ".join(names)
