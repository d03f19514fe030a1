"""Multi30k English to German as papers measure it: lower-cased, tokenised text, a tiny model.

The protocol of Transformer-Tiny (Wu et al. 2021, "Good for Misconceived Reasons", text only: 41.02
BLEU on test_2016): sizes, dropout, joint BPE, schedule, 8,192 target tokens a step (the published
command has 4,096 on each of two GPUs), 8,000 steps, average of the last 10 checkpoints, an epoch
apart, beam 5. `train.LANG`, `val.LANG` and `test_2016_flickr.LANG` (or `.gz`) are expected in
`multi30k_tok/`, lower-cased and tokenised by Moses; elsewhere with --config.data.train=DIR/train
and so on.

    python train.py --config=multi30k_tok --workdir=runs/m30k_tok
    python eval.py --workdir=runs/m30k_tok --checkpoint=average:10

Result: 40.55 BLEU (tok:none), 65.66 chrF on test_2016_flickr with seed 0; 39.97 and 65.17 with
4,096 tokens a step. On two CPU cores its steps take 2 h 21 min.
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
            dropout_rate=0.3,
            norm_position="post",
            max_len=128,
        ),
        data=DataConfig(
            source="files",
            train="multi30k_tok/train",
            validation="multi30k_tok/val",
            test="multi30k_tok/test_2016_flickr",
            vocab_size=10_000,
            tokenizer="bpe",
            byte_fallback=False,
            pretokenized=True,
            max_len=64,
            batch_tokens=8192,
        ),
        train=TrainConfig(
            num_steps=8000,
            eval_every_steps=1000,
            checkpoint_every_steps=50,
        ),
        optimizer=OptimizerConfig(
            # 0.005 at its peak: 0.005 * sqrt(128 * 2000)
            schedule="rsqrt",
            learning_rate=2.53,
            warmup_steps=2000,
            eps=1e-8,
        ),
        decode=DecodeConfig(
            beam_size=5, length_penalty=1.0, length_penalty_kind="power", max_decode_len=100
        ),
        checkpoint=CheckpointConfig(max_to_keep=10),
    )
