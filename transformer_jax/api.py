"""`Translator`: a trained model as a Python object."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast, overload

from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding import WINDOW, call_settings
from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.decoding.batch_translator import TranslationSettings
from transformer_jax.decoding.engine import Engine
from transformer_jax.decoding.processors import Processor
from transformer_jax.decoding.requests import Request, described
from transformer_jax.decoding.scoring import PairScores
from transformer_jax.decoding.translation import Translation
from transformer_jax.errors import UserError, UserTypeError
from transformer_jax.interop import pretrained
from transformer_jax.interop.pretrained import Pretrained
from transformer_jax.runs import compilation_cache, host_memory


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
    ):
        self.config = config
        self.tokenizers = tokenizers
        self.params = (params, *(other.params for other in others)) if others else params
        self.checkpoint_step = step
        self.engine = Engine(
            config, tokenizers, [other.config.model for other in others], processors
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
        """Reads a work directory, a bundle, or a Hugging Face Marian, M2M-100 or NLLB model.

        Programs that are compiled later are kept on the disk, for other processes
        (`runs.compilation_cache`).

        Args:
          path: of the directory or bundle; or a name on the Hugging Face Hub, such as
            "Helsinki-NLP/opus-mt-en-de": from its local cache, else downloaded where the package
            huggingface_hub is installed.
          checkpoint: of a work directory: `best`, `latest`, a step, or `average:N`.
          config: instead of the directory's own, for other data or search settings.
          allow_pickle: also read a Hugging Face `pytorch_model.bin`, which needs torch.
          ensemble: further (path, checkpoint), or paths alone for `best`, whose probabilities are
            averaged with it.
          processors: decoding rules besides those of the settings: functions of log-probabilities
            (`decoding.processors`), which every search applies.

        Raises:
          UserError: where something is missing, damaged or not supported.
        """
        _check_type("path", path, str | os.PathLike, "a path")
        _check_type("config", config, Config | None, "a Config")
        _check_list("processors", processors, "functions")
        processors = tuple(processors)
        for index, processor in enumerate(processors):
            _check_type(f"processors[{index}]", processor, Callable, "a function")
        further = _members(ensemble)
        host_memory.keep_freed_memory()
        compilation_cache.keep_programs()
        model = pretrained.load(_located(path), str(checkpoint), config, allow_pickle)
        others = [pretrained.load(_located(p), str(c), None, allow_pickle) for p, c in further]
        for (where, _), other in zip(further, others, strict=True):
            if other.tokenizers.fingerprint != model.tokenizers.fingerprint or (
                other.config.model.decoder_start_id != model.config.model.decoder_start_id
            ):
                raise UserError(
                    f"{where} has another vocabulary than {path}: they cannot be an ensemble."
                )
        return cls(model.config, model.tokenizers, model.params, model.step, others, processors)

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
          **settings: fields of `DecodeConfig` that replace the config's, such as beam_size.

        Raises:
          UserError: an unknown or impossible setting; a text that cannot be translated, with its
            index. A list is checked before anything runs, other iterables window by window.
        """
        _check_list("texts", texts, "strings")
        call = self._settings(n_best, target_lang, source_lang, attention, settings)
        results = self.engine.translate(self.params, texts, call, window, on_error, ready)
        return results if n_best is not None else (best[0] for best in results)

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

        Batches are padded to 8, 16, 24, 32, 48, 64, … tokens, so these `lengths` cover all shorter
        ones. Texts with a prefix or phrases need other programs, which are not compiled here.

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

        Returns:
          The number of batch shapes.

        Raises:
          UserError: an impossible setting, or a length that the model does not read.
        """
        _check_list("lengths", lengths, "numbers")
        num_texts = call_settings.count("num_texts", num_texts)
        call = self._settings(n_best, target_lang, source_lang, attention, settings)
        return self.engine.warmup(self.params, lengths, num_texts, call)

    def _settings(
        self,
        n_best: int | None,
        target_lang: str,
        source_lang: str,
        attention: AttentionChoice | None,
        settings: dict[str, Any],
    ) -> TranslationSettings:
        """The settings of a call, `settings` replacing those of the config.

        Raises:
          UserError: an unknown or impossible setting.
        """
        decode = call_settings.decode_config(self.config, settings)
        num_hypotheses = call_settings.num_hypotheses(n_best, decode)
        _check_type("attention", attention, AttentionChoice | None, "an AttentionChoice")
        if attention:
            for model in self.engine.models:
                attention.check(model)
        return TranslationSettings(decode, num_hypotheses, target_lang, source_lang, attention)

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
    ) -> list[float]: ...
    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
    ) -> float | list[float]:
        """Natural log-probability of each target with its end, without length penalty.

        Args:
          sources: texts, or one text.
          targets: a translation of each.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a multilingual model that needs it; "": the config's.

        Raises:
          UserError: an item that is no text, or not one target for each source.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], target_lang, source_lang)[0]
        pairs = self.score_tokens(sources, targets, target_lang, source_lang)
        return [pair.log_prob for pair in pairs]

    def score_tokens(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
    ) -> list[PairScores]:
        """As `score` of several texts, with the log-probability of every token."""
        _check_list("sources", sources, "strings")
        _check_list("targets", targets, "strings")
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} targets.")
        return self.engine.score(
            self.params, sources, targets, target_lang, source_lang=source_lang
        )


def _check_type(name: str, value: Any, kind: Any, wanted: str) -> None:
    """Raises a `UserError` that is a TypeError if an argument is not of the type `kind`."""
    if not isinstance(value, kind):
        raise UserTypeError(f"`{name}` is {described(value)}, not {wanted}.")


def _check_list(name: str, value: Any, of: str) -> None:
    """Raises a `UserError` that is a TypeError if an argument is no iterable, or one text."""
    if isinstance(value, str | bytes | os.PathLike | Request) or not isinstance(value, Iterable):
        raise UserTypeError(f"`{name}` is {described(value)}, not a list of {of}.")


def _members(ensemble: Any) -> list[tuple[epath.PathLike, str]]:
    """(path, checkpoint) of each further model of an ensemble."""
    _check_list("ensemble", ensemble, "models")
    members = []
    for index, one in enumerate(ensemble):
        path, checkpoint = one if isinstance(one, tuple | list) and len(one) == 2 else (one, "best")
        _check_type(f"ensemble[{index}]", path, str | os.PathLike, "a path or a (path, checkpoint)")
        members.append((path, checkpoint))
    return members


def _located(path: epath.PathLike) -> str:
    """A path of the caller's, with `~` expanded and a remote one's packages checked."""
    path = paths.expand(path)
    paths.require(path)
    return path
