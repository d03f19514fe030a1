# %% [markdown]
# # 8. Translating
#
# This page trains a translator from beginning to end, in the set-up of many introductions to the
# Transformer:
#
# - 4 + 4 layers of width 128, 8 heads, feed-forward 512, dropout 0.1, post-norm;
# - at most 10,000 tokens per language, lower-cased text, at most 40 tokens per sentence;
# - batches of 64 sentences of similar length, Adam at 10⁻⁴ with β = (0.9, 0.98) and ε = 10⁻⁹;
# - cross-entropy of each target token without padding; validation, inference, BLEU; and an export
#   of the model.
#
# The recipe `configs/guide_multi30k.py` has these settings. One command trains it on Multi30k:
#
#     python train.py --config=guide_multi30k --workdir=runs/guide_multi30k
#
# After an hour on two CPU cores (9,000 steps) it has 25.1 BLEU on test_2016_flickr, lower-cased.
# Such texts choose a small learning rate and few steps. The recipe `multi30k` has 40.37, cased.
#
# Two things differ from those texts. They use a word tokenizer, and rare words become "unknown".
# Here words are split into subword tokens (BPE), so nothing is unknown. And Multi30k has English,
# German, French and Czech, but no Spanish. So this page runs on the corpus that is built into this
# package: number words, also in Spanish. It is easier than captions. So the model here has half the
# layers, half the feed-forward width and no dropout, and the learning rate is larger and falls to
# 0. Then 300 steps are enough. Run the page in the project's folder. It takes two minutes.

# %%
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

from transformer_jax import Translator
from transformer_jax.configs import guide_multi30k
from transformer_jax.data import sources
from transformer_jax.extras import plotting
from transformer_jax.extras.plotting import collect
from transformer_jax.training.loop import train
from transformer_jax.translator import model_metrics
from transformer_jax.workdir.history import read_metrics

recipe = guide_multi30k.get_config()


def number_words(language):
    """The recipe, made smaller, on English number words and those of `language`."""
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(
            recipe.model, num_encoder_layers=2, num_decoder_layers=2, d_ff=256, dropout_rate=0.0
        ),
        data=dataclasses.replace(
            recipe.data,
            source="tfds",
            tfds_name=f"number_words/{language}",
            train="train",
            validation="validation",
            test="test",
            target_lang=language,
            vocab_size=380,  # the corpus has no more different tokens
            num_buckets=2,
        ),
        train=dataclasses.replace(
            recipe.train,
            num_steps=300,
            eval_every_steps=100,
            checkpoint_every_steps=100,
            log_every_steps=20,
            eval_sentences=200,
        ),
        optimizer=dataclasses.replace(
            recipe.optimizer, schedule="cosine", learning_rate=0.002, warmup_steps=50
        ),
        checkpoint=dataclasses.replace(recipe.checkpoint, best_metric="eval_chrf"),
    )


# %% [markdown]
# ## English to Spanish
#
# Training reads the corpus, trains a tokenizer, groups sentences of similar length into batches,
# compiles one program per batch shape, and runs. A run that exists already is resumed.

# %%
spanish_run, german_run = Path("runs/guide/en_es"), Path("runs/guide/en_de")
assert train(number_words("es"), spanish_run)  # True: the run is complete

# %% [markdown]
# Lengths of the sentences, and why batches are grouped by length: padding wastes computation.

# %%
config = number_words("es")
plotting.length_statistics(*collect.corpus_lengths(config, spanish_run))

# %% [markdown]
# ## English to German
#
# Another language is one changed setting.

# %%
assert train(number_words("de"), german_run)

# %%
runs = {"es": spanish_run, "de": german_run}
plotting.learning_curves(
    {name: read_metrics(run) for name, run in runs.items()},
    {name: plotting.PANELS[name] for name in ("loss", "token accuracy (%)", "BLEU and chrF")},
)

# %% [markdown]
# ## Inference
#
# Beam search generates each translation from the source alone.

# %%
translators = {name: Translator.load(run) for name, run in runs.items()}
sentences = ["three hundred and forty-seven", "nineteen thousand and one"]
translations = {name: [t.text for t in tr.translate(sentences)] for name, tr in translators.items()}
for name, texts in translations.items():
    for sentence, text in zip(sentences, texts, strict=True):
        print(f"{name}: {sentence} -> {text}")

# %% [markdown]
# ## BLEU
#
# BLEU of 1,000 numbers that were not in the training data, generated without the reference. (Page
# 10 shows BLEU of a model that is given the reference word by word.) A Spanish number is a sentence
# of several words. A German number is a single word, so it has no four words that could match, and
# its BLEU is always 0. There, the share of exactly right numbers shows the quality. For the same
# reason both runs choose their best checkpoint by chrF (`checkpoint.best_metric`).

# %%
scores = {}
for name, translator in translators.items():
    (corpus,) = sources.open_corpora(translator.config.data, "test")
    scores[name], _ = model_metrics.evaluate(
        translator.engine, translator.device_params, list(corpus.read()), translator.config.decode
    )
    s = scores[name]
    print(f"en -> {name}: BLEU {s.bleu:.2f}, chrF {s.chrf:.2f}, exact {s.exact_match:.1f}%")
print(s.bleu_signature)

# %% [markdown]
# ## Attention
#
# The Spanish translation of 347 keeps the order of the English words. German has the opposite
# order of tens and units: "siebenundvierzig", seven and forty.

# %%
seen = collect.sentence_attention(translators["es"], sentences[0])
weights, rows, columns = seen.of("cross")
plotting.attention_maps(weights.mean(axis=1), rows, columns, ["layer 0", "layer 1"])

# %%
seen = collect.sentence_attention(translators["de"], sentences[0])
weights, rows, columns = seen.of("cross")
plotting.attention_maps(weights.mean(axis=1), rows, columns, ["layer 0", "layer 1"])

# %% [markdown]
# ## Export
#
# `export.py` writes the model as StableHLO: three functions and their parameters. Any program that
# runs JAX's exported functions can call them. (`--format=marian` writes a Hugging Face directory,
# `--format=ctranslate2` a CTranslate2 model.) It compares the exported model with the original
# before it finishes. Then `translate.py` of the exported folder, which does not need this package,
# translates with it:

# %%
exported = Path("runs/guide/exported")
shutil.rmtree(exported, ignore_errors=True)
commands = [
    ["export.py", f"--workdir={spanish_run}", "--format=stablehlo", f"--output={exported}"],
    [str(exported / "translate.py")],
]
for command in commands:
    done = subprocess.run(
        [sys.executable, *command],
        input="\n".join(sentences),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    print("$ python", *command, "\n" + done.stdout)
deployed = done.stdout.splitlines()
assert deployed == translations["es"]  # the same translations as above
