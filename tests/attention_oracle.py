"""Attention and its gradients in NumPy, float64, and problems to try it on."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class Problem:
    """One call: float64 arrays, and the keyword arguments of `dot_product_attention`."""

    query: np.ndarray  # [B, T, H, D]
    key: np.ndarray  # [B, S, G, D]
    value: np.ndarray  # [B, S, G, D]
    d_out: np.ndarray  # [B, T, H, D]
    masking: dict[str, Any]

    def mask(self) -> np.ndarray:
        """All masks in one, `[B, H, T, S]`, pair by pair."""
        batch, length, heads, _ = self.query.shape
        size = self.key.shape[1]
        out = np.ones((batch, heads, length, size), bool)
        given = self.masking
        if "mask" in given:
            out &= np.broadcast_to(given["mask"], out.shape)
        for b, t, s in np.ndindex(batch, length, size):
            visible = True
            if given.get("causal"):
                visible &= s <= t
            if "key_lengths" in given:
                visible &= s < given["key_lengths"][b]
            if "query_segment_ids" in given:
                here = given["key_segment_ids"][b, s]
                visible &= here != 0 and here == given["query_segment_ids"][b, t]
            out[b, :, t, s] &= bool(visible)
        return out


def make_problem(
    kinds: tuple[str, ...] = (),
    batch: int = 2,
    length: int = 5,
    size: int = 7,
    heads: int = 4,
    groups: int = 2,
    dim: int = 16,
    seed: int = 0,
) -> Problem:
    """Random arrays with the masks named in `kinds`, some rows of which allow nothing."""
    rng = np.random.default_rng(seed)
    query, d_out = rng.normal(size=(2, batch, length, heads, dim))
    key, value = rng.normal(size=(2, batch, size, groups, dim))
    masking: dict[str, Any] = {}
    if "causal" in kinds:
        masking["causal"] = True
    if "lengths" in kinds:
        # With a single key there would be no gradients of scores.
        masking["key_lengths"] = np.maximum(rng.integers(1, size + 1, batch), min(size, 3))
        masking["key_lengths"][1:][-1:] = 0  # of the last row, if it is not the only one
    if "segments" in kinds:
        masking["query_segment_ids"] = np.sort(rng.integers(0, 4, (batch, length)), axis=1)
        masking["key_segment_ids"] = np.sort(rng.integers(0, 4, (batch, size)), axis=1)
    if "mixed_segments" in kinds:
        masking["query_segment_ids"] = rng.integers(0, 3, (batch, length))
        masking["key_segment_ids"] = rng.integers(0, 3, (batch, size))
    if "mask" in kinds:
        masking["mask"] = rng.random((batch, 1, length, size)) < 0.7
        masking["mask"][0, 0, 0] = False
    if "head_mask" in kinds:
        masking["mask"] = rng.random((heads, length, 1)) < 0.7
    if "bias" in kinds:
        masking["bias"] = rng.normal(size=(1, heads, length, size))
    if "row_bias" in kinds:
        masking["bias"] = rng.normal(size=(batch, 1, 1, size))
    if "infinite_bias" in kinds:
        masking["bias"] = np.where(rng.random((length, size)) < 0.5, -np.inf, 0.0)
        masking["bias"][0] = -np.inf
    if "distance_bias" in kinds:
        masking["distance_bias"] = rng.normal(size=(heads, length + size - 1))
    if "softcap" in kinds:
        masking["softcap"] = 0.7
    if "scale" in kinds:
        masking["scale"] = 0.5
    return Problem(query, key, value, d_out, masking)


def attend(
    problem: Problem, kept: np.ndarray | None = None, rate: float = 0.0, absolute: bool = False
) -> dict:
    """softmax(q·k · scale + bias) v, with dropout that keeps `kept`, and all gradients.

    Returns:
      `out`, and `query`, `key`, `value`, `bias`, `distance_bias` with the gradients of
      sum(out · d_out). With `absolute`, each sum is that of its terms' sizes: what rounding errors
      are relative to.
    """
    query, d_out = problem.query, problem.d_out
    repeats = query.shape[2] // problem.key.shape[2]
    key, value = (np.repeat(x, repeats, axis=2) for x in (problem.key, problem.value))
    scale = problem.masking.get("scale", query.shape[-1] ** -0.5)
    scores = np.einsum("bthd,bshd->bhts", query, key) * scale
    bias, softcap = problem.masking.get("bias"), problem.masking.get("softcap")
    slope = np.ones_like(scores)
    distance_bias = problem.masking.get("distance_bias")
    length, size = scores.shape[2:]
    distance = np.arange(size) - np.arange(length)[:, None] + length - 1
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
        slope = 1 - (scores / softcap) ** 2
    if bias is not None:
        scores = scores + bias
    if distance_bias is not None:
        scores = scores + distance_bias[:, distance]
    scores = np.where(problem.mask(), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = exps.sum(axis=-1, keepdims=True)
    weights = exps / np.where(total == 0.0, 1.0, total)
    factor = np.ones_like(weights) if kept is None else kept / (1.0 - rate)
    d_weights = np.einsum("bthd,bshd->bhts", d_out, value) * factor
    d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
    if absolute:
        query, key, value, d_out, d_weights = map(np.abs, (query, key, value, d_out, d_weights))
        d_scores = weights * (d_weights + (d_weights * weights).sum(axis=-1, keepdims=True))
    d_products = d_scores * slope

    def by_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], -1, repeats, x.shape[3]).sum(axis=3)

    results = {
        "out": np.einsum("bhts,bshd->bthd", weights * factor, value),
        "query": np.einsum("bhts,bshd->bthd", d_products, key) * scale,
        "key": by_group(np.einsum("bhts,bthd->bshd", d_products, query) * scale),
        "value": by_group(np.einsum("bhts,bthd->bshd", weights * factor, d_out)),
    }
    if bias is not None:
        broadcast = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        axes = tuple(i for i in range(4) if broadcast.shape[i] == 1)
        results["bias"] = d_scores.sum(axis=axes, keepdims=True).reshape(bias.shape)
    if distance_bias is not None:
        results["distance_bias"] = np.zeros_like(distance_bias)
        for each in d_scores:
            np.add.at(results["distance_bias"], (slice(None), distance), each)
    return results
