"""Soft look-up in a dictionary, and four similarities between queries and keys.

Pages 1, 9 and 10 of the guide use it. Queries are `[..., T, D]`, keys `[..., S, D]`, values
`[..., S, E]`. A similarity maps queries and keys to scores `[..., T, S]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Similarity = Callable[[jax.Array, jax.Array], jax.Array]


def dot(query: jax.Array, key: jax.Array) -> jax.Array:
    """q·k (Luong et al. 2015)."""
    return jnp.einsum("...td,...sd->...ts", query, key)


def scaled_dot(query: jax.Array, key: jax.Array) -> jax.Array:
    """q·k / sqrt(D) (Vaswani et al. 2017): its spread does not grow with D."""
    return dot(query, key) * query.shape[-1] ** -0.5


def general(kernel: jax.Array) -> Similarity:
    """q·W k (Luong et al. 2015); `kernel` W is `[D_query, D_key]`."""
    return lambda query, key: dot(query @ kernel, key)


def additive(query_kernel: jax.Array, key_kernel: jax.Array, vector: jax.Array) -> Similarity:
    """v·tanh(q U + k W) (Bahdanau et al. 2015); U `[D_query, A]`, W `[D_key, A]`, v `[A]`."""

    def similarity(query: jax.Array, key: jax.Array) -> jax.Array:
        queries, keys = query @ query_kernel, key @ key_kernel  # [..., T, A], [..., S, A]
        return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ vector

    return similarity


def soft_lookup(
    query: jax.Array, key: jax.Array, value: jax.Array, similarity: Similarity = scaled_dot
) -> tuple[jax.Array, jax.Array]:
    """Returns each query's mixture of the values `[..., T, E]`, and its weights `[..., T, S]`."""
    weights = jax.nn.softmax(similarity(query, key), axis=-1)
    return weights @ value, weights
