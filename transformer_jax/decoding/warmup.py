"""Compiling before the first request what later ones need."""

from collections.abc import Iterable

from transformer_jax.decoding import batching
from transformer_jax.decoding.job import Job
from transformer_jax.errors import UserError


def warm_up(job: Job, lengths: Iterable[int], num_texts: int) -> int:
    """Runs each batch shape of calls of at most `num_texts` texts; returns their number.

    Args:
      job: a call with the settings of later ones.
      lengths: tokens of the longest source of a batch, tags and end symbol included.
      num_texts: at least 1.

    Raises:
      UserError: a length that the model does not read.
    """
    found: set[tuple[int, int]] = set()
    for length in lengths:
        if not 1 <= length <= job.encoder.max_len:
            raise UserError(
                f"No text has {length} tokens; the model reads 1 to {job.encoder.max_len}."
            )
        found |= set(batching.shapes(length, num_texts, *job.batch_sizes))
    # An empty text ends the search soon; the shape alone decides what is compiled.
    part = job.encoder.empty_part()
    for rows, length in sorted(found):
        job.submit(batching.Group([0], rows, length), [part]).result()
    return len(found)
