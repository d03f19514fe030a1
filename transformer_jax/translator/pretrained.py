"""A trained model: from a work directory, a bundle, a folder of another tool, or the Hub."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config, ModelConfig, validate
from transformer_jax.data import shortlist
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.model.decoder_weights import inference_shapes
from transformer_jax.model.transformer import Params, param_shapes
from transformer_jax.translator import alignment, calibration, model_formats
from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.calibration import Calibration
from transformer_jax.workdir.folder import read_config as read_run_config
from transformer_jax.workdir.folder import read_tokenizers
from transformer_jax.workdir.params import load_params

# A `jax.ShapeDtypeStruct` for each parameter of a model: the type in which it is read, and its
# sharding; None: it goes to JAX's default device.
Shapes = Callable[[ModelConfig], Params]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model with its config and tokenizers."""

    config: Config
    tokenizers: TokenizerPair
    params: Params
    step: int = 0  # of the checkpoint; 0 for the directory of another tool
    calibration: Calibration | None = None  # None: it was not calibrated
    shortlist: Callable[[], Shortlist] | None = None  # gives it; None: none was made

    @property
    def attention(self) -> AttentionChoice:
        """That which links words best."""
        measured = self.calibration.attention if self.calibration else None
        return alignment.of_model(self.config, measured)


def read_config(path: epath.PathLike) -> Config:
    """Config of the model in `path`: a folder, a bundle, or a name on the Hugging Face Hub.

    Raises:
      UserError: there is no model.
    """
    path = model_formats.locate(path)
    foreign = model_formats.of_path(path)
    config: Config = foreign.reader().read_config(path) if foreign else read_run_config(path)
    return config


def load(
    path: epath.PathLike,
    checkpoint: str = "best",
    config: Config | None = None,
    allow_pickle: bool = False,
    shapes: Shapes = param_shapes,
) -> Pretrained:
    """Reads a model.

    Args:
      path: a work directory, a bundle, a directory of Hugging Face's (`docs/interop.md` lists the
        classes), a model of Marian itself (its folder or its `decoder.yml`) or of JoeyNMT, or the
        name of a model on the Hugging Face Hub. The local cache is searched first.
      checkpoint: of a work directory: `best`, `latest`, a step, or `average:N`.
      config: replaces the model's config, for other data or search settings.
      allow_pickle: also read a pickle, `pytorch_model.bin` or `best.ckpt`, which needs torch.
      shapes: types in which parameters are read, and their shardings. The parameters of models of
        Marian, JoeyNMT and Hugging Face go to the devices one by one. With shardings, the
        parameters of a work directory are NumPy arrays.

    Raises:
      UserError: something is missing or damaged.
    """
    path = model_formats.locate(path)
    foreign = model_formats.of_path(path)
    if foreign:
        reader = foreign.reader()
        if checkpoint != "best":
            raise UserError(f"{path} is {foreign.name}: it has no checkpoint {checkpoint}.")
        model: Pretrained = reader.read_model(path, allow_pickle, shapes)
        if config:
            config = validate(dataclasses.replace(config, model=model.config.model))
        return _with_learned(dataclasses.replace(model, config=config or model.config), path)
    config = validate(config or read_run_config(path))
    tokenizers = read_tokenizers(path)
    target = shapes(config.model)
    on_host = any(x.sharding is not None for x in jax.tree.leaves(target))
    params, step = load_params(path, checkpoint, config, target, on_host)
    return _with_learned(Pretrained(config, tokenizers, params, step), path, step)


def load_ensemble(
    members: Sequence[tuple[epath.PathLike, str]],
    config: Config | None = None,
    allow_pickle: bool = False,
) -> list[Pretrained]:
    """Reads models that have one vocabulary, in the types in which translation uses parameters.

    Args:
      members: (path, checkpoint) of each, as of `load`; `~` is expanded in a path.
      config: as of `load`, for the first.
      allow_pickle: as of `load`.

    Raises:
      UserError: something is missing or damaged, or the vocabularies differ.
    """
    models: list[Pretrained] = []
    for member, checkpoint in members:
        path = paths.expand(member)
        paths.require(path)
        model = load(path, checkpoint, None if models else config, allow_pickle, inference_shapes)
        models.append(model)
        if model.tokenizers.fingerprint != models[0].tokenizers.fingerprint or (
            model.config.model.decoder_start_id != models[0].config.model.decoder_start_id
        ):
            raise UserError(
                f"{member} has another vocabulary than {members[0][0]}: they cannot be an ensemble."
            )
    return models


def _with_learned(model: Pretrained, folder: epath.Path, step: int | None = None) -> Pretrained:
    """The model with what later commands have learned about it and written into its folder.

    A bundle has no folder, and keeps its own.
    """
    return dataclasses.replace(
        model,
        calibration=calibration.read(folder, step) or model.calibration,
        shortlist=shortlist.read(folder, model.tokenizers) or model.shortlist,
    )
