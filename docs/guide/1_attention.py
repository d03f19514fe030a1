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

from transformer_jax.extras import plotting
from transformer_jax.ops.attention import dot_product_attention

# %% [markdown]
# ## Exact look-up first
#
# Dot products alone can distinguish perpendicular keys of length 1. The product of a query with
# the equal key is 1, with every other key 0. Weighting the values by these products *is* the
# look-up.

# %%
query = jnp.array([[0.0, 1.0]])
keys = jnp.array([[0.0, 1.0], [1.0, 0.0]])
values = jnp.array([[0.0, 0.0], [1.0, 1.0]])

matches = dot(query, keys)
looked_up = matches @ values
print("matches", matches, "looked up", looked_up)

# %% [markdown]
# ## Then similarity
#
# Keys that a model learns are not perpendicular, and products may be negative or of any size.
# Softmax turns them into positive weights that sum to 1. This soft look-up is attention; the
# functions are in [`similarities.py`](similarities.py). With the dictionary above, it mixes both
# values. The longer the query, the closer the result is to the exact look-up.

# %%
lengths = np.linspace(0.0, 8.0, 41)
outputs, shares = jax.vmap(lambda c: soft_lookup(c * query, keys, values, dot))(jnp.array(lengths))

plotting.curves(
    lengths,
    {"weight of the equal key": shares[:, 0, 0], "weight of the other": shares[:, 0, 1]},
    "length of the query",
    "from no preference to a dictionary",
)

# %% [markdown]
# ## Four ways to be similar
#
# The first similarity has no parameters and needs equal widths. The second keeps the spread of
# the products independent of the width. The third and fourth learn what counts as similar, and
# allow queries and keys of different widths.
#
# | name | score | source |
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
# The dot product of two vectors of D independent numbers with mean 0 and variance 1 has variance
# D. Without the scale, scores grow with √D. Softmax then selects a single key, and its gradient is
# nearly 0. With the scale, the spread of the scores does not depend on D.

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
# A row with a single 1 selects a row of the matrix, so each of these products is a look-up, like
# an embedding.

# %%
Q, K, V = one_hot @ W_query, one_hot @ W_key, one_hot @ W_value
plotting.heat_maps({"Q": Q, "K": K, "V": V}, sentence, per_row=3)

# %% [markdown]
# The score of every query with every key, the same divided by √4, and softmax over each row:

# %%
scores = dot(Q, K)
scaled = scaled_dot(Q, K)
output, attention = soft_lookup(Q, K, V)
plotting.heat_maps(
    {"QKᵀ": scores, "QKᵀ / √4": scaled, "softmax": attention}, sentence, sentence, per_row=3
)

# %% [markdown]
# The output of each word is the mixture of all values, weighted by the word's row.

# %%
plotting.heat_map(output, sentence, title="output")

# %% [markdown]
# The model itself calls `dot_product_attention`, the same formula for batches, heads and masks,
# with several implementations. For one head it gives the same output.

# %%
heads = [x[None, :, None, :] for x in (Q, K, V)]  # [B, T, H, D]
same = dot_product_attention(*heads)[0, :, 0]
print("largest difference", float(jnp.max(jnp.abs(same - output))))
