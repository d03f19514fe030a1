"""A trained model: a work directory, a bundle, a folder of another tool, the Hub."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
from etils import epath

from transformer_jax import paths
from transformer_jax.config import Config, validate
from transformer_jax.data import shortlist
from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding import alignment
from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.errors import UserError
from transformer_jax.interop import bundle, layout
from transformer_jax.interop.ctranslate2 import reading as reading_ct2
from transformer_jax.interop.huggingface import hub, reading
from transformer_jax.interop.joeynmt import reading as reading_joeynmt
from transformer_jax.interop.marian import reading as reading_marian
from transformer_jax.model.decoder_weights import inference_shapes
from transformer_jax.model.transformer import Params, param_shapes
from transformer_jax.runs import directory_kinds
from transformer_jax.runs import workdir as workdir_lib
from transformer_jax.runs.params import load_params
from transformer_jax.text import calibration
from transformer_jax.text.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model with its config and tokenizers."""

    config: Config
    tokenizers: TokenizerPair
    params: Params
    step: int  # of the checkpoint; 0 for the directory of another tool
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
    path = hub.locate(path)
    if directory_kinds.is_ctranslate2(path):
        return reading_ct2.read_directory(path).config
    if directory_kinds.is_bundle(path):
        return bundle.read_config(path)
    if directory_kinds.is_hugging_face(path):
        return reading.read_config(path)
    if directory_kinds.is_marian(path):
        return reading_marian.read_config(path)
    if directory_kinds.is_joeynmt(path):
        return reading_joeynmt.read_config(path)
    return workdir_lib.read_config(path)


def load(
    path: epath.PathLike,
    checkpoint: str = "best",
    config: Config | None = None,
    allow_pickle: bool = False,
    shapes: layout.Shapes = param_shapes,
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
    path = hub.locate(path)
    if directory_kinds.is_ctranslate2(path):
        raise UserError(f"{path} {directory_kinds.NO_PARAMETERS}.")
    if directory_kinds.is_bundle(path):
        _refuse_checkpoint(path, checkpoint, "a bundle")
        stored = bundle.read(path, shapes)
        adapted = _adapted(stored.config, config)
        return Pretrained(
            adapted,
            stored.tokenizers,
            stored.params,
            stored.facts.step,
            stored.calibration,
            stored.shortlist,
        )
    if directory_kinds.is_hugging_face(path):
        _refuse_checkpoint(path, checkpoint, "a Hugging Face directory")
        imported, tokenizers, params = reading.read_directory(path, allow_pickle, shapes)
        adapted = _adapted(imported, config)
        return Pretrained(adapted, tokenizers, params, 0, *_learned(path, tokenizers))
    if directory_kinds.is_marian(path):
        _refuse_checkpoint(path, checkpoint, "a model of Marian")
        imported, tokenizers, params = reading_marian.read_directory(path, shapes)
        adapted = _adapted(imported, config)
        return Pretrained(adapted, tokenizers, params, 0, *_learned(path, tokenizers))
    if directory_kinds.is_joeynmt(path):
        _refuse_checkpoint(path, checkpoint, "a model of JoeyNMT")
        imported, tokenizers, params = reading_joeynmt.read_directory(path, allow_pickle, shapes)
        adapted = _adapted(imported, config)
        return Pretrained(adapted, tokenizers, params, 0, *_learned(path, tokenizers))
    config = validate(config or workdir_lib.read_config(path))
    tokenizers = workdir_lib.read_tokenizers(path)
    target = shapes(config.model)
    on_host = any(x.sharding is not None for x in jax.tree.leaves(target))
    params, step = load_params(path, checkpoint, config, target, on_host)
    return Pretrained(config, tokenizers, params, step, *_learned(path, tokenizers, step))


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


def _learned(
    folder: epath.PathLike, tokenizers: TokenizerPair, step: int | None = None
) -> tuple[Calibration | None, Callable[[], Shortlist] | None]:
    """What later commands have learned about the model in a folder."""
    return calibration.read(folder, step), shortlist.read(folder, tokenizers)


def _adapted(stored: Config, config: Config | None) -> Config:
    """`config` with the model of `stored`; None: `stored` itself."""
    return validate(dataclasses.replace(config, model=stored.model) if config else stored)


def _refuse_checkpoint(path: epath.Path, checkpoint: str, kind: str) -> None:
    if checkpoint != "best":
        raise UserError(f"{path} is {kind}: it has no checkpoint {checkpoint}.")
