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
HEAD_DIM, HEADS, BATCH = 64, 2, 2


def formula(problem: Problem) -> list[np.ndarray]:
    """Output, and gradients of query, key and value, by the formula in float64."""
    names = ("query", "key", "value", "d_out")
    inputs = attention_workers.arrays(problem)
    query, key, value, d_out = (np.swapaxes(inputs[name], 1, 2).astype(float) for name in names)
    scale = problem.head_dim**-0.5
    scores = scale * query @ np.swapaxes(key, 2, 3)
    allowed = attention_workers.mask(problem)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights @ value
    d_weights = d_out @ np.swapaxes(value, 2, 3)
    d_scores = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))
    grads = [
        scale * d_scores @ key,
        scale * np.swapaxes(d_scores, 2, 3) @ query,
        np.swapaxes(weights, 2, 3) @ d_out,
    ]
    return [np.swapaxes(x, 1, 2) for x in (out, *grads)]


def attention_errors() -> Iterator[dict[str, Any]]:
    """The error of every implementation in every case that it supports."""
    lengths = map(int, FLAGS.lengths)
    cases = itertools.product(FLAGS.cases, lengths, TOLERANCE)
    for case, length, dtype in cases:
        problem = Problem(case, BATCH, length, HEADS, HEAD_DIM, dtype, "forward+backward")
        expected = formula(problem)
        inputs = [jnp.asarray(x, dtype) for x in attention_workers.arrays(problem).values()]
        ids, sizes = attention_workers.segments(problem), attention_workers.lengths(problem)
        for name in IMPLEMENTATIONS:

            def attend(query, key, value, name=name, case=case, ids=ids, sizes=sizes):
                return dot_product_attention(
                    query,
                    key,
                    value,
                    causal=case == "causal",
                    query_segment_ids=ids,
                    key_segment_ids=ids,
                    key_lengths=sizes,
                    implementation=name,
                )

            def call(query, key, value, d_out, attend=attend):
                out, pullback = jax.vjp(attend, query, key, value)
                return out, *pullback(d_out)

            try:
                outputs = jax.jit(call)(*inputs)
            except UnsupportedAttentionError:
                continue
            error = max(
                float(np.max(np.abs(np.asarray(got, float) - want)) / np.max(np.abs(want)))
                for got, want in zip(outputs, expected, strict=True)
            )
            yield {
                "check": f"attention {name}, {case}, {length} keys, {dtype}",
                "error": error,
                "tolerance": TOLERANCE[dtype],
            }


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
    for row in itertools.chain(attention_errors(), [gradient_error()]):
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
