"""`Translator`: a trained model as a Python object."""

import asyncio
import concurrent.futures
import dataclasses
import importlib
import math
import os
import time
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast, overload

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError, UserTypeError, missing_package
from transformer_jax.model.transformer import check_params
from transformer_jax.search.processors import Processor
from transformer_jax.translator import (
    WINDOW,
    calibration,
    call_settings,
    futures,
    model_formats,
    pretrained,
)
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_functions import DeviceParams
from transformer_jax.translator.batch_runner import BatchRunner
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.model_formats import ModelFormat
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.translator.requests import Request
from transformer_jax.translator.scoring import PairScores
from transformer_jax.translator.translation import DocumentTranslation, Translation
from transformer_jax.translator.translation_settings import TranslationSettings
from transformer_jax.workdir import compilation_cache, host_memory

# Imported where a document is translated; it needs the packages of an extra.
_DOCUMENT_TRANSLATION = "transformer_jax.extras.documents.document_translation"


class Translator:
    """Translates and scores text.

    Example:
      >>> t = Translator.load("runs/quickstart", checkpoint="best")
      >>> t.translate("thirty-four").text
      'vierunddreißig'
    """

    def __init__(
        self,
        config: Config,
        tokenizers: TokenizerPair,
        params: Any,
        step: int = 0,
        others: Sequence[Pretrained] = (),
        processors: Sequence[Processor] = (),
        shortlist: Callable[[], Shortlist] | None = None,
        runner: BatchRunner | None = None,
    ):
        self.tokenizers, self.shortlist = tokenizers, shortlist
        self.checkpoint_step = step
        # Of the model by `eval --calibrate`; None: it was not calibrated, or is an ensemble.
        self.calibration: Calibration | None = None
        if runner is None:
            check_params(config.model, params)
            models = [other.config.model for other in others]
            runner = JaxBatchRunner(config, tokenizers, models, processors, shortlist)
        self.config, self.engine = config, Engine(config, tokenizers, runner)
        # As functions of the engine take them.
        self.device_params = (params, *(other.params for other in others)) if others else params
        self._origin = "made from parameters"
        self._load_arguments: tuple[Any, ...] | None = None  # of `load`

    @classmethod
    def load(
        cls,
        path: epath.PathLike,
        checkpoint: str = "best",
        config: Config | None = None,
        allow_pickle: bool = False,
        ensemble: Sequence[tuple[epath.PathLike, str] | epath.PathLike] = (),
        processors: Sequence[Processor] = (),
    ) -> "Translator":
        """Reads a work directory, a bundle, a Hugging Face directory, or a CTranslate2 directory.

        Of Hugging Face's, `docs/interop.md` lists the classes. CTranslate2's need the package
        ctranslate2, which then translates on the CPU, and do not have every setting. Of others,
        programs that are compiled later are kept on the disk (`workdir.compilation_cache`).

        Args:
          path: of the directory or bundle, or of a model of Marian itself; or a name on the Hugging
            Face Hub, such as "Helsinki-NLP/opus-mt-en-de": from its local cache, else downloaded
            where the package huggingface_hub is installed.
          checkpoint: of a work directory: `best`, `latest`, a step, or `average:N`.
          config: instead of the directory's own, for other data or search settings.
          allow_pickle: also read a Hugging Face `pytorch_model.bin`, which needs torch.
          ensemble: further (path, checkpoint), or paths for `best`; probabilities are averaged.
          processors: decoding rules besides those of the settings: functions of log-probabilities
            (`search.processors`), which every search applies.

        Raises:
          UserError: where something is missing, damaged or not supported.
        """
        call_settings.check_type("path", path, str | os.PathLike, "a path")
        call_settings.check_type("config", config, Config | None, "a Config")
        processors = call_settings.functions("processors", processors)
        members = call_settings.ensemble_members(ensemble)
        path = paths.expand(path)
        arguments = (path, checkpoint, config, allow_pickle, ensemble, processors)
        if foreign := model_formats.with_engine(path):
            given = {
                "checkpoint": checkpoint != "best",
                "ensemble": bool(members),
                "processors": bool(processors),
            }
            translator = cls._load_engine(foreign, path, config, given)
            translator._origin = f"of {path}"
            translator._load_arguments = arguments
            return translator
        host_memory.keep_freed_memory()
        compilation_cache.keep_programs()
        one, *others = pretrained.load_ensemble(
            [(path, str(checkpoint)), *members], config, allow_pickle
        )
        translator = cls(
            one.config, one.tokenizers, one.params, one.step, others, processors, one.shortlist
        )
        translator._hold_model_once()
        translator.calibration = None if others else one.calibration
        translator._origin = f"step {one.step} of {path}"
        translator._load_arguments = arguments
        return translator

    @classmethod
    def _load_engine(
        cls,
        foreign: ModelFormat,
        path: epath.PathLike,
        config: Config | None,
        given: Mapping[str, bool],
    ) -> "Translator":
        """Loads a model and its own engine; refuses arguments of `load` that were `given`."""
        for name, is_given in given.items():
            if is_given:
                raise UserError(f"{path} is {foreign.name}: it has no `{name}`; remove it.")
        runner = foreign.load_engine().load(path, config)
        translator = cls(runner.config, runner.tokenizers, None, runner=runner)
        translator.calibration = calibration.read(path)
        return translator

    def __repr__(self) -> str:
        data, model = self.config.data, self.config.model
        shape = f"{model.num_encoder_layers} + {model.num_decoder_layers} layers of {model.d_model}"
        return (
            f"<{type(self).__name__} {data.source_lang} -> {data.target_lang}, {shape}, "
            f"{self._origin}>"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A copy, also in another process, reads the model again where this one was read."""
        if self._load_arguments is None:
            raise UserTypeError(
                f"{self!r} has no file to be read from again; write a bundle, and load that."
            )
        return type(self).load, self._load_arguments

    @property
    def params(self) -> Any:
        """The parameters as `Transformer` reads them; a tuple of trees for an ensemble.

        For a model that was loaded, each access makes them from `device_params`, in the types in
        which translation uses them. `translator.pretrained.load` reads them as they were trained.
        """
        if isinstance(self.device_params, DeviceParams):
            return cast(JaxBatchRunner, self.engine.runner).restore(self.device_params)
        return self.device_params

    def _hold_model_once(self) -> None:
        """Lays the parameters out on the devices, and empties the trees that were given."""
        self.device_params = cast(JaxBatchRunner, self.engine.runner).take(self.device_params)

    def settings(
        self,
        n_best: int | None = None,
        target_lang: str = "",
        source_lang: str = "",
        attention: AttentionChoice | None = None,
        settings: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> TranslationSettings:
        """The checked settings of a call, `settings` replacing those of the config.

        Raises:
          UserError: an unknown or impossible setting.
        """
        checked = call_settings.translation_settings(
            self.config,
            settings,
            n_best=n_best,
            target_lang=target_lang,
            source_lang=source_lang,
            attention=attention,
        )
        self.engine.runner.check(checked, settings)
        return checked

    @overload
    def translate(
        self, texts: str | Request, *, n_best: None = None, **settings: Any
    ) -> Translation: ...
    @overload
    def translate(
        self, texts: str | Request, *, n_best: int, **settings: Any
    ) -> list[Translation]: ...
    @overload
    def translate(
        self, texts: Iterable[str | Request], *, n_best: None = None, **settings: Any
    ) -> list[Translation]: ...
    @overload
    def translate(
        self, texts: Iterable[str | Request], *, n_best: int, **settings: Any
    ) -> list[list[Translation]]: ...
    def translate(
        self,
        texts: str | Request | Iterable[str | Request],
        *,
        n_best: int | None = None,
        **settings: Any,
    ) -> Translation | list[Translation] | list[list[Translation]]:
        """The translation of a text, or a list with that of each text.

        With `n_best`, there is a list of translations in the place of each.

        Example:
          >>> t.translate("thirty-four").text
          'vierunddreißig'
          >>> [out.text for out in t.translate(["one", "two"], beam_size=4)]
          ['eins', 'zwei']
          >>> len(t.translate("thirty-four", n_best=3))
          3

        Args:
          texts: a text, which is a string or a `Request` with a prefix or phrases; or any iterable
            of them.
          n_best: translations of each text, best first, or samples; None: the best one, without a
            list. A search may find fewer.
          **settings: as in `translate_iterable`: fields of `DecodeConfig` such as `beam_size=4`,
            and `target_lang`, `source_lang`, `attention`, `window`, `on_error`.

        Raises:
          UserError: an unknown or impossible setting; a text that cannot be translated, with its
            index. One that is no text is a TypeError too.
        """
        is_one = isinstance(texts, str | Request)
        items: Any = [texts] if is_one else texts
        results: Iterator[Any] = self.translate_iterable(
            items, n_best=cast(Any, n_best), **settings
        )
        return next(results) if is_one else list(results)

    @overload
    def translate_iterable(
        self, texts: Iterable[str | Request], *, n_best: None = None, **settings: Any
    ) -> Iterator[Translation]: ...
    @overload
    def translate_iterable(
        self, texts: Iterable[str | Request], *, n_best: int, **settings: Any
    ) -> Iterator[list[Translation]]: ...
    def translate_iterable(
        self,
        texts: Iterable[str | Request],
        *,
        n_best: int | None = None,
        target_lang: str = "",
        source_lang: str = "",
        attention: AttentionChoice | None = None,
        window: int = WINDOW,
        on_error: str = "raise",
        ready: Callable[[], bool] | None = None,
        confidence: bool = False,
        **settings: Any,
    ) -> Iterator[Translation] | Iterator[list[Translation]]:
        """As `translate`, but an iterator, which reads the texts as its results are asked for.

        Args:
          texts: any iterable, of text or of `Request` with a prefix or phrases.
          n_best: at most the beam size; with `method="mbr"`, at most `mbr_samples`.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a multilingual model that needs it (M2M-100, NLLB); "": the config's.
          attention: to the source, to come with the best translation of each text.
          window: texts that are read ahead, to be sorted by length.
          on_error: `raise`, or `skip`: a text that cannot be translated (no string, invalid
            Unicode, phrases that do not fit) gives an empty translation whose `error` says why.
          ready: whether the next text can be read without waiting. While it cannot, the texts read
            so far are translated first. None: always.
          confidence: whether the best translation of each text comes with its `confidence`, of a
            model that `eval --calibrate` has calibrated.
          **settings: fields of `DecodeConfig` that replace the config's, such as beam_size.

        Raises:
          UserError: an unknown or impossible setting; a text that cannot be translated, with its
            index. A list is checked before anything runs, other iterables window by window.
        """
        call_settings.check_list("texts", texts, "strings")
        if confidence:
            attention = attention or self._attention_for_confidence()
        call = self.settings(n_best, target_lang, source_lang, attention, settings)
        results = self.engine.translate(self.device_params, texts, call, window, on_error, ready)
        if confidence:
            results = map(self._with_confidence, results)
        return results if n_best is not None else (best[0] for best in results)

    @property
    def alignment(self) -> AttentionChoice | None:
        """The attention that links words best; None where the engine gives none.

        That of a head that has learned to align, else the one that calibration has found.
        """
        usual = self.engine.runner.alignment
        best = self.calibration.attention if self.calibration else None
        return best if best and usual == AttentionChoice() else usual

    def _attention_for_confidence(self) -> AttentionChoice:
        """What brings the log-probabilities of tokens with it.

        Raises:
          UserError: the model was not calibrated.
        """
        attention = self.alignment
        if self.calibration is None or attention is None:
            raise UserError(
                "`confidence=True` needs a model that was calibrated: run `transformer-jax eval "
                "--workdir=DIR --calibrate` once."
            )
        return attention

    def _with_confidence(self, hypotheses: list[Translation]) -> list[Translation]:
        assert self.calibration
        best, *others = hypotheses
        confidence = self.calibration.confidence(best)
        return [dataclasses.replace(best, confidence=confidence), *others]

    def submit(
        self,
        text: str | Request,
        *,
        n_best: int | None = None,
        target_lang: str = "",
        source_lang: str = "",
        attention: AttentionChoice | None = None,
        client: Hashable = None,
        wait_ms: float = 3.0,
        timeout_ms: float = math.inf,
        max_waiting: float = math.inf,
        **settings: Any,
    ) -> concurrent.futures.Future[Any]:
        """The future translation of a text, as `translate` gives it; returns at once.

        Texts of all threads share batches. Cancelling the future frees the text's place.

        Example:
          >>> submitted = [t.submit(text) for text in ("one", "two")]
          >>> [future.result().text for future in submitted]
          ['eins', 'zwei']

        Args:
          text: a string, or a `Request` with a prefix or phrases.
          n_best: as in `translate`; with it the result is a list.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a multilingual model that needs it; "": the config's.
          attention: to the source, to come with the best translation.
          client: whose text it is; clients take turns.
          wait_ms: how long the text waits for others to share its batch.
          timeout_ms: after which the text is not begun any more; its future then raises
            `DeadlineError`.
          max_waiting: of texts that wait already, above which this one is refused.
          **settings: fields of `DecodeConfig` that replace the config's, such as beam_size.

        Raises:
          UserError: an unknown or impossible setting, or a text that cannot be translated.
          QueueFullError: more than `max_waiting` texts wait.
        """
        call = self.settings(n_best, target_lang, source_lang, attention, settings)
        future = self.engine.submit(
            self.device_params,
            text,
            call,
            client=client,
            wait_seconds=wait_ms / 1000,
            deadline=time.monotonic() + timeout_ms / 1000,
            max_waiting=max_waiting,
        )
        return future if n_best is not None else futures.gather([future], _first_of_first)

    async def atranslate(
        self, texts: str | Request | Iterable[str | Request], **settings: Any
    ) -> Any:
        """As `translate`, for `await`: other tasks run while the texts are translated.

        Args:
          texts: a text, or an iterable of them.
          **settings: as of `submit`. Texts that have been submitted are cancelled where one fails,
            or where the task is cancelled.

        Raises:
          UserError: as of `submit`.
        """
        is_one = isinstance(texts, str | Request)
        items: Any = [texts] if is_one else texts
        parts: list[concurrent.futures.Future[Any]] = []
        try:
            parts += (self.submit(item, **settings) for item in items)
        except BaseException:
            for part in parts:
                part.cancel()
            raise
        results = await asyncio.wrap_future(futures.gather(parts, list))
        return results[0] if is_one else results

    @overload
    def score(  # type: ignore[overload-overlap]  # a string is an iterable of strings
        self, sources: str, targets: str, target_lang: str = "", source_lang: str = ""
    ) -> float: ...
    @overload
    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[float]: ...
    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> float | list[float]:
        """Natural log-probability of each target with its end, without length penalty.

        Args:
          sources: texts, or one text.
          targets: a translation of each.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a multilingual model that needs it; "": the config's.
          contexts: the sentences before each source, of a model that was trained with
            `data.context_sentences`; (): there are none.

        Raises:
          UserError: an item that is no text, or not one target for each source.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], target_lang, source_lang, contexts)[0]
        pairs = self.score_tokens(sources, targets, target_lang, source_lang, contexts)
        return [pair.log_prob for pair in pairs]

    def score_tokens(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[PairScores]:
        """As `score` of several texts, with the log-probability of every token."""
        call_settings.check_list("sources", sources, "strings")
        call_settings.check_list("targets", targets, "strings")
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} targets.")
        if contexts and len(contexts) != len(sources):
            raise UserError(
                f"{len(contexts)} contexts are not one for each of {len(sources)} sources."
            )
        return self.engine.score(
            self.device_params,
            sources,
            targets,
            target_lang,
            source_lang=source_lang,
            contexts=contexts,
        )

    def translate_document(
        self,
        text: str,
        format: str = "txt",
        *,
        glossary: Any = None,
        protect: Sequence[str] = (),
        protect_usual: bool = True,
        guards: bool = True,
        context_sentences: int | None = None,
        **settings: Any,
    ) -> DocumentTranslation:
        """The translation of a text of several sentences, with its layout and markup.

        Example:
          >>> t.translate_document("<p>One <b>dog</b>.</p>", format="html").text
          '<p>Ein <b>Hund</b>.</p>'

        Args:
          text: of the document.
          format: a name in `extras.documents.formats.FORMATS`: `txt`, `md`, …
          glossary: terms that translations have to contain: a file that
            `extras.documents.glossary.read` reads,
            rows of (source, target) or (source, target, flags), or a `Glossary` of that module.
          protect: regular expressions of what no translation may change.
          protect_usual: whether that also goes for addresses, names in braces, `%s`, numbers with
            units and the like (`extras.documents.protection.USUAL`).
          guards: whether loops, copies of the source and the like
            (`extras.documents.guards.MEANINGS`) are translated again, and flagged if they stay.
          context_sentences: sentences before each that the model reads too; None: as many as
            `data.context_sentences`, with which it was trained.
          **settings: fields of `DecodeConfig`; `source_lang` and `target_lang` as in
            `translate_iterable`, and `source_lang="auto"` detects the language; `window`.

        Raises:
          UserError: an unknown format, an impossible setting, or a sentence that cannot be
            translated; or the packages of the extra `documents` are missing.
        """
        try:
            document_translation = importlib.import_module(_DOCUMENT_TRANSLATION)
        except ModuleNotFoundError as error:
            raise missing_package(error, "documents") from error
        call_settings.check_type("text", text, str, "a string")
        options = document_translation.options(
            glossary, protect, protect_usual, guards, context_sentences
        )
        result: DocumentTranslation = document_translation.translate(
            self, text, format, options, **settings
        )
        return result

    def warmup(
        self,
        lengths: Iterable[int],
        num_texts: int = 1,
        n_best: int | None = None,
        target_lang: str = "",
        source_lang: str = "",
        attention: AttentionChoice | None = None,
        **settings: Any,
    ) -> int:
        """Compiles what calls of `translate` need, so that the first of them need not wait.

        It returns the number of batch shapes. Batches are padded to 8, 16, 24, 32, 48, 64, …
        tokens, so these `lengths` cover all shorter ones. Texts with a prefix or phrases need other
        programs, which are not compiled here.

        Example:
          >>> t.warmup([8, 16, 24, 32], num_texts=16, beam_size=4)

        Args:
          lengths: tokens of the longest text of a batch, tags and end symbol included.
          num_texts: most texts of a call.
          n_best: as in `translate_iterable`, like all that follow.
          target_lang: of a multilingual model.
          source_lang: of a multilingual model that needs it.
          attention: to the source.
          **settings: fields of `DecodeConfig`.

        Raises:
          UserError: an impossible setting, or a length that the model does not read.
        """
        call_settings.check_list("lengths", lengths, "numbers")
        num_texts = call_settings.count("num_texts", num_texts)
        call = self.settings(n_best, target_lang, source_lang, attention, settings)
        return self.engine.warmup(self.device_params, lengths, num_texts, call)


def _first_of_first(results: Sequence[list[Translation]]) -> Translation:
    return results[0][0]
