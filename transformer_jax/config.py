"""Settings of a run: a tree of dataclasses, kept as JSON in the work directory.

The classes are values: nothing assigns to them but the flags parser, before `validate`; use
`dataclasses.replace` to derive another one.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Callable
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
    output_bias: bool = False  # add one learned number a token to the logits
    max_len: int = 256  # longest source or target in tokens, its end symbol included
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
    normalization: str = "identity"  # SentencePiece's rule for text, or "SOURCE,TARGET"
    shared_vocab: bool = True
    lowercase: bool = False
    pretokenized: bool = False  # words are set apart already: BLEU takes them as they stand
    bleu_tokenizer: str = "auto"  # of sacreBLEU; auto: by target_lang
    byte_fallback: bool = True
    # Each epoch cuts words anew. bpe: chance that a merge is left out; unigram: smoothing alpha
    subword_sampling: float = 0.0  # 0: off
    character_coverage: float = 1.0
    max_len: int = 256  # longest training sentence in tokens, its end symbol included
    max_ratio: float = 9.0  # longest side of a training pair, in lengths of the other; 0: off
    batching: str = "pack"
    # target positions in one optimizer step, all devices together; of `bucket`: of the longer side
    batch_tokens: int = 25_000
    pack_len: int = 0  # target positions in one packed row; 0: data.max_len
    num_buckets: int = 20  # shapes that `bucket` may use
    plan_version: int = 2  # 1: shapes of batches as 0.1.0 chose them, for its runs
    batch_sentences: int = 0  # of `bucket`: at most so many a step, not batch_tokens; 0: off


@dataclasses.dataclass(unsafe_hash=True)
class TrainConfig:
    """Length of the run and what happens along it."""

    num_steps: int = 100_000
    init_from: str = ""  # work directory, or Hugging Face directory or name, that is fine-tuned
    allow_pickle: bool = False  # read a pytorch_model.bin there
    label_smoothing: float = 0.1
    eval_every_steps: int = 1000  # 0: never
    checkpoint_every_steps: int = 1000
    log_every_steps: int = 50
    accumulate_steps: int = 1
    early_stopping_patience: int = 0  # evaluations that were no better than the best; 0: off
    ema_decay: float = 0.0  # 0: off; otherwise evaluation and decoding use the average
    skip_spikes: float = 0.0  # skip steps with gradients so many times the usual norm; 0: off
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
    weight_decay_on: str = "matrices"  # kernels of dense layers; all: every parameter
    clip_norm: float = 0.0  # 0: off


@dataclasses.dataclass(unsafe_hash=True)
class ParallelConfig:
    """Runner of the training step and the devices it uses: data * fsdp * tensor."""

    runner: str = "jit"
    data: int = -1  # devices that share a batch's rows; -1: the rest
    fsdp: int = 1  # share rows too, and hold a part each of parameters and optimizer state
    tensor: int = 1  # share heads, feed-forward width and vocabulary


@dataclasses.dataclass(unsafe_hash=True)
class DecodeConfig:
    """Search, or sampling."""

    method: str = "beam"  # beam; sample; mbr: of several samples, the one most like the others
    beam_size: int = 4  # 1 is greedy
    length_penalty: float = 0.6
    length_penalty_kind: str = "gnmt"
    stopping: str = "exact"
    max_decode_len: int = 256  # tokens of output, the end symbol included
    max_decode_ratio: float = 3.0  # and at most this many tokens a source token, plus 10
    min_decode_len: int = 0  # tokens of output at least, the end symbol included
    min_decode_ratio: float = 0.0  # and at least this many tokens a source token
    at_limit: str = "end"  # end: its end symbol counts; free_end: it costs nothing; cut: no end
    suppressed_ids: tuple[int, ...] = ()  # tokens never written
    renormalize: bool = False  # probabilities over the tokens that may be written
    coverage_penalty: float = 0.0  # for source positions that got little attention
    no_repeat_ngram_size: int = 0  # write no sequence of so many tokens twice; 0: off
    repetition_penalty: float = 1.0  # on logits of tokens that were written; 1: off
    beam_groups: int = 1  # that search apart, for hypotheses that differ
    diversity_penalty: float = 0.5  # for a token that an earlier group goes on with
    temperature: float = 1.0  # of sampling
    top_k: int = 0  # sample from so many tokens; 0: all
    top_p: float = 1.0  # sample from the likeliest tokens with this much probability together
    min_p: float = 0.0  # sample from tokens at least this likely, as a share of the likeliest
    seed: int = 0  # of sampling; a sentence's samples do not depend on its neighbours
    mbr_samples: int = 32
    mbr_metric: str = "chrf"
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


# What a setting meant before there was a name for it: its value where a config.json lacks it.
FORMER_DEFAULTS: dict[str, Any] = {
    "data.max_ratio": 0.0,
    "data.normalization": "nmt_nfkc",
    "data.plan_version": 1,
    "optimizer.weight_decay_on": "all",
}


def to_json(config: Config) -> str:
    """The whole tree as indented JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str, where: str = "config.json") -> Config:
    """Inverse of `to_json`; settings that the text lacks get their former or default values.

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
    values = {
        name: FORMER_DEFAULTS[path + name] for name in fields if path + name in FORMER_DEFAULTS
    }
    for name, value in tree.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {path}{close[0]}?" if close else ""
            raise UserError(f"{where}: there is no setting {path}{name}{hint}")
        kind: Any = fields[name].type
        if dataclasses.is_dataclass(kind):
            values[name] = _build(kind, value, where, f"{path}{name}.")
        else:
            values[name] = typed(kind, value, f"{where}: {path}{name}")
    return cls(**values)


def keep_former_defaults(
    config: Config, stored: Config, say: Callable[[str], None] = lambda _: None
) -> Config:
    """`config` for a run that resumes, whose config is `stored`.

    Where `stored` has a former default and `config` today's, the run keeps what it was started
    with, and `say` gets a sentence. What a recipe sets otherwise stays, and will be compared.
    """
    for path, former in FORMER_DEFAULTS.items():
        section, name = path.split(".")
        now, before = getattr(config, section), getattr(stored, section)
        default = getattr(type(now)(), name)
        if getattr(before, name) == former and getattr(now, name) == default != former:
            say(f"config.{path} stays {former}, as the run was started; new runs have {default}")
            now = dataclasses.replace(now, **{name: former})
            config = dataclasses.replace(config, **{section: now})
    return config


def typed(kind: Any, value: Any, name: str) -> Any:
    """`value` as a field of type `kind`: lists become tuples, whole numbers floats."""
    allowed = kind.__args__ if isinstance(kind, types.UnionType) else (kind,)
    for option in allowed:
        if typing.get_origin(option) is tuple:
            if isinstance(value, list | tuple):
                item = typing.get_args(option)[0]
                return tuple(typed(item, v, f"{name}[{i}]") for i, v in enumerate(value))
        elif option is float and type(value) is int:
            return float(value)
        elif type(value) is option:
            return value
    raise UserError(f"{name}={value!r} is not of type {getattr(kind, '__name__', kind)}.")
