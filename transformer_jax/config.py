"""Settings of a run: a tree of dataclasses, checked as a whole, kept as JSON in the work directory.

The classes are values: nothing assigns to them but the flags parser, before `validate`; use
`dataclasses.replace` to derive another one.
"""

import dataclasses
import difflib
import json
import types
import typing
from typing import Any

from transformer_jax.errors import UserError


@dataclasses.dataclass(unsafe_hash=True)
class ModelConfig:
    """Shape of the encoder-decoder. Vocabulary sizes and the start id come from the tokenizer."""

    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    num_heads: int = 8
    head_dim: int | None = None  # None: d_model / num_heads
    d_ff: int = 2048
    num_decoder_heads: int | None = None  # None: num_heads
    decoder_d_ff: int | None = None  # None: d_ff
    dropout_rate: float = 0.1  # on summed embeddings and on every sub-layer's output
    attention_dropout_rate: float = 0.0  # on attention weights
    activation_dropout_rate: float = 0.0  # inside the feed-forward block
    norm_position: str = "post"
    norm_epsilon: float = 1e-6
    activation: str = "relu"
    positional: str = "interleaved"
    positional_base: float = 10_000.0
    position_offset: int = 0  # number of the first position, of sinusoids
    scale_embeddings: bool = True  # multiply token vectors by sqrt(d_model)
    tie_embeddings: str = "all"  # all: source, target, output; decoder: target, output; none
    output_bias: bool = False  # add one learned number a piece to the logits
    max_len: int = 256  # longest source or target in pieces, its end symbol included
    dtype: str = "auto"  # of the computation; auto: bfloat16 on GPU and TPU, float32 on CPU
    attention: str = "auto"
    source_vocab_size: int = 0  # 0: filled in from the tokenizer
    target_vocab_size: int = 0
    decoder_start_id: int = -1  # -1: the target tokenizer's beginning-of-sentence id

    @property
    def resolved_head_dim(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    def for_decoder(self) -> "ModelConfig":
        """The same with the decoder's sizes as `num_heads` and `d_ff`."""
        return dataclasses.replace(
            self,
            num_heads=self.num_decoder_heads or self.num_heads,
            d_ff=self.decoder_d_ff or self.d_ff,
        )


@dataclasses.dataclass(unsafe_hash=True)
class DataConfig:
    """Where sentence pairs come from and how they become batches."""

    source: str = "tfds"
    tfds_name: str = "number_words/de"
    data_dir: str = ""  # of TFDS; "": $TFDS_DATA_DIR, else the user's cache folder
    cache_dir: str = ""  # of tokenised corpora; "": the user's cache folder
    train: str = "train"  # TFDS split, or comma-separated path prefixes
    validation: str = "validation"
    test: str = "test"
    train_weights: tuple[float, ...] = ()  # share of each corpus of data.train; (): by size
    train_languages: tuple[str, ...] = ()  # "en-de" for each corpus; (): source_lang-target_lang
    target_language_tags: bool = False  # put "<2xx>" before the source
    source_lang: str = "en"
    target_lang: str = "de"
    vocab_size: int = 8000
    tokenizer: str = "unigram"
    tokenizer_model: str = ""  # an existing SentencePiece model, or "SOURCE,TARGET"
    shared_vocab: bool = True
    lowercase: bool = False
    byte_fallback: bool = True
    character_coverage: float = 1.0
    max_len: int = 256  # longest training sentence in pieces, its end symbol included
    batching: str = "pack"
    batch_tokens: int = 25_000  # target positions in one optimizer step, all devices together
    pack_len: int = 0  # target positions in one packed row; 0: data.max_len
    num_buckets: int = 20  # shapes that `bucket` may use


@dataclasses.dataclass(unsafe_hash=True)
class TrainConfig:
    """Length of the run and what happens along it."""

    num_steps: int = 100_000
    init_from: str = ""  # work directory or Hugging Face directory whose model is fine-tuned
    allow_pickle: bool = False  # read a pytorch_model.bin there
    label_smoothing: float = 0.1
    eval_every_steps: int = 1000  # 0: never
    checkpoint_every_steps: int = 1000
    log_every_steps: int = 50
    accumulate_steps: int = 1
    early_stopping_patience: int = 0  # evaluations without a better checkpoint.best_metric; 0: off
    ema_decay: float = 0.0  # 0: off; otherwise evaluation and decoding use the average
    remat: bool = False  # recompute activations in the backward pass to save memory
    eval_beam_size: int = 1
    eval_sentences: int = 0  # of the validation set, from its start; 0: all of them


@dataclasses.dataclass(unsafe_hash=True)
class OptimizerConfig:
    """Optax optimizer and its schedule."""

    name: str = "adam"
    schedule: str = "rsqrt"
    learning_rate: float = 1.0  # rsqrt: factor on the paper's formula; the others: the peak
    warmup_steps: int = 4000
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: off


@dataclasses.dataclass(unsafe_hash=True)
class ParallelConfig:
    """Runner of the training step and the devices it uses."""

    runner: str = "jit"
    data: int = -1  # devices the batch is split over; -1: all


@dataclasses.dataclass(unsafe_hash=True)
class DecodeConfig:
    """Search."""

    beam_size: int = 4
    length_penalty: float = 0.6
    length_penalty_kind: str = "gnmt"
    stopping: str = "exact"
    max_decode_len: int = 256  # pieces of output, the end symbol included
    max_decode_ratio: float = 3.0  # and at most this many pieces a source piece, plus 10
    at_limit: str = "end"  # end: its end symbol counts; free_end: it costs nothing; cut: no end
    suppressed_ids: tuple[int, ...] = ()  # pieces never written
    renormalize: bool = False  # probabilities over the pieces that may be written
    batch_tokens: int = 4096  # source positions times beams decoded at once


@dataclasses.dataclass(unsafe_hash=True)
class CheckpointConfig:
    """Which checkpoints stay."""

    max_to_keep: int = 3  # newest
    keep_best: int = 1
    best_metric: str = "eval_bleu"


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    """Everything that makes a run."""

    seed: int = 0
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)


CHOICES = {
    "model.norm_position": ("pre", "post"),
    "model.activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "model.positional": ("interleaved", "halves", "tensor2tensor", "learned", "rotary", "none"),
    "model.tie_embeddings": ("all", "decoder", "none"),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "model.attention": ("auto", "reference", "xla"),
    "data.source": ("tfds", "files"),
    "data.tokenizer": ("unigram", "bpe"),
    "data.batching": ("pack", "bucket"),
    "optimizer.name": ("adam", "adamw", "adafactor"),
    "optimizer.schedule": ("rsqrt", "linear", "cosine", "constant"),
    "parallel.runner": ("jit", "pmap"),
    "decode.length_penalty_kind": ("gnmt", "power"),
    "decode.stopping": ("first_k", "hf_default", "exact"),
    "decode.at_limit": ("end", "free_end", "cut"),
    "checkpoint.best_metric": (
        "eval_bleu", "eval_chrf", "eval_exact_match", "eval_token_accuracy", "eval_loss"),
}  # fmt: skip

# field -> (lowest allowed, whether the lowest itself is allowed, upper bound not reached)
RANGES: dict[str, tuple[float, bool, float]] = {
    **{f"model.{name}": (1, True, float("inf")) for name in (
        "num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff", "max_len")},
    **{f"model.{name}": (0, True, 1) for name in (
        "dropout_rate", "attention_dropout_rate", "activation_dropout_rate")},
    "model.norm_epsilon": (0, False, 1),
    "model.positional_base": (1, False, float("inf")),
    "model.position_offset": (0, True, float("inf")),
    "data.vocab_size": (8, True, float("inf")),
    "data.max_len": (2, True, float("inf")),
    "data.character_coverage": (0, False, 1.0000001),
    "data.num_buckets": (1, True, float("inf")),
    "data.pack_len": (0, True, float("inf")),
    "train.num_steps": (1, True, float("inf")),
    "train.label_smoothing": (0, True, 1),
    "train.eval_every_steps": (0, True, float("inf")),
    "train.checkpoint_every_steps": (1, True, float("inf")),
    "train.log_every_steps": (1, True, float("inf")),
    "train.accumulate_steps": (1, True, float("inf")),
    "train.early_stopping_patience": (0, True, float("inf")),
    "train.ema_decay": (0, True, 1),
    "train.eval_beam_size": (1, True, float("inf")),
    "train.eval_sentences": (0, True, float("inf")),
    "optimizer.learning_rate": (0, False, float("inf")),
    "optimizer.warmup_steps": (1, True, float("inf")),
    "optimizer.b1": (0, True, 1),
    "optimizer.b2": (0, True, 1),
    "optimizer.eps": (0, False, 1),
    "optimizer.weight_decay": (0, True, float("inf")),
    "optimizer.clip_norm": (0, True, float("inf")),
    "decode.beam_size": (1, True, float("inf")),
    "decode.length_penalty": (0, True, float("inf")),
    "decode.max_decode_len": (1, True, float("inf")),
    "decode.max_decode_ratio": (0, False, float("inf")),
    "decode.batch_tokens": (1, True, float("inf")),
    "checkpoint.max_to_keep": (1, True, float("inf")),
    "checkpoint.keep_best": (0, True, float("inf")),
}  # fmt: skip


def validate(config: Config) -> Config:
    """Returns `config` if it can work.

    Raises:
      UserError: naming the first field that cannot, its value and what it may be.
    """
    _check_types(config, "config")
    for path, choices in CHOICES.items():
        value = _get(config, path)
        if value not in choices:
            close = difflib.get_close_matches(str(value), choices, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UserError(f"config.{path}={value!r} must be one of {', '.join(choices)}{hint}.")
    for path, (low, inclusive, high) in RANGES.items():
        value = _get(config, path)
        if not ((value >= low if inclusive else value > low) and value < high):
            sign = ">=" if inclusive else ">"
            limit = "" if high == float("inf") else f" and below {high:g}"
            raise UserError(f"config.{path}={value} must be {sign} {low}{limit}.")
    for message in _conflicts(config):
        raise UserError(message)
    return config


def _check_types(section: Any, name: str) -> None:
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(field.type):
            if type(value) is not field.type:
                raise UserError(f"{name}.{field.name}={value!r} is no section of settings.")
            _check_types(value, f"{name}.{field.name}")
        else:
            _typed(field.type, value, f"{name}.{field.name}")


def _conflicts(config: Config):
    """Yields a sentence for each pair of fields that cannot stand together."""
    yield from _model_conflicts(config.model)
    yield from _batch_conflicts(config)
    yield from _corpus_conflicts(config.data)
    yield from _training_conflicts(config)


def _model_conflicts(model: ModelConfig):
    decoder = model.for_decoder()
    for name, part in (("num_heads", model), ("num_decoder_heads", decoder)):
        if model.head_dim is None and model.d_model % part.num_heads:
            yield (
                f"config.model.{name}={part.num_heads} does not divide config.model.d_model="
                f"{model.d_model}; choose another number of heads or set config.model.head_dim."
            )
        if part.resolved_head_dim % 2 and model.positional == "rotary":
            yield (
                f"config.model.head_dim={part.resolved_head_dim} must be even for rotary positions."
            )
    for name in ("head_dim", "num_decoder_heads", "decoder_d_ff"):
        value = getattr(model, name)
        if value is not None and value < 1:
            yield f"config.model.{name}={value} must be at least 1."
    sinusoids = ("interleaved", "halves", "tensor2tensor")
    if model.d_model % 2 and model.positional in sinusoids:
        yield (
            f"config.model.d_model={model.d_model} must be even for "
            f"config.model.positional={model.positional}."
        )
    if model.position_offset and model.positional not in sinusoids:
        yield (
            f"config.model.position_offset={model.position_offset} is for sinusoids; "
            f"config.model.positional={model.positional} counts from 0."
        )


def _batch_conflicts(config: Config):
    model, data = config.model, config.data
    if model.max_len < data.max_len:
        yield (
            f"config.model.max_len={model.max_len} is below config.data.max_len={data.max_len}: "
            "the model could not read its own training data; raise the first or lower the second."
        )
    if data.pack_len and data.pack_len < data.max_len:
        yield (
            f"config.data.pack_len={data.pack_len} is below config.data.max_len={data.max_len}: "
            "a packed row must hold the longest sentence."
        )
    row_len = (data.pack_len or data.max_len) if data.batching == "pack" else data.max_len
    if data.batch_tokens < row_len * config.train.accumulate_steps:
        yield (
            f"config.data.batch_tokens={data.batch_tokens} holds less than one row of {row_len} "
            f"target positions for each of {config.train.accumulate_steps} accumulated parts."
        )
    if model.tie_embeddings == "all" and not data.shared_vocab:
        yield (
            "config.model.tie_embeddings=all needs config.data.shared_vocab=True; "
            "use tie_embeddings=decoder with separate vocabularies."
        )


def _corpus_conflicts(data: DataConfig):
    corpora = len(data.train.split(","))
    if data.source == "tfds" and (corpora > 1 or data.train_languages or data.train_weights):
        yield (
            "config.data.train may name several corpora, weights and languages "
            "only with config.data.source=files."
        )
    for name in ("train_weights", "train_languages"):
        if getattr(data, name) and len(getattr(data, name)) != corpora:
            yield (
                f"config.data.{name} has {len(getattr(data, name))} entries, "
                f"config.data.train names {corpora} corpora."
            )
    if any(weight <= 0 for weight in data.train_weights):
        yield f"config.data.train_weights={data.train_weights} must all be above 0."
    if any(pair.count("-") != 1 for pair in data.train_languages):
        yield f"config.data.train_languages={data.train_languages} must look like en-de."
    if data.train_languages and not data.target_language_tags:
        targets = {pair.split("-")[1] for pair in data.train_languages}
        if len(targets) > 1:
            yield (
                f"config.data.train_languages has targets {', '.join(sorted(targets))}: set "
                "config.data.target_language_tags=True so that the model is told which to write."
            )
    if data.source_lang == data.target_lang:
        yield f"config.data.source_lang and target_lang are both {data.source_lang!r}."


def _training_conflicts(config: Config):
    if config.optimizer.weight_decay and config.optimizer.name == "adam":
        yield (
            f"config.optimizer.weight_decay={config.optimizer.weight_decay} is not for adam; "
            "use config.optimizer.name=adamw."
        )
    if config.optimizer.schedule in ("linear", "cosine") and (
        config.optimizer.warmup_steps >= config.train.num_steps
    ):
        yield (
            f"config.optimizer.warmup_steps={config.optimizer.warmup_steps} leaves nothing of "
            f"config.train.num_steps={config.train.num_steps} for the schedule's fall."
        )
    if config.train.early_stopping_patience and not config.train.eval_every_steps:
        yield (
            f"config.train.early_stopping_patience={config.train.early_stopping_patience} needs "
            "evaluations; set config.train.eval_every_steps."
        )
    if config.parallel.data == 0 or config.parallel.data < -1:
        yield f"config.parallel.data={config.parallel.data} must be a number of devices or -1, all."


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def to_json(config: Config) -> str:
    """The whole tree as indented JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str = "config.json") -> Config:
    """Inverse of `to_json`.

    Raises:
      UserError: where the text is no JSON, or a field is unknown or of another type.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error}.") from error
    return _build(Config, tree, where, "")


def _build(cls: Any, tree: Any, where: str, path: str) -> Any:
    if not isinstance(tree, dict):
        raise UserError(f"{where}: {path.rstrip('.') or 'the file'} must be an object.")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for name, value in tree.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {path}{close[0]}?" if close else ""
            raise UserError(f"{where}: there is no setting {path}{name}{hint}")
        kind: Any = fields[name].type
        if dataclasses.is_dataclass(kind):
            values[name] = _build(kind, value, where, f"{path}{name}.")
        else:
            values[name] = _typed(kind, value, f"{where}: {path}{name}")
    return cls(**values)


def _typed(kind: Any, value: Any, name: str) -> Any:
    """`value` as a field of type `kind`: lists become tuples, whole numbers floats."""
    allowed = kind.__args__ if isinstance(kind, types.UnionType) else (kind,)
    for option in allowed:
        if typing.get_origin(option) is tuple:
            if isinstance(value, list | tuple):
                item = typing.get_args(option)[0]
                return tuple(_typed(item, v, f"{name}[{i}]") for i, v in enumerate(value))
        elif option is float and type(value) is int:
            return float(value)
        elif type(value) is option:
            return value
    raise UserError(f"{name}={value!r} is not of type {getattr(kind, '__name__', kind)}.")
