"""Multi30k English to German as papers measure it: lower-cased, tokenised text, a tiny model.

The protocol of Transformer-Tiny (Wu et al. 2021, "Good for Misconceived Reasons", text only: 41.02
BLEU on test_2016): sizes, dropout, joint BPE, schedule, 8,192 target tokens a step (the published
command has 4,096 on each of two GPUs), 8,000 steps, average of the last 10 checkpoints, an epoch
apart, beam 5. It reads `train.LANG`, `val.LANG` and `test_2016_flickr.LANG` (or `.gz`), lower-cased
and tokenised by Moses, from `multi30k_tok/`; for another folder set --config.data.train=DIR/train
and so on.

    transformer-jax data multi30k_tok --output=multi30k_tok
    python train.py --config=multi30k_tok --workdir=runs/m30k_tok
    python eval.py --workdir=runs/m30k_tok --checkpoint=average:10

Result: 40.55 BLEU (tok:none), 65.66 chrF on test_2016_flickr with seed 0; 39.97 and 65.17 with
4,096 tokens a step. On two CPU cores its steps take 2 h 21 min.
"""

import dataclasses

from transformer_jax.configs.multi30k import get_config as multi30k

from transformer_jax.config import Config


def get_config() -> Config:
    config = multi30k()
    data = dataclasses.replace(
        config.data,
        train="multi30k_tok/train",
        validation="multi30k_tok/val",
        test="multi30k_tok/test_2016_flickr",
        vocab_size=10_000,
        byte_fallback=False,
        pretokenized=True,
        batch_tokens=8192,
    )
    return dataclasses.replace(
        config,
        data=data,
        train=dataclasses.replace(config.train, num_steps=8000, checkpoint_every_steps=50),
        decode=dataclasses.replace(config.decode, length_penalty=1.0),
    )
