"""The formats in which a trained model can be stored, besides a work directory.

The modules that read them are in `extras/interop`. They are imported when a model has their format.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from etils import epath

from transformer_jax.workdir import directory_kinds

_INTEROP = "transformer_jax.extras.interop"


@dataclasses.dataclass(frozen=True)
class ModelFormat:
    """A format of models.

    Attributes:
      name: for messages, with its article.
      recognizes: whether a path holds such a model.
      module: has `read_config(path) -> Config`, and `read_model(path, allow_pickle, shapes) ->
        Pretrained`, which raises a `UserError` for models whose parameters cannot be read.
      engine: the module that translates with these models, if this package's search does not; it
        has `load(path, config) -> BatchRunner`.
    """

    name: str
    recognizes: Callable[[epath.PathLike], bool]
    module: str
    engine: str = ""

    def reader(self) -> Any:
        """The module that reads the format."""
        return importlib.import_module(self.module)

    def load_engine(self) -> Any:
        """The module that translates with models of this format."""
        return importlib.import_module(self.engine)


# The first that recognizes a path counts.
FORMATS = (
    ModelFormat(
        "a CTranslate2 model",
        directory_kinds.is_ctranslate2,
        f"{_INTEROP}.ctranslate2.reading",
        engine=f"{_INTEROP}.ctranslate2.batch_runner",
    ),
    ModelFormat("a bundle", directory_kinds.is_bundle, f"{_INTEROP}.bundle"),
    ModelFormat(
        "a Hugging Face directory",
        directory_kinds.is_hugging_face,
        f"{_INTEROP}.huggingface.reading",
    ),
    ModelFormat("a model of Marian", directory_kinds.is_marian, f"{_INTEROP}.marian.reading"),
    ModelFormat("a model of JoeyNMT", directory_kinds.is_joeynmt, f"{_INTEROP}.joeynmt.reading"),
)


def of_path(path: epath.PathLike) -> ModelFormat | None:
    """The format of the model in a path; None: a work directory, or no model."""
    return next((one for one in FORMATS if one.recognizes(path)), None)


def with_engine(path: epath.PathLike) -> ModelFormat | None:
    """As `of_path`, of the formats that have an engine; it looks for no others."""
    return next((one for one in FORMATS if one.engine and one.recognizes(path)), None)


def locate(path: epath.PathLike) -> epath.Path:
    """The local path of a model, whose name on the Hugging Face Hub may be given instead.

    Raises:
      UserError: a name on the Hub whose model is neither in the cache nor can be downloaded.
    """
    located: epath.Path = importlib.import_module(f"{_INTEROP}.huggingface.hub").locate(path)
    return located
