"""Blocks of one attention: their sizes, their masks, and which of them can be skipped.

Axes are named by letter: b batch row, g key head, r query head of a key head, t query, s key, d
within a head. Masks and biases are `bgrts`, with size 1 where they broadcast.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.ops.attention.call import Extras, Settings, dropout_index
from transformer_jax.ops.attention.distances import by_distance, sum_by_distance
from transformer_jax.ops.attention.softmax import additive_mask
from transformer_jax.ops.dropout import keep
from transformer_jax.ops.masks import combine_masks


class Blocks(NamedTuple):
    """Sizes of a block along batch rows, key heads, queries and keys."""

    b: int
    g: int
    t: int
    s: int


Index = int | jax.Array


class Tile(NamedTuple):
    """Index of a block along batch rows, key heads, queries and keys."""

    b: Index
    g: Index
    t: Index
    s: Index = 0


class Grid(NamedTuple):
    """One attention cut into blocks; all of it is static."""

    settings: Settings
    blocks: Blocks
    counts: Blocks  # number of blocks
    query_size: int  # without padding
    key_size: int
    repeats: int  # query heads of a key head
    skips: bool = True  # blocks that no query of a row of blocks needs

    def row(self, index: Index) -> Tile:
        """The first block of keys in the row of blocks number `index`."""
        per_head = self.counts.t
        head = index // per_head
        return Tile(head // self.counts.g, head % self.counts.g, index % per_head)

    @property
    def num_rows(self) -> int:
        """Rows of blocks."""
        return self.counts.b * self.counts.g * self.counts.t


# What allows blocks to be skipped -> (queries and keys of a block, its elements over all batch rows
# and heads), measured on CPU. Large blocks cost least for each element; small ones are skipped more
# often.
_TARGETS = {"full": (2048, 2**20), "causal": (512, 2**20), "segments": (128, 2**17)}


def choose_blocks(
    batch: int, groups: int, repeats: int, query_size: int, key_size: int, skipping: str
) -> Blocks:
    """Equal parts of the lengths, then as many heads and batch rows as fit into a block.

    Args:
      batch: B.
      groups: key heads, G.
      repeats: query heads of a key head, R.
      query_size: T.
      key_size: S.
      skipping: what allows blocks to be skipped: `full` (nothing), `causal` or `segments`.
    """
    target, elements = _TARGETS[skipping]
    query = _even_part(query_size, max(1, target // repeats))
    key = _even_part(key_size, target)
    fitting = max(1, elements // (repeats * query * key))
    heads = _divisor(groups, fitting)
    rows = _divisor(batch, fitting // groups) if heads == groups else 1
    return Blocks(rows, heads, query, key)


def _divisor(size: int, most: int) -> int:
    """Largest divisor of `size` that is at most `most`."""
    return next(n for n in range(max(1, min(size, most)), 0, -1) if size % n == 0)


def _even_part(size: int, target: int) -> int:
    """Size of equal parts of about `target` at most; the last part may be padded.

    Parts are multiples of the 16 floats in a register of AVX-512.
    """
    parts = -(-size // target)
    return size if parts == 1 else -(-size // (16 * parts)) * 16


def pad(x: jax.Array | None, axis: int, block: int) -> jax.Array | None:
    """`x` with `axis` zero-padded to a multiple of `block`; axes of size 1 broadcast."""
    if x is None or x.shape[axis] == 1 or x.shape[axis] % block == 0:
        return x
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -x.shape[axis] % block)
    return jnp.pad(x, padding)


def _starts_and_sizes(
    axes: str, shape: tuple[int, ...], grid: Grid, tile: Tile
) -> tuple[list[Index], list[int]]:
    """Slice of a block from an array with these axes; axes of size 1 broadcast."""
    starts, sizes = [], []
    for axis, size in zip(axes, shape, strict=True):
        cut = axis in Blocks._fields and size > 1
        block = getattr(grid.blocks, axis) if cut else size
        starts.append(getattr(tile, axis) * block if cut else 0)
        sizes.append(block)
    return starts, sizes


def cut(x: jax.Array, axes: str, grid: Grid, tile: Tile) -> jax.Array:
    """The block `tile` of `x`, whose axes are `axes`."""
    return jax.lax.dynamic_slice(x, *_starts_and_sizes(axes, x.shape, grid, tile))


def put(x: jax.Array, part: jax.Array, axes: str, grid: Grid, tile: Tile) -> jax.Array:
    """`x` with its block `tile` replaced by `part`."""
    starts, _ = _starts_and_sizes(axes, x.shape, grid, tile)
    return jax.lax.dynamic_update_slice(x, part.astype(x.dtype), starts)


def add_to(x: jax.Array, part: jax.Array, axes: str, grid: Grid, tile: Tile) -> jax.Array:
    """`x` with `part` added to its block `tile`, summed over axes that broadcast."""
    old = cut(x, axes, grid, tile)
    broadcast = [i for i, size in enumerate(old.shape) if size == 1]
    return put(x, old + jnp.sum(part, axis=broadcast, keepdims=True), axes, grid, tile)


def _coordinates(grid: Grid, tile: Tile) -> list[jax.Array]:
    """Batch row, query head, query and key of each element, broadcastable to `bgrts`."""

    def along(axis: str) -> jax.Array:
        numbers = getattr(tile, axis) * getattr(grid.blocks, axis)
        numbers = numbers + jnp.arange(getattr(grid.blocks, axis))
        return numbers.reshape([-1 if letter == axis else 1 for letter in "bgrts"])

    repeat = jnp.arange(grid.repeats).reshape(1, 1, -1, 1, 1)
    return [along("b"), along("g") * grid.repeats + repeat, along("t"), along("s")]


def added(extras: Extras, grid: Grid, tile: Tile) -> jax.Array | None:
    """Bias and masks to add to a block's scores, float32, broadcastable to `bgrts`."""
    _, _, query, key = _coordinates(grid, tile)
    parts = []
    if extras.mask is not None:
        parts.append(cut(extras.mask, "bgrts", grid, tile))
    if grid.key_size < grid.blocks.s * grid.counts.s:
        parts.append(key < grid.key_size)
    if grid.settings.causal:
        parts.append(key <= query)
    if extras.key_lengths is not None:
        parts.append(key < cut(extras.key_lengths, "b", grid, tile)[:, None, None, None, None])
    if extras.query_segment_ids is not None and extras.key_segment_ids is not None:
        query_ids = cut(extras.query_segment_ids, "bt", grid, tile)[:, None, None, :, None]
        key_ids = cut(extras.key_segment_ids, "bs", grid, tile)[:, None, None, None, :]
        parts.append((query_ids == key_ids) & (key_ids != 0))
    bias = None if extras.bias is None else cut(extras.bias, "bgrts", grid, tile)
    return additive_mask(combine_masks(*parts), bias)


def _distances(grid: Grid, tile: Tile) -> tuple[Index, Index]:
    """Index in `distance_bias` `[G, R, distances]` of a block's first head and first distance."""
    first = tile.s * grid.blocks.s - tile.t * grid.blocks.t
    return tile.g * grid.blocks.g, first + (grid.counts.t - 1) * grid.blocks.t


def distance_bias(extras: Extras, grid: Grid, tile: Tile, keys_first: bool) -> jax.Array | None:
    """What a block's scores have added by distance: `[1, g, q, s]`, or `[1, g, s, q]`; or None."""
    if extras.distance_bias is None:
        return None
    head, first = _distances(grid, tile)
    sizes = grid.blocks.t, grid.blocks.s
    values = jax.lax.dynamic_slice(
        extras.distance_bias, (head, 0, first), (grid.blocks.g, grid.repeats, sum(sizes) - 1)
    )
    if keys_first:
        x = by_distance(values[..., ::-1], *sizes[::-1])  # --> [g, r, s, t]
        return x.swapaxes(1, 2).reshape(1, grid.blocks.g, sizes[1], -1)
    return by_distance(values, *sizes).reshape(1, grid.blocks.g, -1, sizes[1])


def add_by_distance(d_bias: jax.Array, d_scores: jax.Array, grid: Grid, tile: Tile) -> jax.Array:
    """`d_bias` `[G, R, distances]` with a block's gradient, `[b, g, s, q]`, added."""
    head, first = _distances(grid, tile)
    x = d_scores.reshape(*d_scores.shape[:3], grid.repeats, -1).swapaxes(2, 3)
    # XLA's sum of large arrays over batch rows is slow on CPUs, so it comes last.
    sums = sum_by_distance(x)[..., ::-1].sum(axis=0)  # of [b, g, r, s, t]
    start = head, 0, first
    old = jax.lax.dynamic_slice(d_bias, start, sums.shape)
    return jax.lax.dynamic_update_slice(d_bias, old + sums, start)


def kept(extras: Extras, grid: Grid, tile: Tile) -> jax.Array | None:
    """Whether dropout keeps each weight of a block, `bgrts`; None: no dropout."""
    if extras.seeds is None:
        return None
    sizes = (grid.query_size, grid.key_size)
    index = dropout_index(extras, grid.settings, sizes, _coordinates(grid, tile))
    return keep(extras.seeds, grid.settings.dropout_rate, index)


def key_ranges(extras: Extras, grid: Grid) -> jax.Array | None:
    """Range of the blocks of keys that each block of queries needs.

    Returns:
      First block and one past the last, `[batch blocks, query blocks, 2]` integers; None: all.
    """
    counts, blocks = grid.counts, grid.blocks
    if counts.s == 1 or not grid.skips:
        return None
    needed = jnp.ones((counts.b, counts.t, counts.s), bool)
    first_key = jnp.arange(counts.s) * blocks.s
    needs_all = True
    if grid.settings.causal:
        last_query = (jnp.arange(counts.t) + 1) * blocks.t - 1
        needed, needs_all = needed & (first_key <= last_query[:, None]), False
    if extras.key_lengths is not None:
        longest = extras.key_lengths.reshape(counts.b, -1).max(axis=1)
        needed, needs_all = needed & (first_key < longest[:, None, None]), False
    if extras.query_segment_ids is not None and extras.key_segment_ids is not None:
        # Blocks whose ranges of ids do not overlap have no id in common.
        low_query, high_query = _id_range(extras.query_segment_ids, counts.b, counts.t)
        low_key, high_key = _id_range(extras.key_segment_ids, counts.b, counts.s)
        overlap = low_query[:, :, None] <= high_key[:, None, :]
        overlap = overlap & (low_key[:, None, :] <= high_query[:, :, None])
        needed, needs_all = needed & overlap, False
    if needs_all:
        return None
    first = jnp.argmax(needed, axis=-1)
    last = counts.s - jnp.argmax(needed[..., ::-1], axis=-1)
    return jnp.stack([first, jnp.where(jnp.any(needed, axis=-1), last, first)], axis=-1)


def _id_range(ids: jax.Array, rows: int, count: int) -> tuple[jax.Array, jax.Array]:
    """Smallest and largest id in each block without padding, both `[rows, count]`."""
    ids = ids.reshape(rows, -1, count, ids.shape[1] // count)
    limits = jnp.iinfo(ids.dtype)
    low = jnp.where(ids == 0, limits.max, ids).min(axis=(1, 3))
    return low, jnp.where(ids == 0, limits.min, ids).max(axis=(1, 3))
