"""Every implementation of attention against the formula in NumPy, float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import attention_oracle
from tests.attention_oracle import make_problem
from transformer_jax.ops import attention, masks
from transformer_jax.ops.attention import UnsupportedAttentionError, blocks, dispatch, pallas_tpu
from transformer_jax.ops.attention.call import Extras, Settings, expand
from transformer_jax.ops.dropout import element_index, keep, seed_words

ATTEND = dispatch.ATTEND | {
    "pallas_tpu": dispatch.with_gradient_alone(
        "pallas_tpu", functools.partial(pallas_tpu.attend, interpret=True)
    )
}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that tiny problems have several."""
    targets = {"full": (4, 40), "causal": (3, 18), "segments": (6, 24)}
    monkeypatch.setattr(blocks, "_TARGETS", targets)


@pytest.fixture
def stand_in_for_cudnn(monkeypatch):
    """Replaces the kernel by JAX's formula: the arguments of the kernel are tested."""
    real = jax.nn.dot_product_attention

    def stand_in(query, key, value, bias, mask, *, implementation, **options):
        assert implementation == "cudnn"
        out = real(query, key, value, bias, mask, **options, implementation="xla")
        visible = jnp.ones((query.shape[1], key.shape[1]), bool) if mask is None else mask
        if options["is_causal"]:
            visible = visible & jnp.tri(*visible.shape[-2:], dtype=bool)
        lengths = options["key_value_seq_lengths"]
        if lengths is not None:
            visible = visible & masks.make_padding_mask(lengths, key.shape[1])
        # The kernel divides by zero in a row without keys.
        empty = ~jnp.any(expand(visible), axis=-1, keepdims=True).swapaxes(1, 2)
        return jnp.where(empty, jnp.nan, 1.0) * out

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)


def attention_of(implementation, problem, dropout_rate=0.0, rng=None):
    """A function of query, key, value and biases by name, and these biases."""
    masking = dict(problem.masking)
    names = [name for name in ("bias", "distance_bias") if name in masking]
    biases = {name: np.float32(masking.pop(name)) for name in names}
    scale = masking.pop("scale", problem.query.shape[-1] ** -0.5)
    causal, softcap = masking.pop("causal", False), masking.pop("softcap", 0.0)
    call = Settings(causal, scale, dropout_rate, problem.query.shape[2], softcap)
    seeds = None if rng is None else seed_words(rng)
    extras = Extras(seeds=seeds, **{k: jnp.asarray(v) for k, v in masking.items()})

    def attend(query, key, value, biases):
        return ATTEND[implementation](query, key, value, extras._replace(**biases), call)

    return attend, biases


def run(implementation, problem, dtype="float32", dropout_rate=0.0, rng=None):
    """Output and gradients by name, float32."""
    attend, biases = attention_of(implementation, problem, dropout_rate, rng)

    @jax.jit
    def compute(query, key, value, biases, d_out):
        out, pullback = jax.vjp(attend, query, key, value, biases)
        return out, pullback(d_out)

    arrays = [jnp.asarray(x, dtype) for x in (problem.query, problem.key, problem.value)]
    out, (*grads, d_biases) = compute(*arrays, biases, jnp.asarray(problem.d_out, dtype))
    assert out.dtype == dtype
    grads = dict(zip(("query", "key", "value"), grads, strict=True)) | d_biases
    return {k: np.asarray(v, np.float32) for k, v in {"out": out, **grads}.items()}


def check(implementation, problem, dtype="float32"):
    want = attention_oracle.attend(problem)
    got = run(implementation, problem, dtype)
    assert got.keys() == want.keys()
    sizes = attention_oracle.attend(problem, absolute=True)
    for name, array in want.items():
        # With few keys the gradients of query and key cancel almost to zero.
        largest = max(np.max(np.abs(array)), 0.1 * np.max(sizes[name]), 1e-30)
        worst = np.max(np.abs(got[name] - array)) / largest
        assert worst < TOLERANCE[dtype], f"{name} is off by {worst:.1e}"


KINDS = [
    (),
    ("causal",),
    ("lengths",),
    ("segments",),
    ("mixed_segments",),
    ("causal", "segments"),
    ("mask",),
    ("head_mask",),
    ("bias",),
    ("row_bias", "causal"),
    ("infinite_bias",),
    ("distance_bias", "causal", "segments"),
    ("mask", "bias", "distance_bias", "lengths", "scale"),
    ("softcap", "bias", "distance_bias", "causal"),
]
name = "+".join


@pytest.mark.parametrize("kinds", KINDS, ids=name)
@pytest.mark.parametrize(
    "implementation",
    [pytest.param("reference", marks=pytest.mark.slow), "xla", "blockwise"],
)
def test_attention_values_and_gradients_equal_the_formula(implementation, kinds, small_blocks):
    check(implementation, make_problem(kinds))


def test_distance_bias_of_several_blocks_equals_the_formula(small_blocks):
    # Blocks of 16 queries and keys, the last ones in part.
    check("blockwise", make_problem(("distance_bias", "causal"), length=40, size=55))


@pytest.mark.parametrize("kinds", KINDS, ids=name)
def test_cudnn_arguments_equal_the_formula(kinds, stand_in_for_cudnn):
    if "softcap" in kinds:
        pytest.skip("cuDNN refuses it")
    if "infinite_bias" in kinds:
        pytest.skip("the stand-in has no infinite bias, unlike the kernel")
    check("cudnn", make_problem(kinds))


@pytest.mark.parametrize(
    "kinds",
    [
        ("causal", "segments", "lengths"),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("causal",), marks=pytest.mark.slow),
        pytest.param(("lengths", "scale", "softcap"), marks=pytest.mark.slow),
        pytest.param(("segments",), marks=pytest.mark.slow),
    ],
    ids=name,
)
def test_pallas_kernel_interpreted_equals_the_formula(kinds):
    check("pallas_tpu", make_problem(kinds, length=131, size=140))


@st.composite
def problems(draw):
    groups, repeats = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2)]))
    kinds = draw(st.lists(st.sampled_from(sorted({k for ks in KINDS for k in ks})), max_size=3))
    return make_problem(
        tuple(kinds),
        batch=draw(st.integers(1, 3)),
        length=draw(st.integers(1, 37)),
        size=draw(st.integers(1, 37)),
        heads=groups * repeats,
        groups=groups,
        dim=draw(st.sampled_from([16, 40, 64, 128, 256])),
        seed=draw(st.integers(0, 9)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", ["xla", "blockwise"])
def test_attention_of_random_problems_equals_the_formula(implementation, dtype, monkeypatch):
    targets = {"full": (16, 600), "causal": (8, 128), "segments": (8, 64)}
    monkeypatch.setattr(blocks, "_TARGETS", targets)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(problems())
    def compare(problem):
        check(implementation, problem, dtype)

    compare()


@pytest.mark.parametrize("implementation", ["reference", "xla", "blockwise"])
def test_attention_in_bfloat16_equals_the_formula(implementation, small_blocks):
    check(implementation, make_problem(("causal", "bias")), "bfloat16")


@pytest.mark.parametrize("implementation", ["reference", "xla", "blockwise"])
def test_attention_dropout_is_the_same_in_all_implementations(implementation, small_blocks):
    problem, rng, rate = make_problem(("causal",)), jax.random.key(3), 0.4
    index = element_index((None, 4, 5, 7), np.indices((2, 4, 5, 7), np.uint32))
    kept = np.asarray(keep(seed_words(rng), rate, index))
    want = attention_oracle.attend(problem, kept, rate)
    got = run(implementation, problem, dropout_rate=rate, rng=rng)
    for key, array in want.items():
        np.testing.assert_allclose(got[key], array, rtol=1e-4, atol=1e-5)


def test_oracle_gradients_equal_finite_differences():
    kinds = ("mask", "bias", "distance_bias")
    problem = make_problem(kinds, batch=1, length=2, size=3, heads=2, groups=1, dim=2)
    gradients = attention_oracle.attend(problem)
    arrays = {
        "query": problem.query,
        "key": problem.key,
        "value": problem.value,
        "bias": problem.masking["bias"],
        "distance_bias": problem.masking["distance_bias"],
    }
    for key, array in arrays.items():
        for index in np.ndindex(array.shape):
            sums, before = [], array[index]
            for moved in (before + 1e-5, before - 1e-5):
                array[index] = moved
                sums.append(np.sum(attention_oracle.attend(problem)["out"] * problem.d_out))
            array[index] = before
            np.testing.assert_allclose(gradients[key][index], (sums[0] - sums[1]) / 2e-5, atol=1e-8)


@pytest.mark.parametrize(
    "kinds", [("causal", "segments", "bias"), ("lengths", "softcap")], ids=name
)
@pytest.mark.parametrize("implementation", ["xla", "blockwise"])
def test_further_derivatives_equal_differences_of_the_formulas(implementation, kinds, small_blocks):
    """Of outputs and gradients in float64; of loops that skip blocks, too."""
    # Blocks of 16 queries and keys, the last ones in part.
    problem, step = make_problem(kinds, length=20, size=35), 1e-5
    rng = np.random.default_rng(1)
    inputs = {name: getattr(problem, name) for name in ("query", "key", "value")}
    moves = {name: rng.normal(size=x.shape) for name, x in inputs.items()}
    beyond, before = (
        attention_oracle.attend(
            dataclasses.replace(problem, **{n: x + by * moves[n] for n, x in inputs.items()})
        )
        for by in (step, -step)
    )
    attend, biases = attention_of(implementation, problem)

    @jax.jit
    def compute(arrays, moves, d_out):
        def gradient(arrays):
            return jax.grad(lambda a: jnp.vdot(attend(**a, biases=biases), d_out))(arrays)

        def along(arrays):
            return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, gradient(arrays), moves))

        def forward(arrays):
            return {"out": attend(**arrays, biases=biases)}

        return (
            jax.jvp(gradient, (arrays,), (moves,))[1],
            jax.grad(along)(arrays),
            jax.jvp(forward, (arrays,), (moves,))[1],
        )

    for got in compute(*jax.tree.map(np.float32, (inputs, moves, problem.d_out))):
        for name in got:
            want = (beyond[name] - before[name]) / (2 * step)
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_kernels_with_gradients_alone_name_implementations_with_all_derivatives(
    stand_in_for_cudnn,
):
    attend, biases = attention_of("cudnn", make_problem(("causal",)))
    x = jnp.ones((2, 4, 4, 8))

    def gradient(query):
        return jax.grad(lambda query: jnp.sum(attend(query, x, x, biases) ** 2))(query)

    refusal = r"cudnn has gradients, but no forward mode .*; use xla, or blockwise for long rows"

    def by_cotangent(d_out):
        """Reaches the gradient alone: the forward pass does not depend on `d_out`."""
        return jnp.sum(jax.vjp(lambda query: attend(query, x, x, biases), x)[1](d_out)[0])

    for second in (
        lambda: jax.jvp(lambda query: attend(query, x, x, biases), (x,), (x,)),
        lambda: jax.jvp(gradient, (x,), (x,)),
        lambda: jax.grad(lambda query: jnp.sum(gradient(query)))(x),
        lambda: jax.grad(by_cotangent)(x),
    ):
        with pytest.raises(UnsupportedAttentionError, match=refusal):
            second()


def test_attention_without_keys_is_zero_in_value_and_gradient(small_blocks):
    problem = make_problem(("mask",))
    for implementation in ("reference", "xla", "blockwise"):
        got = run(implementation, problem)
        assert not np.any(got["out"][0, 0])
        assert not np.any(got["query"][0, 0])
        assert np.any(got["query"][0, 1])


def test_attention_weights_sum_to_one():
    problem = make_problem()
    weights = attention.attention_weights(jnp.asarray(problem.query), jnp.asarray(problem.key))
    assert weights.shape == (2, 4, 5, 7)
    np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, rtol=1e-5)


def test_masks_equal_handmade_ones():
    np.testing.assert_array_equal(
        masks.make_causal_mask(2, 4, offset=1)[0, 0], [[1, 1, 0, 0], [1, 1, 1, 0]]
    )
    np.testing.assert_array_equal(
        masks.make_padding_mask(jnp.array([0, 2]), 3)[:, 0, 0], [[0, 0, 0], [1, 1, 0]]
    )
    segments = masks.make_segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 0, 2]]))
    np.testing.assert_array_equal(segments[0, 0], [[1, 0, 0], [0, 0, 1], [0, 0, 0]])
    assert masks.combine_masks(None, None) is None
    both = masks.combine_masks(jnp.array([True, False]), None, jnp.array([True, True]))
    np.testing.assert_array_equal(both, [True, False])
