# %% [markdown]
# # 9. What from-scratch texts get wrong
#
# Introductions build a Transformer from nothing, and these eighteen lines were found in such
# texts. Some stop the program; most only make the model a little worse, which is harder to
# notice. Each stands here beside the right one, this package's own function wherever it has
# one, with a check that the right one passes and the wrong one does not. `tests/guide/` runs
# them too.

# %%
import dataclasses
import itertools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from sacrebleu.metrics.bleu import BLEU
from similarities import additive, scaled_dot, soft_lookup

from transformer_jax import plotting
from transformer_jax.config import ModelConfig
from transformer_jax.model.layers import DecoderLayer, FeedForward
from transformer_jax.model.transformer import Transformer, init_params
from transformer_jax.ops.attention import attention_weights, dot_product_attention
from transformer_jax.ops.losses import cross_entropy
from transformer_jax.ops.masks import make_causal_mask
from transformer_jax.ops.norms import layer_norm
from transformer_jax.ops.positional import sinusoids


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A line as it should be, as it is found, and what tells them apart."""

    title: str
    right: Callable
    wrong: Callable
    check: Callable  # given one of them, fails for the wrong one


MISTAKES: list[Mistake] = []


def compare(title, right, wrong, check):
    MISTAKES.append(Mistake(title, right, wrong, check))
    check(right)
    try:
        check(wrong)
    except AssertionError as error:
        print("caught:", str(error).strip().splitlines()[0])
    else:
        raise AssertionError(f"{title}: the check does not see the mistake")


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def normal(*shape, seed=0):
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


# A small model, for the mistakes that need one.
config = ModelConfig(
    num_encoder_layers=2, num_decoder_layers=1, d_model=8, num_heads=2, d_ff=16, dropout_rate=0.0,
    norm_position="pre", max_len=8, source_vocab_size=10, target_vocab_size=10, decoder_start_id=1,
)  # fmt: skip
params = init_params(config, jax.random.key(0))
source_words = jnp.array([[3, 1, 4, 1, 5]])
positions, real = jnp.arange(5)[None], jnp.ones((1, 5), jnp.int32)


# %% [markdown]
# ## Positions twice too steep
#
# The paper's exponent is 2i/M where `i` counts *pairs*. In a loop over even columns `i` is
# already 0, 2, 4, …, and writing 2i again makes every hand of the clock turn by the square of
# its rate: half of the dimensions then say nothing.


# %%
def steep(length, d_model):
    table = np.zeros((length, d_model))
    for i in range(0, d_model, 2):
        table[:, i] = np.sin(np.arange(length) / 10_000 ** (2 * i / d_model))  # right: i / d_model
        table[:, i + 1] = np.cos(np.arange(length) / 10_000 ** (2 * i / d_model))
    return table


def check_rates(encode):
    found, want = encode(8, 16)[7, 6], np.sin(7 / 10_000 ** (2 * 3 / 16))
    expect(
        np.isclose(found, want, atol=1e-6),
        f"pair 3 at position 7 is {found:.4f}, not sin(7 / 10000^(6/16)) = {want:.4f}",
    )


compare("positions twice too steep", sinusoids, steep, check_rates)
plotting.heat_maps(
    {"right": sinusoids(40, 64), "twice too steep": steep(40, 64)}, signed=True, numbers=False
)

# %% [markdown]
# ## A causal mask that hides the wrong side, or the token itself
#
# `triu` for `tril`, or a diagonal off by one: the first lets every word see the answer and
# hides what came before; the second leaves the first word with nothing to read.


# %%
def upper(size):
    return jnp.triu(jnp.ones((size, size), bool))[None, None]  # right: tril


def without_itself(size):
    return jnp.tril(jnp.ones((size, size), bool), k=-1)[None, None]  # right: k=0


def lower(size):
    return make_causal_mask(size, size)


def check_causal(mask):
    allowed = np.asarray(mask(4)[0, 0])
    expect(not np.triu(allowed, k=1).any(), "a position sees one that comes after it")
    expect(np.tril(allowed).sum() == 10, "a position does not see itself, or not all before it")


compare("a causal mask of the wrong side", lower, upper, check_causal)
compare("a causal mask that hides the token itself", lower, without_itself, check_causal)
plotting.heat_maps(
    {"right": lower(5)[0, 0], "wrong side": upper(5)[0, 0], "not itself": without_itself(5)[0, 0]},
    per_row=3,
)

# %% [markdown]
# ## LayerNorm over the whole matrix
#
# Mean and variance belong to one position. Taken over the whole sentence, a word's vector
# depends on how long the sentence is, and on its padding.


# %%
def norm(x):
    return layer_norm(x, jnp.ones(x.shape[-1]), jnp.zeros(x.shape[-1]), epsilon=1e-6)


def norm_of_all(x):
    return (x - x.mean()) / jnp.sqrt(x.var() + 1e-6)  # right: axis=-1


def check_norm(norm):
    x = normal(5, 8) * jnp.arange(1, 6)[:, None]
    alone, among = norm(x[:1]), norm(x)[:1]
    expect(jnp.allclose(alone, among, atol=1e-5), "a position's norm depends on its neighbours")


compare("LayerNorm over the whole matrix", norm, norm_of_all, check_norm)
plotting.heat_maps(
    {"right": norm(normal(5, 8) * jnp.arange(1, 6)[:, None]),
     "over the matrix": norm_of_all(normal(5, 8) * jnp.arange(1, 6)[:, None])},
    signed=True, numbers=False,
)  # fmt: skip

# %% [markdown]
# ## An encoder that returns its block's input
#
# `out = block(x)` in a loop that never says `x = out`: only the last block does anything, or
# none.


# %%
def encoder(params):
    return Transformer(config).apply({"params": params}, source_words, method="encode")


def forgetful_encoder(params):
    def encode(model):
        x = model.embed_source(model.source_table, source_words, positions, True)
        for layer in model.encoder_layers:
            layer(x, positions, real, True)  # right: x = layer(…)
        return model.encoder_norm(x)

    return Transformer(config).apply({"params": params}, method=encode)


def check_stack(encoder):
    for number in range(config.num_encoder_layers):
        name = f"encoder_layers_{number}"
        larger = params | {name: jax.tree.map(lambda weights: 2 * weights, params[name])}
        change = float(jnp.max(jnp.abs(encoder(larger) - encoder(params))))
        expect(change > 0.01, f"layer {number} with other weights changes nothing")


compare("an encoder that returns its block's input", encoder, forgetful_encoder, check_stack)

# %% [markdown]
# ## Softmax over the wrong axis
#
# Each *query* distributes its attention over the keys: rows sum to 1. Over the other axis each
# key distributes itself over the queries, and a query may get nothing, or three times as much.
# All shapes are right, so look at the sums.


# %%
def over_keys(query, key):
    return attention_weights(query[None, :, None], key[None, :, None])[0, 0]


def over_queries(query, key):
    return jax.nn.softmax(scaled_dot(query, key), axis=-2)  # right: -1


def check_rows(weights):
    sums = weights(normal(4, 8), normal(4, 8, seed=1)).sum(axis=-1)
    expect(jnp.allclose(sums, 1.0), f"weights of the queries sum to {np.round(sums, 2)}")


compare("softmax over the wrong axis", over_keys, over_queries, check_rows)

# %% [markdown]
# ## Dividing by √d_model instead of √head_dim
#
# Each head's product adds up `head_dim` terms, not `d_model`. With 8 heads the scores come out
# √8 too small, and attention is almost uniform.


# %%
def by_head_dim(query, key, d_model):
    return scaled_dot(query, key)


def by_d_model(query, key, d_model):
    return query @ key.T / jnp.sqrt(d_model)  # right: query.shape[-1]


def check_spread(scores):
    spread = float(jnp.std(scores(normal(300, 64, seed=1), normal(300, 64, seed=2), 512)))
    expect(0.9 < spread < 1.1, f"scores of a head spread by {spread:.2f}, not 1")


compare("scaling by d_model", by_head_dim, by_d_model, check_spread)

# %% [markdown]
# ## Scaling query and key
#
# Both divided by √d: the scale is applied twice, and scores shrink by √d too much. (Dividing
# each by the fourth root of d would be right.)


# %%
def scaled_twice(query, key, d_model):
    width = query.shape[-1]
    return (query / jnp.sqrt(width)) @ (key / jnp.sqrt(width)).T  # right: divide once


compare("scaling both query and key", by_head_dim, scaled_twice, check_spread)

# %% [markdown]
# ## The variance taken for the standard deviation
#
# The reason for the scale is often given as "d_k is the standard deviation of q·k". It is the
# variance; if it were the deviation, one would have to divide by d_k and not by its root.


# %%
def deviation(d_k):
    return d_k**0.5


def variance(d_k):
    return float(d_k)  # right: d_k**0.5


def check_deviation(predict):
    for d_k in (16, 64):
        found = float(jnp.std(normal(300, d_k, seed=3) @ normal(300, d_k, seed=4).T))
        expect(
            abs(predict(d_k) / found - 1) < 0.1,
            f"q·k of {d_k} dimensions has deviation {found:.1f}, not {predict(d_k):g}",
        )


compare("d_k called the standard deviation", deviation, variance, check_deviation)

# %% [markdown]
# ## Dividing a weighted sum by the sum of similarities
#
# Dot products can be negative. Their sum can be 0, or smaller than its parts, and the "mean"
# then lies outside everything it is a mean of. Softmax first.


# %%
def softmax_mean(query, keys, values):
    return soft_lookup(query, keys, values)[0]


def ratio_mean(query, keys, values):
    scores = query @ keys.T
    return scores @ values / scores.sum(axis=-1, keepdims=True)  # right: softmax(scores) @ values


def check_mean(mean):
    keys, values = (
        jnp.array([[1.0, 0.0], [-0.9, 0.0], [0.0, 1.0]]),
        jnp.array([[0.0], [1.0], [2.0]]),
    )
    out = float(mean(jnp.array([[1.0, 0.0]]), keys, values)[0, 0])
    expect(0 <= out <= 2, f"a mean of 0, 1 and 2 cannot be {out:.2f}")


compare("dividing by a sum of similarities", softmax_mean, ratio_mean, check_mean)

# %% [markdown]
# ## A loss averaged over padding
#
# Padding has a token id like any other, and cross-entropy will happily score it. The loss then
# falls because padding is easy to predict, and depends on how sentences were put into batches.


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


compare("a loss averaged over padding", loss_of_words, loss_of_everything, check_padding)

# %% [markdown]
# ## Source and target swapped in cross-attention
#
# Queries come from the target: one output for each word that is being written. Keys and values
# come from the source. The other way round there is one output for each *source* word, which
# nothing can be added to, unless both happen to have the same length.


# %%
def cross_attention(target, source):
    heads = [x[None, :, None] for x in (target, source, source)]
    return dot_product_attention(*heads)[0, :, 0]


def swapped(target, source):
    heads = [x[None, :, None] for x in (source, target, target)]  # right: target, source, source
    return dot_product_attention(*heads)[0, :, 0]


def check_cross(attend):
    target, word = normal(3, 8), normal(1, 8, seed=1)
    source = jnp.repeat(word, 3, axis=0)  # as many words as the target, all the same
    expect(
        jnp.allclose(attend(target, source), word, atol=1e-5),
        "a source of one word repeated is read as something else",
    )
    expect(attend(target, source[:2]).shape == (3, 8), "there is not one output a target word")


compare("source and target swapped", cross_attention, swapped, check_cross)

# %% [markdown]
# ## Gradients of keys and values computed from the query's
#
# Whoever writes the backward pass by hand has three gradients to pass on. Each projection gets
# its own; sending the query's through all three looks symmetrical and is wrong.


# %%
def self_attention(x, kernels):
    q, k, v = (x @ kernel for kernel in kernels)
    return soft_lookup(q, k, v)[0]


def backward(x, kernels, out_grad):
    q, k, v = (x @ kernel for kernel in kernels)
    _, pull_back = jax.vjp(lambda *parts: soft_lookup(*parts)[0], q, k, v)
    return [x.T @ grad for grad in pull_back(out_grad)]


def backward_from_query(x, kernels, out_grad):
    query_grad = backward(x, kernels, out_grad)[0]
    return [query_grad, query_grad, query_grad]  # right: each its own


def check_gradients(backward):
    x, kernels, out_grad = normal(4, 6), list(normal(3, 6, 6, seed=1)), normal(4, 6, seed=2)
    given = backward(x, kernels, out_grad)
    for which, name in enumerate(("query", "key", "value")):

        def loss(step, which=which):
            moved = [k.at[0, 0].add(step) if n == which else k for n, k in enumerate(kernels)]
            return float(jnp.vdot(self_attention(x, moved), out_grad))

        numeric = (loss(1e-2) - loss(-1e-2)) / 2e-2
        expect(
            abs(numeric - given[which][0, 0]) < 2e-2,
            f"the gradient of the {name} kernel is {numeric:.3f}, not {given[which][0, 0]:.3f}",
        )


compare("gradients from the query's", backward, backward_from_query, check_gradients)

# %% [markdown]
# ## Heads that are one wide product
#
# Projecting to h·D numbers and splitting only the *result* makes one head with h·D dimensions:
# one set of weights for all. Heads are split before the product, and each has a softmax of its
# own.


# %%
def two_heads(q, k, v):
    heads = [x.reshape(1, -1, 2, 4) for x in (q, k, v)]
    return dot_product_attention(*heads).reshape(-1, 8)


def one_wide(q, k, v):
    return soft_lookup(q, k, v)[0]  # right: split into heads first


def check_heads(attend):
    q, k, v = normal(3, 5, 8)
    other = q.at[:, 4:].set(normal(5, 4, seed=9))  # only the second head asks something else
    same = jnp.allclose(attend(q, k, v)[:, :4], attend(other, k, v)[:, :4], atol=1e-6)
    expect(same, "what the first head gives changes with the query of the second")


compare("heads that are one wide product", two_heads, one_wide, check_heads)

# %% [markdown]
# ## A feed-forward without its activation
#
# Two dense layers in a row are one dense layer, however wide the middle.


# %%
block = FeedForward(config)
own = nn.meta.unbox(block.init(jax.random.key(1), normal(1, 8), True))


def feed_forward(x):
    return block.apply(own, x, True)


def linear(x):
    for name in ("up", "down"):  # right: an activation between
        x = x @ own["params"][name]["kernel"] + own["params"][name]["bias"]
    return x


def check_bent(layer):
    a, b = normal(2, 1, 8)
    bend = float(jnp.max(jnp.abs(layer(a + b) - layer(a) - layer(b))))
    expect(bend > 0.1, "it is linear: f(a + b) = f(a) + f(b)")


compare("a feed-forward without its activation", feed_forward, linear, check_bent)

# %% [markdown]
# ## A decoder residual that adds the wrong tensor
#
# After cross-attention the stream goes on as `x + attended`, with the `x` that came out of
# self-attention. Adding the block's first input (or the encoder's output) throws self-attention
# away.


# %%
def decoder_layer(layer_params, x, encoded):
    return DecoderLayer(config).apply(
        {"params": layer_params}, x, encoded, positions, real, real, True
    )


def decoder_layer_of_input(layer_params, x, encoded):
    def run(layer):
        h = layer.self_attention_norm(x)
        y = x + layer.self_attention(h, positions, real, True)
        h = layer.cross_attention_norm(y)
        z = x + layer.cross_attention(h, encoded, real, real, True)  # right: y + …
        return z + layer.feed_forward(layer.feed_forward_norm(z), True)

    return DecoderLayer(config).apply({"params": layer_params}, method=run)


def check_residual(layer):
    """With everything but self-attention silent, what it adds is there."""
    silent = dict(params["decoder_layers_0"])
    for name in ("cross_attention", "feed_forward"):
        silent[name] = jax.tree.map(jnp.zeros_like, silent[name])
    x, encoded = normal(2, 1, 5, 8)
    added = float(jnp.max(jnp.abs(layer(silent, x, encoded) - x)))
    expect(added > 0.01, "what self-attention adds is lost")


compare("a residual of the wrong tensor", decoder_layer, decoder_layer_of_input, check_residual)

# %% [markdown]
# ## An additive similarity that is a vector
#
# tanh(qU + kW) has as many numbers as the hidden layer. It takes the product with v to make a
# score of it; without, "softmax" runs over the wrong thing.

# %%
u, w, v = normal(8, 5, seed=7), normal(8, 5, seed=8), normal(5, seed=9)


def additive_vector(query, key):
    return jnp.tanh((query @ u)[:, None] + (key @ w)[None])  # right: … @ v


def check_scores(similarity):
    shape = similarity(normal(3, 8), normal(4, 8, seed=1)).shape
    expect(shape == (3, 4), f"3 queries and 4 keys give scores of shape {shape}")


compare("an additive similarity that is a vector", additive(u, w, v), additive_vector, check_scores)

# %% [markdown]
# ## BLEU of teacher-forced output
#
# Predicting each word *from the reference's words before it* is how a model is trained. Scored
# with BLEU, it is no translation: here is a "translator" that never sees the source and only
# knows which word tends to follow which, and that from the very sentences it is scored on.
# Given the reference word by word it looks useful. Left to itself it writes the same sentence
# every time.

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
    return [likeliest[word] for word in reference[:-1]]  # right: from its own words


def check_generated(translate):
    outputs = {" ".join(translate("ein Satz", reference)) for reference in references}
    expect(len(outputs) == 1, "for one source, the output changes with the reference")


def bleu(translate):
    outputs = [" ".join(translate("", words)).removesuffix(" </s>") for words in references]
    return BLEU(effective_order=True).corpus_score(outputs, [texts]).score


compare("BLEU of teacher-forced output", generated, teacher_forced, check_generated)
print(f"BLEU teacher-forced {bleu(teacher_forced):.1f}, generated {bleu(generated):.1f}")
print("generated:", " ".join(generated("", [])))

# %%
print(f"{len(MISTAKES)} mistakes, all caught")
