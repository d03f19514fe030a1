# %% [markdown]
# # 4. Position
#
# Attention is a sum over a set: shuffle the words and every word gets the same output as
# before. The order has to be put in.

# %%
import math

import jax.numpy as jnp
import numpy as np

from transformer_jax import plotting
from transformer_jax.ops.positional import apply_rotary, sinusoids

# %% [markdown]
# ## The paper's encoding
#
# Position `p` gets M numbers, in pairs. Pair `i` is a hand of a clock that turns by
# 1/10000^(2i/M) radians with each position; the pair holds its sine and cosine:
#
#     PE[p, 2i]     = sin(p / 10000^(2i/M))
#     PE[p, 2i + 1] = cos(p / 10000^(2i/M))
#
# Here are 100 positions of 512 dimensions. The hands on the left turn quickly, those on the
# right hardly at all: cosines stay near 1 (red), sines near 0.

# %%
table = sinusoids(100, 512)
plotting.positions(table)

# %% [markdown]
# On the right: the dot product of two positions depends on their distance only, is largest at 0
# and fades. A model can read distances from it.

# %%
products = table.astype(np.float64) @ table.T.astype(np.float64)
by_distance = [np.diagonal(products, offset=d) for d in range(100)]
unequal = max(np.ptp(diagonal) for diagonal in by_distance)
print("largest difference between pairs of the same distance:", unequal)

# %% [markdown]
# ## Four words by hand
#
# "My Name is Mohit", M = 4. Two hands only: one turns by 1 radian a position, the other by
# 1/√base. With the paper's base of 10,000 the second has hardly moved after four words; with
# 100 one sees it turn.

# %%
words = ["My", "Name", "is", "Mohit"]
embeddings = np.array([
    [0.1, 0.2, 1.0, 0.45],
    [0.15, 0.32, 13.0, 0.51],
    [-0.1, 0.21, 0.65, 0.25],
    [0.1, -0.12, 0.33, -0.45],
])  # fmt: skip
encodings = {base: sinusoids(4, 4, base=base) for base in (100, 10_000)}
sums = {base: embeddings + encoding for base, encoding in encodings.items()}
for base, total in sums.items():
    print(f"base {base}")
    for word, encoding, row in zip(words, encodings[base], total, strict=True):
        print(f"  {word:6} encoding {np.round(encoding, 4)}  sum {np.round(row, 4)}")

plotting.heat_maps(
    {f"base {base}": encoding for base, encoding in encodings.items()}, words, signed=True
)

# %% [markdown]
# One of the embeddings stands out: the 13 in "Name", beside numbers below 1. What position adds
# lies between -1 and 1 and cannot be seen beside it. Embeddings and encodings should be of
# similar size. Where embeddings start small, with a spread of 1/√M, multiplying them by √M, as
# the paper does, makes them so.
#
# ## Other layouts
#
# Other programs put the numbers in another order, or let the hands turn a little differently.
# For a model trained from scratch that makes no difference; for a model that is carried over it
# makes all the difference.
#
# - `halves` (Hugging Face's Marian): all sines, then all cosines;
# - `tensor2tensor`: in that order too, but with the exponent i / (M/2 - 1), so that the slowest
#   hand is exactly at 1/10000.

# %%
layouts = {name: sinusoids(40, 32, name) for name in ("interleaved", "halves", "tensor2tensor")}
plotting.heat_maps(layouts, signed=True, numbers=False, per_row=3)

# %% [markdown]
# ## Rotary
#
# Instead of adding a clock to the words, rotary embeddings turn queries and keys themselves,
# each pair of numbers by its own hand. A dot product of two turned vectors depends on the
# difference of the angles, so on the distance; nothing is added to the stream, and values stay
# as they are.

# %%
rng = np.random.default_rng(0)
one_query, one_key = (jnp.array(rng.normal(size=(1, 1, 1, 64)), jnp.float32) for _ in range(2))
positions = jnp.arange(24)[None]
turned_queries, turned_keys = (
    apply_rotary(jnp.repeat(x, 24, axis=1), positions)[0, :, 0] for x in (one_query, one_key)
)
turned = np.asarray(turned_queries @ turned_keys.T, np.float64)
along = max(np.ptp(np.diagonal(turned, offset=d)) for d in range(-23, 24))
print("the same query and key, largest difference at equal distance:", along)
plotting.heat_map(turned, title="q·k after turning", signed=True)

# %% [markdown]
# Each diagonal is one distance, and has one colour. Length is kept, as nothing but turning
# happens:

# %%
norms = np.linalg.norm(np.asarray(turned_queries), axis=1)
print("lengths from", norms.min(), "to", norms.max())
assert math.isclose(norms.min(), norms.max(), rel_tol=1e-5)
