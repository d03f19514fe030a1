"""The big model of "Attention Is All You Need" (table 2) on WMT 2014 English to French.

The paper: 300,000 steps, dropout 0.1 instead of 0.3, 32,000 tokens, 41.8 BLEU on newstest2014 as it
scored then, from the mean of the last 20 checkpoints.

    python train.py --config=wmt14_en_fr_big --workdir=runs/wmt14_fr
    python eval.py --workdir=runs/wmt14_fr --checkpoint=average:20

Result: not measured by this project yet; it takes an accelerator.
"""

import dataclasses

from transformer_jax.configs.wmt14_en_de_big import get_config as wmt14_en_de_big

from transformer_jax.config import Config


def get_config() -> Config:
    german = wmt14_en_de_big()
    return dataclasses.replace(
        german,
        model=dataclasses.replace(german.model, dropout_rate=0.1),
        data=dataclasses.replace(
            german.data, tfds_name="wmt14_translate/fr-en", target_lang="fr", vocab_size=32_000
        ),
    )
