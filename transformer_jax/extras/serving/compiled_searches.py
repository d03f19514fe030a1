"""The searches of a served model: what is compiled at the start, and nothing else.

A client may choose among the searches that the server was started with. Settings that are numbers
of a search, such as the length penalty, may differ from request to request.
"""

import collections
import dataclasses
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.extras.documents.sentence_translator import RETRIES
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.jobs import Job
from transformer_jax.translator import batching
from transformer_jax.translator.phrases import Phrase, PhraseForm
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.translator.translator import Translator

# Texts of a batch with phrases, or of one that a guard has caught: few, so that few programs are
# compiled.
_RARE_ROWS = 1
PHRASE_ROOM = (4, 4, 8)  # as of `JaxBatchRunner.phrase_room`
# A phrase that no output contains, to compile the search for phrases.
_NO_PHRASE = Phrase(("\0",), (PhraseForm("\0", (0,), may_continue=True),))
_MAX_SETTINGS = 256  # that are kept, checked: those used last
_MAX_SETTINGS_CHARS = 10_000  # of a request's settings, as JSON


class CompiledSearches:
    """The searches that a model can do for clients.

    Args:
      translator: of the model.
      searches: settings of each search besides the model's own.
      can_align: whether the engine gives attention that links words.
      has_retries: whether there are searches for texts that a guard catches.

    Attributes:
      searches: the settings of each search that clients may ask for; {} is the model's own.
      retries: those of searches for texts that a guard catches.

    Raises:
      UserError: a search that the model cannot do.
    """

    def __init__(
        self,
        translator: Translator,
        searches: Sequence[Mapping[str, Any]],
        can_align: bool,
        has_retries: bool,
    ):
        self._translator, self._can_align = translator, can_align
        self.searches: tuple[Mapping[str, Any], ...] = ({}, *searches)
        self.retries = tuple(filter(self._is_possible, RETRIES)) if has_retries else ()
        self._compiled = {self._program_key(settings) for settings, _ in self.to_compile()}
        # Checking settings takes longer than all else of a request.
        # Not `lru_cache` of a method, which would keep this model in memory after another one.
        self._kept: collections.OrderedDict[Hashable, TranslationSettings] = (
            collections.OrderedDict()
        )

    def _is_possible(self, search: Mapping[str, Any]) -> bool:
        """Whether the engine can do a search."""
        try:
            self._unchecked(Job((), search=search))
        except UserError:
            return False
        return True

    def to_compile(self) -> Iterator[tuple[TranslationSettings, tuple[Phrase, ...]]]:
        """Settings of all searches, with phrases where texts may have some."""
        for alignment in (False, True) if self._can_align else (False,):
            for search in self.searches:
                numbers = {name: value for name, value in search.items() if name != "n_best"}
                n_best = search.get("n_best", 1)
                settings = self._unchecked(Job((), None, n_best, alignment, search=numbers))
                yield settings, ()
                if not self._translator.engine.runner.why_no_phrases(settings.decode.method):
                    yield dataclasses.replace(settings, most_rows=_RARE_ROWS), (_NO_PHRASE,)
            for search in self.retries:
                settings = self._unchecked(Job((), alignment=alignment, search=search))
                yield dataclasses.replace(settings, most_rows=_RARE_ROWS), ()

    def settings(
        self, job: Job, retry: Mapping[str, Any] | None = None, has_phrases: bool = False
    ) -> TranslationSettings:
        """The settings of a job.

        Args:
          job: of a client.
          retry: one of `retries`, instead of the search of the job.
          has_phrases: whether they are for a text with phrases.

        Raises:
          ServiceError: there are no such settings, or nothing is compiled for them.
        """
        search = json.dumps(dict(job.search if retry is None else retry), sort_keys=True)
        if len(search) > _MAX_SETTINGS_CHARS:
            raise ServiceError(
                400,
                f"The settings of the search have {len(search):,} characters; at most "
                f"{_MAX_SETTINGS_CHARS:,}.",
            )
        most_rows = _RARE_ROWS if has_phrases or retry is not None else None
        asked = (job.n_best, job.alignment, job.source_lang, job.target_lang)
        key = (*asked, search, most_rows)
        if key not in self._kept:
            self._kept[key] = self._checked(*key)
            if len(self._kept) > _MAX_SETTINGS:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _unchecked(self, job: Job) -> TranslationSettings:
        attention = self._translator.alignment if job.alignment else None
        if job.alignment and attention is None:
            raise UserError("`alignment`: this model gives no attention that links words.")
        return self._translator.settings(
            job.n_best, job.target_lang, job.source_lang, attention, job.search
        )

    def _checked(
        self,
        n_best: int,
        alignment: bool,
        source_lang: str,
        target_lang: str,
        search: str,
        most_rows: int | None,
    ) -> TranslationSettings:
        """The settings of a job, whose `search` is given as JSON."""
        job = Job((), None, n_best, alignment, source_lang, target_lang, json.loads(search))
        try:
            settings = dataclasses.replace(self._unchecked(job), most_rows=most_rows)
            self._translator.engine.language_tags(target_lang, source_lang)
        except UserError as error:
            raise ServiceError(400, str(error)) from error
        if not self._translator.engine.runner.compiles:
            self._check_beams(settings)
        elif self._program_key(settings) not in self._compiled:
            raise ServiceError(
                400,
                f"No search like this was compiled at the start, only: {self.describe()}. The "
                "server's flag --search adds one.",
                reason="search_not_compiled",
            )
        return settings

    def _check_beams(self, settings: TranslationSettings) -> None:
        """Refuses more hypotheses of a text than fit into a batch, whatever its length."""
        usual = self._unchecked(Job(()))
        batch_tokens = settings.decode.batch_tokens
        most = max(usual.search.beam_size, batch_tokens // self._translator.engine.max_len)
        if settings.search.beam_size > most:
            raise ServiceError(
                400, f"{settings.search.beam_size:,} hypotheses of a text; at most {most:,}."
            )

    def _program_key(self, settings: TranslationSettings) -> Hashable:
        """Equal for settings that need the same programs."""
        engine = self._translator.engine
        rooms = tuple(
            settings.output_room(length, engine.max_len)
            for length in batching.padded_lengths(engine.max_len)
        )
        return settings.shared, rooms

    def describe(self) -> str:
        """The searches that clients may ask for, in words."""
        names = (
            ", ".join(f"{name}={value}" for name, value in search.items())
            or "the model's own search"
            for search in self.searches
        )
        return "; ".join(names)
