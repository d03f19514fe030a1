"""A keyed permutation that is evaluated one element at a time."""

import numpy as np

ROUNDS = 32


def mix(x: np.ndarray) -> np.ndarray:
    """Bijective mixing of uint64 (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def make_key(*parts: int | np.ndarray) -> np.ndarray:
    """Folds integers (or arrays of them) into one uint64 key (or an array of keys)."""
    key = np.asarray(0x9E3779B97F4A7C15, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            folded = np.asarray(part, np.int64).astype(np.uint64)
            key = mix(key ^ (folded + np.uint64(0x9E3779B97F4A7C15)))
    return np.asarray(key)


def permute(index: np.ndarray, size: np.ndarray | int, key: np.ndarray) -> np.ndarray:
    """Image of `index` under the permutation of `0 .. size - 1` that `key` selects.

    All three arguments broadcast, so each element may have its own domain and key.

    Args:
      index: integers, each in `0 .. size - 1`.
      size: integers above 0.
      key: uint64 keys from `make_key`.

    Returns:
      int64 array of the shape of `index`.

    Source:
      The swap-or-not shuffle (Hoang, Morris and Rogaway, 2012). Every round is an involution on a
      domain of any size.
    """
    x = np.asarray(index, np.int64)
    size = np.asarray(size, np.int64)
    for number in range(ROUNDS):
        round_key = mix(key + np.uint64(2 * number + 1))
        pivot = (round_key % size.astype(np.uint64)).astype(np.int64)
        partner = pivot - x
        partner = np.where(partner < 0, partner + size, partner)
        coin = mix(np.maximum(x, partner).astype(np.uint64) ^ round_key) >> np.uint64(63)
        x = np.where(coin == 1, partner, x)
    return x
