"""Checks of single settings and of combinations, before anything runs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer_jax.config.data_checks import data_conflicts
from transformer_jax.config.decode_fields import DecodeConfig
from transformer_jax.config.fields import Config, ModelConfig, TrainConfig
from transformer_jax.config.json_format import typed
from transformer_jax.config.loss_terms import LOSS_TERMS
from transformer_jax.config.optimizer_kinds import OPTIMIZERS, SCHEDULES
from transformer_jax.config.setting import Setting, all_settings
from transformer_jax.errors import UserError, did_you_mean

LOGGERS = ("wandb", "mlflow")  # of `train.loggers`
SINUSOIDS = ("interleaved", "halves", "tensor2tensor")


def validate(config: Config) -> Config:
    """Returns `config` if it can work.

    Raises:
      UserError: names the first wrong setting, its value and the allowed values.
    """
    _check_types(config, "config")
    for setting in all_settings(Config):
        _check_value(setting, setting.value(config))
    for message in _conflicts(config):
        raise UserError(message)
    return config


def _check_types(section: Any, name: str) -> None:
    """Checks the type of each setting, and turns lists into tuples, which can be hashed."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(field.type):
            if type(value) is not field.type:
                raise UserError(f"{name}.{field.name}={value!r} is not a section of settings.")
            _check_types(value, f"{name}.{field.name}")
        else:
            checked = typed(field.type, value, f"{name}.{field.name}")
            if isinstance(value, list):
                setattr(section, field.name, checked)


def _check_value(setting: Setting, value: Any) -> None:
    """Checks one setting against its choices and its range."""
    if setting.choices and value not in setting.choices:
        raise UserError(
            f"config.{setting.path}={value!r} must be one of {', '.join(setting.choices)}"
            f"{did_you_mean(str(value), setting.choices)}"
        )
    if value is not None and not setting.in_range(value):
        raise UserError(f"config.{setting.path}={value} must be {setting.range_text()}.")


def _conflicts(config: Config) -> Iterator[str]:
    """A sentence for each combination of settings that cannot work."""
    yield from _model_conflicts(config.model)
    yield from _batch_conflicts(config)
    yield from data_conflicts(config.data)
    yield from _optimizer_conflicts(config)
    yield from _training_conflicts(config)
    yield from _loss_conflicts(config)
    yield from _fine_tuning_conflicts(config)
    yield from _search_conflicts(config.decode)


def _model_conflicts(model: ModelConfig) -> Iterator[str]:
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
        if part.num_heads % part.resolved_kv_heads:
            yield (
                f"config.model.num_kv_heads={model.num_kv_heads} does not divide "
                f"config.model.{name}={part.num_heads}."
            )
    if model.positional == "relative" and 2 * model.relative_max_distance <= model.relative_buckets:
        yield (
            f"config.model.relative_max_distance={model.relative_max_distance} must be above "
            f"half of config.model.relative_buckets={model.relative_buckets}."
        )
    if model.d_model % 2 and model.positional in SINUSOIDS:
        yield (
            f"config.model.d_model={model.d_model} must be even for "
            f"config.model.positional={model.positional}."
        )
    if model.position_offset and model.positional not in SINUSOIDS:
        yield (
            f"config.model.position_offset={model.position_offset} is for sinusoids; "
            f"config.model.positional={model.positional} counts from 0."
        )


def _batch_conflicts(config: Config) -> Iterator[str]:
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
    if data.tokens_differ_by_epoch and data.batching != "pack":
        yield (
            f"{data.why_tokens_differ} needs config.data.batching=pack: the shapes of "
            f"{data.batching} depend on the tokens, which differ in each epoch."
        )
    if not data.batch_sentences and data.batch_tokens < row_len * config.train.accumulate_steps:
        least = row_len * config.train.accumulate_steps
        yield (
            f"config.data.batch_tokens={data.batch_tokens} must be at least {least}: a row of "
            f"{row_len} target positions for each of {config.train.accumulate_steps} accumulated "
            "parts."
        )
    if model.tie_embeddings in ("all", "inputs") and not data.shared_vocab:
        yield (
            f"config.model.tie_embeddings={model.tie_embeddings} needs "
            "config.data.shared_vocab=True; "
            "use tie_embeddings=decoder with separate vocabularies."
        )
    if data.target_vocab_size and data.shared_vocab:
        yield (
            f"config.data.target_vocab_size={data.target_vocab_size} needs "
            "config.data.shared_vocab=False; a shared vocabulary has vocab_size tokens."
        )


def _loss_conflicts(config: Config) -> Iterator[str]:
    model = config.model
    rates = model.dropout_rate, model.attention_dropout_rate, model.activation_dropout_rate
    for name, term in LOSS_TERMS.items():
        weight = getattr(config.train, name)
        if weight and term.compares_dropout and not any(rates):
            yield (
                f"config.train.{name}={weight:g} compares passes with different dropout masks, and "
                "config.model has no dropout; set config.model.dropout_rate."
            )


def _fine_tuning_conflicts(config: Config) -> Iterator[str]:
    if config.train.lora_alpha != TrainConfig.lora_alpha and not config.train.lora_rank:
        yield (
            f"config.train.lora_alpha={config.train.lora_alpha} is the factor of adapters, and "
            "config.train.lora_rank=0 trains none; set config.train.lora_rank."
        )
    if not config.data.new_tokens:
        return
    if config.data.source == "prepared":
        yield (
            f"config.data.new_tokens={config.data.new_tokens} changes the tokenizer, and "
            f"config.data.train={config.data.train} is tokenised already; use "
            "config.data.source=files."
        )
    if config.train.lora_rank:
        yield (
            f"config.data.new_tokens={config.data.new_tokens} would not be trained with "
            f"config.train.lora_rank={config.train.lora_rank}; set one of them to 0."
        )


def _optimizer_conflicts(config: Config) -> Iterator[str]:
    name, kind = config.optimizer.name, OPTIMIZERS[config.optimizer.name]
    if config.optimizer.weight_decay and not kind.decays_weights:
        yield (
            f"config.optimizer.weight_decay={config.optimizer.weight_decay} is not for {name}; "
            "use config.optimizer.name=adamw."
        )
    if SCHEDULES[config.optimizer.schedule].falls_to_zero and (
        config.optimizer.warmup_steps >= config.train.num_steps
    ):
        yield (
            f"config.optimizer.warmup_steps={config.optimizer.warmup_steps} leaves nothing of "
            f"config.train.num_steps={config.train.num_steps} for the schedule's fall; "
            "lower config.optimizer.warmup_steps, or for a short trial keep the recipe's steps "
            f"and give `stop_after={config.train.num_steps}`."
        )
    if not kind.has_first_moment and config.optimizer.mu_dtype != "float32":
        others = [one for one, other in OPTIMIZERS.items() if other.has_first_moment]
        yield (
            f"config.optimizer.mu_dtype={config.optimizer.mu_dtype} is for {' and '.join(others)}; "
            f"{name} has no first moment."
        )
    if kind.averages:
        if config.optimizer.schedule != "constant":
            yield (
                f"config.optimizer.schedule={config.optimizer.schedule} is not for {name}, whose "
                "averages are in the place of a decay; use config.optimizer.schedule=constant."
            )
        if config.optimizer.host_state:
            yield (
                f"config.optimizer.host_state=True is not for {name}, which needs its state for "
                "the gradient too; set one of them to its default."
            )
    if config.optimizer.host_state and config.parallel.runner == "pmap":
        yield (
            "config.optimizer.host_state=True needs config.parallel.runner=jit: pmap keeps all on "
            "the devices."
        )


def _training_conflicts(config: Config) -> Iterator[str]:
    if config.train.alignment_weight and config.train.scan_layers:
        yield (
            "config.train.scan_layers=True hides the layer that config.train.alignment_weight="
            f"{config.train.alignment_weight:g} teaches; set one of them to its default."
        )
    if config.train.alignment_weight and config.data.tokens_differ_by_epoch:
        yield (
            f"config.train.alignment_weight={config.train.alignment_weight:g} aligns the tokens of "
            f"a corpus once, but {config.data.why_tokens_differ} changes them in each epoch; set "
            "one of them to its default."
        )
    if config.train.early_stopping_patience and not config.train.eval_every_steps:
        yield (
            f"config.train.early_stopping_patience={config.train.early_stopping_patience} needs "
            "evaluations; set config.train.eval_every_steps."
        )
    for name in config.train.loggers:
        if name not in LOGGERS:
            hint = did_you_mean(name, LOGGERS)
            hint = f"; several are written as {LOGGERS!r}." if "," in name else hint
            yield f"config.train.loggers has {name!r}, and there are {', '.join(LOGGERS)}{hint}"
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


def _search_conflicts(decode: DecodeConfig) -> Iterator[str]:
    if decode.beam_size % decode.beam_groups:
        yield (
            f"config.decode.beam_groups={decode.beam_groups} does not divide "
            f"config.decode.beam_size={decode.beam_size}."
        )
    if decode.method != "beam":
        for name in ("coverage_penalty", "beam_groups", "shortlist"):
            if getattr(decode, name) != getattr(DecodeConfig(), name):
                yield f"config.decode.{name} is for config.decode.method=beam."
    else:
        for name in ("temperature", "top_k", "top_p", "min_p"):
            if getattr(decode, name) != getattr(DecodeConfig(), name):
                yield f"config.decode.{name} is for config.decode.method=sample or mbr."
