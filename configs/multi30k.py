"""Multi30k, any pair of its languages, at a size that learns on two CPU cores in 60 to 90 minutes.

It reads `train.LANG`, `val.LANG` and `test_2016_flickr.LANG` (or `.gz`) from `multi30k/`; for
another folder set --config.data.train=DIR/train and so on. Another pair, for example French to
English: --config.data.source_lang=fr --config.data.target_lang=en.

    transformer-jax data multi30k --output=multi30k
    python train.py --config=multi30k --workdir=runs/m30k
    python eval.py --workdir=runs/m30k --checkpoint=average:10

Result: 40.37 BLEU (13a, cased), 65.55 chrF on test_2016_flickr, 33.50 and 61.22 on
test_2017_flickr, with seed 0, trained on a GPU. With noise in the sources of training
(--config.data.augment='("upper_case:0.05","typos:0.1")') it has 41.38 and 65.89, 33.01 and 61.29.
Hugging Face and Marian have no rotary positions: for an export, add
--config.model.positional=interleaved.
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
            num_encoder_layers=4,
            num_decoder_layers=4,
            d_model=128,
            num_heads=4,
            d_ff=256,
            dropout_rate=0.3,
            norm_position="post",
            positional="rotary",
            max_len=128,
        ),
        data=DataConfig(
            source="files",
            train="multi30k/train",
            validation="multi30k/val",
            test="multi30k/test_2016_flickr",
            vocab_size=8000,
            tokenizer="bpe",
            max_len=64,
            batch_tokens=4096,
        ),
        train=TrainConfig(num_steps=10_500, eval_every_steps=1000, checkpoint_every_steps=100),
        optimizer=OptimizerConfig(
            # 0.005 at its peak: 0.005 * sqrt(128 * 2000)
            schedule="rsqrt",
            learning_rate=2.53,
            warmup_steps=2000,
            eps=1e-8,
        ),
        decode=DecodeConfig(
            beam_size=5, length_penalty=1.2, length_penalty_kind="power", max_decode_len=100
        ),
        checkpoint=CheckpointConfig(max_to_keep=10),
    )
