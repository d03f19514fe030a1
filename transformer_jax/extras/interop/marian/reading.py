"""Reads models of Marian itself: a `.npz` file, its vocabularies, and the `decoder.yml` that names
them. Read from version 1.12 (`src/models/transformer.h`, `src/translator/beam_search.cpp`).

Marian's decoder reads a vector of zeros before the first token. Here that is the row of a padding
token, which follows Marian's vocabulary.
"""

import contextlib
import dataclasses
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import yaml
from etils import epath

from transformer_jax.config import Config, DataConfig, DecodeConfig, ModelConfig, validate
from transformer_jax.config.fields import Activation, NormPosition, TieEmbeddings
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import layout, yaml_settings
from transformer_jax.extras.interop.huggingface import names
from transformer_jax.extras.interop.huggingface.tensor_files import local_file
from transformer_jax.extras.interop.marian import files, vocabularies
from transformer_jax.model.transformer import param_shapes
from transformer_jax.translator.pretrained import Pretrained, Shapes

Settings = Mapping[str, Any]

MAX_LEN = 512  # positions are computed, so any limit would do; that of OPUS-MT's models elsewhere
# Settings of a model -> the values that are supported; the first is Marian's default.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-tied-layers": ([],),
    "transformer-pool": (False,),
    "transformer-train-positions": (False,),
    "lemma-dim-emb": (0,),
    "ulr": (False,),
}
# The same of decoder.yml.
_SEARCH: dict[str, tuple[Any, ...]] = {
    "word-penalty": (0,),
    "shortlist": ([],),
    "output-sampling": ([], False),
    "force-decode": (False,),
}
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "silu"}
# (before a block, after it, after all of them), without dropout -> where the norms are.
_NORM_POSITIONS: dict[tuple[str, str, str], NormPosition] = {
    ("", "an", ""): "post",
    ("n", "a", "n"): "pre",
}
# Whether source and target have one table, whether the output has the target's -> our name.
_TYING: dict[tuple[bool, bool], TieEmbeddings] = {
    (True, True): "all",
    (True, False): "inputs",
    (False, True): "decoder",
    (False, False): "none",
}
_MODULES = {"self_attention": "self", "cross_attention": "context", "feed_forward": "ffn"}
_LETTERS = {"query": "q", "key": "k", "value": "v", "out": "o", "up": "1", "down": "2"}
# Logit of the padding token without its table. Marian has no such token: its probability is 0.
_NEVER = -100.0


@dataclasses.dataclass(frozen=True)
class _Model:
    """What is known of a model without its parameters."""

    path: epath.Path
    settings: Settings
    tensors: Mapping[str, np.ndarray]
    tokenizers: TokenizerPair
    config: Config


def read_config(path: epath.PathLike) -> Config:
    """Config of a model, with its search settings; reads no weights.

    Raises:
      UserError: naming what is missing, damaged or not supported.
    """
    with _open(path) as model:
        return model.config


def read_model(
    path: epath.PathLike, allow_pickle: bool = False, shapes: Shapes = param_shapes
) -> Pretrained:
    """A model.

    Args:
      path: a folder with one `decoder.yml`, or that file.
      allow_pickle: has no effect, because Marian writes no pickles.
      shapes: of the parameters, as they are read.

    Raises:
      UserError: naming what is missing, damaged or not supported.
    """
    with _open(path) as model:
        return Pretrained(model.config, model.tokenizers, _read_params(model, shapes))


@contextlib.contextmanager
def _open(path: epath.PathLike) -> Iterator[_Model]:
    search = files.find_decoder(epath.Path(path))
    options = yaml_settings.read(search, "Marian")
    model_file = files.model_file(search, options)
    with contextlib.ExitStack() as stack:
        try:
            local = local_file(model_file, stack)
            tensors = stack.enter_context(np.load(local, allow_pickle=False))
            settings = _model_settings(model_file, tensors)
            tokenizers = vocabularies.read_tokenizers(search, options)
            data = DataConfig(
                source="files",
                source_lang="source",
                target_lang="target",
                shared_vocab=tokenizers.shared,
                max_len=MAX_LEN // 2,
            )
            config = Config(
                model=_model_config(model_file, settings, tokenizers),
                data=data,
                decode=_decode_config(search, options, tokenizers),
            )
            yield _Model(model_file, settings, tensors, tokenizers, validate(config))
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            raise UserError(f"{model_file} is damaged ({error}); copy it again.") from error


def _model_settings(path: epath.Path, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The settings that Marian stores with the parameters."""
    if "special:model.yml" not in tensors:
        raise UserError(f"{path} has no special:model.yml, which Marian stores in a model.")
    try:
        text = tensors["special:model.yml"].tobytes().rstrip(b"\0").decode()
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: special:model.yml is damaged ({error}).") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path}: special:model.yml holds no settings.")
    yaml_settings.check(path, settings, _SUPPORTED)
    return settings


# --- Config --------------------------------------------------------------------------------------


def _model_config(
    path: epath.Path,
    settings: Settings,
    tokenizers: TokenizerPair,
) -> ModelConfig:
    operations = [
        str(settings.get(f"transformer-{name}", default)).replace("d", "")  # dropout
        for name, default in (
            ("preprocess", ""),
            ("postprocess", "dan"),
            ("postprocess-top", ""),
            ("postprocess-emb", "d"),
        )
    ]
    before, after, top, embedding = operations
    norm_position = _NORM_POSITIONS.get((before, after, top))
    activation = _ACTIVATIONS.get(settings.get("transformer-ffn-activation", "swish"))
    if norm_position is None or embedding not in ("", "n"):
        raise UserError(
            f"{path}: transformer-preprocess={before!r}, transformer-postprocess={after!r}, "
            f"transformer-postprocess-top={top!r} and transformer-postprocess-emb={embedding!r} "
            "(without d) are not supported; '', 'an', '', '' and 'n', 'a', 'n', '' are, and 'n' as "
            "the last."
        )
    if activation is None:
        raise UserError(
            f"{path}: transformer-ffn-activation={settings['transformer-ffn-activation']!r} is not "
            f"supported; {', '.join(_ACTIVATIONS)} are."
        )
    return ModelConfig(
        num_encoder_layers=_integer(path, settings, "enc-depth"),
        num_decoder_layers=_integer(path, settings, "dec-depth"),
        d_model=_integer(path, settings, "dim-emb"),
        num_heads=_integer(path, settings, "transformer-heads"),
        d_ff=_integer(path, settings, "transformer-dim-ffn"),
        decoder_d_ff=settings.get("transformer-decoder-dim-ffn") or None,
        dropout_rate=float(settings.get("transformer-dropout") or 0),
        attention_dropout_rate=float(settings.get("transformer-dropout-attention") or 0),
        activation_dropout_rate=float(settings.get("transformer-dropout-ffn") or 0),
        activation=activation,
        norm_position=norm_position,
        embedding_norm=embedding == "n",
        positional="tensor2tensor",
        scale_embeddings=True,
        tie_embeddings=_TYING[_ties_sides(settings), _ties_output(settings)],
        output_bias=True,
        max_len=MAX_LEN,
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        decoder_start_id=tokenizers.target.pad_id,
    )


def _integer(path: epath.Path, settings: Settings, name: str) -> int:
    value = settings.get(name)
    if type(value) is not int:
        raise UserError(f"{path}: {name}={value!r} must be an integer.")
    return value


def _decode_config(path: epath.Path, options: Settings, tokenizers: TokenizerPair) -> DecodeConfig:
    """The search of `marian-decoder -c decoder.yml`."""
    yaml_settings.check(path, options, _SEARCH)
    target = tokenizers.target
    unknown = () if options.get("allow-unk") else (target.unk_id,)
    return DecodeConfig(
        beam_size=int(options.get("beam-size", 12)),
        length_penalty=float(options.get("normalize", 0)),
        length_penalty_kind="power",
        stopping="first_k",
        max_decode_len=MAX_LEN,
        max_decode_ratio=float(options.get("max-length-factor", 3)),
        at_limit="cut",
        suppressed_ids=tuple(sorted({*unknown, target.pad_id})),
    )


# --- Parameters ----------------------------------------------------------------------------------


def _ties_sides(settings: Settings) -> bool:
    return bool(settings.get("tied-embeddings-all") or settings.get("tied-embeddings-src"))


def _ties_output(settings: Settings) -> bool:
    return bool(settings.get("tied-embeddings-all") or settings.get("tied-embeddings"))


def _table(model: _Model, side: str) -> np.ndarray:
    """The table of `source`, `target` or `output`, with the row of the padding token."""
    if side == "output":
        table = _take(model, "decoder_ff_logit_out_W").T  # [M, vocabulary]
    else:
        name = {"source": "encoder_Wemb", "target": "decoder_Wemb"}[side]
        table = _take(model, "Wemb" if _ties_sides(model.settings) else name)
    size = getattr(model.tokenizers, "source" if side == "source" else "target").vocab_size
    if len(table) + 1 != size:
        raise UserError(f"{model.path} has {len(table)} {side} tokens, the vocabulary {size - 1}.")
    return np.concatenate([table, np.zeros_like(table[:1])])


def _take(model: _Model, name: str) -> np.ndarray:
    if name not in model.tensors:
        raise UserError(f"{model.path} has no tensor {name}.")
    return np.asarray(model.tensors[name], np.float32)


def _name(path: layout.Path, is_pre_norm: bool) -> str:
    """Marian's name of a parameter of a layer or norm."""
    suffix = "_pre" if is_pre_norm else ""
    stack, _, number = path[0].rpartition("_layers_")
    if not stack:
        if path[0] in ("encoder_norm", "decoder_norm"):
            return f"{path[0].removesuffix('_norm')}_top_ln_{path[-1]}"
        return f"{'encoder' if path[0] == 'embed_source' else 'decoder'}_emb_ln_{path[-1]}_pre"
    module = path[1].removesuffix("_norm")
    prefix = f"{stack}_l{int(number) + 1}_{_MODULES[module]}"
    if path[1] != module:
        return f"{prefix}_{'ffn' if module == 'feed_forward' else 'Wo'}_ln_{path[-1]}{suffix}"
    return f"{prefix}_{'W' if path[-1] == 'kernel' else 'b'}{_LETTERS[path[2]]}"


def _read_params(model: _Model, shapes: Shapes) -> layout.Params:
    """All parameters; their kernels are `[in, out]` in Marian too."""
    config, tensors = model.config.model, model.tensors
    tables = {f"{side}_embedding": side for side in names.TABLES[config.tie_embeddings]}
    used = {"special:model.yml", "Wemb", "encoder_Wemb", "decoder_Wemb"}
    used |= {"decoder_ff_logit_out_W", "decoder_ff_logit_out_b"}
    targets = layout.flatten(shapes(config))
    leaves: dict[layout.Path, jax.Array] = {}
    for path, shape in names.shapes(config).items():
        if path == ("output_bias",):
            value = np.append(np.zeros(shape[0] - 1, np.float32), np.float32(_NEVER))
            if "decoder_ff_logit_out_b" in tensors:
                value[:-1] = _take(model, "decoder_ff_logit_out_b").reshape(-1)
        elif path[0] in tables:
            value = _table(model, tables[path[0]])
        else:
            name = _name(path, config.norm_position == "pre")
            value = _take(model, name)
            used.add(name)
            if value.size != np.prod(shape):
                raise UserError(
                    f"{model.path}: tensor {name} has shape {list(value.shape)}, but its settings "
                    f"imply {list(shape)}."
                )
        leaves[path] = layout.put(value.reshape(shape), targets[path])
    extra = sorted(set(tensors) - used)
    if extra:
        raise UserError(f"{model.path}: the tensor {extra[0]} is not part of the model.")
    return layout.unflatten(leaves)
