"""Functions with a custom gradient, tested with one that is ten times the true gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.dense import dense
from transformer_jax.ops.derivatives import with_gradient
from transformer_jax.ops.embedding import embed

X, Y = np.float32([2, 3, 5]), np.float32([7, 11, 13])
POWERS = np.int16([2, 3, 1])  # float32 remains what it is


def plain(x, pair):
    """`x ** power * y`."""
    y, powers = pair
    return {"out": x**powers * y, "sum": jnp.sum(y)}


def forward(x, pair):
    return plain(x, pair), x ** pair[1]


def backward(x, pair, power, d_out):
    """Ten times the gradient by `x`, and a hundred times that by `y`."""
    y, powers = pair
    d_y = d_out["out"] * power + d_out["sum"]
    return 10 * d_out["out"] * y * powers * x ** (powers - 1), (100 * d_y, None)


function = with_gradient(plain, forward, backward)
SLOPE = POWERS * X ** (POWERS - 1)  # of x ** power


def out(x, y):
    return function(x, (y, POWERS))["out"]


def loss(x, y):
    values = function(x, (y, POWERS))
    return jnp.sum(values["out"]) + values["sum"]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
def test_derivatives_forward_are_of_the_plain_function_and_gradients_its_own(transform):
    f, g = transform(out), transform(loss)
    value, moved = jax.jvp(f, (X, Y), (np.ones_like(X), 2 * np.ones_like(Y)))
    np.testing.assert_allclose(value, X**POWERS * Y)
    np.testing.assert_allclose(moved, SLOPE * Y + 2 * X**POWERS)
    np.testing.assert_allclose(jax.linearize(lambda x: f(x, Y), X)[1](X), SLOPE * Y * X)
    by_x, by_y = jax.grad(g, (0, 1))(X, Y)
    np.testing.assert_allclose(by_x, 10 * SLOPE * Y)
    np.testing.assert_allclose(by_y, 100 * (X**POWERS + 1))
    np.testing.assert_allclose(jax.grad(g, 1)(X, Y), by_y)  # x is a constant
    # Of the gradient, by both modes; and the gradient of what went forward.
    seconds = 10 * SLOPE * X
    np.testing.assert_allclose(jax.jvp(lambda y: jax.grad(g)(X, y), (Y,), (X,))[1], seconds)
    np.testing.assert_allclose(
        jax.grad(lambda y: jnp.vdot(jax.grad(g)(X, y), X))(Y), seconds, rtol=1e-6
    )
    by_moved = jax.grad(lambda y: jnp.sum(jax.jvp(lambda x: f(x, y), (X,), (X,))[1]))(Y)
    np.testing.assert_allclose(by_moved, SLOPE * X)


def test_derivatives_are_mapped_before_and_after_they_are_taken():
    xs = np.stack([X, 2 * X])
    slopes = POWERS * xs ** (POWERS - 1)
    both = jax.grad(lambda xs, y: jnp.sum(jax.vmap(lambda x: loss(x, y))(xs)), (0, 1))
    by_xs, by_y = both(xs, Y)
    np.testing.assert_allclose(by_xs, 10 * slopes * Y)
    np.testing.assert_allclose(by_y, 100 * (xs**POWERS + 1).sum(0))  # y is shared
    alone = jax.vmap(jax.grad(loss, (0, 1)), (0, None))(xs, Y)
    np.testing.assert_allclose(alone[0], by_xs)
    np.testing.assert_allclose(alone[1], 100 * (xs**POWERS + 1))
    by_columns = jax.vmap(
        lambda x: jax.vmap(lambda y: jax.jvp(out, (x, y), (x, y))[1], 1)(np.stack([Y, -Y], 1))
    )
    want = slopes * Y * xs + xs**POWERS * Y
    np.testing.assert_allclose(by_columns(xs), np.stack([want, -want], 1))
    powers = np.stack([POWERS, POWERS[::-1]])  # what has no tangent is mapped, too
    of_each = jax.vmap(jax.grad(lambda x, n: jnp.sum(function(x, (Y, n))["out"])))(xs, powers)
    np.testing.assert_allclose(of_each, 10 * powers * xs ** (powers - 1) * Y)
    twice = jax.grad(lambda y: jnp.sum(jax.vmap(lambda x: jax.vmap(loss, (0, None))(xs, y))(xs)))
    np.testing.assert_allclose(twice(Y), 200 * (xs**POWERS + 1).sum(0))


def test_derivatives_have_the_axes_of_a_mesh_that_their_value_has():
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("rows",))
    rows = jax.sharding.PartitionSpec("rows")
    gradient = jax.shard_map(jax.grad(loss, (0, 1)), mesh=mesh, in_specs=rows, out_specs=rows)
    by_x, by_y = gradient(X, Y)
    np.testing.assert_allclose(by_x, 10 * SLOPE * Y)
    np.testing.assert_allclose(by_y, 100 * (X**POWERS + 1))


def test_derivatives_forward_of_dense_layers_and_embeddings():
    rng = np.random.default_rng(0)
    shapes = (2, 4), (4, 3, 2), (3, 2)
    x, table, bias = (np.float32(rng.normal(size=shape)) for shape in shapes)
    d_x, move, d_bias = (np.float32(rng.normal(size=shape)) for shape in shapes)

    @jax.jit
    def differentiate(*arrays):
        with jax.default_matmul_precision("highest"):
            return jax.jvp(dense, arrays[:3], arrays[3:])

    lowered = differentiate.lower(x, table, bias, d_x, move, d_bias)
    products = [line for line in lowered.as_text().split("\n") if "dot_general" in line]
    assert len(products) >= 3
    assert all("HIGHEST, HIGHEST" in line for line in products)
    _, got = lowered.compile()(x, table, bias, d_x, move, d_bias)
    want = np.tensordot(d_x, table, 1) + np.tensordot(x, move, 1) + d_bias
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    ids = np.int32([3, 0, 3])
    rows, move = table[:, 0], move[:, 0]
    moved = jax.jvp(lambda rows: embed(rows, ids, jnp.bfloat16), (rows,), (move,))[1]
    np.testing.assert_array_equal(moved, move[ids].astype(jnp.bfloat16))
