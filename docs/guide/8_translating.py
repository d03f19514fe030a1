# %% [markdown]
# # 8. Translating
#
# The complete job, as introductions to the Transformer set it:
#
# - 4 + 4 layers of width 128, 8 heads, feed-forward 512, dropout 0.1, post-norm;
# - a vocabulary of at most 10,000 a language, everything lower-cased, at most 40 tokens a
#   sentence;
# - batches of 64 sentences of similar length, Adam at 10⁻⁴ with β = (0.9, 0.98) and ε = 10⁻⁹;
# - cross-entropy of each target token, padding left out; validation, inference, BLEU; and then
#   the model has to leave the notebook.
#
# All of that is the recipe `configs/guide_multi30k.py`, which one command trains on Multi30k:
#
#     python train.py --config=guide_multi30k --workdir=runs/guide_multi30k
#
# After an hour on two CPU cores (9,000 steps) it has 25.1 BLEU on test_2016_flickr,
# lower-cased; a small learning rate and few steps are what such texts choose. The recipe
# `multi30k` has 39.19, cased.
#
# Two things are not as in those texts. Words there come from a word tokenizer, and rare ones
# become "unknown"; here they are tokens (BPE), so nothing is unknown. And Multi30k has English,
# German, French and Czech, but no Spanish: Spanish comes from the corpus that is built into
# this package, of numbers in words, on which this page runs. Numbers need less than captions do:
# here the model has half the layers, half the inner width and no dropout, and a larger learning
# rate that falls to 0, so that 300 steps are enough. Run the page in the project's folder; it
# takes two minutes.

# %%
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

from transformer_jax import Translator, plotting
from transformer_jax.configs import guide_multi30k
from transformer_jax.data import sources
from transformer_jax.evaluation import model_metrics
from transformer_jax.plotting import collect
from transformer_jax.training.loop import train

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
            vocab_size=380,  # there are not more different tokens to find
            num_buckets=2,
        ),
        train=dataclasses.replace(
            recipe.train, num_steps=300, eval_every_steps=100, checkpoint_every_steps=100,
            log_every_steps=20, eval_sentences=200,
        ),
        optimizer=dataclasses.replace(
            recipe.optimizer, schedule="cosine", learning_rate=0.002, warmup_steps=50
        ),
        checkpoint=dataclasses.replace(recipe.checkpoint, best_metric="eval_chrf"),
    )  # fmt: skip


# %% [markdown]
# ## English to Spanish
#
# Training reads the corpus, learns tokens, sorts sentences into batches of similar length,
# compiles one program a batch shape, and goes. Where a run is there already, it goes on.

# %%
spanish_run, german_run = Path("runs/guide/en_es"), Path("runs/guide/en_de")
assert train(number_words("es"), spanish_run)  # it has come to its end

# %% [markdown]
# Lengths, and what sorting them is good for: padding is work for nothing.

# %%
config = number_words("es")
plotting.length_statistics(*collect.corpus_lengths(config, spanish_run))

# %% [markdown]
# ## English to German
#
# Another language is another setting.

# %%
assert train(number_words("de"), german_run)

# %%
runs = {"es": spanish_run, "de": german_run}
plotting.learning_curves(
    {name: collect.read_metrics(run) for name, run in runs.items()},
    {name: plotting.PANELS[name] for name in ("loss", "token accuracy (%)", "validation scores")},
)

# %% [markdown]
# ## Inference
#
# Beam search writes each translation from the source alone.

# %%
translators = {name: Translator.load(run) for name, run in runs.items()}
sentences = ["three hundred and forty-seven", "nineteen thousand and one"]
written = {name: [t.text for t in tr.translate(sentences)] for name, tr in translators.items()}
for name, texts in written.items():
    for sentence, text in zip(sentences, texts, strict=True):
        print(f"{name}: {sentence} -> {text}")

# %% [markdown]
# ## BLEU
#
# On 1,000 numbers that were kept out of training, generated without the reference. (A model
# that is handed the reference word by word does not translate; page 9 shows what that does to
# BLEU.) A Spanish number is a sentence of several words. A German one is a single word, so that
# no four words in a row can match and BLEU is 0 whatever the model does: there, the share of
# numbers that are exactly right tells. (And a best checkpoint by BLEU would be any: both runs
# choose it by chrF, `checkpoint.best_metric`.)

# %%
scores = {}
for name, translator in translators.items():
    (corpus,) = sources.open_corpora(translator.config.data, "test")
    scores[name], _ = model_metrics.evaluate(
        translator.engine, translator.params, list(corpus.read()), translator.config.decode
    )
    own = scores[name]
    print(f"en -> {name}: BLEU {own.bleu:.2f}, chrF {own.chrf:.2f}, exact {own.exact_match:.1f}%")
print(own.bleu_signature)

# %% [markdown]
# ## What it looks at
#
# The Spanish translation of 347 keeps the order of the English. The German one says
# "siebenundvierzig", seven and forty.

# %%
seen = collect.sentence_attention(translators["es"], sentences[0])
weights, rows, columns = seen.of("cross")
plotting.attention_maps(weights.mean(axis=1), rows, columns, ["layer 0", "layer 1"])

# %%
seen = collect.sentence_attention(translators["de"], sentences[0])
weights, rows, columns = seen.of("cross")
plotting.attention_maps(weights.mean(axis=1), rows, columns, ["layer 0", "layer 1"])

# %% [markdown]
# ## Out of the notebook
#
# `export.py` writes the model as StableHLO: three functions and their parameters, which
# anything that runs JAX's exported functions can call. (Also as a Hugging Face directory and
# for CTranslate2: `--format=marian`, `--format=ctranslate2`.) It compares what it wrote with
# the model before it keeps it. Then a program of 60 lines translates that does not know this
# package:

# %%
exported = Path("runs/guide/exported")
shutil.rmtree(exported, ignore_errors=True)
commands = [
    ["export.py", f"--workdir={spanish_run}", "--format=stablehlo", f"--output={exported}"],
    ["examples/decode_stablehlo.py", str(exported)],
]
for command in commands:
    done = subprocess.run(
        [sys.executable, *command],
        input="\n".join(sentences), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    print("$ python", *command, "\n" + done.stdout)
deployed = done.stdout.splitlines()
assert deployed == written["es"]  # the same as before
