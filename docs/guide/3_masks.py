# %% [markdown]
# # 3. Masks
#
# A mask says which positions may attend to which others. Masks of this package are boolean: `True`
# where a query may attend to a key. They broadcast to `[B, H, T, S]`.

# %%
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.extras import plotting
from transformer_jax.model.layers import DecoderLayer
from transformer_jax.ops.attention import attention_weights, dot_product_attention
from transformer_jax.ops.masks import (
    combine_masks,
    make_causal_mask,
    make_padding_mask,
    make_segment_mask,
)

# %% [markdown]
# ## Three reasons to hide something
#
# - **Padding**: sentences of a batch are padded to one length, and no position may read padding.
# - **Causal**: a position must not read the word that it predicts, nor the words after it.
# - **Segments**: several sentences share a row (this project trains that way) and must not read
#   each other. Segment id 0 is padding.

# %%
lengths = jnp.array([4])
segments = jnp.array([[1, 1, 1, 2, 2, 0]])
masks = {
    "padding, length 4": jnp.broadcast_to(make_padding_mask(lengths, 6), (1, 1, 6, 6)),
    "causal": make_causal_mask(6, 6),
    "segments 1 1 1 2 2 0": make_segment_mask(segments, segments),
}
masks["causal and segments"] = combine_masks(masks["causal"], masks["segments 1 1 1 2 2 0"])
plotting.heat_maps({name: mask[0, 0] for name, mask in masks.items()}, per_row=4)

# %% [markdown]
# Dark means "may attend". Rows are queries, columns are keys. A causal mask is a *lower* triangle
# that includes its diagonal. The decoder's input is the target shifted right by one position, after
# a start token. So at position `t` it reads word `t - 1` and predicts word `t`.
#
# Hidden positions have a weight of exactly 0, and the other weights of a row sum to 1. The last row
# of the last mask may read nothing, so its output is zero. (Softmax over no positions would be 0/0,
# and NaN would spread.)

# %%
rng = np.random.default_rng(0)
query, key, value = jnp.array(rng.normal(size=(3, 1, 6, 1, 8)), jnp.float32)  # [B, T, H, D] each
hidden = masks["causal and segments"]
weights = attention_weights(query, key, mask=hidden)[0, 0]
nothing = dot_product_attention(query, key, value, mask=hidden)[0, 5, 0]
print("sums of rows", weights.sum(axis=1), "\nlast row's output", nothing)
plotting.heat_map(weights, title="weights under it")

# %% [markdown]
# ## No future token matters
#
# Weights show one layer only. Gradients show whether a *model* can see the future: how much does
# the output at position `t` change with the input at position `s`? For all `s > t` the answer must
# be exactly 0. Here are two complete decoder layers of this package:

# %%
T, S, M = 6, 4, 16
config = ModelConfig(d_model=M, num_heads=4, d_ff=32)
target, source = (jnp.array(rng.normal(size=(1, n, M)), jnp.float32) for n in (T, S))
layer = DecoderLayer(config)
fixed = {
    "deterministic": True,
    "positions": jnp.arange(T)[None],
    "segment_ids": jnp.ones((1, T), jnp.int32),
    "source_segment_ids": jnp.ones((1, S), jnp.int32),
}
params = [layer.init(jax.random.key(n), target, encoded=source, **fixed) for n in range(2)]


def two_layers(target, source):
    for layer_params in params:
        target = layer.apply(layer_params, target, encoded=source, **fixed)
    return target


@jax.jit
def sensitivity(target, source):
    """Norm of d output[t] / d input[s], for the target [T, T] and the source [T, S]."""
    by_target, by_source = jax.jacobian(two_layers, argnums=(0, 1))(target, source)
    return [jnp.sqrt(jnp.sum(j[0, :, :, 0] ** 2, axis=(1, 3))) for j in (by_target, by_source)]


to_target, to_source = sensitivity(target, source)
above = np.triu(np.asarray(to_target), k=1)
print("largest gradient from the future:", above.max())
plotting.heat_map(to_target, title="|d output[t] / d target[s]|")

# %% [markdown]
# The source is known from the start, so every position depends on all source positions:

# %%
plotting.heat_map(to_source, title="|d output[t] / d source[s]|")
