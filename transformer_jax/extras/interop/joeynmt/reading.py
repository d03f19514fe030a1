"""Reads models of JoeyNMT: `config.yaml`, a checkpoint, vocabularies and SentencePiece models.
Read from version 2.3.0 (`joeynmt/transformer_layers.py`, `vocabulary.py`, `search.py`).

Dropout of the config is the encoder's. Where the config has no limit, JoeyNMT's is 1.5 tokens for
each token of the longest source of a batch; here it is 1.5 for each token of a source, plus 10.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from transformer_jax.config import Config, DataConfig, DecodeConfig, ModelConfig, validate
from transformer_jax.config.fields import Activation, TieEmbeddings
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import layout, yaml_settings
from transformer_jax.extras.interop.huggingface import names
from transformer_jax.extras.interop.huggingface.tensor_files import Tensors, open_files
from transformer_jax.extras.interop.joeynmt import files, vocabularies
from transformer_jax.extras.interop.yaml_settings import get
from transformer_jax.model.transformer import param_shapes
from transformer_jax.translator.pretrained import Pretrained, Shapes
from transformer_jax.workdir.directory_kinds import JOEYNMT_CONFIG

MAX_LEN = 512  # positions are computed; JoeyNMT's limit is 5,000
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
# Settings -> values that are supported; the first is what a missing setting means.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    **{f"data.{side}.level": ("bpe",) for side in ("src", "trg")},
    **{f"data.{side}.tokenizer_type": ("sentencepiece",) for side in ("src", "trg")},
    **{f"data.{side}.bpe_type": ("sentencepiece",) for side in ("src", "trg")},
    **{f"data.{side}.tokenizer_cfg.pretokenizer": ("none",) for side in ("src", "trg")},
    **{f"data.{side}.lowercase": (False,) for side in ("src", "trg")},
    **{f"data.{side}.normalize": (False,) for side in ("src", "trg")},
    "data.special_symbols.sep_token": (None,),
    "data.special_symbols.lang_tags": ([],),
    "model.encoder.type": ("transformer",),
    "model.decoder.type": ("transformer",),
    "model.encoder.alpha": (1,),
    "model.decoder.alpha": (1,),
    "testing.repetition_penalty": (-1, 0, 1),
    "testing.no_repeat_ngram_size": (-1, 0, 1),
}
# (tied_embeddings, tied_softmax) -> our name.
_TYING: dict[tuple[bool, bool], TieEmbeddings] = {
    (True, True): "all",
    (True, False): "inputs",
    (False, True): "decoder",
    (False, False): "none",
}
_TABLES = {
    "source": "src_embed.lut.weight",
    "target": "trg_embed.lut.weight",
    "output": "decoder.output_layer.weight",
}
# Sides whose tables are the same, by the side whose table is a parameter of ours.
_SHARE: dict[TieEmbeddings, dict[str, list[str]]] = {
    "all": {"target": ["target", "source", "output"]},
    "inputs": {"target": ["target", "source"], "output": ["output"]},
    "decoder": {"target": ["target", "output"], "source": ["source"]},
    "none": {side: [side] for side in _TABLES},
}
_POSITIONS = {"encoder.pe.pe", "decoder.pe.pe"}  # sinusoids, which are computed here
_ENCODER = {"self_attention": "src_src_att", "self_attention_norm": "layer_norm"}
_DECODER = {
    "self_attention": "trg_trg_att",
    "self_attention_norm": "x_layer_norm",
    "cross_attention": "src_trg_att",
    "cross_attention_norm": "dec_layer_norm",
}
_BOTH = {"feed_forward": "feed_forward", "feed_forward_norm": "feed_forward.layer_norm"}
_LAYERS = {
    "query": "q_layer",
    "key": "k_layer",
    "value": "v_layer",
    "out": "output_layer",
    "up": "pwff_layer.0",
    "down": "pwff_layer.3",
}


@dataclasses.dataclass(frozen=True)
class _Model:
    """What is known of a model without its parameters."""

    folder: epath.Path
    tokenizers: TokenizerPair
    config: Config


def read_config(path: epath.PathLike) -> Config:
    """Config of a model, with its search settings; reads no weights.

    Raises:
      UserError: naming what is missing, damaged or not supported.
    """
    return _read_model(epath.Path(path)).config


def read_model(
    path: epath.PathLike, allow_pickle: bool = False, shapes: Shapes = param_shapes
) -> Pretrained:
    """A model.

    Args:
      path: its folder.
      allow_pickle: read a checkpoint that `transformer-jax convert` did not convert; needs torch.
      shapes: of the parameters, as they are read.

    Raises:
      UserError: naming what is missing, damaged or not supported.
    """
    model = _read_model(epath.Path(path))
    settings = yaml_settings.read(model.folder / JOEYNMT_CONFIG, "JoeyNMT")
    checkpoint = files.checkpoint(model.folder, settings)
    is_pickle = checkpoint.suffix == files.PICKLES
    with open_files(model.folder, [checkpoint.name], is_pickle, allow_pickle) as tensors:
        params = _read_params(model, checkpoint, tensors, shapes)
        return Pretrained(model.config, model.tokenizers, params)


def _read_model(folder: epath.Path) -> _Model:
    path = folder / JOEYNMT_CONFIG
    settings = yaml_settings.read(path, "JoeyNMT")
    yaml_settings.check(path, settings, _SUPPORTED)
    if get(settings, "model.initializer") == "xavier_normal":
        # JoeyNMT then computes the factor of residual sums from the numbers of layers.
        raise UserError(f"{path}: model.initializer='xavier_normal' (DeepNet) is not supported.")
    if get(settings, "model.encoder.type") is None:
        raise UserError(f"{path} has no model.encoder.type, so it is recurrent: not supported.")
    tokenizers = vocabularies.read_tokenizers(folder, settings)
    languages = [str(get(settings, f"data.{side}.lang", "")) for side in ("src", "trg")]
    if languages[0] == languages[1]:
        languages = ["source", "target"]
    data = DataConfig(
        source="files",
        source_lang=languages[0],
        target_lang=languages[1],
        shared_vocab=tokenizers.shared,
        max_len=MAX_LEN // 2,
    )
    config = Config(
        model=_model_config(path, settings, tokenizers),
        data=data,
        decode=_decode_config(path, settings, tokenizers),
    )
    return _Model(folder, tokenizers, validate(config))


# --- Config --------------------------------------------------------------------------------------


def _model_config(
    path: epath.Path, settings: Mapping[str, Any], tokenizers: TokenizerPair
) -> ModelConfig:
    def integer(stack: str, name: str) -> int:
        value = get(settings, f"model.{stack}.{name}")
        if type(value) is not int:
            raise UserError(f"{path}: model.{stack}.{name}={value!r} must be an integer.")
        return value

    def both(name: str, default: Any) -> Any:
        """A setting that encoder and decoder must have in common."""
        values = [get(settings, f"model.{s}.{name}", default) for s in ("encoder", "decoder")]
        if values[0] != values[1]:
            raise UserError(f"{path}: {name} of encoder and decoder, {values}, must be the same.")
        return values[0]

    ties_sides = bool(get(settings, "model.tied_embeddings", False))
    ties_output = bool(get(settings, "model.tied_softmax", False))
    norm_position, activation = both("layer_norm", ""), both("activation", "relu")
    if norm_position not in ("pre", "post"):
        raise UserError(f"{path}: layer_norm={norm_position!r} must be pre or post.")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(
            f"{path}: activation={activation!r} is not supported; {', '.join(_ACTIVATIONS)} are."
        )
    integer("decoder", "hidden_size")
    # Tied sides have the encoder's module, whatever the decoder's settings are.
    scale = "encoder.embeddings.scale" if ties_sides else None
    dropout = _number(path, settings, "model.encoder.dropout", 0)
    return ModelConfig(
        num_encoder_layers=integer("encoder", "num_layers"),
        num_decoder_layers=integer("decoder", "num_layers"),
        d_model=both("hidden_size", None),
        num_heads=integer("encoder", "num_heads"),
        num_decoder_heads=integer("decoder", "num_heads"),
        d_ff=integer("encoder", "ff_size"),
        decoder_d_ff=integer("decoder", "ff_size"),
        dropout_rate=dropout,
        attention_dropout_rate=dropout,
        activation_dropout_rate=dropout,
        activation=_ACTIVATIONS[activation],
        norm_position=norm_position,
        positional="interleaved",
        scale_embeddings=bool(
            get(settings, f"model.{scale}", False) if scale else both("embeddings.scale", False)
        ),
        tie_embeddings=_TYING[ties_sides, ties_output],
        max_len=MAX_LEN,
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        decoder_start_id=tokenizers.target.bos_id,
    )


def _number(
    path: epath.Path, settings: Mapping[str, Any], name: str, default: float | None
) -> float:
    value = get(settings, name, default)
    if type(value) not in (int, float):
        raise UserError(f"{path}: {name}={value!r} must be a number.")
    return float(value)


def _decode_config(
    path: epath.Path, settings: Mapping[str, Any], tokenizers: TokenizerPair
) -> DecodeConfig:
    """The settings of JoeyNMT's search. Its beam search itself is another."""
    target = tokenizers.target
    unknown = () if get(settings, "testing.generate_unk", True) else (target.unk_id,)
    longest = int(_number(path, settings, "testing.max_output_length", -1))
    # `alpha` is the older name of `beam_alpha`.
    penalty = _number(path, settings, "testing.beam_alpha", -1)
    penalty = _number(path, settings, "testing.alpha", penalty)
    limits = {"max_decode_len": MAX_LEN, "max_decode_ratio": 1.5}
    if longest > 0:
        limits = {"max_decode_len": min(longest, MAX_LEN), "max_decode_ratio": float(MAX_LEN)}
    return DecodeConfig(
        beam_size=max(int(_number(path, settings, "testing.beam_size", 1)), 1),
        length_penalty=max(penalty, 0.0),
        length_penalty_kind="gnmt",
        stopping="first_k",
        min_decode_len=2,  # JoeyNMT reads min_output_length, and does not use it
        at_limit="cut",
        suppressed_ids=tuple(sorted({*unknown, target.pad_id, target.bos_id})),
        **limits,  # type: ignore[arg-type]
    )


# --- Parameters ----------------------------------------------------------------------------------


def _name(path: layout.Path) -> str | None:
    """JoeyNMT's name of a parameter of a layer or norm; None: it is a table."""
    ending = "bias" if path[-1] == "bias" else "weight"
    if path[0] in ("encoder_norm", "decoder_norm"):
        return f"{path[0].removesuffix('_norm')}.layer_norm.{ending}"
    stack, _, number = path[0].rpartition("_layers_")
    if not stack:
        return None
    modules = _BOTH | (_ENCODER if stack == "encoder" else _DECODER)
    inner = "" if path[1].endswith("_norm") else f".{_LAYERS[path[2]]}"
    return f"{stack}.layers.{number}.{modules[path[1]]}{inner}.{ending}"


_NAMES = names.Names(shared=_TABLES["source"], tables=_TABLES, positions=(), of_layer=_name)


def _read_params(
    model: _Model, checkpoint: epath.Path, tensors: Tensors, shapes: Shapes
) -> layout.Params:
    config, used = model.config.model, set(_POSITIONS)
    targets = layout.flatten(shapes(config))

    def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in tensors:
            raise UserError(f"{checkpoint} has no tensor {name}.")
        used.add(name)
        if tensors.shapes[name] != shape:
            raise UserError(
                f"{checkpoint}: tensor {name} has shape {list(tensors.shapes[name])}, but the "
                f"config and the vocabularies imply {list(shape)}."
            )
        return np.asarray(tensors[name], np.float32)

    leaves: dict[layout.Path, jax.Array] = {}
    for side, shared in _SHARE[config.tie_embeddings].items():
        size = config.source_vocab_size if side == "source" else config.target_vocab_size
        # A table that is stored by several names is converted once.
        stored = [_TABLES[other] for other in shared if _TABLES[other] in tensors]
        tables = [take(name, (size, config.d_model)) for name in stored or [_TABLES[side]]]
        if not all(np.array_equal(tables[0], other) for other in tables):
            raise UserError(f"{checkpoint}: the config ties {' and '.join(stored)}; they differ.")
        table: layout.Path = (f"{side}_embedding",)
        leaves[table] = layout.put(tables[0], targets[table])
    for path, name, shape in names.layer_tensors(_NAMES, config):
        value = take(name, names.torch_shape(path, shape))
        leaves[path] = layout.put(names.from_torch(path, value, shape), targets[path])
    extra = sorted(set(tensors) - used)
    if extra:
        raise UserError(f"{checkpoint}: the tensor {extra[0]} is not part of the model.")
    return layout.unflatten({path: leaves[path] for path in names.shapes(config)})
