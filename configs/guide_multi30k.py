"""The translator of page 8 of the guide (`docs/guide/8_translating.py`).

Post-norm, two vocabularies, batches of 64 sentences of similar length, plain Adam at 1e-4: as in
introductions to the Transformer. `multi30k` is the recipe for the best scores, and names the
expected files.

    python train.py --config=guide_multi30k --workdir=runs/guide_multi30k
    python eval.py --workdir=runs/guide_multi30k --output=hypotheses.txt
    sacrebleu multi30k/test_2016_flickr.de -lc -i hypotheses.txt

Result, as it writes lower case: 25.1 lower-cased BLEU (13a; 3.9 against the cased references) and
38.4 chrF on test_2016_flickr after 9,000 steps, and still rising; an hour on two CPU cores, with
other work.
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
            num_heads=8,
            d_ff=512,
            dropout_rate=0.1,
            norm_position="post",
            tie_embeddings="none",
            max_len=128,
        ),
        data=DataConfig(
            source="files",
            train="multi30k/train",
            validation="multi30k/val",
            test="multi30k/test_2016_flickr",
            vocab_size=10_000,
            tokenizer="bpe",
            shared_vocab=False,
            lowercase=True,
            max_len=41,  # 40 tokens and the end symbol
            batching="bucket",
            batch_sentences=64,
            num_buckets=8,
        ),
        train=TrainConfig(
            num_steps=9000,  # 20 epochs
            label_smoothing=0.0,
            eval_every_steps=1500,
            checkpoint_every_steps=1500,
        ),
        optimizer=OptimizerConfig(
            schedule="constant", learning_rate=1e-4, warmup_steps=1, b1=0.9, b2=0.98, eps=1e-9
        ),
        decode=DecodeConfig(beam_size=5, length_penalty=1.0, max_decode_len=100),
        checkpoint=CheckpointConfig(best_metric="eval_loss"),
    )
