"""The life of a server: models are compiled, and loaded again when there are new checkpoints."""

import gc
import threading
from collections.abc import Callable, Mapping

import fastapi

from transformer_jax import units, waiting
from transformer_jax.errors import UserError
from transformer_jax.extras.documents import languages
from transformer_jax.extras.serving import priority
from transformer_jax.extras.serving.keys import Keys
from transformer_jax.extras.serving.served_model import ServedModel
from transformer_jax.extras.serving.service import Service

_RARELY = 100_000  # collections of young objects, before one of all; Python has 10


class Lifecycle:
    """Prepares the models of an application, one at a time.

    Args:
      app: that they are of.
      loaders: what loads each model, by its name.
      read_keys: reads the keys; None where none are needed.
      say: tells people.
    """

    def __init__(
        self,
        app: fastapi.FastAPI,
        loaders: Mapping[str, Callable[[], ServedModel]],
        read_keys: Callable[[], Keys] | None,
        say: Callable[[str], None],
    ):
        self.failure: BaseException | None = None
        self._app, self._loaders = app, loaders
        self._read_keys, self._say = read_keys, say
        self._working = threading.Lock()

    @property
    def is_working(self) -> bool:
        """Whether something is loaded or compiled now."""
        return self._working.locked()

    def start(self, on_ready: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """Compiles all models in a thread.

        Args:
          on_ready: called when that is done.
          on_failure: called where it cannot be done; `failure` says why.
        """

        def prepare() -> None:
            priority.lower()
            try:
                with self._working:
                    # The first detection reads a file, which would keep all requests waiting.
                    languages.detect("", self._service.source_langs)
                    for model in self._service.models.values():
                        self._say(f"{model.name}: {self._prepare(model)} programs")
                    _collect_garbage()
            except BaseException as error:
                self.failure = error
                on_failure()
                return
            self._say("ready")
            on_ready()

        threading.Thread(target=prepare, daemon=True).start()

    def _prepare(self, model: ServedModel) -> int:
        """Compiles a model, and says how far it is; returns the number of programs."""

        def line(seconds: float) -> str:
            done, total = model.progress
            left = f", {units.duration(seconds / done * (total - done))} left" if done else ""
            return f"{model.name}: {done} of {total} batch shapes, {seconds:.0f} s{left}"

        with waiting.reminded(line, self._say):
            return model.prepare()

    def reload(self) -> None:
        """Takes over new keys and models. What cannot be loaded stays as it is.

        The former model answers until the new one is compiled, and what it has accepted.
        """
        with self._working:
            try:
                if self._read_keys is not None:
                    former = self._app.state.keys
                    self._app.state.keys = self._read_keys().with_use_of(former)
                    self._say("keys: loaded again")
            except UserError as error:
                self._say(f"keys: not loaded again, the former ones stay: {error}")
            for name, load in self._loaders.items():
                try:
                    model = load()
                    self._prepare(model)
                except Exception as error:
                    reason = str(error) or type(error).__name__
                    self._say(f"{name}: not loaded again, the former model stays: {reason}")
                    continue
                step = model.translator.checkpoint_step
                self._service.replace(model)
                del model
                _collect_garbage()  # the former model is large
                self._say(f"{name}: loaded again, step {step}")

    @property
    def _service(self) -> Service:
        service: Service = self._app.state.service
        return service


def _collect_garbage() -> None:
    """Frees what is not used, and lets later collections pass over what is.

    A collection of all objects stops every thread: those of modules and models are many, and so are
    those of a thousand requests that wait. Requests leave nothing that only it would free.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _RARELY)
