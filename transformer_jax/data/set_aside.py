"""Sets a fixed share of a parallel corpus aside, for validation and test.

Which pairs depends on the text of their sources only: on no order, seed or machine. All pairs with
the source of a chosen pair are kept out of the training text, so that no copy of a validation or
test sentence is trained on.
"""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from transformer_jax.data.corpus_survey import text_digest
from transformer_jax.data.sources import Corpus
from transformer_jax.errors import UserError

TRAIN = "train"


@dataclasses.dataclass(frozen=True)
class SetAside:
    """What `set_aside` wrote.

    Attributes:
      prefixes: part -> path without the language suffix.
      num_pairs: part -> pairs in it.
      num_dropped: further pairs with the source of a pair that was set aside; they are in no file.
    """

    prefixes: dict[str, str]
    num_pairs: dict[str, int]
    num_dropped: int


def share_size(num_pairs: int) -> int:
    """Pairs to set aside for one purpose: 5%, at least 100 and at most 2,000."""
    return min(max(num_pairs // 20, 100), 2000)


def set_aside(corpus: Corpus, sizes: Mapping[str, int], folder: Path) -> SetAside:
    """Splits a corpus into files `folder/PART.LANG`: `train`, and the parts of `sizes`.

    Args:
      corpus: read twice.
      sizes: part -> its number of pairs.
      folder: made if missing; no file of it is replaced.

    Raises:
      UserError: a file exists already, cannot be written, or the corpus has too few pairs.
    """
    check_free(corpus, sizes, folder)
    chosen = _choose_digests(corpus, sum(sizes.values()))
    parts = [part for part, size in sizes.items() for _ in range(size)]
    part_of = dict(zip(chosen, parts, strict=True))
    counts = dict.fromkeys((TRAIN, *sizes), 0)
    written: set[int] = set()
    num_dropped = 0
    with contextlib.ExitStack() as stack:
        files = {part: stack.enter_context(_writing(corpus, folder / part)) for part in counts}
        for source, target in corpus.read():
            digest = text_digest(source.strip())
            part = part_of.get(digest, TRAIN)
            if part != TRAIN and (digest in written or not _is_usable(source, target)):
                num_dropped += 1
                continue
            if part != TRAIN:
                written.add(digest)
            counts[part] += 1
            for file, text in zip(files[part], (source, target), strict=True):
                file.write(f"{text}\n")
    return SetAside({part: str(folder / part) for part in counts}, counts, num_dropped)


def check_free(corpus: Corpus, parts: Collection[str], folder: Path) -> None:
    """Checks that none of the files of `set_aside` exists.

    Raises:
      UserError: one does.
    """
    for part in (TRAIN, *parts):
        for language in (corpus.source_lang, corpus.target_lang):
            path = folder / f"{part}.{language}"
            if path.exists():
                raise UserError(
                    f"{path} exists, and no file is replaced; move it, or use another `workdir`."
                )


def _choose_digests(corpus: Corpus, count: int) -> list[int]:
    """The `count` smallest different digests of sources of usable pairs, shuffled by themselves.

    Memory does not grow with the corpus: only candidates for the smallest are kept.

    Raises:
      UserError: there are fewer than twice as many.
    """
    smallest: set[int] = set()
    limit, capacity = 1 << 64, 2 * count
    for source, target in corpus.read():
        digest = text_digest(source.strip())
        if digest >= limit or not _is_usable(source, target):
            continue
        smallest.add(digest)
        if len(smallest) > 2 * capacity:
            smallest = set(sorted(smallest)[:capacity])
            limit = max(smallest)
    if len(smallest) < 2 * count:
        raise UserError(
            f"{corpus.name} has only {len(smallest):,} different sources, too few to set "
            f"{count:,} pairs aside; name other files as `validation` and `test`."
        )
    # In order of size the parts would be neighbours; the digest of a digest mixes them.
    return sorted(sorted(smallest)[:count], key=lambda digest: text_digest(str(digest)))


def _is_usable(source: str, target: str) -> bool:
    """Whether a pair can measure a translator: it has two texts, and they differ."""
    source, target = source.strip(), target.strip()
    return bool(source and target) and source != target


@contextlib.contextmanager
def _writing(corpus: Corpus, prefix: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """Opens `prefix.LANG` of both languages; the files get their names once they are complete."""
    paths = [Path(f"{prefix}.{lang}") for lang in (corpus.source_lang, corpus.target_lang)]
    partial = [path.with_name(f"{path.name}.partial") for path in paths]
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            source, target = (
                stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in partial
            )
            yield source, target
    except BaseException:
        for path in partial:
            path.unlink(missing_ok=True)
        raise
    for path, name in zip(partial, paths, strict=True):
        os.replace(path, name)
