"""Checks the numbers of this machine's devices, each against a computation that shares no code.

    python benchmarks/accelerator_checks.py [--json=FILE]

Attention, forward and backward, in every implementation that supports the call: against the formula
in NumPy's float64. Gradients of a small model in bfloat16: against those in float32.
"""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import attention_workers
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from attention_workers import Problem
from timing import write_json

from transformer_jax.config import Config, ModelConfig
from transformer_jax.ops.attention import IMPLEMENTATIONS, dot_product_attention
from transformer_jax.ops.attention.dispatch import UnsupportedAttentionError
from transformer_jax.training.step import TrainStep

FLAGS = flags.FLAGS
# Largest difference, relative to the largest value of the array.
TOLERANCE = {"float32": 2e-3, "bfloat16": 2e-2}  # float32 products of a GPU may be TF32
GRADIENT_TOLERANCE = 0.05  # norm of the difference, relative to the norm
HEAD_DIM, SMALL_HEAD_DIM, HEADS, BATCH = 64, 32, 2, 2


def formula(inputs: dict[str, np.ndarray], allowed: np.ndarray | None) -> list[np.ndarray]:
    """Output, and gradients of query, key and value, by the formula in float64.

    Args:
      inputs: `query`, `key`, `value` and the output's gradient `d_out`, each `[B, L, H, D]`.
      allowed: `[B, 1, T or 1, S]`, True = may attend; a query that may attend to no key gives 0.
        None: all.
    """
    names = ("query", "key", "value", "d_out")
    query, key, value, d_out = (np.swapaxes(inputs[name], 1, 2).astype(float) for name in names)
    scale = query.shape[-1] ** -0.5
    scores = scale * query @ np.swapaxes(key, 2, 3)
    allowed = np.broadcast_to(True if allowed is None else allowed, scores.shape)
    largest = np.max(scores, axis=-1, keepdims=True, where=allowed, initial=-1e300)
    weights = np.where(allowed, np.exp(np.minimum(scores - largest, 0.0)), 0.0)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    out = weights @ value
    d_weights = d_out @ np.swapaxes(value, 2, 3)
    d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
    grads = [
        scale * d_scores @ key,
        scale * np.swapaxes(d_scores, 2, 3) @ query,
        np.swapaxes(weights, 2, 3) @ d_out,
    ]
    return [np.swapaxes(x, 1, 2) for x in (out, *grads)]


def implementation_errors(
    check: str,
    inputs: dict[str, np.ndarray],
    dtype: str,
    allowed: np.ndarray | None,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """The error of every implementation that supports a call, forward and backward.

    Args:
      check: what the call is.
      inputs: as of `formula`.
      dtype: of the computation. Inputs are rounded to it before the formula, too.
      allowed: as of `formula`.
      **options: of `dot_product_attention`, which mean the same as `allowed`.
    """
    rounded = {name: jnp.asarray(x, dtype) for name, x in inputs.items()}
    expected = formula({name: np.asarray(x, float) for name, x in rounded.items()}, allowed)
    for name in IMPLEMENTATIONS:

        def call(query, key, value, d_out, name=name):
            def attend(*arrays):
                return dot_product_attention(*arrays, implementation=name, **options)

            out, pullback = jax.vjp(attend, query, key, value)
            return out, *pullback(d_out)

        try:
            outputs = jax.jit(call)(*rounded.values())
        except UnsupportedAttentionError:
            continue
        error = max(
            float(np.max(np.abs(np.asarray(got, float) - want)) / np.max(np.abs(want)))
            for got, want in zip(outputs, expected, strict=True)
        )
        yield {
            "check": f"attention {name}, {check}, {dtype}",
            "error": error,
            "tolerance": TOLERANCE[dtype],
        }


def attention_errors() -> Iterator[dict[str, Any]]:
    """The errors in every kind of attention that is timed."""
    for case, length, dtype in itertools.product(FLAGS.cases, map(int, FLAGS.lengths), TOLERANCE):
        problem = Problem(case, BATCH, length, HEADS, HEAD_DIM, dtype, "forward+backward")
        ids = attention_workers.segments(problem)
        yield from implementation_errors(
            f"{case}, {length} keys",
            attention_workers.arrays(problem),
            dtype,
            attention_workers.mask(problem),
            causal=case == "causal",
            query_segment_ids=ids,
            key_segment_ids=ids,
            key_lengths=attention_workers.lengths(problem),
        )


def packed_errors() -> Iterator[dict[str, Any]]:
    """The errors of calls as training has them: packed rows that end with padding.

    Scores are about -120, as in sharp heads of a trained model: `exp(-score)` overflows in float32.
    """
    rng = np.random.default_rng(0)
    names = ("query", "key", "value", "d_out")
    for causal, length, dtype in itertools.product((False, True), (64, 128), TOLERANCE):
        sizes = [[20, 9, 28], [length]]  # of the sentences of each row; the first has padding
        ids = np.zeros((len(sizes), length), np.int32)
        for row, row_sizes in zip(ids, sizes, strict=True):
            row[: sum(row_sizes)] = np.repeat(np.arange(len(row_sizes)) + 1, row_sizes)
        shape = (len(sizes), length, HEADS, SMALL_HEAD_DIM)
        inputs = {name: rng.standard_normal(shape, np.float32) for name in names}
        inputs["query"][..., 0] = 120 * SMALL_HEAD_DIM**0.5
        inputs["key"][..., 0] = -1
        same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0)
        yield from implementation_errors(
            f"packed{' and causal' * causal} with padding, {length} keys, scores of -120",
            inputs,
            dtype,
            (same & np.tri(length, dtype=bool) if causal else same)[:, None],
            causal=causal,
            query_segment_ids=ids,
            key_segment_ids=ids,
        )


def gradient_error() -> dict[str, Any]:
    """Difference of the gradients of a small model in bfloat16 from those in float32."""
    model = ModelConfig(
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=128,
        d_ff=256,
        num_heads=2,
        dropout_rate=0.0,
        source_vocab_size=200,
        target_vocab_size=200,
        decoder_start_id=1,
    )
    batch = _batch(rows=8, length=24)
    grads = {}
    for dtype in TOLERANCE:
        config = Config(model=dataclasses.replace(model, dtype=dtype))  # type: ignore[arg-type]
        step = TrainStep(config)
        params = jax.jit(step.init_state)(jax.random.key(0)).params
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            sums = jax.jit(step.grad_sums)(params, batch, jax.random.key(1))
        grads[dtype] = np.concatenate([np.ravel(x) for x in jax.tree.leaves(sums.grads)])
    difference = grads["bfloat16"] - grads["float32"]
    error = float(np.linalg.norm(difference) / np.linalg.norm(grads["float32"]))
    return {
        "check": "gradients in bfloat16",
        "error": error,
        "tolerance": GRADIENT_TOLERANCE,
    }


def _batch(rows: int, length: int) -> dict[str, np.ndarray]:
    """A batch of sentences of `length` random tokens."""
    rng = np.random.default_rng(0)
    shape = rows, length
    batch: dict[str, np.ndarray] = {}
    for name in ("inputs", "targets"):
        batch[name] = rng.integers(4, 200, shape).astype(np.int32)
        batch[f"{name}_segment_ids"] = np.ones(shape, np.int32)
        batch[f"{name}_positions"] = np.broadcast_to(np.arange(length, dtype=np.int32), shape)
    batch["decoder_inputs"] = np.roll(batch["targets"], 1, axis=1)
    batch["loss_mask"] = np.ones(shape, bool)
    return batch


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    rows = []
    for row in itertools.chain(attention_errors(), packed_errors(), [gradient_error()]):
        row["right"] = row["error"] <= row["tolerance"]  # False of NaN
        rows.append(row)
        if not row["right"]:
            print(json.dumps(row), flush=True)
    wrong = sum(not row["right"] for row in rows)
    print(f"{len(rows)} checks, {wrong} wrong")
    write_json(FLAGS.json, {"device": jax.devices()[0].device_kind, "rows": rows})
    sys.exit(bool(wrong))


if __name__ == "__main__":
    flags.DEFINE_list("cases", list(attention_workers.CASES), "Kinds of attention.")
    flags.register_validator(
        "cases", lambda cases: set(cases) <= set(attention_workers.CASES), "unknown kind"
    )
    flags.DEFINE_list("lengths", ["30", "192"], "Numbers of keys.")
    flags.DEFINE_string("json", "", "Also write the result to this file.")
    app.run(main)
