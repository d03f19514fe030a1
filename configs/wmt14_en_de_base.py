"""The base model of "Attention Is All You Need" (tables 2 and 3) on WMT 2014 English to German.

The paper: 100,000 steps of about 25,000 target tokens, 65 million parameters, 27.3 BLEU on
newstest2014 as it scored then, from the mean of the last 5 checkpoints, beam 4, alpha 0.6.

    python train.py --config=wmt14_en_de_base --workdir=runs/wmt14_base
    python eval.py --workdir=runs/wmt14_base --checkpoint=average:5

Result: not measured by this project yet, because it takes an accelerator.
"""

from transformer_jax.config import (
    CheckpointConfig,
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
            num_encoder_layers=6,
            num_decoder_layers=6,
            d_model=512,
            num_heads=8,
            d_ff=2048,
            dropout_rate=0.1,
            norm_position="post",
            max_len=512,
        ),
        data=DataConfig(
            tfds_name="wmt14_translate/de-en",
            source_lang="en",
            target_lang="de",
            vocab_size=37_000,
            tokenizer="bpe",
            max_len=256,
            batch_tokens=25_088,  # 96 rows of 256
        ),
        train=TrainConfig(num_steps=100_000, eval_every_steps=5000, checkpoint_every_steps=1500),
        optimizer=OptimizerConfig(schedule="rsqrt", learning_rate=1.0, warmup_steps=4000),
        decode=DecodeConfig(beam_size=4, length_penalty=0.6, max_decode_len=512),
        checkpoint=CheckpointConfig(max_to_keep=5),
    )
