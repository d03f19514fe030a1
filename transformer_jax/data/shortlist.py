"""A lexical shortlist: the target tokens that a translation of given source tokens may need.

Search then reads these rows of the output projection alone (L'Hostis et al., 2016, "Vocabulary
Selection Strategies for NMT"). The tokens are learned from alignments of training pairs, and kept
in the model's folder as text, which is also CTranslate2's format of a vocabulary map.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from etils import epath

from transformer_jax import paths
from transformer_jax.data import token_links
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError

NAME = "shortlist.tsv"
VOCABULARY_MAP = "vmap.txt"  # its name in a CTranslate2 directory


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """Target tokens by source token.

    Attributes:
      always: `[A]` target ids that every output may have.
      ids: target ids of all source tokens, one after another.
      offsets: `[V + 1]`; those of source token `i` are `ids[offsets[i] : offsets[i + 1]]`.
    """

    always: np.ndarray
    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of_lists(cls, always: Sequence[int], by_source: Sequence[Sequence[int]]) -> "Shortlist":
        """The shortlist of `by_source[i]`, the target ids of source token `i`."""
        offsets = np.cumsum([0, *map(len, by_source)])
        ids = np.fromiter(itertools.chain.from_iterable(by_source), np.int32, offsets[-1])
        return cls(np.asarray(always, np.int32), ids, offsets)

    def mark(self, source: Sequence[int], is_allowed: np.ndarray) -> None:
        """Sets `is_allowed` `[target V]` where a target token belongs to those of a source."""
        is_allowed[self.always] = True
        for i in {*source}:
            is_allowed[self.ids[self.offsets[i] : self.offsets[i + 1]]] = True


def sample(corpora: Sequence[Corpus], most: int) -> list[tuple[str, str]]:
    """At most `most` pairs, evenly spaced over all corpora.

    Raises:
      UserError: there are none.
    """
    total = sum(corpus.count() for corpus in corpora)
    if not total:
        raise UserError(f"{', '.join(corpus.name for corpus in corpora)}: there are no pairs.")
    pairs = itertools.chain.from_iterable(corpus.read() for corpus in corpora)
    return [pair for i, pair in enumerate(pairs) if i * most // total > (i - 1) * most // total]


def learn(
    pairs: Sequence[tuple[str, str]],
    tokenizers: TokenizerPair,
    num_tokens: int,
    num_frequent: int,
) -> Shortlist:
    """The shortlist of a corpus, by the word aligner eflomal.

    Args:
      pairs: source and target text.
      tokenizers: of the model.
      num_tokens: target tokens of a source token: those that are linked to it most often. A target
        token of the same name comes to them, because names and bytes are copied.
      num_frequent: most frequent target tokens, which are always there.

    Raises:
      UserError: eflomal is not installed.
    """
    token_links.require()
    source, target = tokenizers.source, tokenizers.target
    texts = [*zip(*pairs, strict=True)]
    sides = [
        [np.asarray(ids, np.int32) for ids in tokenizer.encode_batch(side)]
        for tokenizer, side in zip((source, target), texts, strict=True)
    ]
    links = token_links.align(sides[0], sides[1], tokenizers)
    pair_of_link = np.repeat(np.arange(len(sides[0])), np.diff(links.offsets))
    ids = [np.concatenate(side) for side in sides]
    linked_source, linked_target = (
        side_ids[_starts(side)[pair_of_link] + links.tokens[:, column]]
        for column, (side, side_ids) in enumerate(zip(sides, ids, strict=True))
    )
    by_source = _most_linked(
        linked_source.astype(np.int64), linked_target, source.vocab_size, num_tokens
    )
    ids_by_name = _ids_by_name(target)
    for linked, name in zip(by_source, source.tokens(range(source.vocab_size)), strict=True):
        if ids_by_name.get(name, linked) not in (linked, *linked):
            linked.append(ids_by_name[name])
    counts = np.bincount(ids[1], minlength=target.vocab_size)
    frequent = np.argsort(-counts, kind="stable")[:num_frequent]
    return Shortlist.of_lists(frequent[counts[frequent] > 0].tolist(), by_source)


def _starts(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """`[sentences]`: where each begins in all of them, one after another."""
    return np.cumsum([0, *map(len, sentences)])[:-1]


def _most_linked(
    sources: np.ndarray, targets: np.ndarray, vocab_size: int, most: int
) -> list[list[int]]:
    """Of each source id, the target ids of most links, the most frequent first.

    Args:
      sources: `[links]` int64 ids.
      targets: `[links]` ids.
      vocab_size: of the sources.
      most: target ids of one source id.
    """
    width = int(targets.max(initial=0)) + 1
    links, counts = np.unique(sources * width + targets, return_counts=True)
    links = links[np.lexsort((links, -counts, links // width))]  # by source, then by count
    bounds = np.searchsorted(links // width, np.arange(vocab_size + 1))
    return [
        (links[first : min(first + most, last)] % width).tolist()
        for first, last in itertools.pairwise(bounds)
    ]


def coverage(
    shortlist: Shortlist, pairs: Sequence[tuple[str, str]], tokenizers: TokenizerPair
) -> tuple[float, float]:
    """What it gives for pairs that it was not learned from.

    Args:
      shortlist: of the model.
      pairs: at least one source and target text.
      tokenizers: of the model.

    Returns:
      Mean number of target tokens for a sentence; and the share of the tokens of the targets, in
      0 .. 1, that are among those of their sentence.
    """
    sources, targets = zip(*pairs, strict=True)
    num_allowed = num_there = num_tokens = 0
    for source, target in zip(
        tokenizers.source.encode_batch(sources),
        tokenizers.target.encode_batch(targets),
        strict=True,
    ):
        is_allowed = np.zeros(tokenizers.target.vocab_size, bool)
        shortlist.mark(source, is_allowed)
        num_allowed += int(is_allowed.sum())
        num_there += int(is_allowed[target].sum())
        num_tokens += len(target)
    return num_allowed / len(pairs), num_there / max(1, num_tokens)


def to_text(shortlist: Shortlist, tokenizers: TokenizerPair) -> str:
    """A line for each source token: it, a tab, and its target tokens; first those of all."""
    source, target = (
        {i: name for name, i in _ids_by_name(side).items() if name and not {*" \t\n\r"} & {*name}}
        for side in (tokenizers.source, tokenizers.target)
    )  # the file has white space between tokens

    def written(ids: np.ndarray) -> str:
        return " ".join(target[i] for i in ids.tolist() if i in target)

    lines = [f"\t{written(shortlist.always)}\n"]
    for i, name in source.items():
        ids = shortlist.ids[shortlist.offsets[i] : shortlist.offsets[i + 1]]
        if len(ids):
            lines.append(f"{name}\t{written(ids)}\n")
    return "".join(lines)


def _ids_by_name(tokenizer: Tokenizer) -> dict[str, int]:
    """The id of each token; the first one where rows without a token have the same name."""
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    last_first = dict(reversed([*zip(names, range(len(names)), strict=True)]))
    return dict(sorted(last_first.items(), key=lambda item: item[1]))


def from_text(text: str, tokenizers: TokenizerPair, path: str) -> Shortlist:
    """Inverse of `to_text`.

    Raises:
      UserError: the text is damaged, or has tokens that the model does not know.
    """
    sources, targets = map(_ids_by_name, (tokenizers.source, tokenizers.target))
    by_source: list[list[int]] = [[] for _ in range(tokenizers.source.vocab_size)]
    always: list[int] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        name, tab, others = line.partition("\t")
        ids = [targets.get(other, -1) for other in others.split(" ") if other]
        if not tab or -1 in ids or (name and name not in sources):
            raise UserError(
                f"{path}, line {number}, is not of this model: make the shortlist again with "
                "`transformer-jax shortlist`."
            )
        if name:
            by_source[sources[name]] = ids
        else:
            always = ids
    return Shortlist.of_lists(always, by_source)


def write(shortlist: Shortlist, tokenizers: TokenizerPair, path: epath.PathLike) -> None:
    """Writes the file `path`."""
    paths.write_atomically(epath.Path(path), to_text(shortlist, tokenizers))


def read(folder: epath.PathLike, tokenizers: TokenizerPair) -> Callable[[], Shortlist] | None:
    """Gives the shortlist of a model, when it is first wanted; None where its folder has none.

    The file is read then, because few searches want it. It raises a `UserError` where the file is
    damaged.
    """
    path = epath.Path(folder) / NAME

    @functools.cache
    def load() -> Shortlist:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is damaged: it is not UTF-8. Copy it again.") from error
        return from_text(text, tokenizers, str(path))

    return load if path.exists() else None


def file_in(folder: epath.PathLike) -> epath.Path | None:
    """The shortlist in a folder, `shortlist.tsv` or CTranslate2's `vmap.txt`; None: it has none."""
    files = (epath.Path(folder) / name for name in (NAME, VOCABULARY_MAP))
    return next((file for file in files if file.exists()), None)
