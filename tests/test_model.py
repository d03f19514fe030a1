"""The model against a float64 forward pass in NumPy, and the properties that decoding relies on."""

import dataclasses
import functools
import importlib
import itertools
import math
import typing

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import ModelConfig
from transformer_jax.config.fields import NormKind
from transformer_jax.model import choices, decoder_weights, incremental
from transformer_jax.model.transformer import Transformer, init_params, param_shapes

TINY = ModelConfig(
    num_encoder_layers=2,
    num_decoder_layers=1,
    d_model=8,
    num_heads=2,
    d_ff=12,
    dropout_rate=0.0,
    max_len=12,
    source_vocab_size=13,
    target_vocab_size=13,
    decoder_start_id=1,
)
VARIANTS = {
    "paper": {},
    "pre": {"norm_position": "pre", "head_dim": 6, "norm_epsilon": 1e-3},
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "silu": {"activation": "silu"},
    "halves": {"positional": "halves", "positional_base": 100.0},
    "tensor2tensor": {"positional": "tensor2tensor"},
    "learned": {"positional": "learned", "norm_position": "pre"},
    "rotary": {"positional": "rotary"},
    "no_positions": {"positional": "none"},
    "unequal_stacks": {
        "num_encoder_layers": 1,
        "num_decoder_layers": 3,
        "num_decoder_heads": 4,
        "decoder_d_ff": 10,
        "tie_embeddings": "decoder",
        "source_vocab_size": 17,
    },
    "switches": {
        "scale_embeddings": False,
        "output_bias": True,
        "positional": "halves",
        "position_offset": 3,
        "tie_embeddings": "none",
        "source_vocab_size": 17,
    },
    "t5": {
        "norm_position": "pre",
        "norm": "rms",
        "use_bias": False,
        "feed_forward": "gated",
        "positional": "relative",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "norm_epsilon": 0.1,
        "attention_scale": 1.0,
        "logit_scale": 0.4,
        "scale_embeddings": False,
        "tie_embeddings": "inputs",
    },
    "relative_per_layer": {
        "positional": "relative",
        "relative_per_layer": True,
        "relative_buckets": 4,
        "num_decoder_layers": 2,
        "num_decoder_heads": 4,
    },
    "alibi": {"positional": "alibi", "num_heads": 3, "head_dim": 2},
    "grouped": {
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 4,
        "qk_norm": True,
        "attention_scale": 5.0,
        "attention_softcap": 0.5,
        "positional": "rotary",
    },
    "bart": {"embedding_norm": True, "positional": "learned", "logit_softcap": 2.0},
}
# Name -> beams, and whether they are independent; others have one.
BEAMS = {
    "paper": (3, False),
    "rotary": (3, True),
    "t5": (3, False),
    "alibi": (2, True),
    "grouped": (2, False),
}


def variant(name):
    return dataclasses.replace(TINY, **VARIANTS[name])


def random_params(config, seed=0):
    """Parameters whose biases and norms are not at their neutral initial values."""
    rng = np.random.default_rng(seed)
    draw = lambda x: jnp.asarray(rng.normal(0, 0.4, x.shape).astype(np.float32))  # noqa: E731
    return jax.tree.map(draw, param_shapes(config))


def tokens(config, batch=3, source=7, target=6, seed=1):
    rng = np.random.default_rng(seed)
    return (
        rng.integers(0, config.source_vocab_size, (batch, source)),
        rng.integers(0, config.target_vocab_size, (batch, target)),
    )


class Oracle:
    """One sentence pair at a time, no batches, no masks but the causal one; all in float64."""

    def __init__(self, config, params):
        self.c, self.p = config, jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(self, x, p):
        if self.c.norm == "rms":
            return self.rms(x, p["norm"]["scale"])
        mean = x.mean(-1, keepdims=True)
        deviation = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + self.c.norm_epsilon)
        return (x - mean) / deviation * p["norm"]["scale"] + p["norm"]["bias"]

    def rms(self, x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.c.norm_epsilon) * scale

    def dense(self, x, p):
        kernel = p["kernel"].reshape(x.shape[-1], -1)
        return x @ kernel + p.get("bias", np.zeros(kernel.shape[1])).reshape(-1)

    def position_bias(self, distance, heads, table, causal):
        """Of one query and one key, [H]; positions are few, so buckets are counted by hand."""
        if self.c.positional == "alibi":  # of three heads: two of a power of two, one of the next
            return -abs(distance) * np.array([2.0**-4, 2.0**-8, 2.0**-2])
        if self.c.positional != "relative":
            return np.zeros(heads)
        buckets, first = self.c.relative_buckets, 0
        if not causal:
            buckets, first = buckets // 2, buckets // 2 if distance > 0 else 0
        exact, size = buckets // 2, abs(distance)
        if size >= exact:
            octaves = np.log(size / exact) / np.log(self.c.relative_max_distance / exact)
            size = min(exact + int(octaves * (buckets - exact)), buckets - 1)
        return table[first + size]

    def activation(self, x):
        erf = np.vectorize(math.erf)
        return {
            "relu": lambda: np.maximum(x, 0),
            "gelu": lambda: x * 0.5 * (1 + erf(x / np.sqrt(2))),
            "gelu_tanh": lambda: (
                0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
            ),
            "silu": lambda: x / (1 + np.exp(-x)),
        }[self.c.activation]()

    def rotate(self, x):
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * self.c.positional_base ** (-np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
        return np.concatenate([turned.real, turned.imag], -1)

    def attention(self, x, memory, p, stack, causal):
        query, key, value = (
            self.dense(source, p[name]).reshape(len(source), *p[name]["kernel"].shape[1:])
            for name, source in (("query", x), ("key", memory), ("value", memory))
        )
        if self.c.qk_norm:
            query, key = (
                self.rms(y, p[f"{name}_norm"]["scale"])
                for name, y in (("query", query), ("key", key))
            )
        if self.c.positional == "rotary" and x is memory:
            query, key = self.rotate(query), self.rotate(key)
        heads, dim = query.shape[1:]
        positions = p.get("position_bias", self.p.get(f"{stack}_position_bias", {}))
        scale = self.c.attention_scale or dim**-0.5
        out = np.zeros_like(query)
        for h in range(heads):
            group = h * key.shape[1] // heads
            for t in range(len(query)):
                seen = t + 1 if causal else len(key)
                scores = key[:seen, group] @ query[t, h] * scale
                if self.c.attention_softcap:
                    scores = self.c.attention_softcap * np.tanh(scores / self.c.attention_softcap)
                if x is memory:
                    for s in range(seen):
                        bias = self.position_bias(s - t, heads, positions.get("table"), causal)
                        scores[s] += bias[h]
                weights = np.exp(scores - scores.max())
                out[t, h] = weights / weights.sum() @ value[:seen, group]
        return self.dense(out.reshape(len(out), -1), p["out"])

    def feed_forward(self, x, p):
        up = self.dense(x, p["up"])
        if self.c.feed_forward == "gated":
            return self.dense(self.activation(self.dense(x, p["gate"])) * up, p["down"])
        return self.dense(self.activation(up), p["down"])

    def residual(self, x, norm, branch):
        if self.c.norm_position == "pre":
            return x + branch(self.norm(x, norm))
        return self.norm(x + branch(x), norm)

    def embed(self, table, ids, name):
        x = self.positions(table, ids, name)
        return self.norm(x, self.p[name]["norm"]) if self.c.embedding_norm else x

    def positions(self, table, ids, learned):
        x = table[ids] * (np.sqrt(self.c.d_model) if self.c.scale_embeddings else 1.0)
        width = self.c.d_model
        if self.c.positional == "learned":
            return x + self.p[learned]["positions"][: len(ids)]
        if self.c.positional not in ("interleaved", "halves", "tensor2tensor"):
            return x
        half = width // 2
        for t in range(len(ids)):
            for i in range(half):
                steps = half - 1 if self.c.positional == "tensor2tensor" else half
                angle = (t + self.c.position_offset) / self.c.positional_base ** (i / steps)
                interleaved = self.c.positional == "interleaved"
                x[t, 2 * i if interleaved else i] += np.sin(angle)
                x[t, 2 * i + 1 if interleaved else half + i] += np.cos(angle)
        return x

    def __call__(self, source, target):
        p = self.p
        target_table = p["target_embedding"]
        source_table = p.get("source_embedding", target_table)
        x = self.embed(source_table, source, "embed_source")
        for i in range(self.c.num_encoder_layers):
            q = p[f"encoder_layers_{i}"]
            x = self.residual(
                x,
                q["self_attention_norm"],
                lambda h: self.attention(h, h, q["self_attention"], "encoder", False),
            )
            x = self.residual(
                x, q["feed_forward_norm"], lambda h: self.feed_forward(h, q["feed_forward"])
            )
        memory = self.norm(x, p["encoder_norm"]) if self.c.norm_position == "pre" else x
        x = self.embed(target_table, target, "embed_target")
        for i in range(self.c.num_decoder_layers):
            q = p[f"decoder_layers_{i}"]
            x = self.residual(
                x,
                q["self_attention_norm"],
                lambda h: self.attention(h, h, q["self_attention"], "decoder", True),
            )
            x = self.residual(
                x,
                q["cross_attention_norm"],
                lambda h: self.attention(h, memory, q["cross_attention"], "decoder", False),
            )
            x = self.residual(
                x, q["feed_forward_norm"], lambda h: self.feed_forward(h, q["feed_forward"])
            )
        x = self.norm(x, p["decoder_norm"]) if self.c.norm_position == "pre" else x
        x = x * self.c.logit_scale
        logits = x @ p.get("output_embedding", target_table).T + p.get("output_bias", 0.0)
        cap = self.c.logit_softcap
        return cap * np.tanh(logits / cap) if cap else logits


@functools.partial(jax.jit, static_argnums=0)
def full_logits(model, params, source, target):
    apply = lambda *args, method: model.apply({"params": params}, *args, method=method)  # noqa: E731
    return apply(apply(apply(source, method="encode"), target, method="decode"), method="logits")


# Variants of a function that other files test, or that another variant has too.
TESTED_ELSEWHERE = {"gelu", "gelu_tanh", "silu", "halves", "tensor2tensor", "no_positions"}
TESTED_ELSEWHERE |= {"learned", "rotary"}  # with `bart` and `grouped`


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in TESTED_ELSEWHERE else ())
        for name in VARIANTS
    ],
)
def test_model_and_incremental_decoder_logits_equal_numpy(name):
    config = variant(name)
    beams, independent = BEAMS.get(name, (1, True))
    model, params = Transformer(config), random_params(config)
    source, target = tokens(config)
    oracle = Oracle(config, params)
    want = np.stack([oracle(s, t) for s, t in zip(source, target, strict=True)])
    np.testing.assert_allclose(
        full_logits(model, params, source, target), want, rtol=2e-4, atol=2e-4
    )

    @jax.jit
    def start(params):
        encoded = model.apply({"params": params}, source, method="encode")
        weights = decoder_weights.prepare(config, params)
        cache = incremental.init_cache(
            config,
            weights,
            encoded,
            jnp.ones(source.shape, bool),
            beams,
            target.shape[1] // 2,
            independent=independent,
        )
        return weights, cache

    @jax.jit
    def step(weights, cache, tokens, parents):
        logits, cache = incremental.decode_step(config, weights, cache, tokens)
        if not independent:  # beams that are alike may be mixed
            cache = incremental.reorder_cache(cache, parents)
        return logits.T[::beams], cache

    weights, cache = start(params)
    for t in range(target.shape[1]):
        if t == target.shape[1] // 2:
            cache = jax.jit(incremental.grow_cache, static_argnums=1)(cache, target.shape[1])
        parents = np.roll(np.tile(np.arange(beams), (len(source), 1)), t, axis=1)
        logits, cache = step(weights, cache, np.repeat(target[:, t], beams), parents)
        np.testing.assert_allclose(logits, want[:, t], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["t5", "relative_per_layer", "alibi"])
def test_biases_of_distance_are_the_same_for_lengths_that_are_symbols(name):
    """As in an export, whose lengths are not known when it is compiled."""
    config = dataclasses.replace(variant(name), attention="xla")
    model, params = Transformer(config), random_params(config)
    source, target = tokens(config)
    sizes = jax.export.symbolic_shape("b, s, t")
    structs = [jax.ShapeDtypeStruct((sizes[0], size), jnp.int32) for size in sizes[1:]]
    exported = jax.export.export(jax.jit(functools.partial(full_logits, model)))(params, *structs)
    got = exported.call(params, source.astype(np.int32), target.astype(np.int32))
    want = full_logits(model, params, source, target)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def batch_of(source, target, source_segments, target_segments, source_positions, target_positions):
    return {
        "inputs": source,
        "decoder_inputs": target,
        "inputs_segment_ids": source_segments,
        "targets_segment_ids": target_segments,
        "inputs_positions": source_positions,
        "targets_positions": target_positions,
    }


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "pre",
        "t5",
        pytest.param("learned", marks=pytest.mark.slow),
        pytest.param("rotary", marks=pytest.mark.slow),
    ],
)
def test_packed_sentences_do_not_attend_to_each_other_or_padding(name):
    config = variant(name)
    model, params = Transformer(config), random_params(config)
    (source,), (target,) = tokens(config, batch=1)
    packed = batch_of(
        np.array([[*source[:3], *source[3:7], 0, 5]]),
        np.array([[*target[:2], *target[2:6], 0]]),
        np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]]),
        np.array([[1, 1, 2, 2, 2, 2, 0]]),
        np.array([[0, 1, 2, 0, 1, 2, 3, 0, 0]]),
        np.array([[0, 1, 0, 1, 2, 3, 0]]),
    )
    got = jax.jit(model.apply)({"params": params}, packed)[0]
    first = full_logits(model, params, source[None, :3], target[None, :2])[0]
    second = full_logits(model, params, source[None, 3:7], target[None, 2:6])[0]
    np.testing.assert_allclose(got[:2], first, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[2:6], second, rtol=1e-4, atol=1e-5)
    assert np.all(np.isfinite(got))


def test_causality_no_gradient_flows_from_a_later_token():
    config = variant("pre")
    model, params = Transformer(config), random_params(config)
    source, target = tokens(config, batch=1)
    encode = functools.partial(model.apply, method="encode")
    encoded = jax.jit(encode)({"params": params}, source)
    width, length = config.d_model, target.shape[1]
    # Each position reads another row of the embedding, so that the gradient is by position.
    grown_model = Transformer(
        dataclasses.replace(config, source_vocab_size=13 + length, target_vocab_size=13 + length)
    )

    def hidden_at(t, nudge):
        table = params["target_embedding"]
        grown = {**params, "target_embedding": jnp.concatenate([table[target[0]] + nudge, table])}
        ids = jnp.arange(length)[None]
        hidden = grown_model.apply({"params": grown}, encoded, ids, method="decode")
        return hidden[0, t] @ probe

    probe = jnp.asarray(np.random.default_rng(2).normal(size=width))
    gradient = jax.jit(jax.grad(hidden_at, argnums=1))
    for t in range(length):
        grad = gradient(t, jnp.zeros((length, width)))
        per_position = np.abs(grad).sum(axis=-1)
        assert not np.any(per_position[t + 1 :])
        assert np.all(per_position[: t + 1] > 0)


@pytest.mark.parametrize(
    ("recipe", "tokens", "parameters"),
    [("wmt14_en_de_base", 37_000, 63_082_496), ("wmt14_en_de_big", 37_000, 214_245_376)],
)
def test_parameter_counts_are_those_of_the_paper(recipe, tokens, parameters):
    """Table 3 says 65 and 213 million, rounded; these are its sizes with biases and norms."""
    config = importlib.import_module(f"configs.{recipe}").get_config().model
    config = dataclasses.replace(config, source_vocab_size=tokens, target_vocab_size=tokens)
    assert sum(x.size for x in jax.tree.leaves(param_shapes(config))) == parameters


@pytest.mark.parametrize(
    "field", ["dropout_rate", "attention_dropout_rate", "activation_dropout_rate"]
)
def test_dropout_of_each_kind_acts_only_in_training(field):
    config = dataclasses.replace(TINY, **{field: 0.5})
    model, params = Transformer(config), random_params(config)
    source, target = tokens(config)
    ones = lambda x: np.ones_like(x)  # noqa: E731
    places = lambda x: np.broadcast_to(np.arange(x.shape[1]), x.shape)  # noqa: E731
    batch = batch_of(source, target, ones(source), ones(target), places(source), places(target))
    train = jax.jit(
        lambda key: model.apply({"params": params}, batch, False, rngs={"dropout": key})
    )
    run = lambda seed: train(jax.random.key(seed))  # noqa: E731
    quiet = full_logits(Transformer(TINY), params, source, target)
    np.testing.assert_array_equal(run(0), run(0))
    assert np.abs(run(0) - run(1)).max() > 1e-3
    assert np.abs(run(0) - quiet).max() > 1e-3


@pytest.mark.parametrize("scan_layers", [False, True])
def test_remat_recomputes_layers_without_changing_gradients(scan_layers):
    # XLA replaces a loop over one layer by its body, which is then compiled once anyway.
    layers = 2 if scan_layers else 1
    config = dataclasses.replace(
        TINY,
        dropout_rate=0.2,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        use_bias=False,
        norm="rms",
    )
    params = random_params(config)
    source, target = tokens(config)
    ones = np.ones_like
    places = lambda x: np.broadcast_to(np.arange(x.shape[1]), x.shape)  # noqa: E731
    batch = batch_of(source, target, ones(source), ones(target), places(source), places(target))

    def compiled(remat):
        def loss(params):
            rngs = {"dropout": jax.random.key(7)}
            logits = Transformer(config, remat=remat, scan_layers=scan_layers).apply(
                {"params": params}, batch, False, rngs=rngs
            )
            return jnp.sum(logits**2)

        return jax.jit(jax.grad(loss)).lower(params).compile()

    plain, dots, full = map(compiled, ("none", "dots", "full"))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    for again in (dots, full):
        jax.tree.map(close, plain(params), again(params))
    # Counted in the compiled program: XLA must not have merged the second forward pass with the
    # first. Each of the two bodies has 4 products or more besides those of its attention.
    products = [program.as_text().count(" dot(") for program in (plain, dots, full)]
    assert products[2] >= products[0] + 2 * 4
    assert products[0] < products[1] < products[2]  # attention is recomputed


@pytest.mark.parametrize(
    "name",
    [
        "unequal_stacks",
        "t5",
        pytest.param("relative_per_layer", marks=pytest.mark.slow),
        pytest.param("rotary", marks=pytest.mark.slow),
    ],
)
def test_scanned_layers_compute_what_they_do_one_after_another(name):
    config = variant(name)
    params = random_params(config)
    source, target = tokens(config)
    ones = np.ones_like
    places = lambda x: np.broadcast_to(np.arange(x.shape[1]), x.shape)  # noqa: E731
    batch = batch_of(source, target, ones(source), ones(target), places(source), places(target))

    def loss(params, scan_layers):
        return jnp.sum(
            Transformer(config, scan_layers=scan_layers).apply({"params": params}, batch)
        )

    gradients = [jax.jit(jax.grad(loss), static_argnums=1)(params, scan) for scan in (False, True)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, *gradients)


def test_scanned_layers_have_dropout_of_their_own():
    """Each of four layers adds dropout(1) to the residual stream: equal bits would add up to 4."""
    config = dataclasses.replace(
        variant("no_positions"),
        norm_position="pre",
        num_encoder_layers=4,
        d_model=64,
        dropout_rate=0.5,
    )
    params = jax.tree.map(np.zeros_like, random_params(config))
    for i in range(4):
        layer = params[f"encoder_layers_{i}"]["feed_forward"]["down"]
        layer["bias"] = np.full_like(layer["bias"], 0.5)
    params["encoder_norm"]["norm"] = {"scale": np.ones(64), "bias": np.zeros(64)}
    encode = functools.partial(Transformer(config, scan_layers=True).apply, method="encode")
    source, _ = tokens(config, source=64)
    rngs = {"dropout": jax.random.key(0)}
    encoded = jax.jit(lambda p: encode(p, source, deterministic=False, rngs=rngs))(
        {"params": params}
    )
    # A sum of four bits has five values, which the norm keeps apart in each row; most have all.
    values = [len(np.unique(row.round(3))) for row in np.asarray(encoded).reshape(-1, 64)]
    assert (max(values), np.median(values)) == (5, 5)


def test_kernels_of_attention_start_uniform_in_the_bounds_of_glorot():
    config = ModelConfig(
        source_vocab_size=5,
        target_vocab_size=5,
        decoder_start_id=1,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=64,
        num_heads=4,
        head_dim=24,
        d_ff=8,
    )

    @jax.jit
    def layers(rng):
        configs = (dataclasses.replace(config, num_kv_heads=n) for n in (None, 4, 2, 1))
        params = (init_params(one, rng) for one in configs)
        return [one["decoder_layers_0"]["cross_attention"] for one in params]

    # Keys and values count each head of queries that uses them, shared or not.
    bound = (6 / (64 + 4 * 24)) ** 0.5
    for layer, name in itertools.product(
        layers(jax.random.key(0)), ("query", "key", "value", "out")
    ):
        kernel = np.asarray(layer[name]["kernel"])
        assert 0.98 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6), name
        np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.03)


def test_every_norm_of_the_config_is_there():
    assert choices.NORMS.keys() == set(typing.get_args(NormKind))
