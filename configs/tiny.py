"""The smallest complete run; for tests.

    python train.py --config=tiny --workdir=runs/tiny

Result: a model that has learned next to nothing, in a few seconds.
"""

from transformer_jax.config import (
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            num_heads=2,
            d_ff=32,
            norm_position="pre",
            max_len=48,
        ),
        data=DataConfig(vocab_size=350, max_len=48, batch_tokens=768),
        train=TrainConfig(
            num_steps=60,
            eval_every_steps=30,
            checkpoint_every_steps=30,
            log_every_steps=10,
            eval_sentences=8,
        ),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=0.01, warmup_steps=10),
        decode=DecodeConfig(max_decode_len=32),
    )
