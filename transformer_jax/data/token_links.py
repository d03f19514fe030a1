"""Which tokens of a source and its target translate each other, by the word aligner eflomal.

eflomal (https://github.com/robertostling/eflomal) is fitted to the corpus in both directions. It
draws random numbers that cannot be seeded: made again, about 1 line in 3 has another link.
"""

import array
import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import missing_package

MAX_TOKENS = 1000  # of a sentence; eflomal reads a few more
Link = tuple[int, int]  # (number of the source token, number of the target token)
_NEIGHBOURS = [(0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)]


@dataclasses.dataclass(frozen=True)
class TokenLinks:
    """Links of each pair of a corpus: those of pair `i` are `offsets[i] .. offsets[i + 1]`."""

    tokens: np.ndarray  # [links, 2] uint16: source and target token, by target in each pair
    offsets: np.ndarray  # [pairs + 1] int64


def require() -> None:
    """Raises a `UserError` where eflomal is not installed."""
    try:
        import eflomal  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_package(error, "align") from error


def align(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], tokenizers: TokenizerPair
) -> TokenLinks:
    """The links of all pairs.

    A pair with an empty side, or one of more than `MAX_TOKENS`, has none.

    Args:
      sources: token ids of each sentence.
      targets: the same of its translation.
      tokenizers: of both sides; tokens that differ in case only count as one.

    Raises:
      UserError: eflomal is not installed.
    """
    require()
    import eflomal

    numbers = [
        number
        for number, pair in enumerate(zip(sources, targets, strict=True))
        if all(0 < len(ids) <= MAX_TOKENS for ids in pair)
    ]
    lines = [
        _lines([side[number] for number in numbers], tokenizer)
        for side, tokenizer in ((sources, tokenizers.source), (targets, tokenizers.target))
    ]
    counts = np.zeros(len(sources), np.int64)
    tokens = array.array("H")  # 2 bytes a number, where tuples of Python take 70
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / name) for name in ("forward", "reverse")]
        if numbers:
            eflomal.Aligner().align(*lines, *names)
        by_direction = [_read_links(name) if numbers else () for name in names]
        for number, forward, reverse in zip(numbers, *by_direction, strict=True):
            links = sorted(symmetrize(forward, reverse), key=lambda link: (link[1], link[0]))
            counts[number] = len(links)
            tokens.extend(itertools.chain.from_iterable(links))
    return TokenLinks(
        np.asarray(tokens, np.uint16).reshape(-1, 2), np.concatenate([[0], np.cumsum(counts)])
    )


def _lines(sentences: Sequence[np.ndarray], tokenizer: Tokenizer) -> list[str]:
    """Each sentence as its tokens with spaces between them, as eflomal reads it."""
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    # A token of white space would be no word of a line.
    names = [name if name.split() == [name] else f"<{i}>" for i, name in enumerate(names)]
    return [" ".join([names[i] for i in ids]) for ids in sentences]


def _read_links(path: str) -> Iterator[set[Link]]:
    """The links of each line of a file of eflomal, `0-0 1-2`."""
    with open(path, encoding="ascii") as file:
        for line in file:
            pairs = (link.split("-") for link in line.split())
            yield {(int(source), int(target)) for source, target in pairs}


def symmetrize(forward: set[Link], reverse: set[Link]) -> set[Link]:
    """Links of two directions as one set: `grow-diag-final-and` (Koehn et al., 2005).

    It begins with the links that both have. Links of either that are next to one of those are
    added where a token has none yet, and last those of which both tokens have none.
    """
    links = forward & reverse
    union = forward | reverse
    sources, targets = ({link[side] for link in links} for side in (0, 1))

    def add(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    waiting = sorted(links)
    for source, target in waiting:  # grows
        for down, right in _NEIGHBOURS:
            link = (source + down, target + right)
            is_new = link in union and link not in links
            if is_new and (link[0] not in sources or link[1] not in targets):
                add(link)
                waiting.append(link)
    for link in (*sorted(forward), *sorted(reverse)):
        if link[0] not in sources and link[1] not in targets:
            add(link)
    return links
