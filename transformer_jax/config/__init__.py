"""The settings of a run.

- `fields`, `data_fields`, `decode_fields`: the tree of dataclasses; a setting is one field.
- `setting`: what a field knows besides its type: meaning, range, whether it may change.
- `checks`, `data_checks`: `validate`, for single settings and for combinations.
- `json_format`: `config.json`, and what older ones mean.
- `__main__`: `python -m transformer_jax.config` prints all settings as a page of documentation.
"""

from transformer_jax.config.checks import validate
from transformer_jax.config.data_fields import DataConfig
from transformer_jax.config.decode_fields import DecodeConfig
from transformer_jax.config.fields import (
    CheckpointConfig,
    Config,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainConfig,
)
from transformer_jax.config.json_format import from_json, keep_former_defaults, to_json
from transformer_jax.config.setting import Setting, all_settings, split_paths

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DecodeConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Setting",
    "TrainConfig",
    "all_settings",
    "from_json",
    "keep_former_defaults",
    "split_paths",
    "to_json",
    "validate",
]
