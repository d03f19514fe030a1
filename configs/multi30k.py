"""Multi30k, any pair of its languages, at a size that learns on two CPU cores in 45 minutes.

`train.LANG`, `val.LANG` and `test_2016_flickr.LANG` (or `.gz`) are expected in `multi30k/`;
elsewhere with --config.data.train=DIR/train and so on. Another pair, for example French to English:
--config.data.source_lang=fr --config.data.target_lang=en.

    python train.py --config=multi30k --workdir=runs/m30k
    python eval.py --workdir=runs/m30k

Result: 38.75 BLEU (13a, cased), 62.97 chrF on test_2016_flickr after 43 minutes on two CPU cores.
"""

from transformer_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)  # fmt: skip


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_encoder_layers=4,
            num_decoder_layers=4,
            d_model=128,
            num_heads=4,
            d_ff=256,
            dropout_rate=0.1,
            norm_position="pre",
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
        train=TrainConfig(
            num_steps=2600,
            eval_every_steps=650,
            checkpoint_every_steps=650,
        ),
        optimizer=OptimizerConfig(
            schedule="cosine", learning_rate=0.005, warmup_steps=400, clip_norm=1.0
        ),
        decode=DecodeConfig(beam_size=5, length_penalty=1.0, max_decode_len=100),
        checkpoint=CheckpointConfig(),
    )
