"""Public functions of `ops` refuse what would silently mean something else."""

import numpy as np
import pytest

from transformer_jax import ops
from transformer_jax.ops.dropout import dropout

X = np.zeros((2, 3, 4, 8), np.float32)
LOGITS, WEIGHTS = np.zeros((3, 5), np.float32), np.ones(3, np.float32)
TARGETS, TABLE = np.zeros(3, np.int32), np.zeros((7, 5), np.float32)
BOOL = np.ones(3, bool)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.cross_entropy(LOGITS, WEIGHTS, WEIGHTS), "targets must be integers, is float"),
        (lambda: ops.cross_entropy(LOGITS, TARGETS[:, None], WEIGHTS), r"targets must be \[3\]"),
        (lambda: ops.cross_entropy(LOGITS, TARGETS, WEIGHTS[:1]), r"weights must be \[3\], is \[1"),
        (
            lambda: ops.projected_cross_entropy(LOGITS, TABLE, TARGETS[:1], WEIGHTS),
            r"targets must be \[3\]",
        ),
        (
            lambda: ops.projected_cross_entropy(LOGITS, TABLE.T, TARGETS, WEIGHTS),
            r"table must be \[5, 5\]",
        ),
        (
            lambda: ops.projected_cross_entropy(LOGITS, TABLE, TARGETS, WEIGHTS, bias=WEIGHTS[:1]),
            r"bias must be \[7\]",
        ),
        (
            lambda: ops.projected_cross_entropy(LOGITS, TABLE, TARGETS, WEIGHTS, second=LOGITS[:1]),
            r"second must be \[3, 5\]",
        ),
        (lambda: ops.embed(TABLE, BOOL, np.float32), "ids must be integers, is bool"),
        (lambda: ops.make_padding_mask(TARGETS[:, None], 4), r"key_lengths must be \[3\]"),
        (
            lambda: ops.make_segment_mask(TARGETS[None], np.zeros((2, 4), np.int32)),
            r"key_segment_ids must be \[1, 4\]",
        ),
        (lambda: ops.make_segment_mask(BOOL[None], TARGETS[None]), "query_segment_ids must be int"),
        (lambda: ops.combine_masks(BOOL, TARGETS), "masks must be boolean"),
        (lambda: ops.apply_rotary(X, np.arange(4)), "[Bb]roadcast"),
        (lambda: ops.apply_rotary(X[:1], np.zeros((2, 3), int)), r"broadcast to \[1, 3\]"),
        (lambda: ops.relative_buckets(np.arange(3), True, 2, 128), "at least 2"),
        (lambda: ops.relative_buckets(np.arange(3), False, 32, 16), "not half of them, got 32"),
        (lambda: ops.alibi_slopes(0), "num_heads must be at least 1"),
        (lambda: dropout(X, 10, None), r"must be in \[0, 1\), is 10"),
    ],
)
def test_ops_refuse_what_would_mean_something_else(call, words):
    with pytest.raises(ValueError, match=words):
        call()
