"""What settings may be, each alone and together; told in one sentence before anything runs."""

import dataclasses
import difflib
from typing import Any

from transformer_jax.config import (
    FORMER_DEFAULTS,
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    typed,
)  # fmt: skip
from transformer_jax.errors import UserError

CHOICES = {
    "model.norm_position": ("pre", "post"),
    "model.activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "model.positional": ("interleaved", "halves", "tensor2tensor", "learned", "rotary", "none"),
    "model.tie_embeddings": ("all", "decoder", "none"),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "model.attention": ("auto", "reference", "xla", "blockwise", "cudnn", "pallas_tpu"),
    "data.source": ("tfds", "files"),
    "data.tokenizer": ("unigram", "bpe"),
    "data.bleu_tokenizer": (
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200",
        "none"),
    "data.batching": ("pack", "bucket"),
    "optimizer.name": ("adam", "adamw", "adafactor"),
    "optimizer.weight_decay_on": ("matrices", "all"),
    "optimizer.schedule": ("rsqrt", "linear", "cosine", "constant"),
    "parallel.runner": ("jit", "pmap"),
    "decode.method": ("beam", "sample", "mbr"),
    "decode.mbr_metric": ("chrf", "bleu"),
    "decode.length_penalty_kind": ("gnmt", "power"),
    "decode.stopping": ("first_k", "hf_default", "exact"),
    "decode.at_limit": ("end", "free_end", "cut"),
    "checkpoint.best_metric": (
        "eval_bleu", "eval_chrf", "eval_exact_match", "eval_token_accuracy", "eval_loss"),
}  # fmt: skip

NORMALIZATIONS = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")  # SentencePiece's

# field -> (lowest allowed, whether the lowest itself is allowed, upper bound not reached)
RANGES: dict[str, tuple[float, bool, float]] = {
    "seed": (-(2**63), True, 2**63),
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
    "data.subword_sampling": (0, True, 1),
    "data.max_ratio": (0, True, float("inf")),
    "data.plan_version": (1, True, 3),
    "data.num_buckets": (1, True, float("inf")),
    "data.pack_len": (0, True, float("inf")),
    "data.batch_sentences": (0, True, float("inf")),
    "train.num_steps": (1, True, float("inf")),
    "train.label_smoothing": (0, True, 1),
    "train.eval_every_steps": (0, True, float("inf")),
    "train.checkpoint_every_steps": (1, True, float("inf")),
    "train.log_every_steps": (1, True, float("inf")),
    "train.accumulate_steps": (1, True, float("inf")),
    "train.early_stopping_patience": (0, True, float("inf")),
    "train.ema_decay": (0, True, 1),
    "train.skip_spikes": (0, True, float("inf")),
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
    "decode.min_decode_len": (0, True, float("inf")),
    "decode.min_decode_ratio": (0, True, float("inf")),
    "decode.coverage_penalty": (0, True, float("inf")),
    "decode.no_repeat_ngram_size": (0, True, float("inf")),
    "decode.repetition_penalty": (0, False, float("inf")),
    "decode.beam_groups": (1, True, float("inf")),
    "decode.diversity_penalty": (0, True, float("inf")),
    "decode.temperature": (0, False, float("inf")),
    "decode.top_k": (0, True, float("inf")),
    "decode.top_p": (0, False, 1.0000001),
    "decode.min_p": (0, True, 1.0000001),
    "decode.seed": (0, True, 2**32),
    "decode.mbr_samples": (2, True, float("inf")),
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
            limit = "" if high == float("inf") else f" and below {high:.10g}"
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
            checked = typed(field.type, value, f"{name}.{field.name}")
            if isinstance(value, list):  # a tuple can be hashed
                setattr(section, field.name, checked)


def _conflicts(config: Config):
    """Yields a sentence for each pair of fields that cannot stand together."""
    yield from _model_conflicts(config.model)
    yield from _batch_conflicts(config)
    yield from _corpus_conflicts(config.data)
    yield from _training_conflicts(config)
    yield from _search_conflicts(config.decode)


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
    if 0 < data.max_ratio < 1:
        yield f"config.data.max_ratio={data.max_ratio:g} must be at least 1, or 0 for no limit."
    if data.batch_sentences and data.batching == "pack":
        yield (
            f"config.data.batch_sentences={data.batch_sentences} needs "
            "config.data.batching=bucket; packed rows hold several sentences each."
        )
    if data.subword_sampling and data.batching != "pack":
        yield (
            f"config.data.subword_sampling={data.subword_sampling:g} needs "
            f"config.data.batching=pack: the shapes of {data.batching} depend on how words are cut."
        )
    if not data.batch_sentences and data.batch_tokens < row_len * config.train.accumulate_steps:
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
    rules = [name.strip() for name in data.normalization.split(",")]
    if len(rules) > 2 or not {*rules} <= {*NORMALIZATIONS}:
        yield (
            f"config.data.normalization={data.normalization!r} must be one of "
            f"{', '.join(NORMALIZATIONS)}, or two of them as SOURCE,TARGET."
        )
    silent = (DataConfig().normalization, FORMER_DEFAULTS["data.normalization"])
    if data.tokenizer_model and data.normalization not in silent:
        yield (
            f"config.data.normalization={data.normalization} is for a tokenizer that is trained; "
            "those of config.data.tokenizer_model have their own rules."
        )
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
    sizes = {name: getattr(config.parallel, name) for name in ("data", "fsdp", "tensor")}
    for name, size in sizes.items():
        if size == 0 or size < -1:
            yield f"config.parallel.{name}={size} must be a number of devices or -1, the rest."
    if list(sizes.values()).count(-1) > 1:
        yield f"Only one of config.parallel.data, fsdp and tensor may be -1, the rest ({sizes})."
    if config.parallel.runner == "pmap" and (sizes["fsdp"], sizes["tensor"]) != (1, 1):
        yield (
            "config.parallel.runner=pmap has the axis data alone; use runner=jit for "
            f"fsdp={sizes['fsdp']} and tensor={sizes['tensor']}."
        )


def _search_conflicts(decode: DecodeConfig):
    if decode.beam_size % decode.beam_groups:
        yield (
            f"config.decode.beam_groups={decode.beam_groups} does not divide "
            f"config.decode.beam_size={decode.beam_size}."
        )
    if decode.method != "beam":
        for name in ("coverage_penalty", "beam_groups"):
            if getattr(decode, name) != getattr(DecodeConfig(), name):
                yield f"config.decode.{name} is for config.decode.method=beam."
    else:
        for name in ("temperature", "top_k", "top_p", "min_p"):
            if getattr(decode, name) != getattr(DecodeConfig(), name):
                yield f"config.decode.{name} is for config.decode.method=sample or mbr."


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config
