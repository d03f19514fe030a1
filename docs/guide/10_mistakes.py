# %% [markdown]
# # 10. Common mistakes in layers and training
#
# The comparisons of page 9 continue: each mistake with the right line, and a check that only the
# right line passes.

# %%
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
from comparisons import Mistake, compare, expect, normal
from sacrebleu.metrics.bleu import BLEU

from transformer_jax.config import ModelConfig
from transformer_jax.extras import plotting
from transformer_jax.model.layers import DecoderLayer, FeedForward
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops.losses import cross_entropy
from transformer_jax.ops.norms import layer_norm

mistakes: list[Mistake] = []

config = ModelConfig(
    num_encoder_layers=2,
    num_decoder_layers=1,
    d_model=8,
    num_heads=2,
    d_ff=16,
    dropout_rate=0.0,
    norm_position="pre",
    max_len=8,
    source_vocab_size=10,
    target_vocab_size=10,
    decoder_start_id=1,
)
params = init_params(config, jax.random.key(0))
source_words = jnp.array([[3, 1, 4, 1, 5]])
positions, segment_ids = jnp.arange(5)[None], jnp.ones((1, 5), jnp.int32)

# %% [markdown]
# ## LayerNorm over the whole matrix
#
# Mean and variance are those of one position. If they are taken over the sentence, the vector of
# a word depends on the length of the sentence and on its padding.


# %%
def norm(x):
    return layer_norm(x, jnp.ones(x.shape[-1]), jnp.zeros(x.shape[-1]), epsilon=1e-6)


def norm_of_all(x):
    return (x - x.mean()) / jnp.sqrt(x.var() + 1e-6)  # right: axis=-1


rows = normal(5, 8) * jnp.arange(1, 6)[:, None]


def check_norm(norm):
    alone, among = norm(rows[:1]), norm(rows)[:1]
    expect(jnp.allclose(alone, among, atol=1e-5), "a position's norm depends on its neighbours")


mistakes.append(compare("LayerNorm over the whole matrix", norm, norm_of_all, check_norm))
plotting.heat_maps(
    {"right": norm(rows), "over the matrix": norm_of_all(rows)}, signed=True, numbers=False
)

# %% [markdown]
# ## An encoder that returns its block's input
#
# A loop computes `out = block(x)` and never assigns `x = out`. Then only the last block has an
# effect, or none has.


# %%
def encoder(params):
    return Transformer(config).apply({"params": params}, source_words, method="encode")


def forgetful_encoder(params):
    def encode(model):
        x = model.embed_source(model.source_table, source_words, positions, True)
        for layer in model.encoder_layers:
            # right: x = layer(…)
            layer(x, True, positions=positions, segment_ids=segment_ids)
        return model.encoder_norm(x)

    return Transformer(config).apply({"params": params}, method=encode)


def check_stack(encoder):
    for number in range(config.num_encoder_layers):
        name = f"encoder_layers_{number}"
        larger = params | {name: jax.tree.map(lambda weights: 2 * weights, params[name])}
        change = float(jnp.max(jnp.abs(encoder(larger) - encoder(params))))
        expect(change > 0.01, f"layer {number} with other weights changes nothing")


mistakes.append(
    compare("an encoder that returns its block's input", encoder, forgetful_encoder, check_stack)
)

# %% [markdown]
# ## A feed-forward without its activation
#
# Two dense layers without an activation between them are one dense layer, whatever their width.


# %%
block = FeedForward(config)
block_params = nn.meta.unbox(block.init(jax.random.key(1), normal(1, 8), True))


def feed_forward(x):
    return block.apply(block_params, x, True)


def linear(x):
    for name in ("up", "down"):  # right: an activation between
        weights = block_params["params"][name]
        x = x @ weights["kernel"] + weights["bias"]
    return x


def check_bent(layer):
    a, b = normal(2, 1, 8)
    bend = float(jnp.max(jnp.abs(layer(a + b) - layer(a) - layer(b))))
    expect(bend > 0.1, "it is linear: f(a + b) = f(a) + f(b)")


mistakes.append(compare("a feed-forward without its activation", feed_forward, linear, check_bent))

# %% [markdown]
# ## A decoder residual that adds the wrong tensor
#
# Cross-attention adds to the output of self-attention. If it adds to the input of the layer, or to
# the output of the encoder, the result of self-attention is lost.


# %%
def decoder_layer(layer_params, x, encoded):
    return DecoderLayer(config).apply(
        {"params": layer_params},
        x,
        True,
        encoded=encoded,
        positions=positions,
        segment_ids=segment_ids,
        source_segment_ids=segment_ids,
    )


def decoder_layer_of_input(layer_params, x, encoded):
    def run(layer):
        h = layer.self_attention_norm(x)
        y = x + layer.self_attention(h, True, positions=positions, segment_ids=segment_ids)
        h = layer.cross_attention_norm(y)
        h = layer.cross_attention(
            h, True, encoded=encoded, segment_ids=segment_ids, source_segment_ids=segment_ids
        )
        z = x + h  # right: y + h
        return z + layer.feed_forward(layer.feed_forward_norm(z), True)

    return DecoderLayer(config).apply({"params": layer_params}, method=run)


def check_residual(layer):
    """With all other weights zero, the output differs from the input by self-attention."""
    silent = dict(params["decoder_layers_0"])
    for name in ("cross_attention", "feed_forward"):
        silent[name] = jax.tree.map(jnp.zeros_like, silent[name])
    x, encoded = normal(2, 1, 5, 8)
    added = float(jnp.max(jnp.abs(layer(silent, x, encoded) - x)))
    expect(added > 0.01, "the output of self-attention is lost")


mistakes.append(
    compare("a residual of the wrong tensor", decoder_layer, decoder_layer_of_input, check_residual)
)

# %% [markdown]
# ## A loss averaged over padding
#
# Padding has a token id like any other token, so cross-entropy scores it too. The loss then falls
# because padding is easy to predict, and it depends on how sentences are batched.


# %%
def loss_of_words(logits, targets, real):
    sums = cross_entropy(logits, targets, real)
    return sums.loss / sums.tokens


def loss_of_everything(logits, targets, real):
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(log_probs, targets[:, None], 1))  # right: only where real


def check_padding(loss):
    logits, targets, real = (
        normal(6, 10),
        jnp.array([3, 1, 4, 1, 0, 0]),
        jnp.array([1, 1, 1, 1, 0, 0]),
    )
    padded, bare = loss(logits, targets, real), loss(logits[:4], targets[:4], real[:4])
    expect(
        abs(padded - bare) < 1e-5,
        f"two positions of padding change the loss by {padded - bare:.3f}",
    )


mistakes.append(
    compare("a loss averaged over padding", loss_of_words, loss_of_everything, check_padding)
)

# %% [markdown]
# ## BLEU of teacher-forced output
#
# In training, a model predicts each word *from the reference's words before it*. Such output is
# not a translation. The "translator" below never sees the source. It only knows which word most
# often follows another, from the sentences that it is scored on. With teacher forcing its BLEU
# looks useful. Without, it writes the same sentence every time.

# %%
texts = [
    "a man rides a horse on the beach",
    "a man walks a dog on the street",
    "two dogs run on the beach",
]
references = [["<s>", *text.split(), "</s>"] for text in texts]
pairs = [pair for words in references for pair in itertools.pairwise(words)]
likeliest = {
    word: max({b for a, b in pairs if a == word}, key=lambda b: pairs.count((word, b)))
    for word in sorted({a for a, _ in pairs})
}


def generated(source, reference):
    words = ["<s>"]
    while words[-1] != "</s>" and len(words) < 12:
        words.append(likeliest[words[-1]])
    return words[1:]


def teacher_forced(source, reference):
    return [likeliest[word] for word in reference[:-1]]  # right: from the words written so far


def check_generated(translate):
    outputs = {" ".join(translate("ein Satz", reference)) for reference in references}
    expect(len(outputs) == 1, "for one source, the output changes with the reference")


def bleu(translate):
    outputs = [" ".join(translate("", words)).removesuffix(" </s>") for words in references]
    return BLEU(effective_order=True).corpus_score(outputs, [texts]).score


mistakes.append(
    compare("BLEU of teacher-forced output", generated, teacher_forced, check_generated)
)
print(f"BLEU teacher-forced {bleu(teacher_forced):.1f}, generated {bleu(generated):.1f}")
print("generated:", " ".join(generated("", [])))

# %%
print(f"{len(mistakes)} mistakes, all caught")
