"""Which corpus each row of an endless sequence is taken from, by shares.

Nothing is drawn and nothing repeated: the corpus of row `n`, and how many rows of that corpus come
before it, are arithmetic. So any row is found without those before it.
"""

import functools
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.plans.batch_shapes import ranges
from transformer_jax.data.plans.permutation import make_key, permute

# Elements in which all components have their shares, in an order of each cycle; with many
# components it is longer.
CYCLE = 4096
CYCLE_OF_COMPONENT = 64
GOLDEN_RATIO = 0.5 * (5**0.5 - 1)


class Mixture:
    """An endless sequence of elements, each of one component.

    Elements come in cycles. In the first `n` of them component `c` has `n * cycle * share[c]`
    elements, rounded; the component with the largest share has the rest. Within a cycle their order
    is a keyed permutation.

    Args:
      stages: the first element of each stage, from 0 and ascending, with the shares of the
        components from there on: at least 0, with a sum above 0.
      seed: of the order.
      name: a number that tells this mixture from others of the same seed.
    """

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]], seed: int, name: int = 0):
        self._key = make_key(seed, name)
        self._first = np.asarray([first for first, _ in stages], np.int64)  # [stages]
        shares = np.asarray([shares for _, shares in stages], np.float64)
        self._shares = shares / shares.sum(axis=1, keepdims=True)  # [stages, components]
        self._length = max(CYCLE, CYCLE_OF_COMPONENT * shares.shape[1])
        # Where rounding goes up differs, or many small components would have a row in one cycle.
        self._phases = np.arange(shares.shape[1]) * GOLDEN_RATIO % 1.0
        self._cycle = functools.lru_cache(maxsize=8)(self._make_cycle)
        # Elements of each component before each stage, [stages, components].
        self._before = np.zeros(shares.shape, np.int64)
        for stage in range(1, len(stages)):
            length = int(self._first[stage] - self._first[stage - 1])
            self._before[stage] = self._before[stage - 1] + self._count(stage - 1, length)

    @property
    def shares(self) -> np.ndarray:
        """The shares in each stage, `[stages, components]`; those of a stage add up to 1."""
        return self._shares

    def stage(self, number: int) -> int:
        """The stage of element `number`."""
        return int(np.searchsorted(self._first, number, side="right")) - 1

    def counts(self, number: int) -> np.ndarray:
        """Elements of each component among the first `number`, int64 `[components]`."""
        stage = self.stage(number)
        return self._before[stage] + self._count(stage, int(number - self._first[stage]))

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The component of each element, and how many elements of that component precede it.

        Args:
          numbers: int64 `[n]`, of the elements.

        Returns:
          int64 `[n]` each.
        """
        numbers = np.asarray(numbers, np.int64)
        if self._shares.shape[1] == 1:
            return np.zeros_like(numbers), numbers
        components, ranks = np.zeros_like(numbers), np.zeros_like(numbers)
        stages = np.searchsorted(self._first, numbers, side="right") - 1
        cycles, places = np.divmod(numbers - self._first[stages], self._length)
        # The elements of a batch are of one cycle or two.
        for stage, cycle in sorted(set(zip(stages.tolist(), cycles.tolist(), strict=True))):
            chosen = (stages == stage) & (cycles == cycle)
            order, rank = self._cycle(stage, cycle)
            components[chosen] = order[places[chosen]]
            before = self._before[stage] + self._in_cycles(stage, cycle)
            ranks[chosen] = before[components[chosen]] + rank[places[chosen]]
        return components, ranks

    def _in_cycles(self, stage: int, cycles: int) -> np.ndarray:
        """Elements of each component in the first cycles of a stage, `[components]`."""
        shares = self._shares[stage]
        counts = np.floor(cycles * self._length * shares + self._phases).astype(np.int64)
        largest = int(np.argmax(shares))
        counts[largest] += cycles * self._length - counts.sum()
        return counts

    def _make_cycle(self, stage: int, cycle: int) -> tuple[np.ndarray, np.ndarray]:
        """Component of each element of a cycle, and its rank in it among those of its component."""
        counts = self._in_cycles(stage, cycle + 1) - self._in_cycles(stage, cycle)
        key = make_key(self._key.astype(np.int64), stage, cycle)
        place = permute(np.arange(self._length), self._length, key)
        components = np.repeat(np.arange(len(counts)), counts)[place]
        ranks = np.empty_like(components)
        ranks[np.argsort(components, kind="stable")] = ranges(counts)
        return components, ranks

    def _count(self, stage: int, length: int) -> np.ndarray:
        """Elements of each component among the first `length` of a stage, `[components]`."""
        num_components = self._shares.shape[1]
        if num_components == 1:
            return np.asarray([length], np.int64)
        cycles, rest = divmod(length, self._length)
        components, _ = self._cycle(stage, cycles)
        in_rest = np.bincount(components[:rest], minlength=num_components)
        return self._in_cycles(stage, cycles) + in_rest
