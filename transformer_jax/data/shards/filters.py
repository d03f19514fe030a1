"""Which pairs of a corpus are left out, and for what reason.

In: texts of a block of pairs. Out: for each pair the name of the first filter that drops it. All
filters look at a pair alone, except `duplicates` and `near_duplicates`, for which `duplicates`
reads the corpus once before, and `test_leaks`, which knows the validation and test sets.
"""

import dataclasses
import functools
import hashlib
import importlib
import inspect
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from transformer_jax.config.pair_kinds import FILTERS
from transformer_jax.errors import UserError, missing_package

FUNCTION = "function"  # the reason of pairs that the function of `data.filter_function` drops
LEAK_WORDS = 5  # from which one side alone is a leak: shorter ones are common by chance
LANGUAGE_CODES = {"nb": "no", "iw": "he", "fil": "tl", "in": "id"}  # ours -> py3langid's
LANGUAGE_LETTERS = 25  # from which the language of a text is recognised well enough
LANGUAGE_PROBABILITY = 0.95

# Control characters except tab; surrogates; U+FFFD, which replaces what could not be decoded.
_CONTROL = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufffd]")


@functools.cache
def _no_letters() -> re.Pattern[str]:
    """Everything except letters and the marks on them, such as vowel signs."""
    codes = range(sys.maxunicode + 1)
    marks = "".join(c for c in map(chr, codes) if unicodedata.category(c).startswith("M"))
    return re.compile(rf"(?:(?![{marks}])[\W\d_])+")


def near_key(text: str) -> str:
    """The letters of a text in lower case; of one without letters, the text."""
    return _no_letters().sub("", text.casefold()) or text.strip()


def digest_of(*texts: str) -> int:
    """64 bits that differ between texts."""
    content = "\n".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def duplicate_digests(sources: Sequence[str], targets: Sequence[str], is_near: bool) -> np.ndarray:
    """A number for each pair, uint64 `[pairs]`, that equal (or nearly equal) pairs share."""
    clean: Callable[[str], str] = near_key if is_near else str.strip
    digests = (digest_of(clean(s), clean(t)) for s, t in zip(sources, targets, strict=True))
    return np.fromiter(digests, np.uint64, len(sources))


@dataclasses.dataclass(frozen=True)
class TestTexts:
    """Digests of the sentences of validation and test sets; see `near_key`."""

    pairs: frozenset[int]
    long_sides: frozenset[int]  # of both languages, as a corpus may have the other direction

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "TestTexts":
        """Those of the pairs of validation and test sets."""
        keys, long_sides = set[int](), set[int]()
        for pair in pairs:
            keys.add(digest_of(*map(near_key, pair)))
            long_sides.update(digest_of(near_key(text)) for text in pair if is_long(text))
        return cls(frozenset(keys), frozenset(long_sides))

    def has(self, source: str, target: str) -> bool:
        """Whether the pair, or a long side of it, is among them."""
        near = near_key(source), near_key(target)
        return (
            not self.pairs.isdisjoint((digest_of(*near), digest_of(*near[::-1])))
            or (is_long(source) and digest_of(near[0]) in self.long_sides)
            or (is_long(target) and digest_of(near[1]) in self.long_sides)
        )

    @property
    def fingerprint(self) -> str:
        numbers = [sorted(part) for part in dataclasses.astuple(self)]
        return hashlib.blake2b(repr(numbers).encode(), digest_size=16).hexdigest()


def is_long(text: str) -> bool:
    """Whether a text is in two corpora hardly by chance."""
    return len(text.split()) >= LEAK_WORDS or len(near_key(text)) >= 5 * LEAK_WORDS


@dataclasses.dataclass(frozen=True)
class PairFilter:
    """The filters of a corpus.

    Attributes:
      names: of `FILTERS`.
      languages: of source and target, such as "de" or "pt_BR".
      function: `module:name` of a function of source and target that returns whether to keep the
        pair; empty: none.
      test_texts: for `test_leaks`.
      limits: values of the settings that these filters read.
      duplicates: folder where `duplicates.find` has written which pairs repeat earlier ones.
    """

    names: tuple[str, ...] = ()
    languages: tuple[str, str] = ("", "")
    function: str = ""
    test_texts: TestTexts | None = None
    limits: tuple[tuple[str, Any], ...] = ()
    duplicates: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.names or self.function)

    @property
    def fingerprint(self) -> str:
        """Changes when other pairs may be dropped."""
        test = self.test_texts.fingerprint if self.test_texts else ""
        source = source_digest(self.function) if self.function else ""
        # `max_len` and `max_ratio` are in the digest of the token cache for all filters.
        limits = [limit for limit in self.limits if limit[0] not in ("max_len", "max_ratio")]
        return " ".join(
            map(str, [sorted(self.names), self.languages, self.function, source, test, *limits])
        )

    def reasons(self, sources: Sequence[str], targets: Sequence[str], block: int) -> list[str]:
        """The filter that drops each pair, or an empty string.

        Args:
          sources, targets: of block number `block`.
          block: its number in the corpus.
        """
        reasons = [""] * len(sources)
        for name, record in FILTERS.items():
            if name not in self.names or record.reads_tokens:
                continue
            if name.endswith("duplicates"):
                bits = np.load(self._duplicates_file(block))
                repeated = np.unpackbits(bits, count=len(sources))
                for i in np.flatnonzero(repeated).tolist():
                    reasons[i] = reasons[i] or name
                continue
            drops = TESTS[name](self)
            for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
                if not reasons[i] and drops(source, target):
                    reasons[i] = name
        if self.function:
            keep = load_function(self.function)
            for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
                if not reasons[i] and not self._keeps(keep, source, target):
                    reasons[i] = FUNCTION
        return reasons

    def _keeps(self, keep: Callable[[str, str], bool], source: str, target: str) -> bool:
        """What the function of `data.filter_function` says.

        Raises:
          UserError: it fails, or says nothing.
        """
        where = f"config.data.filter_function={self.function}, for {source!r} and {target!r}"
        try:
            answer = keep(source, target)
        except Exception as error:
            raise UserError(f"{where}: {type(error).__name__}: {error}.") from error
        if answer is None:
            raise UserError(f"{where}, returned None; return True to keep a pair, else False.")
        return bool(answer)

    def _duplicates_file(self, block: int) -> Path:
        if self.duplicates is None:
            raise ValueError("duplicates were not looked for")
        return self.duplicates / f"{block:05}.npy"


NO_FILTERS = PairFilter()
Test = Callable[[str, str], bool]  # of source and target: whether the pair is dropped
# The tests of the filters that read the texts of one pair.
TESTS: dict[str, Callable[[PairFilter], Test]] = {
    "empty": lambda _: lambda source, target: not source.strip() or not target.strip(),
    "control": lambda _: lambda *texts: any(map(_CONTROL.search, texts)),
    "identical": lambda _: lambda source, target: source.strip() == target.strip(),
    "language": lambda chosen: functools.partial(is_other_language, languages=chosen.languages),
    "test_leaks": lambda chosen: _known(chosen.test_texts).has,
}


def _known(test_texts: TestTexts | None) -> TestTexts:
    if test_texts is None:
        raise ValueError("test_leaks needs the validation and test sets")
    return test_texts


def source_digest(name: str) -> str:
    """Digest of the file that has a function of `data.filter_function`."""
    file = inspect.getsourcefile(load_function(name))
    content = Path(file).read_bytes() if file else b""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@functools.cache
def load_function(name: str) -> Callable[[str, str], bool]:
    """The function that `data.filter_function` names.

    Raises:
      UserError: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"config.data.filter_function={name} cannot be imported ({error}); name a function of "
            "source and target as MODULE:FUNCTION, in a folder of $PYTHONPATH."
        ) from error
    if not callable(function):
        raise UserError(f"config.data.filter_function={name} is not a function.")
    return cast(Callable[[str, str], bool], function)


@functools.cache
def _identifier() -> Callable[[str], tuple[str, float]]:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise missing_package(error, "documents") from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return cast(Callable[[str], tuple[str, float]], identifier.classify)


@functools.cache
def _known_language(language: str) -> str:
    """The language as py3langid names it.

    Raises:
      UserError: it does not know the language.
    """
    code = re.split("[-_]", language.lower())[0]
    code = LANGUAGE_CODES.get(code, code)
    known = _identifier().__self__.nb_classes  # type: ignore[attr-defined]
    if code not in known:
        raise UserError(
            f"config.data.filters: `language` does not know {language!r}; it knows "
            f"{', '.join(sorted(known))}. Remove this filter."
        )
    return code


def is_other_language(source: str, target: str, languages: tuple[str, str]) -> bool:
    """Whether a side is clearly in another language, or both sides are swapped.

    Of one side alone it has to be long and the language certain; two sides confirm each other.

    Args:
      source, target: texts.
      languages: their languages.
    """
    expected = [_known_language(language) for language in languages]
    recognised = [_identifier()(text) for text in (source, target)]
    if [language for language, _ in recognised] == expected[::-1] != expected:
        return True
    return any(
        language != wanted
        and probability > LANGUAGE_PROBABILITY
        and len(near_key(text)) >= LANGUAGE_LETTERS
        for text, wanted, (language, probability) in zip(
            (source, target), expected, recognised, strict=True
        )
    )
