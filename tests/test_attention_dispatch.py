"""Which implementation serves a call, and calls over several devices."""

import dataclasses
import functools
import logging
import re
from types import SimpleNamespace

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from transformer_jax.config import ModelConfig, all_settings
from transformer_jax.ops import attention
from transformer_jax.ops.attention import cudnn, dispatch
from transformer_jax.ops.attention.call import Extras, Settings


def shaped(batch=2, length=6, size=6, heads=4, groups=4, dim=64, dtype=jnp.float32):
    return (
        jax.ShapeDtypeStruct((batch, length, heads, dim), dtype),
        jax.ShapeDtypeStruct((batch, size, groups, dim), dtype),
    )


def arrays(batch=2, length=6, heads=4, groups=4, dim=8):
    rngs = jax.random.split(jax.random.key(0), 3)
    return [
        jax.random.normal(rng, (batch, length, n, dim))
        for rng, n in zip(rngs, (heads, groups, groups), strict=True)
    ]


def call(causal=False):
    return Settings(causal, 0.125, 0.0, 4)


def test_config_offers_every_attention_implementation():
    (field,) = (s for s in all_settings(ModelConfig) if s.path == "attention")
    assert set(field.choices) == set(attention.IMPLEMENTATIONS)


def test_attention_refuses_wrong_arguments():
    query, key, value = arrays(groups=3)
    with pytest.raises(ValueError, match="3 key heads do not divide 4"):
        attention.dot_product_attention(query, key, value)
    query, key, value = arrays()
    with pytest.raises(ValueError, match="implementation must be one of"):
        attention.dot_product_attention(query, key, value, implementation="flash")
    with pytest.raises(ValueError, match="go together"):
        attention.dot_product_attention(query, key, value, key_segment_ids=np.ones((2, 6), int))
    with pytest.raises(ValueError, match=r"must be \[B, T, H, D\]"):
        attention.dot_product_attention(query[0], key, value)
    with pytest.raises(ValueError, match="head size differ"):
        attention.dot_product_attention(query[..., :4], key, value)
    with pytest.raises(ValueError, match="query must be floating-point, is int32"):
        attention.dot_product_attention(*np.ones((3, 1, 2, 1, 4), np.int32))
    ids = {name: np.ones((2, 6), int) for name in ("query_segment_ids", "key_segment_ids")}
    for wrong, message in (
        ({"distance_bias": np.zeros((4, 12))}, "distance_bias must be [4, 11], is [4, 12]"),
        ({"key_lengths": np.array([3])}, "key_lengths must be [2], is [1]"),
        (ids | {"key_segment_ids": np.ones((2, 5))}, "key_segment_ids must be [2, 6], is [2, 5]"),
        (ids | {"query_segment_ids": np.ones(6)}, "query_segment_ids must be [2, 6], is [6]"),
        ({"bias": np.zeros((3, 1, 6, 6))}, "bias must broadcast to [2, 4, 6, 6], is [3, 1, 6, 6]"),
        ({"mask": np.ones((1, 2, 4, 6, 6), bool)}, "mask must broadcast to [2, 4, 6, 6], is [1,"),
        # As some libraries write masks, this would mean the opposite.
        ({"mask": np.zeros((6, 6))}, "mask must be boolean, True = may attend, is float64"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            attention.dot_product_attention(query, key, value, **wrong)


def test_auto_can_be_exported_for_lengths_that_are_symbols():
    query, _, _ = arrays()
    sizes = jax.export.symbolic_shape("b, t")
    struct = jax.ShapeDtypeStruct((*sizes, *query.shape[2:]), jnp.float32)
    attend = jax.jit(lambda x: attention.dot_product_attention(x, x, x, causal=True))
    got = jax.export.export(attend)(struct).call(query)
    np.testing.assert_allclose(got, attend(query), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("implementation", "reason"), [("cudnn", "needs an NVIDIA GPU"), ("pallas_tpu", "needs a TPU")]
)
def test_attention_implementation_that_cannot_compute_a_call_says_why(implementation, reason):
    with pytest.raises(attention.UnsupportedAttentionError, match=reason):
        attention.dot_product_attention(*arrays(), implementation=implementation)


@pytest.mark.parametrize(
    ("name", "shape", "extras", "reason"),
    [
        ("cudnn", {}, Extras(), "float16 or bfloat16, and the query is float32"),
        ("cudnn", {"dtype": jnp.bfloat16, "dim": 192}, Extras(), "at most 128, and is 192"),
        ("cudnn", {"dtype": jnp.bfloat16}, Extras(seeds=1), "no dropout"),
        ("cudnn", {"dtype": jnp.bfloat16, "size": 7}, Extras(mask=1), "even lengths, not 6 and 7"),
        # JAX refuses the gradient at odd lengths without a mask or bias too: seen on an H200.
        ("cudnn", {"dtype": jnp.bfloat16, "size": 7}, Extras(key_lengths=1), "not 6 and 7"),
        ("cudnn", {"dtype": jnp.bfloat16, "size": 8}, Extras(key_lengths=1), None),
        ("cudnn", {"dtype": jnp.bfloat16, "size": 64}, Extras(query_segment_ids=1), "bias of 64"),
        ("cudnn", {"dtype": jnp.bfloat16, "size": 192}, Extras(bias=1), "mask or bias of 192 keys"),
        ("cudnn", {"dtype": jnp.bfloat16, "size": 128}, Extras(mask=1), None),
        ("cudnn", {"dtype": jnp.bfloat16, "size": 64}, Extras(key_lengths=1), None),
        ("pallas_tpu", {}, Extras(bias=1), "no bias"),
        ("pallas_tpu", {}, Extras(distance_bias=1), "no distance_bias"),
        ("pallas_tpu", {}, Extras(mask=1), "no mask"),
        ("pallas_tpu", {}, Extras(seeds=1), "no dropout"),
        ("pallas_tpu", {}, Extras(query_segment_ids=1, key_segment_ids=1), None),
    ],
)
def test_attention_kernels_refuse_unsupported_calls(name, shape, extras, reason):
    platform = {"cudnn": "gpu", "pallas_tpu": "tpu"}[name]
    refusal = dispatch._REFUSES[name](*shaped(**shape), extras, call(), platform)
    assert (refusal is None) if reason is None else (reason in refusal)


@pytest.mark.parametrize(
    ("capability", "largest"), [("8.0", 128), ("8.9", 128), ("9.0", 256), ("10.0", 256)]
)
def test_attention_cudnn_takes_larger_heads_on_hopper(monkeypatch, capability, largest):
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(cudnn.platforms, "local_devices", lambda: [device])
    for dim in (largest, largest + 8):
        query_and_key = shaped(dtype=jnp.bfloat16, dim=dim)
        refusal = cudnn.refuses(*query_and_key, Extras(), call(), "gpu")
        assert (refusal is None) == (dim <= largest)
    capped = dataclasses.replace(call(), softcap=5.0)
    assert "softcap=5" in cudnn.refuses(*shaped(dtype=jnp.bfloat16, dim=8), Extras(), capped, "gpu")


def test_auto_uses_the_first_implementation_in_the_table_that_can_compute_the_call(monkeypatch):
    rows = {
        "full": [[512, ["xla"]], [None, ["cudnn", "blockwise", "xla"]]],
        "causal": [[None, ["blockwise"]]],
    }
    monkeypatch.setattr(dispatch, "table", lambda: {"gpu": rows, "cpu": {}})

    def chosen(causal=False, **shape):
        return dispatch.choose(*shaped(**shape), Extras(), call(causal), "gpu")

    assert chosen(size=512) == "xla"
    assert chosen(size=514, dtype=jnp.bfloat16) == "cudnn"
    assert chosen(size=513, dtype=jnp.bfloat16) == "blockwise"  # its gradient needs even lengths
    assert chosen(size=513) == "blockwise"
    assert chosen(size=512, causal=True) == "blockwise"


@pytest.mark.parametrize("platform", ["rocm", "metal", "neuron"])
def test_auto_uses_a_portable_implementation_on_other_platforms(platform):
    for size in (64, 4096):
        for causal in (False, True):
            dtype = shaped(size=size, dtype=jnp.bfloat16)
            chosen = dispatch.choose(*dtype, Extras(), call(causal), platform)
            assert chosen == ("xla" if size == 64 else "blockwise")


def test_attention_table_covers_every_call():
    for rows_by_kind in dispatch.table().values():
        assert rows_by_kind.keys() == {"full", "causal", "packed", "step"}
        for rows in rows_by_kind.values():
            lengths = [row[0] for row in rows]
            assert lengths[-1] is None
            assert lengths[:-1] == sorted(lengths[:-1])
            assert {name for _, names in rows for name in names} <= set(attention.IMPLEMENTATIONS)


def test_auto_logs_its_choice_once_for_each_shape(caplog):
    query, key, value = arrays(length=9)
    with caplog.at_level(logging.INFO, logger=dispatch.__name__):
        for causal in (False, False, True):
            attend = functools.partial(
                attention.dot_product_attention, causal=causal, implementation="blockwise"
            )
            jax.eval_shape(attend, query, key, value)
    assert len(caplog.messages) == 2
    assert "blockwise for query (2, 9, 4, 8)" in caplog.messages[0]


def value_and_grads(implementation, **masking):
    def loss(query, key, value):
        out = attention.dot_product_attention(
            query, key, value, implementation=implementation, **masking
        )
        return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))


@pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("implementation", ["xla", "blockwise"])
def test_attention_over_a_mesh_shards_batch_and_heads_without_communication(implementation, kind):
    inputs = arrays(batch=8, length=13, heads=4, groups=2)
    masking = {
        "causal": True,
        "key_lengths": jnp.array([0, 5, 9, 13, 3, 13, 13, 8]),
        "mask": jax.random.bernoulli(jax.random.key(3), 0.8, (13, 13)),
        "bias": jax.random.normal(jax.random.key(1), (4, 13, 13)),
        "distance_bias": jax.random.normal(jax.random.key(4), (4, 25)),
        "dropout_rate": 0.3,
        "rng": jax.random.key(2),
    }
    want = value_and_grads("reference", **masking)(*inputs)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(kind,) * 3)
    spec = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    with jax.set_mesh(mesh):
        compiled = value_and_grads(implementation, **masking).lower(
            *(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spec) for x in inputs)
        )
        compiled = compiled.compile()
        got = compiled(*(jax.device_put(x, spec) for x in inputs))
    for collective in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert collective not in compiled.as_text()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)


@pytest.mark.parametrize(("batch", "heads"), [(8, 3), (3, 4)])
def test_attention_over_a_mesh_replicates_axes_that_do_not_divide(batch, heads):
    inputs = arrays(batch=batch, length=5, heads=heads, groups=heads)
    bias = jax.random.normal(jax.random.key(1), (heads, 5, 5))
    distance_bias = jax.random.normal(jax.random.key(2), (heads, 9))

    def grads(implementation):
        def loss(*arrays):
            *inputs, bias, distance_bias = arrays
            out = attention.dot_product_attention(
                *inputs, bias=bias, distance_bias=distance_bias, implementation=implementation
            )
            return jnp.sum(out**2)

        return jax.jit(jax.grad(loss, argnums=range(5)))(*inputs, bias, distance_bias)

    want = grads("reference")
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        got = grads("auto")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


def test_attention_under_pmap_computes_each_devices_shard():
    inputs = arrays(batch=8, length=11)
    want = attention.dot_product_attention(*inputs, causal=True, implementation="reference")
    attend = jax.pmap(
        lambda *x: attention.dot_product_attention(*x, causal=True, implementation="blockwise")
    )
    got = attend(*(x[:, None] for x in inputs))[:, 0]
    np.testing.assert_allclose(got, want, atol=1e-5)
