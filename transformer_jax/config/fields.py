"""The settings of a run: a tree of dataclasses. Everything known of a setting is at its field.

A new setting is one more field. Its type, choices, range, meaning and whether it may change on
resuming are read from there by validation, the resume check, flags and `docs/settings.md`.

Configs are values. Only the parser of flags assigns to them, before `validate`; use
`dataclasses.replace` to derive another one.
"""

import dataclasses
from typing import Literal

from transformer_jax.config.data_fields import DataConfig
from transformer_jax.config.decode_fields import DecodeConfig
from transformer_jax.config.setting import fraction, path_setting, section, setting

NormPosition = Literal["pre", "post"]
NormKind = Literal["layer", "rms"]
FeedForwardKind = Literal["plain", "gated"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Positional = Literal[
    "interleaved", "halves", "tensor2tensor", "learned", "rotary", "relative", "alibi", "none"
]
TieEmbeddings = Literal["all", "decoder", "inputs", "none"]
Dtype = Literal["auto", "float32", "bfloat16"]
Attention = Literal["auto", "reference", "xla", "blockwise", "cudnn", "pallas_tpu"]


@dataclasses.dataclass(unsafe_hash=True)
class ModelConfig:
    """Shape of the encoder-decoder. Vocabulary sizes and the start id come from the tokenizer."""

    num_encoder_layers: int = setting(6, "Layers of the encoder.", at_least=1)
    num_decoder_layers: int = setting(6, "Layers of the decoder.", at_least=1)
    d_model: int = setting(512, "Width of embeddings and of every layer's output.", at_least=1)
    num_heads: int = setting(8, "Attention heads.", at_least=1)
    head_dim: int | None = setting(
        None, "Width of a head's query, key and value; None: d_model / num_heads.", at_least=1
    )
    num_kv_heads: int | None = setting(
        None,
        "Heads of keys and values, each shared by equally many heads of queries; None: one for "
        "each.",
        at_least=1,
    )
    d_ff: int = setting(2048, "Hidden width of the feed-forward block.", at_least=1)
    num_decoder_heads: int | None = setting(None, "Of the decoder; None: num_heads.", at_least=1)
    decoder_d_ff: int | None = setting(None, "Of the decoder; None: d_ff.", at_least=1)
    dropout_rate: float = fraction(0.1, "Dropout on embeddings and on every sub-layer's output.")
    attention_dropout_rate: float = fraction(0.0, "Dropout on attention weights.")
    activation_dropout_rate: float = fraction(0.0, "Dropout inside the feed-forward block.")
    norm_position: NormPosition = setting(
        "post", "LayerNorm before each sub-layer (pre), or after its residual sum (the paper)."
    )
    norm: NormKind = setting(
        "layer", "LayerNorm, or rms: divide by the root of the mean square, without a bias."
    )
    norm_epsilon: float = setting(
        1e-6, "Added to the variance, or mean square, of a norm.", above=0, below=1
    )
    embedding_norm: bool = setting(False, "Normalize the embeddings of each stack.")
    qk_norm: bool = setting(False, "Normalize the queries and keys of each head (rms).")
    use_bias: bool = setting(True, "Biases in the dense layers.")
    feed_forward: FeedForwardKind = setting(
        "plain",
        "down(activation(up(x))), or gated: down(activation(gate(x)) * up(x)), which is GEGLU with "
        "gelu and SwiGLU with silu.",
    )
    activation: Activation = setting(
        "relu", "Of the feed-forward block. gelu is the exact (erf) form, gelu_tanh approximates."
    )
    positional: Positional = setting(
        "interleaved",
        "Position encodings. interleaved: the paper's sinusoids; halves: sines first, as in "
        "Hugging Face's Marian; tensor2tensor: halves with that project's exponent; relative: "
        "T5's learned bias by distance; alibi: a bias that falls with distance.",
    )
    positional_base: float = setting(10_000.0, "Base of sinusoids and rotary angles.", above=1)
    position_offset: int = setting(0, "Number of the first position, of sinusoids.", at_least=0)
    relative_buckets: int = setting(32, "Biases of a head with relative positions.", at_least=4)
    relative_max_distance: int = setting(
        128, "Distance from which relative positions do not differ.", at_least=2
    )
    relative_per_layer: bool = setting(
        False, "Relative positions of each layer; otherwise the layers of a stack share them."
    )
    attention_scale: float | None = setting(
        None, "Factor of the product of query and key; None: 1 / sqrt(head_dim).", above=0
    )
    attention_softcap: float = setting(
        0.0, "Bound c of attention scores x, as c·tanh(x / c); 0: none.", at_least=0
    )
    logit_scale: float = setting(
        1.0, "Factor of the decoder's output before the projection to the vocabulary.", above=0
    )
    logit_softcap: float = setting(
        0.0, "Bound c of logits x, as c·tanh(x / c); 0: none.", at_least=0
    )
    scale_embeddings: bool = setting(True, "Multiply token embeddings by sqrt(d_model).")
    tie_embeddings: TieEmbeddings = setting(
        "all",
        "Which embeddings share one matrix. all: source, target and output; decoder: target and "
        "output; inputs: source and target.",
    )
    output_bias: bool = setting(False, "Add a learned bias for each token to the logits.")
    max_len: int = setting(
        256, "Longest source or target in tokens, the end symbol included.", at_least=1
    )
    dtype: Dtype = setting(
        "auto", "Type of the computation. auto: bfloat16 on GPU and TPU, float32 on CPU."
    )
    attention: Attention = setting(
        "auto", "Implementation of attention. auto: the fastest one for device and shape."
    )
    source_vocab_size: int = setting(0, "Tokens of the source; 0: from the tokenizer.", at_least=0)
    target_vocab_size: int = setting(0, "Tokens of the target; 0: from the tokenizer.", at_least=0)
    decoder_start_id: int = setting(
        -1, "First token that the decoder reads; -1: the target tokenizer's beginning of sentence."
    )

    @property
    def resolved_head_dim(self) -> int:
        """`head_dim`, or its default."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def resolved_kv_heads(self) -> int:
        """`num_kv_heads`, or its default."""
        return self.num_kv_heads or self.num_heads

    @property
    def resolved_attention_scale(self) -> float:
        """`attention_scale`, or its default."""
        return self.attention_scale or self.resolved_head_dim**-0.5

    def for_decoder(self) -> "ModelConfig":
        """The same with the decoder's sizes as `num_heads` and `d_ff`."""
        return dataclasses.replace(
            self,
            num_heads=self.num_decoder_heads or self.num_heads,
            d_ff=self.decoder_d_ff or self.d_ff,
        )


@dataclasses.dataclass(unsafe_hash=True)
class TrainConfig:
    """Length of the run, and when it evaluates, saves and reports."""

    num_steps: int = setting(100_000, "Optimizer steps of the run.", at_least=1, resumable=True)
    init_from: str = path_setting(
        "",
        "Model to fine-tune: a work directory, a bundle, a folder of Hugging Face, Marian or "
        "JoeyNMT, or a name on the Hub.",
        resumable=False,
    )
    allow_pickle: bool = setting(False, "Read a pickle in `init_from`, with torch.", resumable=True)
    label_smoothing: float = fraction(0.1, "Probability spread evenly over the vocabulary.")
    r_drop: float = setting(
        0.0,
        "Weight of the difference between two passes with other dropout (R-Drop; 5 in its paper). "
        "A step computes both passes; 0: off.",
        at_least=0,
    )
    frozen: tuple[str, ...] = setting(
        (),
        "Parameters that are not trained and have no optimizer state: names with * of parts, such "
        'as ("encoder_layers_*", "*embedding"), or of single parameters.',
    )
    lora_rank: int = setting(
        0,
        "Rank of the adapters of all dense layers, which are trained in the place of the model of "
        "`init_from` (LoRA); 0: off.",
        at_least=0,
    )
    lora_alpha: float = setting(
        16.0, "Factor of the adapters' product: lora_alpha / lora_rank.", above=0
    )
    alignment_weight: float = setting(
        0.0,
        "Weight of the loss by which a head of the last decoder layer but one learns which source "
        "tokens belong to each target token; needs the extra [align]; 0: off.",
        at_least=0,
    )
    eval_every_steps: int = setting(
        1000, "Steps between evaluations; 0: never.", at_least=0, resumable=True
    )
    checkpoint_every_steps: int = setting(
        1000, "Steps between checkpoints.", at_least=1, resumable=True
    )
    log_every_steps: int = setting(
        50, "Steps between lines of training metrics.", at_least=1, resumable=True
    )
    accumulate_steps: int = setting(
        1, "Parts that a batch is split into, to save memory.", at_least=1, resumable=True
    )
    early_stopping_patience: int = setting(
        0, "Evaluations without a new best before the run ends; 0: off.", at_least=0, resumable=True
    )
    ema_decay: float = fraction(
        0.0, "Decay of the average of parameters that evaluation and decoding use; 0: off."
    )
    skip_spikes: float = setting(
        0.0, "Skip steps whose gradient norm is this many times the usual one; 0: off.", at_least=0
    )
    remat: Literal["none", "dots", "full"] = setting(
        "none",
        "What the backward pass computes again to save memory. dots: all but products with "
        "parameters; full: all of a layer.",
        resumable=True,
    )
    scan_layers: bool = setting(
        False,
        "Compile the layers of a stack once, as a loop; with `remat`, `parallel.fsdp` then gathers "
        "the parameters of one layer at a time.",
        resumable=True,
    )
    eval_beam_size: int = setting(
        1, "Beam size of evaluations during training.", at_least=1, resumable=True
    )
    eval_sentences: int = setting(
        0, "First sentences of the validation set to evaluate; 0: all.", at_least=0, resumable=True
    )
    loggers: tuple[str, ...] = setting(
        (), 'Services that get the metrics too: "wandb", "mlflow".', resumable=True
    )


@dataclasses.dataclass(unsafe_hash=True)
class OptimizerConfig:
    """Optimizer and schedule."""

    name: Literal["adam", "adamw", "adafactor", "schedule_free_adamw"] = setting(
        "adam", "Optimizer; schedule_free_adamw averages the parameters instead of a decay."
    )
    schedule: Literal["rsqrt", "linear", "cosine", "constant"] = setting(
        "rsqrt", "Learning rate over steps, after a linear warm-up. rsqrt: the paper's."
    )
    learning_rate: float = setting(
        1.0, "Peak of the schedule; of rsqrt, a factor on its formula.", above=0, resumable=True
    )
    warmup_steps: int = setting(4000, "Steps until the peak.", at_least=1)
    b1: float = fraction(
        0.9, "Adam's decay of the first moment; of schedule_free_adamw, the average's share."
    )
    b2: float = fraction(0.98, "Adam's decay of the second moment.")
    eps: float = setting(1e-9, "Adam's epsilon.", above=0, below=1)
    weight_decay: float = setting(0.0, "Decoupled weight decay; 0: off.", at_least=0)
    weight_decay_on: Literal["matrices", "all"] = setting(
        "matrices", "What decays: kernels of dense layers, or every parameter.", former="all"
    )
    clip_norm: float = setting(0.0, "Largest norm of the gradient; 0: off.", at_least=0)
    mu_dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "Type in which Adam's first moment is kept; it is computed in float32."
    )
    host_state: bool = setting(
        False,
        "Keep the optimizer's state in the memory of the host, in shards; each step copies it to "
        "the devices and back.",
        resumable=True,
    )


@dataclasses.dataclass(unsafe_hash=True)
class ParallelConfig:
    """Runner of the training step, and the devices it uses: data * fsdp * tensor."""

    runner: Literal["jit", "pmap"] = setting("jit", "How the step runs on several devices.")
    data: int = setting(-1, "Devices that share the rows of a batch; -1: all that are left.")
    fsdp: int = setting(
        1, "Devices that share rows too, and shard parameters and optimizer state; -1: the rest."
    )
    tensor: int = setting(
        1, "Devices that share heads, feed-forward width and vocabulary; -1: the rest."
    )


@dataclasses.dataclass(unsafe_hash=True)
class CheckpointConfig:
    """Which checkpoints are kept."""

    max_to_keep: int = setting(3, "Newest checkpoints that are kept.", at_least=1)
    keep_best: int = setting(1, "Best checkpoints that are kept besides.", at_least=0)
    best_metric: Literal[
        "eval_bleu",
        "eval_chrf",
        "eval_exact_match",
        "eval_token_accuracy",
        "eval_loss",
        "eval_chrf++",
        "eval_ter",
        "eval_comet",
        "eval_comet_qe",
    ] = setting(
        "eval_bleu",
        "Metric by which a checkpoint is best. chrf++, ter and comet are computed only if named.",
    )
    comet_command: str = setting(
        "comet-score --gpus 0", "What computes eval_comet and eval_comet_qe, with arguments."
    )


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    """All settings of a run."""

    seed: int = setting(0, "Random seed of the run.", at_least=-(2**63), below=2**63)
    model: ModelConfig = section(ModelConfig, "Shape of the model.")
    data: DataConfig = section(DataConfig, "Sentence pairs, tokenizer and batches.")
    train: TrainConfig = section(TrainConfig, "Length of the run, evaluations and checkpoints.")
    optimizer: OptimizerConfig = section(OptimizerConfig, "Optimizer and schedule.")
    parallel: ParallelConfig = section(ParallelConfig, "Runner and devices.", resumable=True)
    decode: DecodeConfig = section(DecodeConfig, "Search and sampling.", resumable=True)
    checkpoint: CheckpointConfig = section(
        CheckpointConfig, "Which checkpoints are kept.", resumable=True
    )
