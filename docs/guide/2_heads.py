# %% [markdown]
# # 2. Heads
#
# A single attention gives each position one mixture. Several heads read the same sentence with
# separate projections, so each computes another mixture. An output projection combines them.

# %%
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.extras import plotting
from transformer_jax.model.layers import SelfAttention

words = ["Today", "is", "sunday"]
x = jnp.array(np.random.default_rng(1).normal(scale=2.0, size=(1, 3, 4)), jnp.float32)  # [B, T, M]
positions = jnp.arange(3)[None]
everywhere = jnp.ones((1, 3), jnp.int32)  # one sentence, no padding

# %% [markdown]
# ## How wide is a head?
#
# Any width is possible: `head_dim` need not be `d_model / num_heads`. Here are 8 heads, each as
# wide as the model (4). Their outputs are concatenated to 8·4 = 32 numbers, and a projection maps
# them back to 4. The paper divides instead: all heads together are as wide as the model, so any
# number of heads costs the same.

# %%
full = ModelConfig(d_model=4, num_heads=8, head_dim=4)
divided = ModelConfig(d_model=4, num_heads=2)  # head_dim: 4 / 2


def init(config):
    module = SelfAttention(config, causal=False)
    return module, nn.meta.unbox(
        module.init(jax.random.key(0), x, True, positions=positions, segment_ids=everywhere)
    )


shapes = {}
for name, config in (("full width", full), ("divided", divided)):
    module, variables = init(config)
    shapes[name] = {
        part: tuple(leaves["kernel"].shape) for part, leaves in variables["params"].items()
    }
    count = sum(leaf.size for leaf in jax.tree.leaves(variables))
    print(f"{name}: {count} parameters", shapes[name])

# %% [markdown]
# Kernels of query, key and value are `[M, H, D]`, that of the output is `[H, D, M]`. Heads have a
# separate axis from the projection on, so no reshape can mix them up.
#
# ## Looking inside
#
# The attention module of the translator stores queries, keys, values and weights in the collection
# `intermediates` if that collection is mutable. (Otherwise the compiler removes them.)

# %%
module, variables = init(full)
output, seen = module.apply(
    variables, x, True, positions=positions, segment_ids=everywhere, mutable=["intermediates"]
)
inside = {name: array for name, (array,) in seen["intermediates"].items()}
for name, array in inside.items():
    print(name, array.shape)

plotting.attention_maps(inside["weights"][0], words, words)

# %% [markdown]
# Query, key and value of one head:

# %%
head = 3
plotting.heat_maps(
    {name: inside[name][0, :, head] for name in ("queries", "keys", "values")},
    words,
    signed=True,
    per_row=3,
)

# %% [markdown]
# ## By hand
#
# The output of the module is a sum over heads: the mixture of each head times its slice of the
# output projection. "Concatenate, then project" is the same product, written differently.

# %%
kernel, bias = (variables["params"]["out"][part] for part in ("kernel", "bias"))  # [H, D, M], [M]
mixtures = jnp.einsum("hts,shd->thd", inside["weights"][0], inside["values"][0])
by_head = jnp.einsum("thd,hdm->htm", mixtures, kernel)
concatenated = mixtures.reshape(3, 32) @ kernel.reshape(32, 4) + bias
print("sum over heads ", float(jnp.max(jnp.abs(by_head.sum(0) + bias - output[0]))))
print("concatenated   ", float(jnp.max(jnp.abs(concatenated - output[0]))))

# %% [markdown]
# The contribution of each head to the word "is":

# %%
plotting.heat_map(
    by_head[:, 1], [f"head {h}" for h in range(8)], title='added to "is"', signed=True
)
