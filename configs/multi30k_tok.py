"""Multi30k English to German as papers measure it: lower-cased, tokenised text, a tiny model.

The protocol of Transformer-Tiny (Wu et al. 2021, "Good for Misconceived Reasons", text only: 41.02
BLEU on test_2016), except for its positions and steps: sizes, dropout, joint BPE, schedule, 8,192
target tokens a step (the published command has 4,096 on each of two GPUs), average of the last 10
checkpoints, an epoch apart, beam 5. With rotary positions, 3,500 steps give what 8,000 do. It reads
`train.LANG`, `val.LANG` and `test_2016_flickr.LANG` (or `.gz`), lower-cased and tokenised by Moses,
from `multi30k_tok/`; for another folder set --config.data.train=DIR/train and so on.

    transformer-jax data multi30k_tok --output=multi30k_tok
    python train.py --config=multi30k_tok --workdir=runs/m30k_tok
    python eval.py --workdir=runs/m30k_tok --checkpoint=average:10

Result: 41.90 BLEU (tok:none), 66.78 chrF on test_2016_flickr, the mean of seeds 0, 1 and 2 on a GPU
(41.64 to 42.11); 42.64 and 67.40 with the three together (`--ensemble`). On two CPU cores seeds 0
and 1 have 41.07 and 41.54; the steps take 77 min.
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
        train=dataclasses.replace(config.train, num_steps=3500, checkpoint_every_steps=50),
        decode=dataclasses.replace(config.decode, length_penalty=1.0),
    )
