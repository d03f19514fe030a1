"""Sets a fixed share of a parallel corpus aside, for validation and test.

Which pairs depends on the text of their sources only: on no order, seed or machine. All pairs with
the source of a pair that was set aside are kept out of the training text, so that no copy of a
validation or test sentence is trained on.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from transformer_jax import paths
from transformer_jax.data.corpus import Corpus
from transformer_jax.errors import UserError
from transformer_jax.extras.recipes.survey import read_with_progress, text_digest

TRAIN = "train"
MIN_SET = 20  # pairs; fewer measure nothing
Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class SetAside:
    """What `write_parts` wrote.

    Attributes:
      num_pairs: part -> pairs in it.
      num_dropped: further pairs with the source of a pair that was set aside; they are in no file.
    """

    num_pairs: dict[str, int]
    num_dropped: int


def choose_shares(num_pairs: int, parts: Collection[str]) -> dict[str, float]:
    """The share of the sources for each part: 5%, for at least 100 and at most 2,000 pairs."""
    size = min(max(num_pairs / 20, 100), 2000)
    return dict.fromkeys(parts, size / num_pairs)


def part_of(source: str, shares: Mapping[str, float]) -> str:
    """The part that pairs with this source belong to, by the digest of its text."""
    position = text_digest(source) / 2**64
    for part, share in shares.items():
        if position < share:
            return part
        position -= share
    return TRAIN


def keep_apart(pairs: Iterable[Pair], shares: Mapping[str, float]) -> Iterator[tuple[str, Pair]]:
    """Yields part and pair; the part is empty for a pair that belongs to none.

    A pair that is set aside can measure a translator: it has two texts, which differ, and no
    earlier pair has its source.
    """
    chosen: set[str] = set()
    for pair in pairs:
        source, target = (text.strip() for text in pair)
        part = part_of(source, shares) if source else TRAIN
        if part != TRAIN:
            part = "" if source in chosen or not target or source == target else part
            if part:
                chosen.add(source)
        yield part, pair


def describe(written: SetAside, folder: Path) -> list[str]:
    """What was set aside, and where it is."""
    left, *counts = [f"{count:,} pairs for {part}" for part, count in written.num_pairs.items()]
    dropped = f"  {written.num_dropped:,} further pairs with the same sources are in no file"
    return [
        f"set aside, by a digest of the source: {', '.join(counts)}; left: {left}",
        *([dropped] if written.num_dropped else []),
        f"  the files are in {folder}",
    ]


def write_parts(corpus: Corpus, shares: Mapping[str, float], folder: Path) -> SetAside:
    """Splits a corpus into files `folder/PART.LANG`: `train`, and the parts of `shares`.

    Args:
      corpus: read once.
      shares: part -> share of the sources.
      folder: must not exist; it appears when all its files are complete.

    Raises:
      UserError: the corpus has too few different sources.
    """
    counts = dict.fromkeys((TRAIN, *shares, ""), 0)
    with paths.new_path(folder) as temporary:
        temporary.mkdir()
        with contextlib.ExitStack() as stack:
            files = {
                part: [
                    stack.enter_context(
                        (temporary / f"{part}.{lang}").open("w", encoding="utf-8", newline="\n")
                    )
                    for lang in (corpus.source_lang, corpus.target_lang)
                ]
                for part in (TRAIN, *shares)
            }
            for part, pair in keep_apart(read_with_progress(corpus), shares):
                counts[part] += 1
                for file, text in zip(files.get(part, ()), pair, strict=False):
                    file.write(f"{text}\n")
        num_dropped = counts.pop("")
        if min(counts.values()) < MIN_SET:
            raise UserError(
                f"{corpus.name}: fewer than {MIN_SET} pairs could be set aside for each part, as "
                "they need a source of their own and two different texts. Is one file a copy of "
                "the other? If not, name other files as `validation` and `test`."
            )
    return SetAside(counts, num_dropped)
