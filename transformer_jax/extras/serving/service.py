"""The models of a server, and which of them answers a request."""

import collections
import itertools
from collections.abc import Sequence

from transformer_jax.extras.documents import languages
from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.extras.serving.served_model import ServedModel


class Service:
    """The models of a server.

    Args:
      models: the first is the one of requests that name none.
    """

    def __init__(self, models: Sequence[ServedModel]):
        self.models = {model.name: model for model in models}
        self.is_draining = False
        # Characters of each key; of all clients together where no keys are needed.
        self.chars_of: collections.Counter[str] = collections.Counter()
        self._former_compiles = self._former_tokens = 0  # of models that were replaced

    def replace(self, model: ServedModel) -> None:
        """Answers with `model` from now on, instead of the one of the same name."""
        former = self.models[model.name]
        self._former_compiles += former.num_compiled
        self._former_tokens += former.num_tokens
        self.models[model.name] = model

    def count_chars(self, client: str, num_chars: int) -> None:
        """Counts characters that a client has had translated."""
        self.chars_of[client] += num_chars

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled since the start."""
        return self._former_compiles + sum(m.num_compiled for m in self.models.values())

    @property
    def num_tokens(self) -> int:
        """Tokens that were written since the start."""
        return self._former_tokens + sum(m.num_tokens for m in self.models.values())

    @property
    def targets_by_source(self) -> dict[str, list[str]]:
        """Each language that is read, and those that it is translated to."""
        targets: dict[str, list[str]] = {}
        for model in self.models.values():
            sources, written = model.languages
            for source in sources:
                known = targets.setdefault(source, [])
                known += [code for code in written if code not in (*known, source)]
        return targets

    @property
    def source_langs(self) -> list[str]:
        """Languages that are read."""
        return list(self.targets_by_source)

    @property
    def target_langs(self) -> list[str]:
        """Languages that are written."""
        return list(dict.fromkeys(itertools.chain(*self.targets_by_source.values())))

    @property
    def is_ready(self) -> bool:
        """Whether all is compiled, and new texts are taken."""
        return not self.is_draining and all(model.is_ready for model in self.models.values())

    def check_ready(self) -> None:
        """Raises a `ServiceError` until all is compiled, and when the server is ending."""
        if self.is_draining:
            raise ServiceError(503, "The server is ending.", retry_after=5, reason="draining")
        if not self.is_ready:
            done, total = map(sum, zip(*(m.progress for m in self.models.values()), strict=True))
            text = f"The server is starting ({done} of {total} batch shapes); try again."
            raise ServiceError(503, text, retry_after=5, reason="starting")

    def model(self, name: str = "", source_lang: str = "", target_lang: str = "") -> ServedModel:
        """The model of that name; of none, the first for these languages.

        Raises:
          ServiceError: there is none, or the server is not ready.
        """
        self.check_ready()
        wanted = f" from {source_lang!r}" if source_lang else ""
        wanted += f" to {target_lang!r}" if target_lang else ""
        if name:
            if name not in self.models:
                raise ServiceError(404, f"No model {name!r}; there are {', '.join(self.models)}.")
            if not self.models[name].translates(source_lang, target_lang):
                raise ServiceError(400, f"The model {name!r} does not translate{wanted}.")
            return self.models[name]
        for model in self.models.values():
            if model.translates(source_lang, target_lang):
                return model
        raise ServiceError(404, f"No model translates{wanted}; there are {self._pairs()}.")

    def detected(self, text: str, target_lang: str) -> str:
        """The language of a text, of those that are translated to `target_lang`; "": to any."""
        self.check_ready()
        sources = [
            source
            for source, targets in self.targets_by_source.items()
            if not target_lang or target_lang in targets
        ]
        return languages.detect(text, sources)[0]["language"] if sources else ""

    def find(self, source_lang: str, target_lang: str) -> tuple[ServedModel, str, str]:
        """The first model for two languages as a client writes them, and its codes of these.

        Raises:
          ServiceError: there is none, or the server is not ready.
        """
        self.check_ready()
        for model in self.models.values():
            sources, targets = model.languages
            source = languages.find(source_lang, sources)
            target = languages.find(target_lang, targets)
            if source and target and source != target:
                return model, source, target
        raise ServiceError(
            400,
            f"No model translates from {source_lang!r} to {target_lang!r}; "
            f"there are {self._pairs()}.",
        )

    def _pairs(self) -> str:
        """The pairs of languages, in words."""
        return ", ".join(
            f"{s}-{t}" for s, targets in self.targets_by_source.items() for t in targets
        )
