"""Single texts, translated in the background: `submit` and `atranslate` of a `Translator`."""

import asyncio
import concurrent.futures
import math
import time
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self, cast

from transformer_jax.errors import UserTypeError
from transformer_jax.translator import call_settings, futures
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batch_functions import DeviceParams
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.jax_batch_runner import JaxBatchRunner
from transformer_jax.translator.requests import Request
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translation_settings import TranslationSettings


class TextSubmitter:
    """A model whose translations are futures.

    Args:
      engine: of the model.
      params: of the model; a tuple for an ensemble.

    Attributes:
      device_params: the parameters, as functions of `engine` take them.
    """

    def __init__(self, engine: Engine, params: Any):
        self.engine, self.device_params, self.config = engine, params, engine.config
        self._origin = "made from parameters"
        self._load_arguments: tuple[Any, ...] | None = None

    def _read_from(self, origin: str, arguments: tuple[Any, ...]) -> Self:
        """Notes where the model was read, by which arguments of `load`."""
        self._origin, self._load_arguments = origin, arguments
        return self

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
        return type(self).load, self._load_arguments  # type: ignore[attr-defined]

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

    @property
    def alignment(self) -> AttentionChoice | None:
        """The attention that links words best; None where the engine gives none."""
        return self.engine.runner.alignment

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


def _first_of_first(results: Sequence[list[Translation]]) -> Translation:
    return results[0][0]
