"""How many pairs the filters of a corpus drop, with examples."""

import collections
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

REPORT = "filters.json"
NUM_EXAMPLES = 3  # of each filter
EXAMPLE_CHARS = 200  # of a text


class FilterReport:
    """How many pairs the filters drop, with examples.

    Attributes:
      num_pairs: before the filters.
      dropped: number of pairs by filter.
      examples: a few pairs that each has dropped.
    """

    def __init__(self) -> None:
        self.num_pairs = 0
        self.dropped: collections.Counter[str] = collections.Counter()
        self.examples: dict[str, list[tuple[str, str]]] = {}

    def add(self, reasons: Sequence[str], sources: Sequence[str], targets: Sequence[str]) -> None:
        """Counts the pairs with a reason."""
        for reason, source, target in zip(reasons, sources, targets, strict=True):
            if reason:
                self.dropped[reason] += 1
                self._add_example(reason, (source, target))

    def _add_example(self, reason: str, pair: tuple[str, str]) -> None:
        kept = self.examples.setdefault(reason, [])
        if len(kept) < NUM_EXAMPLES:
            source, target = (text[:EXAMPLE_CHARS] for text in pair)
            kept.append((source, target))

    def merge(self, other: "FilterReport") -> None:
        """Adds the report of another shard."""
        self.num_pairs += other.num_pairs
        self.dropped.update(other.dropped)
        for reason, pairs in other.examples.items():
            for pair in pairs:
                self._add_example(reason, pair)

    def write(self, folder: Path) -> None:
        """Writes `filters.json` into a shard."""
        content = {"pairs": self.num_pairs, "dropped": self.dropped, "examples": self.examples}
        (folder / REPORT).write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def read(cls, folder: Path) -> "FilterReport":
        """The report of a shard; an empty one where it has none."""
        report = cls()
        if (folder / REPORT).exists():
            content = json.loads((folder / REPORT).read_text(encoding="utf-8"))
            report.num_pairs = content["pairs"]
            report.dropped.update(content["dropped"])
            report.examples = {name: [*map(tuple, e)] for name, e in content["examples"].items()}
        return report

    def lines(self) -> Iterator[str]:
        """What was dropped and why, most frequent first."""
        for reason, count in self.dropped.most_common():
            yield f"{count:,} of {self.num_pairs:,} pairs dropped by {reason}, such as"
            for source, target in self.examples[reason]:
                yield f"  {source!r}  ->  {target!r}"
