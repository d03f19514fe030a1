# %% [markdown]
# # 9. Common mistakes in attention
#
# Introductions build a Transformer from nothing. The mistakes on this page and the next occur in
# such texts. Some stop the program, but most only make the model a little worse, which is harder
# to notice. Each is compared with the right line, which is a function of this package where there
# is one. A check passes for the right line and fails for the wrong one.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from comparisons import Mistake, compare, expect, normal
from similarities import additive, scaled_dot, soft_lookup

from transformer_jax.extras import plotting
from transformer_jax.ops.attention import attention_weights, dot_product_attention
from transformer_jax.ops.masks import make_causal_mask
from transformer_jax.ops.positional import sinusoids

mistakes: list[Mistake] = []

# %% [markdown]
# ## Positions twice too steep
#
# The paper's exponent is 2i/M where `i` counts *pairs*. In a loop over even columns `i` is
# already 0, 2, 4, …, so 2i doubles the exponent. Half of the dimensions then hardly change.


# %%
def steep(length, d_model):
    table = np.zeros((length, d_model))
    for i in range(0, d_model, 2):
        table[:, i] = np.sin(np.arange(length) / 10_000 ** (2 * i / d_model))  # right: i / d_model
        table[:, i + 1] = np.cos(np.arange(length) / 10_000 ** (2 * i / d_model))
    return table


def check_rates(encode):
    actual, want = encode(8, 16)[7, 6], np.sin(7 / 10_000 ** (2 * 3 / 16))
    expect(
        np.isclose(actual, want, atol=1e-6),
        f"pair 3 at position 7 is {actual:.4f}, not sin(7 / 10000^(6/16)) = {want:.4f}",
    )


mistakes.append(compare("positions twice too steep", sinusoids, steep, check_rates))
plotting.heat_maps(
    {"right": sinusoids(40, 64), "twice too steep": steep(40, 64)}, signed=True, numbers=False
)

# %% [markdown]
# ## A causal mask that hides the wrong side, or the token itself
#
# With `triu` instead of `tril`, every position sees the answer and none sees its past. With the
# diagonal off by one, the first position may attend to nothing.


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


mistakes.append(compare("a causal mask of the wrong side", lower, upper, check_causal))
mistakes.append(
    compare("a causal mask that hides the token itself", lower, without_itself, check_causal)
)
plotting.heat_maps(
    {"right": lower(5)[0, 0], "wrong side": upper(5)[0, 0], "not itself": without_itself(5)[0, 0]},
    per_row=3,
)

# %% [markdown]
# ## Softmax over the wrong axis
#
# Each *query* distributes its attention over the keys, so rows sum to 1. With softmax over the
# other axis, the weights of a query may sum to 0.1 or to 3. All shapes are right, so the sums have
# to be checked.


# %%
def over_keys(query, key):
    return attention_weights(query[None, :, None], key[None, :, None])[0, 0]


def over_queries(query, key):
    return jax.nn.softmax(scaled_dot(query, key), axis=-2)  # right: -1


def check_rows(weights):
    sums = weights(normal(4, 8), normal(4, 8, seed=1)).sum(axis=-1)
    expect(jnp.allclose(sums, 1.0), f"weights of the queries sum to {np.round(sums, 2)}")


mistakes.append(compare("softmax over the wrong axis", over_keys, over_queries, check_rows))

# %% [markdown]
# ## Dividing by √d_model instead of √head_dim
#
# The product of a head is a sum of `head_dim` terms, not of `d_model`. With 8 heads the scores are
# √8 times too small, and attention is almost uniform.


# %%
def by_head_dim(query, key, d_model):
    return scaled_dot(query, key)


def by_d_model(query, key, d_model):
    return query @ key.T / jnp.sqrt(d_model)  # right: query.shape[-1]


def check_spread(scores):
    spread = float(jnp.std(scores(normal(300, 64, seed=1), normal(300, 64, seed=2), 512)))
    expect(0.9 < spread < 1.1, f"scores of a head spread by {spread:.2f}, not 1")


mistakes.append(compare("scaling by d_model", by_head_dim, by_d_model, check_spread))

# %% [markdown]
# ## Scaling query and key
#
# If both are divided by √d, the scale is applied twice and scores are √d times too small.
# (Dividing each by the fourth root of d would be right.)


# %%
def scaled_twice(query, key, d_model):
    width = query.shape[-1]
    return (query / jnp.sqrt(width)) @ (key / jnp.sqrt(width)).T  # right: divide once


mistakes.append(compare("scaling both query and key", by_head_dim, scaled_twice, check_spread))

# %% [markdown]
# ## Variance mistaken for the standard deviation
#
# Texts often justify the scale by "d_k is the standard deviation of q·k". It is the variance. If
# it were the standard deviation, scores would have to be divided by d_k and not by its root.


# %%
def deviation(d_k):
    return d_k**0.5


def variance(d_k):
    return float(d_k)  # right: d_k**0.5


def check_deviation(predict):
    for d_k in (16, 64):
        measured = float(jnp.std(normal(300, d_k, seed=3) @ normal(300, d_k, seed=4).T))
        expect(
            abs(predict(d_k) / measured - 1) < 0.1,
            f"q·k of {d_k} dimensions has deviation {measured:.1f}, not {predict(d_k):g}",
        )


mistakes.append(compare("d_k called the standard deviation", deviation, variance, check_deviation))

# %% [markdown]
# ## Dividing a weighted sum by the sum of similarities
#
# Dot products can be negative, and their sum can be close to 0. The "mean" is then outside the
# range of the values. Softmax makes the weights positive first.


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


mistakes.append(compare("dividing by a sum of similarities", softmax_mean, ratio_mean, check_mean))

# %% [markdown]
# ## Source and target swapped in cross-attention
#
# Queries are computed from the target: there is one output for each target position. Keys and
# values are computed from the source. When they are swapped, there is one output for each *source*
# position, and the residual addition fails unless both have the same length.


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
        "a source that repeats one vector is not read as this vector",
    )
    expect(
        attend(target, source[:2]).shape == (3, 8),
        "there is not one output for each target position",
    )


mistakes.append(compare("source and target swapped", cross_attention, swapped, check_cross))

# %% [markdown]
# ## Gradients of keys and values computed from the query's
#
# A hand-written backward pass has three gradients: of query, key and value. Each projection needs
# the gradient of its output. Using the query's for all three is wrong.


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
    return [query_grad, query_grad, query_grad]  # right: one for each kernel


def check_gradients(backward):
    x, kernels, out_grad = normal(4, 6), list(normal(3, 6, 6, seed=1)), normal(4, 6, seed=2)
    grads = backward(x, kernels, out_grad)
    for which, name in enumerate(("query", "key", "value")):

        def loss(step, which=which):
            moved = [k.at[0, 0].add(step) if n == which else k for n, k in enumerate(kernels)]
            return float(jnp.vdot(self_attention(x, moved), out_grad))

        numeric = (loss(1e-2) - loss(-1e-2)) / 2e-2
        expect(
            abs(numeric - grads[which][0, 0]) < 2e-2,
            f"the gradient of the {name} kernel is {numeric:.3f}, not {grads[which][0, 0]:.3f}",
        )


mistakes.append(
    compare("gradients from the query's", backward, backward_from_query, check_gradients)
)

# %% [markdown]
# ## Heads that are one wide product
#
# If only the *result* of attention is split into heads, there is one head of H·D dimensions with
# one set of weights. Queries, keys and values have to be split before the product, so that each
# head has its own softmax.


# %%
def two_heads(q, k, v):
    heads = [x.reshape(1, -1, 2, 4) for x in (q, k, v)]
    return dot_product_attention(*heads).reshape(-1, 8)


def one_wide(q, k, v):
    return soft_lookup(q, k, v)[0]  # right: split into heads first


def check_heads(attend):
    q, k, v = normal(3, 5, 8)
    other = q.at[:, 4:].set(normal(5, 4, seed=9))  # only the query of the second head changes
    same = jnp.allclose(attend(q, k, v)[:, :4], attend(other, k, v)[:, :4], atol=1e-6)
    expect(same, "the output of the first head changes with the query of the second")


mistakes.append(compare("heads that are one wide product", two_heads, one_wide, check_heads))

# %% [markdown]
# ## An additive similarity that is a vector
#
# tanh(qU + kW) is a vector of the hidden width. The product with v makes a score of it. Without
# this product, softmax runs over the wrong axis.

# %%
u, w, v = normal(8, 5, seed=7), normal(8, 5, seed=8), normal(5, seed=9)


def additive_vector(query, key):
    return jnp.tanh((query @ u)[:, None] + (key @ w)[None])  # right: … @ v


def check_scores(similarity):
    shape = similarity(normal(3, 8), normal(4, 8, seed=1)).shape
    expect(shape == (3, 4), f"3 queries and 4 keys give scores of shape {shape}")


mistakes.append(
    compare(
        "an additive similarity that is a vector", additive(u, w, v), additive_vector, check_scores
    )
)

# %%
print(f"{len(mistakes)} mistakes, all caught")
