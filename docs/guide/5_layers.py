# %% [markdown]
# # 5. Layers
#
# A layer consists of attention and three simple parts: residual connections and norms, which make
# deep stacks trainable, and a feed-forward block.

# %%
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.extras import plotting
from transformer_jax.model.layers import EncoderLayer, FeedForward
from transformer_jax.ops.norms import layer_norm

rng = np.random.default_rng(0)

# %% [markdown]
# ## LayerNorm
#
# The vector of each position is normalised to mean 0 and variance 1. Then every dimension is
# multiplied by a learned gain, and a learned bias is added. Gains start at 1, biases at 0. Below,
# three words of very different size become similar. The gain of 3 on dimension 2 affects all of
# them.

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
# Two dense layers with an activation between them, applied to every position separately. Only
# attention mixes positions. So a shuffled sentence gives the shuffled output.

# %%
config = ModelConfig(d_model=16, num_heads=4, d_ff=64, dropout_rate=0.0)
sentence = jnp.array(rng.normal(size=(1, 7, 16)), jnp.float32)
block = FeedForward(config)
weights = block.init(jax.random.key(1), sentence, True)
transformed = block.apply(weights, sentence, True)

order = np.array([3, 0, 6, 1, 5, 2, 4])
shuffled = block.apply(weights, sentence[:, order], True)
print("largest difference", float(jnp.max(jnp.abs(shuffled - transformed[:, order]))))

# %% [markdown]
# ## Residual
#
# A layer adds to its input instead of replacing it. With all parameters at zero, a pre-norm layer
# is the identity, and gradients pass it unchanged.

# %%
layer = EncoderLayer(ModelConfig(d_model=16, num_heads=4, d_ff=64, norm_position="pre"))
fixed = {
    "deterministic": True,
    "positions": jnp.arange(7)[None],
    "segment_ids": jnp.ones((1, 7), jnp.int32),
}
silent = jax.tree.map(
    jnp.zeros_like, nn.meta.unbox(layer.init(jax.random.key(2), sentence, **fixed))
)
unchanged = layer.apply(silent, sentence, **fixed)
print("largest change", float(jnp.max(jnp.abs(unchanged - sentence))))

# %% [markdown]
# ## Pre or post
#
# The paper normalises *after* each addition: `norm(x + branch(x))`. Most later models normalise the
# input of the branch: `x + branch(norm(x))`, and once more at the end. The difference is visible
# before any training, in a stack of 32 layers with random weights (means of 8 draws). Post-norm
# rescales the residual stream to the same size after every layer. With pre-norm it is not rescaled
# and grows with every addition.

# %%
depth = 32
inputs, directions = jnp.array(rng.normal(size=(2, 8, 1, 7, 64)), jnp.float32)  # of 8 draws


def stack(norm_position):
    """Norm of the stream after each layer, and of the gradient of each feed-forward kernel."""
    config = ModelConfig(
        d_model=64, num_heads=4, d_ff=256, dropout_rate=0.0, norm_position=norm_position
    )
    layer = EncoderLayer(config)

    def loss(params, x, direction):
        def step(x, layer_params):
            x = layer.apply(layer_params, x, **fixed)
            return x, jnp.linalg.norm(x)

        out, sizes = jax.lax.scan(step, x, params)
        if norm_position == "pre":
            out = (out - out.mean(-1, keepdims=True)) / out.std(-1, keepdims=True)
        return jnp.sum(out * direction), sizes

    def one_draw(rng, x, direction):
        init = jax.vmap(lambda rng: nn.meta.unbox(layer.init(rng, x, **fixed)))
        params = init(jax.random.split(rng, depth))
        grads, sizes = jax.grad(loss, has_aux=True)(params, x, direction)
        kernels = grads["params"]["feed_forward"]["up"]["kernel"]
        return sizes, jnp.linalg.norm(kernels.reshape(depth, -1), axis=1)

    draws = jax.jit(jax.vmap(one_draw))(jax.random.split(jax.random.key(3), 8), inputs, directions)
    return [values.mean(axis=0) for values in draws]


streams, gradients = {}, {}
for norm_position in ("post", "pre"):
    streams[norm_position], gradients[norm_position] = stack(norm_position)

numbers = np.arange(1, depth + 1)
plotting.curves(numbers, streams, "layer", "norm of the stream, random weights", ylim=(0, None))

# %% [markdown]
# So the gradients differ too. With pre-norm, later layers have smaller gradients, because their
# contribution is small compared with the stream. With post-norm, gradients do not decrease: late
# layers have larger gradients than early ones, near the output several times those of pre-norm.
# According to Xiong et al. (2020) this is why post-norm needs a warm-up.

# %%
plotting.curves(
    numbers, gradients, "layer", "gradient of the feed-forward, random weights", yscale="log"
)

# %% [markdown]
# `model.norm_position` selects one of them. The paper and Marian models use `post`, the recipes for
# quick training use `pre`.
