"""`Translator`: a trained model as a Python object."""

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast, overload

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError, missing_package
from transformer_jax.model.transformer import check_params
from transformer_jax.search.processors import Processor
from transformer_jax.translator import WINDOW, calibration, call_settings, model_formats, pretrained
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_runner import BatchRunner
from transformer_jax.translator.calibration import Calibration
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.model_formats import ModelFormat
from transformer_jax.translator.pretrained import Pretrained
from transformer_jax.translator.requests import Request
from transformer_jax.translator.text_scorer import TextScorer
from transformer_jax.translator.text_submitter import TextSubmitter
from transformer_jax.translator.translation import DocumentTranslation, Translation
from transformer_jax.workdir import compilation_cache, host_memory

# Imported where a document is translated; it needs the packages of an extra.
_DOCUMENT_TRANSLATION = "transformer_jax.extras.documents.document_translation"


class Translator(TextSubmitter, TextScorer):
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
        super().__init__(
            Engine(config, tokenizers, runner),
            (params, *(other.params for other in others)) if others else params,
        )

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
        foreign = model_formats.of_path(path)
        if foreign and foreign.engine:
            given = {
                "checkpoint": checkpoint != "best",
                "ensemble": bool(members),
                "processors": bool(processors),
            }
            translator = cls._load_engine(foreign, path, config, given)
            return translator._read_from(f"of {path}", arguments)
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
        return translator._read_from(f"step {one.step} of {path}", arguments)

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
        runner: BatchRunner = foreign.load_engine().load(path, config)
        translator = cls(runner.config, runner.tokenizers, None, runner=runner)
        translator.calibration = calibration.read(path)
        return translator

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
        usual = super().alignment
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
          format: a name in `extras.documents.formats.readers.READERS`: `txt`, `md`, …
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
