"""The big model of "Attention Is All You Need" (tables 2 and 3) on WMT 2014 English to German.

The paper: 300,000 steps, 213 million parameters, dropout 0.3, 28.4 BLEU on newstest2014 as it
scored then, from the mean of the last 20 checkpoints.

    python train.py --config=wmt14_en_de_big --workdir=runs/wmt14_big
    python eval.py --workdir=runs/wmt14_big --checkpoint=average:20

Result: not measured by this project yet; it takes an accelerator.
"""

import dataclasses

from transformer_jax.configs.wmt14_en_de_base import get_config as wmt14_en_de_base

from transformer_jax.config import Config


def get_config() -> Config:
    base = wmt14_en_de_base()
    return dataclasses.replace(
        base,
        model=dataclasses.replace(
            base.model, d_model=1024, num_heads=16, d_ff=4096, dropout_rate=0.3
        ),
        train=dataclasses.replace(base.train, num_steps=300_000, eval_every_steps=10_000),
        checkpoint=dataclasses.replace(base.checkpoint, max_to_keep=20),
    )
