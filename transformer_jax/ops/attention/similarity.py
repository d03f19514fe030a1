"""Attention as a soft dictionary: how alike a query is to each key decides what it reads.

Arrays are `[..., T, D]` (queries), `[..., S, D]` (keys) and `[..., S, E]` (values); leading axes
broadcast. A similarity maps query and key to scores `[..., T, S]`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.ops.attention.softmax import masked_softmax

Similarity = Callable[[jax.Array, jax.Array], jax.Array]


def dot(query: jax.Array, key: jax.Array) -> jax.Array:
    """q·k (Luong et al. 2015)."""
    return jnp.einsum("...td,...sd->...ts", query, key)


def scaled_dot(query: jax.Array, key: jax.Array) -> jax.Array:
    """q·k / sqrt(D) (Vaswani et al. 2017): its spread does not grow with D."""
    return dot(query, key) * query.shape[-1] ** -0.5


def general(kernel: jax.Array) -> Similarity:
    """q·W k, the bilinear form with `kernel` W `[Dq, Dk]` (Luong et al. 2015, "general")."""

    def similarity(query: jax.Array, key: jax.Array) -> jax.Array:
        return dot(query @ kernel, key)

    return similarity


def additive(query_kernel: jax.Array, key_kernel: jax.Array, vector: jax.Array) -> Similarity:
    """v·tanh(q U + k W) (Bahdanau et al. 2015), U `[Dq, A]`, W `[Dk, A]`, v `[A]`."""

    def similarity(query: jax.Array, key: jax.Array) -> jax.Array:
        queries, keys = query @ query_kernel, key @ key_kernel
        return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ vector

    return similarity


def soft_lookup(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    similarity: Similarity = scaled_dot,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """What each query reads, and how much of each value it took.

    Args:
      query: `[..., T, Dq]`.
      key: `[..., S, Dk]`.
      value: `[..., S, E]`.
      similarity: `dot`, `scaled_dot`, `general(…)`, `additive(…)`, or any function of both.
      mask: boolean, True = may be read, broadcastable to `[..., T, S]`.

    Returns:
      The reading `[..., T, E]` and the weights `[..., T, S]`; both are zero for a query that may
      read nothing.
    """
    weights = masked_softmax(similarity(query, key), mask)
    return jnp.einsum("...ts,...se->...te", weights, value), weights
