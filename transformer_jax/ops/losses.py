"""Cross-entropy with label smoothing, fused with the projection to the vocabulary.

Only one chunk of a step's `[tokens, V]` logits is in memory at a time. The gradient of a chunk is
computed together with its logits, so nothing of that size is kept for the backward pass.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.ops import platforms
from transformer_jax.ops.arguments import require_integers, require_shapes
from transformer_jax.ops.attention.softmax import HIDDEN
from transformer_jax.ops.dense import projected_logits, soft_cap, soft_cap_slope
from transformer_jax.ops.derivatives import with_gradient

# Positions of a chunk. The gradient of the table, `[V, M]` in float32, is read and written once for
# each chunk, and large products are faster on a GPU.
_GPUS = ("gpu", "rocm")
_GPU_CHUNK, _OTHER_CHUNK = 4096, 512


class LossSums(NamedTuple):
    """Sums over tokens, each a float32 scalar; divide by `tokens` for means."""

    loss: jax.Array  # smoothed cross-entropy, in nats
    nll: jax.Array  # cross-entropy without smoothing
    correct: jax.Array  # tokens whose largest logit is the target's
    tokens: jax.Array  # sum of the weights


def cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, label_smoothing: float = 0.0
) -> LossSums:
    """Cross-entropy against `(1 - ε)` on the target plus `ε / V` on every class (as in Optax).

    Args:
      logits: `[..., V]`.
      targets: `[...]` class ids.
      weights: `[...]`, 0 at padding.
      label_smoothing: ε.

    Raises:
      ValueError: targets that are no integers, shapes that differ.
    """
    targets = jnp.asarray(targets)
    require_integers(targets=targets)
    require_shapes(targets=(targets, logits.shape[:-1]), weights=(weights, logits.shape[:-1]))
    logits = logits.astype(jnp.float32)
    weights = weights.astype(jnp.float32)
    targets = targets.astype(jnp.int32)
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    of_each = _of_each(
        normalizer=jax.nn.logsumexp(logits, axis=-1),
        at_target=_select(logits, classes == targets[..., None]),
        largest=jnp.max(logits, axis=-1),
        mean=jnp.mean(logits, axis=-1),
        label_smoothing=label_smoothing,
    )
    return _weighted(of_each, weights)


def _select(logits: jax.Array, is_target: jax.Array) -> jax.Array:
    """Logits `[...]` of the targets. A gather would need all classes on one device."""
    return jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)


def _row_statistics(
    logits: jax.Array, is_target: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Largest logit, sum of `exp(logit - largest)`, and logit of the target, `[N]` each.

    Args:
      logits: `[N, V]` float32, finite.
      is_target: `[N, V]`, True at one class of each position.
    """
    if platforms.current() not in _GPUS:
        largest = jnp.max(logits, axis=-1)
        total = jnp.sum(jnp.exp(logits - largest[:, None]), axis=-1)
        return largest, total, _select(logits, is_target)

    # A GPU waits for its memory here: one pass over the logits is faster than three.
    def merge(a, b):
        largest = jnp.maximum(a[0], b[0])
        total = a[1] * jnp.exp(a[0] - largest) + b[1] * jnp.exp(b[0] - largest)
        return largest, total, a[2] + b[2]

    arrays = logits, jnp.ones_like(logits), jnp.where(is_target, logits, 0.0)
    zero = jnp.zeros((), logits.dtype)
    return jax.lax.reduce(arrays, (zero + HIDDEN, zero, zero), merge, dimensions=(1,))


def _of_each(
    normalizer: jax.Array,
    at_target: jax.Array,
    largest: jax.Array,
    mean: jax.Array,
    label_smoothing: float,
) -> LossSums:
    """What each position adds, by its log-sum-exp, its target's logit, its maximum and mean."""
    nll = normalizer - at_target
    # Without smoothing, the logit of a class that is impossible (-inf) does not count.
    smooth = jnp.where(label_smoothing > 0, normalizer - mean, 0.0)
    loss = (1.0 - label_smoothing) * nll + label_smoothing * smooth
    return LossSums(
        loss=loss,
        nll=nll,
        correct=(at_target >= largest).astype(jnp.float32),
        tokens=jnp.ones_like(nll),
    )


def _weighted(of_each: LossSums, weights: jax.Array) -> LossSums:
    """Sums over positions of numbers of each."""
    return LossSums(*(jnp.sum(x * weights) for x in of_each))


def projected_cross_entropy(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    label_smoothing: float = 0.0,
    chunk_size: int | None = None,
    bias: jax.Array | None = None,
    softcap: float = 0.0,
    second: jax.Array | None = None,
    r_drop: float = 0.0,
) -> LossSums:
    """`cross_entropy(hidden @ table.T + bias, …)` with `[chunk_size, V]` logits in memory.

    By `hidden`, `table` and `bias` only `loss` has a gradient; by `weights` each sum has one.

    With a `second` pass, sums are means of both passes, and a quarter of `r_drop` times
    `KL(p ‖ q) + KL(q ‖ p)` of their distributions p and q is added to the loss of each token
    (R-Drop: Wu et al. 2021, whose loss is twice this).

    Args:
      hidden: `[N, M]` in the type of the product.
      table: `[V, M]` output embedding.
      targets: `[N]` class ids.
      weights: `[N]`, 0 at padding.
      label_smoothing: ε.
      chunk_size: positions whose logits are in memory at once; None: by the platform.
      bias: `[V]`, added to every position's logits.
      softcap: bound of the logits, as of `projected_logits`.
      second: `[N, M]` of another pass over the same tokens, with other dropout.
      r_drop: weight of the difference between the passes.

    Raises:
      ValueError: targets that are no integers, shapes that do not fit.
    """
    passes = [hidden] if second is None else [hidden, second]
    _check_shapes(hidden, table, targets, weights, bias, second)
    size = hidden.shape[0]
    chunk_size = max(min((chunk_size or _platform_chunk()) // len(passes), size), 1)
    padding = -size % chunk_size

    def chunked(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, chunk_size, *x.shape[1:])  # --> [N / chunk, chunk, ...]

    def in_each_pass(x: jax.Array) -> jax.Array:
        return jnp.concatenate([chunked(x)] * len(passes), axis=1)

    weights = weights.astype(jnp.float32) / len(passes)
    r_drop = 0.0 if second is None else r_drop
    sums = _chunked_sums(label_smoothing=label_smoothing, softcap=softcap, r_drop=r_drop)(
        jnp.concatenate([chunked(x) for x in passes], axis=1),  # [N / chunk, passes * chunk, M]
        table,
        bias,
        in_each_pass(targets),
        in_each_pass(weights),
    )
    return LossSums(*sums)


def _check_shapes(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    bias: jax.Array | None,
    second: jax.Array | None,
) -> None:
    (size, width), classes = hidden.shape, table.shape[0]
    require_integers(targets=targets)
    require_shapes(
        table=(table, (classes, width)),
        targets=(targets, (size,)),
        weights=(weights, (size,)),
        bias=(bias, (classes,)),
        second=(second, (size, width)),
    )


def _platform_chunk() -> int:
    return _GPU_CHUNK if platforms.current() in _GPUS else _OTHER_CHUNK


def _difference(
    logits: jax.Array, normalizer: jax.Array, weights: jax.Array, r_drop: float
) -> tuple[jax.Array, jax.Array]:
    """What R-Drop adds to the loss of each position, and the sum's gradient by the logits.

    Args:
      logits: `[2 * N, V]` of the first and then of the second pass.
      normalizer: `[2 * N]` their log-sum-exp.
      weights: `[2 * N]`, half of each token's in each pass.
      r_drop: weight of the difference.
    """
    log_p, log_q = jnp.split(logits - normalizer[:, None], 2)
    p, q, ratio = jnp.exp(log_p), jnp.exp(log_q), log_p - log_q
    p_from_q = jnp.sum(p * ratio, axis=-1, keepdims=True)  # KL(p ‖ q)
    q_from_p = -jnp.sum(q * ratio, axis=-1, keepdims=True)
    scale = r_drop / 2 * jnp.split(weights, 2)[0][:, None]  # of both passes together
    of_p = p * (ratio - p_from_q) + p - q
    of_q = q * (-ratio - q_from_p) + q - p
    of_each = r_drop / 4 * jnp.tile((p_from_q + q_from_p)[:, 0], 2)
    return of_each, jnp.concatenate([scale * of_p, scale * of_q])


def _chunked_sums(**settings: float) -> Callable[..., Sequence[jax.Array]]:
    """The four sums, whose gradients are computed together with them."""
    plain, forward = (
        functools.partial(function, **settings) for function in (_plain_sums, _sums_and_gradients)
    )
    return with_gradient(plain, forward, _backward)


def _plain_sums(hidden, table, bias, targets, weights, *, label_smoothing, softcap, r_drop):
    table = table.astype(hidden.dtype)

    def add(sums, chunk):
        h, t, w = chunk
        logits = projected_logits(h, table, bias, softcap)
        new = cross_entropy(logits, t, w, label_smoothing)
        if r_drop:
            normalizer = jax.nn.logsumexp(logits, axis=-1)
            more, _ = _difference(logits, normalizer, w, r_drop)
            new = new._replace(loss=new.loss + jnp.sum(more * w))
        return jax.tree.map(jnp.add, sums, tuple(new)), None

    zero = (jnp.zeros((), jnp.float32),) * 4
    return jax.lax.scan(add, zero, (hidden, targets, weights))[0]


def _sums_and_gradients(hidden, table, bias, targets, weights, *, label_smoothing, softcap, r_drop):
    cast = table.astype(hidden.dtype)
    classes = jnp.arange(table.shape[0], dtype=targets.dtype)
    # Without a bound, the mean of a position's logits is the logit of the mean row.
    mean_row = jnp.mean(cast.astype(jnp.float32), axis=0)
    mean_bias = 0.0 if bias is None else jnp.mean(bias)

    def mean(h, logits):
        if softcap:
            return jnp.mean(logits, axis=-1)
        return jnp.matmul(h.astype(jnp.float32), mean_row, precision="highest") + mean_bias

    def add(carry, chunk):
        sums, table_grad, bias_grad = carry
        h, t, w = chunk
        logits = projected_logits(h, cast, bias, softcap)
        is_target = classes[None] == t[:, None]
        largest, total, at_target = _row_statistics(logits, is_target)
        powers = jnp.exp(logits - largest[:, None])
        normalizer = largest + jnp.log(total)
        of_each = _of_each(
            normalizer=normalizer,
            at_target=at_target,
            largest=largest,
            mean=mean(h, logits),
            label_smoothing=label_smoothing,
        )
        # d loss / d logits = softmax - (1 - ε) [class = target] - ε / V, times the weight.
        smoothed = label_smoothing / len(classes)
        smoothed = smoothed + jnp.where(is_target, 1.0 - label_smoothing, 0.0)
        grad = powers * (w / total)[:, None] - smoothed * w[:, None]
        if r_drop:
            more, slope = _difference(logits, normalizer, w, r_drop)
            of_each, grad = of_each._replace(loss=of_each.loss + more), grad + slope
        grad = grad * soft_cap_slope(logits, softcap)
        bias_grad = jax.tree.map(lambda total: total + jnp.sum(grad, axis=0), bias_grad)
        grad = grad.astype(h.dtype)
        hidden_grad = jnp.einsum("nv,vm->nm", grad, cast)
        # [M, V], so that the smaller factor is transposed.
        table_grad += jnp.einsum("nm,nv->mv", h, grad, preferred_element_type=jnp.float32)
        sums = jax.tree.map(jnp.add, sums, tuple(_weighted(of_each, w)))
        return (sums, table_grad, bias_grad), (hidden_grad, tuple(of_each))

    zero = (jnp.zeros((), jnp.float32),) * 4
    start = zero, jnp.zeros(table.shape[::-1], jnp.float32), jax.tree.map(jnp.zeros_like, bias)
    (sums, table_grad, bias_grad), (hidden_grad, of_each) = jax.lax.scan(
        add, start, (hidden, targets, weights)
    )
    return sums, ((hidden_grad, table_grad.T.astype(table.dtype), bias_grad), of_each)


def _backward(hidden, table, bias, targets, weights, residuals, cotangents):
    by_loss, of_each = residuals
    grads = jax.tree.map(lambda grad: grad * cotangents[0].astype(grad.dtype), by_loss)
    return *grads, None, sum(d * x for d, x in zip(cotangents, of_each, strict=True))


def alignment_loss(
    query: jax.Array,
    key: jax.Array,
    alignment: jax.Array,
    mask: jax.Array,
    scale: float | None = None,
    softcap: float = 0.0,
) -> jax.Array:
    """Sum of cross-entropies between a head's attention and given links (Garg et al., 2019).

    A token with n links is to attend to each with 1 / n; one without links adds 0.

    Args:
      query: `[B, T, D]` of the head.
      key: `[B, S, D]`.
      alignment: `[B, T, N]` linked source positions of each target position, -1 for none.
      mask: `[B, T, S]` boolean, True = may attend.
      scale: factor of the scores; None: 1 / sqrt(D).
      softcap: their bound; 0: none.
    """
    query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = soft_cap(jnp.einsum("btd,bsd->bts", query * scale, key), softcap)
    log_weights = jax.nn.log_softmax(jnp.where(mask, scores, HIDDEN), axis=-1)
    sources = jnp.arange(key.shape[1], dtype=alignment.dtype)
    is_linked = alignment[..., None] == sources[None, None, None]  # --> [B, T, N, S]
    at_links = jnp.sum(jnp.where(is_linked, log_weights[:, :, None], 0.0), axis=(2, 3))  # [B, T]
    num_links = jnp.maximum(jnp.sum(alignment >= 0, axis=-1), 1)
    return -jnp.sum(at_links / num_links.astype(jnp.float32))
