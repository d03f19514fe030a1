# %% [markdown]
# # 6. Encoder, decoder, generation
#
# All parts together: a Transformer with three encoder and three decoder layers, four heads and a
# vocabulary of ten tokens. Its weights are random, so its output makes no sense and contains start
# and padding tokens. But it generates in the same way as a trained model.

# %%
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.extras import plotting
from transformer_jax.model import decoder_weights, incremental
from transformer_jax.model.transformer import Transformer, init_params

START, END = 1, 2
config = ModelConfig(
    num_encoder_layers=3,
    num_decoder_layers=3,
    d_model=32,
    num_heads=4,
    d_ff=64,
    max_len=24,
    source_vocab_size=10,
    target_vocab_size=10,
    decoder_start_id=START,
)
model = Transformer(config)
params = init_params(config, jax.random.key(7))
source = jnp.array([[4, 7, 3]])
print(f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters")

# %% [markdown]
# ## One token at a time
#
# The encoder reads the source once. Then each step runs the decoder on the prefix, the tokens
# generated so far after a start token. The decoder returns a probability for each of the ten tokens
# to be the next. One is sampled and appended, until it is the end token or there are 20 tokens.

# %%
encode = jax.jit(lambda source: model.apply({"params": params}, source, method="encode"))


@jax.jit
def next_distribution(encoded, prefix, position):
    """Probabilities [V] of the token after `position`; later tokens have no effect."""
    hidden = model.apply({"params": params}, encoded, prefix, method="decode")
    logits = model.apply({"params": params}, hidden, method="logits")
    return jax.nn.softmax(logits[0, position])


def generate(source, seed, max_len=20):
    """Sampled tokens without start and end, and the distribution at each step."""
    rng = np.random.default_rng(seed)
    encoded = encode(source)
    prefix = np.zeros((1, max_len + 1), np.int32)
    prefix[0, 0] = START
    tokens, distributions = [], []
    for position in range(max_len):
        probabilities = np.asarray(next_distribution(encoded, prefix, position), np.float64)
        distributions.append(probabilities)
        token = int(rng.choice(10, p=probabilities / probabilities.sum()))
        if token == END:
            break
        tokens.append(token)
        prefix[0, position + 1] = token
    return tokens, np.array(distributions)


for seed in range(4):
    print(f"seed {seed}:", generate(source, seed)[0])

# %% [markdown]
# One of them, step by step. Each row is a distribution over the ten tokens.

# %%
tokens, distributions = generate(source, seed=2)
rows = [f"after {token}" for token in ["start", *tokens][: len(distributions)]]
columns = ["pad", "start", "end", *map(str, range(3, 10))]
plotting.heat_map(distributions, rows, columns, "probability of the next token")

# %% [markdown]
# ## With a cache
#
# The loop above runs the decoder on the complete prefix for each new token. Keys and values of
# earlier positions never change, because no position sees a later one. So a *cache* can store them.
# The translator decodes with a function that takes a cache and a token, and returns logits and the
# new cache. The distributions are the same.

# %%
weights = decoder_weights.prepare(config, params)
step = jax.jit(lambda cache, token: incremental.decode_step(config, weights, cache, token))
cache = incremental.init_cache(
    config, weights, encode(source), jnp.ones((1, 3), bool), num_beams=1, size=21
)
cached = []
for token in [START, *tokens][: len(distributions)]:
    logits, cache = step(cache, jnp.array([token]))
    cached.append(np.asarray(jax.nn.softmax(logits[:, 0])))
print("largest difference", np.max(np.abs(np.array(cached) - distributions)))

# %% [markdown]
# Sampling is one way to choose tokens. `decode.py` can also sample from the most likely tokens only
# (`--method=sample --top_p=0.9`). By default it searches for a likely sentence (`--beam_size`).
