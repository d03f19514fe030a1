"""A trained model from a work directory, a Hugging Face directory, or the Hugging Face Hub."""

import dataclasses

import jax
from etils import epath

from transformer_jax.config import Config, validate
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop.huggingface import hub, reading
from transformer_jax.model.transformer import Params, init_params
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.runs.params import load_params


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model with its config and tokenizers."""

    config: Config
    tokenizers: TokenizerPair
    params: Params
    step: int  # of the checkpoint; 0 for a Hugging Face directory


def read_config(path: epath.PathLike) -> Config:
    """Config of the model in `path`, a folder or a name on the Hugging Face Hub.

    Raises:
      UserError: there is no model.
    """
    path = hub.locate(path)
    if reading.is_directory(path):
        return reading.read_config(path)
    return workdir_lib.read_config(path)


def load(
    path: epath.PathLike,
    checkpoint: str = "best",
    config: Config | None = None,
    allow_pickle: bool = False,
) -> Pretrained:
    """Reads a model.

    Args:
      path: a work directory, a directory of Hugging Face's (Marian, M2M-100, NLLB or Pegasus), or
        the name of such a model on the Hugging Face Hub. The local cache is searched first.
      checkpoint: of a work directory: `best`, `latest`, a step, or `average:N`.
      config: replaces the directory's config, for other data or search settings.
      allow_pickle: also read a Hugging Face `pytorch_model.bin`, which needs torch.

    Raises:
      UserError: something is missing or damaged.
    """
    path = hub.locate(path)
    if reading.is_directory(path):
        if checkpoint != "best":
            raise UserError(
                f"{path} is a Hugging Face directory: it has no checkpoint {checkpoint}."
            )
        stored, tokenizers, params = reading.read_directory(path, allow_pickle)
        if config is None:
            config = stored
        else:
            config = validate(dataclasses.replace(config, model=stored.model))
        return Pretrained(config, tokenizers, params, 0)
    config = validate(config or workdir_lib.read_config(path))
    tokenizers = workdir_lib.read_tokenizers(path)
    target = jax.eval_shape(lambda: init_params(config.model, jax.random.key(0)))
    params, step = load_params(path, checkpoint, config.checkpoint, target)
    return Pretrained(config, tokenizers, params, step)
