"""Reads config, tokenizers and parameters of a Hugging Face directory."""

import contextlib
import dataclasses
from collections.abc import Iterator

from etils import epath

from transformer_jax.config import Config, DataConfig, validate
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import settings as settings_lib
from transformer_jax.extras.interop.huggingface import weights
from transformer_jax.extras.interop.huggingface.model_settings import model_config
from transformer_jax.extras.interop.huggingface.settings import Settings
from transformer_jax.extras.interop.huggingface.tensor_files import open_tensors
from transformer_jax.extras.interop.huggingface.tokenizers import Tokenization, read_tokenizers
from transformer_jax.model.transformer import param_shapes
from transformer_jax.translator.pretrained import Pretrained, Shapes

MAX_TRAINING_LEN = 256  # data.max_len of fine-tuning, if the model can read more


def read_config(path: epath.PathLike) -> Config:
    """Config of a directory, with its search settings and languages; reads no weights.

    Raises:
      UserError: naming the file or setting that is not supported.
    """
    with _report_malformed_files(path):
        settings = Settings(epath.Path(path))
        return _config(settings, read_tokenizers(settings))


def read_model(
    path: epath.PathLike, allow_pickle: bool = False, shapes: Shapes = param_shapes
) -> Pretrained:
    """The model of a directory.

    Args:
      path: as `save_pretrained` of model and tokenizer writes it.
      allow_pickle: also read `pytorch_model.bin`, which needs torch.
      shapes: of the parameters, as they are read.

    Raises:
      UserError: naming what is missing, damaged, inconsistent or not supported.
    """
    with _report_malformed_files(path):
        settings = Settings(epath.Path(path))
        tokenization = read_tokenizers(settings)
        config = _config(settings, tokenization)
        with open_tensors(settings.folder, allow_pickle) as tensors:
            model, params = weights.read_model(settings, tensors, shapes)
        config = validate(dataclasses.replace(config, model=model))
        return Pretrained(config, tokenization.pair, params)


@contextlib.contextmanager
def _report_malformed_files(path: epath.PathLike) -> Iterator[None]:
    """Turns errors about values of unexpected types, deep in a JSON file, into a `UserError`."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is not as Hugging Face writes it ({type(error).__name__}: {reason})."
        ) from error


def _config(settings: Settings, tokenization: Tokenization) -> Config:
    # The weights of a T5 may say otherwise.
    tying = settings.tying(settings.tied_output)
    model = model_config(settings, settings.family.positional, tying)
    pair, ours = tokenization.pair, settings.raw.get(settings_lib.OWN_KEY) or {}
    source_lang = tokenization.source_lang or "source"
    target_lang = _forced_language(settings, pair) or tokenization.target_lang
    if not pair.tags.both_sides:
        target_lang = target_lang if target_lang not in ("", source_lang) else "target"
    data = DataConfig(
        source="files",
        source_lang=source_lang,
        target_lang=target_lang,
        shared_vocab=settings.shared,
        target_language_tags=(
            pair.tags.both_sides
            or (settings.family.is_t5 and pair.has_language_tags)
            or bool(ours.get("target_language_tags"))
        ),
        max_len=min(model.max_len, MAX_TRAINING_LEN),
    )
    return validate(Config(model=model, data=data, decode=settings_lib.decode_config(settings)))


def _forced_language(settings: Settings, pair: TokenizerPair) -> str:
    """The language whose tag is `forced_bos_token_id`; "" if nothing is forced."""
    forced = settings.generation.get("forced_bos_token_id")
    if forced is None:
        return ""
    (token,) = pair.target.tokens([forced])
    if token == pair.tags.template:
        return ""  # the same for all languages
    language = pair.tags.language(token) if pair.tags.both_sides else ""
    if not language or token == pair.target.tokens([pair.target.unk_id])[0]:
        raise UserError(
            f"{settings.folder}: forced_bos_token_id={forced} ({token}) is not a language tag."
        )
    return language
