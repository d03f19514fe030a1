"""A model that is served: what is compiled for it, and texts on their way through the scheduler.

Everything is compiled before a model answers, and nothing afterwards (`compiled_searches`).
"""

import concurrent.futures
import math
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from transformer_jax.errors import UserError
from transformer_jax.extras.documents.term_placement import why_no_terms
from transformer_jax.extras.serving.compiled_searches import PHRASE_ROOM, CompiledSearches
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.jobs import Job, Limits, ScoreJob
from transformer_jax.extras.serving.submitted import Submitted, cancel
from transformer_jax.translator import batching, scheduler
from transformer_jax.translator.requests import Request, check_text
from transformer_jax.translator.scoring import PairScores
from transformer_jax.translator.text_queue import QueueFullError
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translator import Translator

Item = TypeVar("Item")
Result = TypeVar("Result")
# Positions of a batch of pairs that are scored; each has a probability for every token.
_SCORED_TOKENS = 1024


class ServedModel:
    """A model with its compiled searches.

    Args:
      name: in requests.
      translator: of the model; from now on it reads `limits.max_tokens` at once.
      searches: settings of each search that is compiled, besides the model's own.
      limits: of requests.
      has_retries: whether searches are compiled for texts that a guard catches.

    Raises:
      UserError: a search that the model cannot do.
    """

    def __init__(
        self,
        name: str,
        translator: Translator,
        searches: Sequence[Mapping[str, Any]] = (),
        limits: Limits | None = None,
        has_retries: bool = True,
    ):
        self.name, self.translator = name, translator
        self.limits = limits = limits or Limits()
        self.is_ready = False
        self.progress = (0, 0)  # batch shapes that are compiled, of how many
        self.num_tokens = 0  # that were written
        self._counting = threading.Lock()
        engine = translator.engine
        engine.limit_len(limits.max_tokens)
        if engine.runner.compiles:
            engine.runner.phrase_room = PHRASE_ROOM
        self._scored_tokens = min(_SCORED_TOKENS, translator.config.decode.batch_tokens)
        self.can_align = translator.alignment is not None
        self._searches = CompiledSearches(translator, searches, self.can_align, has_retries)
        self.searches, self.retries = self._searches.searches, self._searches.retries

    def prepare(self) -> int:
        """Compiles all that requests need, as `progress` shows; returns the number of programs."""
        calls = self._warmup_calls()
        # One after the other: XLA compiles a program on several cores itself.
        for done, call in enumerate(calls):
            self.progress = (done, len(calls))
            call()
        self.progress = (len(calls), len(calls))
        self.translator.engine.freeze()
        self.is_ready = True
        return self.num_compiled

    def _warmup_calls(self) -> list[Callable[[], Any]]:
        """What compiles each batch shape: the largest, which needs most memory, then short ones."""
        engine, params = self.translator.engine, self.translator.device_params
        if not engine.runner.compiles:
            return []
        lengths = batching.padded_lengths(engine.max_len)
        calls: list[tuple[tuple[int, int], Callable[[], Any]]] = []
        for settings, phrases in self._searches.to_compile():
            # With attention, the same program searches.
            if settings.attention or not self.can_align:
                shapes = engine.warmup_calls(params, lengths, sys.maxsize, settings, phrases)
                calls += (
                    (shape, call)
                    for shape, call in shapes.items()
                    if shape[0] in engine.runner.row_options(settings, shape[1])
                )
        calls += engine.warmup_score_calls(params, lengths, self._scored_tokens).items()
        calls.sort(key=lambda one: one[0][::-1])  # by length, then by rows
        return [call for _, call in (*calls[-1:], *calls[:-1])]

    @property
    def can_place_terms(self) -> bool:
        """Whether its translations can have terms of a glossary."""
        return not why_no_terms(self.translator, {})

    def can_constrain(self, search: Mapping[str, Any]) -> bool:
        """Whether a search can be forced to write phrases.

        Args:
          search: fields of `DecodeConfig` that differ from the model's own.
        """
        method = search.get("method", self.translator.config.decode.method)
        return not self.translator.engine.runner.why_no_phrases(method)

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled."""
        return self.translator.engine.num_compiled

    def submit(self, job: Job, retry: Mapping[str, Any] | None = None) -> Submitted:
        """The future translations of each text, best first.

        Args:
          job: of a client.
          retry: one of `retries`, instead of the search of the job.

        Raises:
          ServiceError: the request cannot be answered; nothing of it waits then.
        """
        translator = self.translator
        usual = self._searches.settings(job, retry)  # checked even where there is no text

        def submit_one(
            text: str | Request, **waiting: Any
        ) -> concurrent.futures.Future[list[Translation]]:
            has_phrases = isinstance(text, Request) and bool(text.phrases)
            settings = self._searches.settings(job, retry, has_phrases) if has_phrases else usual
            future = translator.engine.submit(translator.device_params, text, settings, **waiting)
            future.add_done_callback(self._count_tokens)
            return future

        return self._submit(job.texts, submit_one, job.client, job.timeout_ms)

    def submit_pairs(self, job: ScoreJob) -> list[concurrent.futures.Future[PairScores]]:
        """The future scores of each pair.

        Raises:
          ServiceError: the request cannot be answered; nothing of it waits then.
        """
        engine, params = self.translator.engine, self.translator.device_params

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
