# %% [markdown]
# # 4. Position
#
# Attention is a sum over a set. If the words are shuffled, every word has the same output as
# before, so the model needs another way to know the order.

# %%
import math

import jax.numpy as jnp
import numpy as np

from transformer_jax.extras import plotting
from transformer_jax.ops.positional import apply_rotary, sinusoids

# %% [markdown]
# ## The paper's encoding
#
# Position `p` is encoded as M numbers, in pairs. Pair `i` is the hand of a clock that turns by
# 1/10000^(2i/M) radians with each position. The pair consists of the sine and cosine of its angle:
#
#     PE[p, 2i]     = sin(p / 10000^(2i/M))
#     PE[p, 2i + 1] = cos(p / 10000^(2i/M))
#
# Here are 100 positions of 512 dimensions. The hands on the left turn fast. Those on the right
# hardly move: cosines stay near 1 (red), sines near 0.

# %%
table = sinusoids(100, 512)
plotting.positions(table)

# %% [markdown]
# On the right, the dot product of two positions depends only on their distance. It is largest at
# distance 0 and decreases, so a model can derive distances from it.

# %%
products = table.astype(np.float64) @ table.T.astype(np.float64)
by_distance = [np.diagonal(products, offset=d) for d in range(100)]
unequal = max(np.ptp(diagonal) for diagonal in by_distance)
print("largest difference between pairs of the same distance:", unequal)

# %% [markdown]
# ## Four words by hand
#
# "My Name is Mohit" with M = 4 has two hands: one turns by 1 radian per position, the other by
# 1/√base. With the paper's base of 10,000 the second hardly moves within four words. With a base of
# 100 its movement is visible.

# %%
words = ["My", "Name", "is", "Mohit"]
embeddings = np.array(
    [
        [0.1, 0.2, 1.0, 0.45],
        [0.15, 0.32, 13.0, 0.51],
        [-0.1, 0.21, 0.65, 0.25],
        [0.1, -0.12, 0.33, -0.45],
    ]
)
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
# One number is much larger than the others: the 13 in "Name". Encodings are between -1 and 1, so
# they hardly change it. Embeddings and encodings should be of similar size. If embeddings are
# initialised with a standard deviation of 1/√M, multiplying them by √M, as in the paper, achieves
# this.
#
# ## Other layouts
#
# Other programs order the numbers differently, or turn the hands at slightly different rates. This
# makes no difference to a model that is trained from scratch. An imported model needs the layout
# that it was trained with.
#
# - `halves` (Hugging Face's Marian): all sines, then all cosines.
# - `tensor2tensor`: the same order, but with the exponent i / (M/2 - 1), so that the slowest hand
#   turns by exactly 1/10000.

# %%
layouts = {name: sinusoids(40, 32, name) for name in ("interleaved", "halves", "tensor2tensor")}
plotting.heat_maps(layouts, signed=True, numbers=False, per_row=3)

# %% [markdown]
# ## Rotary
#
# Rotary embeddings add nothing to the words. They rotate queries and keys instead, each pair of
# numbers by the angle of one hand. The dot product of two rotated vectors depends on the difference
# of the angles, so on the distance. Values are not rotated.

# %%
rng = np.random.default_rng(0)
one_query, one_key = (jnp.array(rng.normal(size=(1, 1, 1, 64)), jnp.float32) for _ in range(2))
positions = jnp.arange(24)[None]
rotated_queries, rotated_keys = (
    apply_rotary(jnp.repeat(x, 24, axis=1), positions)[0, :, 0] for x in (one_query, one_key)
)
rotated = np.asarray(rotated_queries @ rotated_keys.T, np.float64)
along = max(np.ptp(np.diagonal(rotated, offset=d)) for d in range(-23, 24))
print("the same query and key, largest difference at equal distance:", along)
plotting.heat_map(rotated, title="q·k after rotation", signed=True)

# %% [markdown]
# Each diagonal is one distance and has one colour. A rotation keeps the length of a vector:

# %%
norms = np.linalg.norm(np.asarray(rotated_queries), axis=1)
print("lengths from", norms.min(), "to", norms.max())
assert math.isclose(norms.min(), norms.max(), rel_tol=1e-5)
