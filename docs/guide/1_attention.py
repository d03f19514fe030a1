# %% [markdown]
# # 1. Attention as a soft dictionary
#
# A Python dictionary answers a query that equals one of its keys, and fails on every other.
# Attention answers any query: it compares the query with *all* keys, and returns a mixture of
# the values in which similar keys weigh more.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from similarities import additive, dot, general, scaled_dot, soft_lookup

from transformer_jax import plotting
from transformer_jax.ops.attention import dot_product_attention

# %% [markdown]
# ## Exact look-up first
#
# Keys that are perpendicular and of length 1 can be told apart by dot products alone: the
# product with the equal key is 1, with every other 0. Weighting the values by these products
# *is* the look-up.

# %%
query = jnp.array([[0.0, 1.0]])
keys = jnp.array([[0.0, 1.0], [1.0, 0.0]])
values = jnp.array([[0.0, 0.0], [1.0, 1.0]])

matches = dot(query, keys)
found = matches @ values
print("matches", matches, "found", found)

# %% [markdown]
# ## Then similarity
#
# Keys that a model learns are not perpendicular, and products may be negative or of any size.
# Softmax turns them into weights that are positive and sum to 1. `soft_lookup` is all of
# attention; on the dictionary above it takes some of both values, and the longer the query, the
# closer it comes to the exact look-up.

# %%
lengths = np.linspace(0.0, 8.0, 41)
readings, shares = jax.vmap(lambda c: soft_lookup(c * query, keys, values, dot))(jnp.array(lengths))

plotting.curves(
    lengths,
    {"weight of the equal key": shares[:, 0, 0], "weight of the other": shares[:, 0, 1]},
    "length of the query",
    "from no preference to a dictionary",
)

# %% [markdown]
# ## Four ways to be similar
#
# There are several ways to compare. The first needs no parameters and equal widths; the second
# keeps the spread of products from growing with the width; the third and fourth learn what
# counts as similar, and let queries and keys have different widths.
#
# | name | score | from |
# |---|---|---|
# | `dot` | q·k | Luong et al. 2015 |
# | `scaled_dot` | q·k / √D | Vaswani et al. 2017 |
# | `general(W)` | q·Wk | Luong et al. 2015 |
# | `additive(U, W, v)` | v·tanh(qU + kW) | Bahdanau et al. 2015 |

# %%
rng = np.random.default_rng(0)
width, hidden = 16, 8
many_queries, many_keys = rng.normal(size=(2, 5, width))
similarities = {
    "dot": dot,
    "scaled dot": scaled_dot,
    "general": general(rng.normal(size=(width, width)) / width),
    "additive": additive(*rng.normal(size=(2, width, hidden)) / 4, rng.normal(size=hidden)),
}
weights = {
    name: soft_lookup(many_queries, many_keys, many_keys, similarity)[1]
    for name, similarity in similarities.items()
}
rows, columns = [f"query {i}" for i in range(5)], [f"key {i}" for i in range(5)]

plotting.heat_maps(weights, rows, columns, per_row=2)

# %% [markdown]
# ## Why the scale
#
# The dot product of two vectors of D independent numbers of mean 0 and variance 1 has variance
# D. Without the scale, softmax sees numbers that grow with √D: it turns into a choice of one
# key, whose gradient is nearly 0. With it, the spread stays where it is.

# %%
widths = np.array([4, 16, 64, 256, 1024])


def spread(similarity, width):
    sample = np.random.default_rng(width)
    return float(jnp.std(similarity(*sample.normal(size=(2, 200, width)))))


spreads = {
    "dot": np.array([spread(dot, w) for w in widths]),
    "scaled dot": np.array([spread(scaled_dot, w) for w in widths]),
}
plotting.curves(
    widths, spreads, "D", "standard deviation of the scores", xscale="log", yscale="log"
)

# %% [markdown]
# ## A sentence, from words to output
#
# "Today is sunday", over a vocabulary of four words. Each word is a row with a single 1; three
# matrices of 4×4 make its query, its key and its value.

# %%
vocabulary = ["Today", "is", "sunday", "saturday"]
sentence = ["Today", "is", "sunday"]
one_hot = jnp.eye(4)[jnp.array([vocabulary.index(word) for word in sentence])]

W_query = jnp.array([[1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]], jnp.float32)
W_key = jnp.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 1]], jnp.float32)
W_value = jnp.array([[0, 2, 0, 1], [0, 3, 0, 0], [1, 0, 3, 0], [1, 1, 0, 2]], jnp.float32)

plotting.heat_map(one_hot, sentence, vocabulary, "one-hot")

# %% [markdown]
# A row with a single 1 picks a row of the matrix: an embedding is a look-up, and so are these.

# %%
Q, K, V = one_hot @ W_query, one_hot @ W_key, one_hot @ W_value
plotting.heat_maps({"Q": Q, "K": K, "V": V}, sentence, per_row=3)

# %% [markdown]
# Every query against every key; the same divided by √4; softmax over each row.

# %%
scores = dot(Q, K)
scaled = scaled_dot(Q, K)
output, attention = soft_lookup(Q, K, V)
plotting.heat_maps(
    {"QKᵀ": scores, "QKᵀ / √4": scaled, "softmax": attention}, sentence, sentence, per_row=3
)

# %% [markdown]
# Each word's output is the mixture of all values that its row of weights says.

# %%
plotting.heat_map(output, sentence, title="output")

# %% [markdown]
# The model itself calls `dot_product_attention`, which is the same formula for batches, heads
# and masks, in several implementations. On one head it gives what we have.

# %%
heads = [x[None, :, None, :] for x in (Q, K, V)]  # [B, T, H, D]
same = dot_product_attention(*heads)[0, :, 0]
print("largest difference", float(jnp.max(jnp.abs(same - output))))
