# %% [markdown]
# # 5. Layers
#
# Around every attention stand three simple things: a residual and a norm, which let deep stacks
# train, and a feed-forward block.

# %%
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import plotting
from transformer_jax.config import ModelConfig
from transformer_jax.model.layers import EncoderLayer, FeedForward
from transformer_jax.ops.norms import layer_norm

rng = np.random.default_rng(0)

# %% [markdown]
# ## LayerNorm
#
# Each position's vector, by itself, is shifted to mean 0 and divided to variance 1; then every
# dimension is multiplied by a learned gain and a learned bias is added. Both start neutral.
# Three words of very different size come out alike; the gain of 3 on dimension 2 shows in all
# of them.

# %%
x = jnp.array([[1.0, 2.0, 3.0, 4.0], [100.0, 300.0, 200.0, 400.0], [-0.1, 0.1, -0.1, 0.1]])
gain, bias = jnp.ones(4), jnp.zeros(4)
normal = layer_norm(x, gain, bias, epsilon=1e-6)
with_gain = layer_norm(x, gain.at[2].set(3.0), bias, epsilon=1e-6)
print("means", np.round(normal.mean(axis=1), 6), "variances", np.round(normal.var(axis=1), 6))
plotting.heat_maps({"normalised": normal, "gain 3 on dimension 2": with_gain}, signed=True)

# %% [markdown]
# ## Feed-forward
#
# Two dense layers with an activation between, at every position separately: attention is where
# positions meet, here each one thinks for itself. So a shuffled sentence gives the shuffled
# output.

# %%
config = ModelConfig(d_model=16, num_heads=4, d_ff=64, dropout_rate=0.0)
sentence = jnp.array(rng.normal(size=(1, 7, 16)), jnp.float32)
block = FeedForward(config)
weights = block.init(jax.random.key(1), sentence, True)
thought = block.apply(weights, sentence, True)

order = np.array([3, 0, 6, 1, 5, 2, 4])
shuffled = block.apply(weights, sentence[:, order], True)
print("largest difference", float(jnp.max(jnp.abs(shuffled - thought[:, order]))))

# %% [markdown]
# ## Residual
#
# A layer does not replace its input, it adds to it. A layer with nothing to say leaves the
# stream as it is: with all its kernels at zero, a pre-norm layer is the identity, and gradients
# pass it unchanged.

# %%
layer = EncoderLayer(ModelConfig(d_model=16, num_heads=4, d_ff=64, norm_position="pre"))
fixed = (jnp.arange(7)[None], jnp.ones((1, 7), jnp.int32), True)
silent = jax.tree.map(
    jnp.zeros_like, nn.meta.unbox(layer.init(jax.random.key(2), sentence, *fixed))
)
unchanged = layer.apply(silent, sentence, *fixed)
print("largest change", float(jnp.max(jnp.abs(unchanged - sentence))))

# %% [markdown]
# ## Pre or post
#
# The paper normalises *after* each addition: `norm(x + branch(x))`. Most later models normalise
# what the branch reads: `x + branch(norm(x))`, and once at the end. What that changes can be
# seen before any training, in a stack of 32 layers with fresh weights (on average over 8
# draws). Post-norm brings the stream back to the same size after every layer; in pre-norm it
# goes through untouched and grows with all that is added.

# %%
depth = 32
inputs, directions = jnp.array(rng.normal(size=(2, 8, 1, 7, 64)), jnp.float32)  # of 8 draws


def stack(norm_position):
    """Size of the stream after each layer, and of the gradient of its feed-forward's weights."""
    config = ModelConfig(
        d_model=64, num_heads=4, d_ff=256, dropout_rate=0.0, norm_position=norm_position
    )
    layer = EncoderLayer(config)

    def loss(params, x, direction):
        def step(x, own):
            x = layer.apply(own, x, *fixed)
            return x, jnp.linalg.norm(x)

        out, sizes = jax.lax.scan(step, x, params)
        if norm_position == "pre":
            out = (out - out.mean(-1, keepdims=True)) / out.std(-1, keepdims=True)
        return jnp.sum(out * direction), sizes

    def one_draw(key, x, direction):
        init = jax.vmap(lambda key: nn.meta.unbox(layer.init(key, x, *fixed)))
        params = init(jax.random.split(key, depth))
        grads, sizes = jax.grad(loss, has_aux=True)(params, x, direction)
        kernels = grads["params"]["feed_forward"]["up"]["kernel"]
        return sizes, jnp.linalg.norm(kernels.reshape(depth, -1), axis=1)

    draws = jax.jit(jax.vmap(one_draw))(jax.random.split(jax.random.key(3), 8), inputs, directions)
    return [found.mean(axis=0) for found in draws]


streams, gradients = {}, {}
for norm_position in ("post", "pre"):
    streams[norm_position], gradients[norm_position] = stack(norm_position)

numbers = np.arange(1, depth + 1)
plotting.curves(numbers, streams, "layer", "size of the stream, fresh weights", ylim=(0, None))

# %% [markdown]
# And so the gradients differ. Pre-norm: the later a layer, the smaller, since what it adds is
# little beside what has already been added. Post-norm: no such decline; late layers get rather
# more than early ones, and near the output several times what pre-norm gives them. Xiong et al.
# (2020) see in that the reason why post-norm needs a warm-up.

# %%
plotting.curves(
    numbers, gradients, "layer", "gradient of the feed-forward, fresh weights", yscale="log"
)

# %% [markdown]
# `model.norm_position` chooses; post is the paper's and what Marian models have, pre is what
# our recipes for quick training use.
