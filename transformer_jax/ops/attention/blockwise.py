"""Exact attention block by block, with memory linear in length and a backward pass.

After Dao, "FlashAttention-2" (2023): the forward pass keeps the output and each row's log-sum-exp.
The backward pass recomputes the weights of a block from them. It is plain JAX and runs everywhere.

Queries are `bgrtd`, keys and values `bgsd` (letters as in `blocks`). Within a block the axes r and
t are one, q: XLA's CPU compiler fuses products with softmax for arrays of at most four axes. No
product needs a transposed copy of its large operand; for that, scores are `bgsq` in the backward
pass.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from transformer_jax.ops.attention import blocks as blocks_lib
from transformer_jax.ops.attention.blocks import Blocks, Grid, Tile, add_to, cut, pad, put
from transformer_jax.ops.attention.call import Extras, Settings, expand
from transformer_jax.ops.attention.softmax import HIDDEN, exponentials
from transformer_jax.ops.dense import soft_cap, soft_cap_slope
from transformer_jax.ops.derivatives import with_gradient

_matmul = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
F32 = jnp.float32
Carry = TypeVar("Carry")
Result = TypeVar("Result")
Arrays = tuple[jax.Array, jax.Array, jax.Array]  # query, key, value
Residuals = tuple[jax.Array, jax.Array]  # output, log-sum-exp of each row


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, extras: Extras, settings: Settings
) -> jax.Array:
    """Attention `[B, T, H, D]`; the arguments are as in `dot_product_attention`."""
    batch, length, heads, dim = query.shape
    size, groups = key.shape[1:3]
    repeats = heads // groups
    skipping = "causal" if settings.causal else "full"
    skipping = skipping if extras.query_segment_ids is None else "segments"
    blocks = blocks_lib.choose_blocks(batch, groups, repeats, length, size, skipping)
    counts = Blocks(
        batch // blocks.b, groups // blocks.g, -(-length // blocks.t), -(-size // blocks.s)
    )
    grid = Grid(settings, blocks, counts, length, size, repeats)

    query = (query * jnp.asarray(settings.scale, query.dtype)).swapaxes(1, 2)
    query = query.reshape(batch, groups, repeats, length, dim)  # --> [B, G, R, T, D]

    def by_key_head(x: jax.Array | None) -> jax.Array | None:
        if x is None:
            return None
        x = expand(x)
        heads = (1, 1) if x.shape[1] == 1 else (groups, repeats)
        x = x.reshape(x.shape[0], *heads, *x.shape[2:])
        return pad(pad(x, 3, blocks.t), 4, blocks.s)

    extras = extras._replace(
        mask=by_key_head(extras.mask),
        bias=by_key_head(extras.bias),
        distance_bias=_by_key_head_and_distance(extras.distance_bias, grid),
        query_segment_ids=pad(extras.query_segment_ids, 1, blocks.t),
        key_segment_ids=pad(extras.key_segment_ids, 1, blocks.s),
    )
    arrays = pad(query, 3, blocks.t), *(pad(x.swapaxes(1, 2), 2, blocks.s) for x in (key, value))
    forward = functools.partial(_forward, grid)
    call = with_gradient(
        lambda *arrays: forward(*arrays)[0], forward, functools.partial(_backward, grid)
    )
    out = call(arrays, extras)
    out = out[:, :, :, :length].reshape(batch, heads, length, dim)  # --> [B, H, T, D]
    return out.swapaxes(1, 2)


def _differentiable(function: Callable[..., Result]) -> Callable[..., Result]:
    """`function(grid, *arrays)` with derivatives that compute all blocks and skip none.

    The function is a first derivative or goes with one. For a second one JAX has to transpose its
    loops, which it cannot where their length depends on masks.
    """
    skipping = jax.custom_jvp(function, nondiff_argnums=(0,))

    @skipping.defjvp
    def differentiate(grid, primals, tangents):
        return jax.jvp(functools.partial(function, grid._replace(skips=False)), primals, tangents)

    return skipping


def _over_keys(
    ranges: jax.Array | None,
    grid: Grid,
    tile: Tile,
    body: Callable[[Carry, Tile], Carry],
    carry: Carry,
) -> Carry:
    """Folds `body(carry, tile)` over the blocks of keys that the queries of `tile` need."""
    if grid.counts.s == 1:
        return body(carry, tile)
    first, last = (0, grid.counts.s) if ranges is None else ranges[tile.b, tile.t]
    return jax.lax.fori_loop(first, last, lambda s, carry: body(carry, tile._replace(s=s)), carry)


def _over_rows(grid: Grid, body: Callable[[Carry, Tile], Carry], carry: Carry) -> Carry:
    """Folds `body(carry, tile)` over the rows of blocks."""
    if grid.num_rows == 1:
        return body(carry, Tile(0, 0, 0))
    return jax.lax.fori_loop(
        0, grid.num_rows, lambda index, carry: body(carry, grid.row(index)), carry
    )


@_differentiable
def _forward(grid: Grid, arrays: Arrays, extras: Extras) -> tuple[jax.Array, Residuals]:
    """Output `bgrtd`, and the residuals of the backward pass."""
    query, key, value = arrays
    ranges = blocks_lib.key_ranges(extras, grid)
    dim = query.shape[4]
    keep_rate = 1.0 - grid.settings.dropout_rate
    single = grid.counts.s == 1

    def row(carry, tile: Tile):
        queries = _join_rows(cut(query, "bgrtd", grid, tile), grid)

        def block(tile: Tile):
            keys, values = (cut(x, "bgsd", grid, tile) for x in (key, value))
            scores = _matmul("bgqd,bgsd->bgqs", queries, keys)
            scores = soft_cap(scores, grid.settings.softcap)
            by_distance = blocks_lib.distance_bias(extras, grid, tile, keys_first=False)
            if by_distance is not None:
                scores = scores + by_distance
            added = blocks_lib.added(extras, grid, tile)
            if added is not None:
                added = _join_rows(added, grid)
            weights, total = exponentials(scores, added, may_be_empty=single)
            # Without a gradient, a single block does not need it, and the compiler removes it.
            top = jnp.max(scores if added is None else scores + added, axis=-1, keepdims=True)
            top = jax.lax.stop_gradient(top)  # as in `exponentials`
            kept = blocks_lib.kept(extras, grid, tile)
            if kept is not None:
                weights = jnp.where(_join_rows(kept, grid), weights / keep_rate, 0.0)
            return top, total, _matmul("bgqs,bgsd->bgqd", weights.astype(values.dtype), values)

        def merge(carry, tile: Tile):
            new = block(tile)
            top = jnp.maximum(carry[0], new[0])
            # Blocks with everything masked get the weight 0 as soon as a visible key follows.
            old_weight, new_weight = jnp.exp(carry[0] - top), jnp.exp(new[0] - top)
            return (
                top,
                carry[1] * old_weight + new[1] * new_weight,
                carry[2] * old_weight + new[2] * new_weight,
            )

        if single:
            top, total, out = block(tile)
        else:
            rows = (*queries.shape[:-1], 1)
            start = jnp.full(rows, HIDDEN, F32), jnp.zeros(rows, F32), jnp.zeros(queries.shape, F32)
            top, total, out = _over_keys(ranges, grid, tile, merge, start)
            # A row with everything masked: its output, and its weights in the backward pass, are 0.
            total = jnp.where(top < HIDDEN / 2, jnp.inf, total)
        log_sum = top + jnp.log(total)
        rows = (*queries.shape[:2], grid.repeats, -1)
        return (
            put(carry[0], (out / total).reshape(*rows, dim), "bgrtd", grid, tile),
            put(carry[1], log_sum.reshape(rows), "bgrt", grid, tile),
        )

    start = jnp.zeros(query.shape, query.dtype), jnp.zeros(query.shape[:-1], F32)
    out, log_sums = _over_rows(grid, row, start)
    return out, (out, log_sums)


@_differentiable
def _backward(
    grid: Grid, arrays: Arrays, extras: Extras, residuals: Residuals, d_out: jax.Array
) -> tuple[Arrays, Extras]:
    (query, key, value), (out, log_sums) = arrays, residuals
    ranges = blocks_lib.key_ranges(extras, grid)
    keep_rate = 1.0 - grid.settings.dropout_rate
    # Each row's weights sum to one: the gradient of the row's normalizer.
    d_sums = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)

    def row(carry, tile: Tile):
        d_query, *others = carry
        queries, d_outs = (_join_rows(cut(x, "bgrtd", grid, tile), grid) for x in (query, d_out))
        b, g, _, d = queries.shape
        log_sum, d_sum = (
            cut(x, "bgrt", grid, tile).reshape(b, g, 1, -1) for x in (log_sums, d_sums)
        )  # --> [b, g, 1, q]

        def block(carry, tile: Tile):
            d_queries, d_key, d_value, d_bias, d_distances = carry
            keys, values = (cut(x, "bgsd", grid, tile) for x in (key, value))
            weights, scores = _weights_again(queries, keys, log_sum, extras, grid, tile)
            d_weights = _matmul("bgsd,bgqd->bgsq", values, d_outs)
            kept = blocks_lib.kept(extras, grid, tile)
            dropped = weights
            if kept is not None:
                kept = _join_rows(kept, grid).swapaxes(2, 3)
                dropped = jnp.where(kept, weights / keep_rate, 0.0)
                d_weights = jnp.where(kept, d_weights / keep_rate, 0.0)
            d_scores = weights * (d_weights - d_sum)
            if d_bias is not None:
                d_block = d_scores.swapaxes(2, 3).reshape(b, g, grid.repeats, -1, keys.shape[2])
                d_bias = add_to(d_bias, d_block, "bgrts", grid, tile)
            if d_distances is not None:
                d_distances = blocks_lib.add_by_distance(d_distances, d_scores, grid, tile)
            d_scores = d_scores * soft_cap_slope(scores, grid.settings.softcap)
            d_scores = d_scores.astype(query.dtype)
            d_queries = d_queries + _matmul("bgsd,bgsq->bgdq", keys, d_scores)
            d_keys = _matmul("bgsq,bgqd->bgsd", d_scores, queries)
            d_values = _matmul("bgsq,bgqd->bgsd", dropped.astype(query.dtype), d_outs)
            return (
                d_queries,
                add_to(d_key, d_keys, "bgsd", grid, tile),
                add_to(d_value, d_values, "bgsd", grid, tile),
                d_bias,
                d_distances,
            )

        start = jnp.zeros((b, g, d, queries.shape[2]), F32), *others
        d_queries, *others = _over_keys(ranges, grid, tile, block, start)
        d_queries = d_queries.swapaxes(2, 3).reshape(b, g, grid.repeats, -1, d)
        return put(d_query, d_queries, "bgrtd", grid, tile), *others

    sums = key, value, extras.bias, extras.distance_bias
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, F32), sums)
    start = jnp.zeros(query.shape, query.dtype), *zeros
    d_query, *rest = _over_rows(grid, row, start)
    rest = jax.tree.map(lambda d_x, x: d_x.astype(x.dtype), tuple(rest), sums)
    d_key, d_value, d_bias, d_distances = rest
    return (d_query, d_key, d_value), Extras(bias=d_bias, distance_bias=d_distances)


def _weights_again(
    queries: jax.Array,
    keys: jax.Array,
    log_sum: jax.Array,
    extras: Extras,
    grid: Grid,
    tile: Tile,
) -> tuple[jax.Array, jax.Array]:
    """Attention weights of a block before dropout, from the rows' log-sum-exp, and the scores.

    Both are `bgsq`. Bias and masks are not in the scores.
    """
    scores = _matmul("bgsd,bgqd->bgsq", keys, queries)
    scores = biased = soft_cap(scores, grid.settings.softcap)
    by_distance = blocks_lib.distance_bias(extras, grid, tile, keys_first=True)
    if by_distance is not None:
        biased = biased + by_distance
    added = blocks_lib.added(extras, grid, tile)
    if added is not None:
        biased = biased + _join_rows(added, grid).swapaxes(2, 3)
    return jnp.exp(biased - log_sum), scores


def _by_key_head_and_distance(x: jax.Array | None, grid: Grid) -> jax.Array | None:
    """A bias by distance `[H, T + S - 1]` as `[G, R, distances]`, with those of the padding."""
    if x is None:
        return None
    x = x.astype(jnp.float32).reshape(-1, grid.repeats, x.shape[1])
    blocks, counts = grid.blocks, grid.counts
    padding = blocks.t * counts.t - grid.query_size, blocks.s * counts.s - grid.key_size
    return jnp.pad(x, ((0, 0), (0, 0), padding))


def _join_rows(x: jax.Array, grid: Grid) -> jax.Array:
    """A block `bgrt…` as `bgq…`. Size 1 of r and t together broadcasts afterwards too."""
    b, g, r, t, *rest = x.shape
    if r * t > 1:
        x = jnp.broadcast_to(x, (b, g, grid.repeats, grid.blocks.t, *rest))
    return x.reshape(b, g, -1, *rest)
