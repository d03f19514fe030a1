"""Finds the pairs of a corpus that repeat an earlier one, of any number of pairs.

Several processes compute a number of 64 bits for each pair. The numbers are kept in files and
compared in parts that fit in memory, so a billion pairs need 8 GB of disk. Two different pairs have
the same number with a probability of 3% among a billion.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from transformer_jax import paths
from transformer_jax.data.shards.filters import duplicate_digests
from transformer_jax.data.shards.text_blocks import TextBlock
from transformer_jax.data.workers import Workers

PART = 1 << 25  # numbers that are compared at once


def find(
    folder: Path, blocks: Callable[[], Iterator[TextBlock]], is_near: bool, run: Workers
) -> None:
    """Writes for each block which of its pairs repeat an earlier pair, as bits.

    Args:
      folder: gets `NNNNN.npy` for each block; nothing is done if it exists.
      blocks: of the corpus.
      is_near: whether pairs that are nearly equal count as equal.
      run: the processes.
    """
    if folder.exists():
        return
    digests = folder.with_name(f"{folder.name}.digests")
    digests.mkdir(parents=True, exist_ok=True)
    # Files of a run that was killed are used again.
    missing = (block for block in blocks() if not (digests / _name(block.number)).exists())
    collections.deque(run(_Digests(digests, is_near), missing), maxlen=0)
    files = sorted(digests.glob("*.npy"))
    sizes = [len(np.load(file, mmap_mode="r")) for file in files]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    repeated = np.zeros(starts[-1], bool)
    num_parts = -(-int(starts[-1]) // PART)
    for part in range(num_parts):
        repeated[_repeated(files, starts, part, num_parts)] = True
    with paths.new_path(folder, is_cache=True) as temporary:
        temporary.mkdir()
        for file, of_block in zip(files, np.split(repeated, starts[1:-1]), strict=True):
            np.save(temporary / file.name, np.packbits(of_block))
    paths.remove_at_once(digests)


def _repeated(files: list[Path], starts: np.ndarray, part: int, num_parts: int) -> np.ndarray:
    """Indices of the pairs of one part whose number occurs before."""
    numbers, places = [], []
    for file, start in zip(files, starts[:-1], strict=True):
        digests = np.load(file)
        chosen = np.flatnonzero(digests % np.uint64(num_parts) == part)
        numbers.append(digests[chosen])
        places.append(chosen + start)
    digests, index = np.concatenate(numbers), np.concatenate(places)
    _, first = np.unique(digests, return_index=True)
    is_first = np.zeros(len(digests), bool)
    is_first[first] = True
    return index[~is_first]


def _name(block: int) -> str:
    return f"{block:05}.npy"


@dataclasses.dataclass(frozen=True)
class _Digests:
    """Writes the numbers of the pairs of a block."""

    folder: Path
    is_near: bool

    def __call__(self, block: TextBlock) -> None:
        digests = duplicate_digests(*block.texts(), self.is_near)
        path = self.folder / _name(block.number)
        with paths.new_path(path, is_cache=True) as temporary, temporary.open("wb") as file:
            np.save(file, digests)
