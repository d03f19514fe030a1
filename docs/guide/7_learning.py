# %% [markdown]
# # 7. Learning
#
# This is the smallest attention model that learns something: four tokens, vectors of two numbers,
# two blocks of three heads, no norm, no feed-forward, no residual. It is small enough to check
# every gradient.

# %%
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.extras import plotting
from transformer_jax.ops.attention import dot_product_attention

NUM_BLOCKS, HEADS, WIDTH = 2, 3, 2

# %% [markdown]
# ## Weights
#
# NumPy's `RandomState` with seed 27 draws all weights from -1 to 1, in this order: the embedding
# (4×2); for each block query, key and value (6×2, three heads of two) and output (2×6); the output
# layer (4×2).

# %%


def draw(largest=1.0, seed=27):
    """Weights between -largest and largest, the same for each seed except for this scale."""
    uniform = np.random.RandomState(seed).uniform
    params = {"embedding": uniform(-1, 1, (4, 2)), "blocks": []}
    for _ in range(NUM_BLOCKS):
        block = {name: uniform(-1, 1, (6, 2)) for name in ("query", "key", "value")}
        params["blocks"].append(block | {"out": uniform(-1, 1, (2, 6))})
    params["output"] = uniform(-1, 1, (4, 2))
    return jax.tree.map(lambda weights: largest * weights, params)


# %% [markdown]
# ## The model and its loss
#
# The loss is cross-entropy, summed over both positions.

# %%


def logits_of(params, tokens):
    """Logits [T, 4] of tokens [T]."""
    x = params["embedding"][tokens]
    for block in params["blocks"]:
        split = [
            (x @ block[name].T).reshape(1, -1, HEADS, WIDTH) for name in ("query", "key", "value")
        ]
        x = dot_product_attention(*split).reshape(-1, HEADS * WIDTH) @ block["out"].T
    return x @ params["output"].T


def loss_of(params, tokens, targets):
    log_probs = jax.nn.log_softmax(logits_of(params, tokens))
    return -jnp.sum(log_probs[jnp.arange(len(targets)), targets])


@jax.jit
def descend(params, tokens, targets, rate):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, targets)
    return loss, jax.tree.map(lambda p, g: p - rate * g, params, grads)


def train(params, tokens, targets, rate, num_steps=100):
    """Plain gradient descent; returns the weights and the loss before each step and at the end."""
    tokens, targets = jnp.array(tokens), jnp.array(targets)
    params, losses = jax.tree.map(jnp.float32, params), []
    for step in range(num_steps + 1):
        loss, new = descend(params, tokens, targets, rate)
        losses.append(float(loss))
        if step % 10 == 0:
            prediction = logits_of(params, tokens).argmax(axis=1)
            print(f"step {step:3}: predicts {prediction}, loss {loss:.6f}")
        if step < num_steps:
            params = new
    return params, losses


# %% [markdown]
# ## Learning to map [0, 0] to [3, 3]

# %%
same_params, same_losses = train(draw(), [0, 0], [3, 3], rate=0.1)

# %% [markdown]
# The model learns, but not by attention. Both inputs are equal, so both values are equal, and every
# mixture of them is the same. So query and key have no gradients:

# %%
same_grads = jax.grad(loss_of)(
    jax.tree.map(jnp.float32, draw()), jnp.array([0, 0]), jnp.array([3, 3])
)
for number, block in enumerate(same_grads["blocks"]):
    print(f"block {number}:", {name: float(jnp.abs(g).max()) for name, g in block.items()})

# %% [markdown]
# ## Learning to map [0, 1] to [3, 2]
#
# Now the positions differ, so the attention weights matter.

# %%
stuck_params, stuck_losses = train(draw(), [0, 1], [3, 2], rate=0.1)

# %% [markdown]
# Training stops at 2 ln 2 = 1.386: both tokens have probability ½ at both positions. Without a
# residual, positions differ only in their attention weights. With weights this small, both
# positions read nearly the same mixture, and the gradients of query and key are tiny. Residuals and
# well-chosen initial weights prevent this. Here larger initial weights are enough: the same weights
# times 1.5, and smaller steps.

# %%
params, losses = train(draw(1.5), [0, 1], [3, 2], rate=0.03)
plotting.curves(
    np.arange(101),
    {
        "[0, 0] → [3, 3]": same_losses,
        "[0, 1] → [3, 2], stuck": stuck_losses,
        "[0, 1] → [3, 2], larger weights": losses,
    },
    "step",
    "loss",
    yscale="log",
)

# %% [markdown]
# ## Are these gradients right?
#
# The loss is written a second time, in NumPy with 64 bits. Its gradient is computed by central
# differences: each weight is changed a little in both directions.

# %%


def numpy_loss(params, tokens, targets):
    def softmax(z):
        z = np.exp(z - z.max(axis=-1, keepdims=True))
        return z / z.sum(axis=-1, keepdims=True)

    x = params["embedding"][tokens]
    for block in params["blocks"]:
        q, k, v = (
            (x @ block[name].T).reshape(-1, HEADS, WIDTH).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        mixed = softmax(q @ k.swapaxes(1, 2) / np.sqrt(WIDTH)) @ v  # [H, T, D]
        x = mixed.swapaxes(0, 1).reshape(-1, HEADS * WIDTH) @ block["out"].T
    probabilities = softmax(x @ params["output"].T)
    return -np.log(probabilities[np.arange(len(targets)), targets]).sum()


def differences(params, tokens, targets, step=1e-5):
    """The gradient by central differences, a tree like the weights."""

    def of(weights):
        grad = np.zeros_like(weights)
        for index in np.ndindex(weights.shape):
            weight, sides = weights[index], []
            for sign in (1, -1):
                weights[index] = weight + sign * step
                sides.append(numpy_loss(params, tokens, targets))
            weights[index] = weight
            grad[index] = (sides[0] - sides[1]) / (2 * step)
        return grad

    return jax.tree.map(of, params)


start_loss = numpy_loss(draw(), [0, 0], [3, 3])
print(f"loss of the drawn weights on [0, 0]: {start_loss:.10f}")

by_differences = differences(draw(1.5), [0, 1], [3, 2])
by_jax = jax.grad(loss_of)(
    jax.tree.map(jnp.float32, draw(1.5)), jnp.array([0, 1]), jnp.array([3, 2])
)
worst = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), by_differences, by_jax)
for number, block in enumerate(by_jax["blocks"]):
    sizes = {name: round(float(jnp.abs(block[name]).max()), 6) for name in ("query", "key")}
    print(f"block {number}: largest gradients {sizes}")
print("largest difference", max(jax.tree.leaves(worst)))

# %% [markdown]
# After training, the three heads of the two blocks have different attention weights:

# %%


def weights_of(params, tokens):
    """Attention weights of all blocks, [blocks · H, T, T]."""
    x, by_block = params["embedding"][jnp.array(tokens)], []
    for block in params["blocks"]:
        q, k, v = (
            (x @ block[name].T).reshape(-1, HEADS, WIDTH) for name in ("query", "key", "value")
        )
        weights = jax.nn.softmax(jnp.einsum("thd,shd->hts", q, k) / WIDTH**0.5)
        by_block.append(weights)
        x = jnp.einsum("hts,shd->thd", weights, v).reshape(-1, HEADS * WIDTH) @ block["out"].T
    return jnp.concatenate(by_block)


names = [f"block {b}, head {h}" for b in range(NUM_BLOCKS) for h in range(HEADS)]
plotting.heat_maps(
    dict(zip(names, weights_of(params, [0, 1]), strict=True)), ["0", "1"], ["0", "1"], per_row=3
)
