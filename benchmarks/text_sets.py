"""Sets of texts with layout, tags and placeholders, made of a parallel corpus; seeds are fixed.

`text_quality.py` translates them. What is true of each is known by construction.
"""

import collections
import dataclasses
import html
import random
import re
from collections.abc import Sequence
from pathlib import Path

Pair = tuple[str, str]
_BULLETS = ["", "", "- ", "* ", "• ", "1. ", "2) ", "> "]
_INDENTS = ["", "", "  ", "    ", "\t"]
_GAPS = [" ", " ", " ", "  ", "\n", "\n\n", "\n\n\n"]
# Number words whose translation is known: English, and the German forms.
NUMBERS = {
    "two": ("zwei", "beide", "beiden"),
    "three": ("drei",),
    "four": ("vier",),
    "five": ("fünf",),
    "six": ("sechs",),
    "seven": ("sieben",),
    "eight": ("acht",),
    "nine": ("neun",),
    "ten": ("zehn",),
}
# English, the word that models write, and others that a glossary may ask for: the forms of the
# singular, that of most cases last.
SYNONYMS = {
    "man": ("Mann", ("Herr", "Herrn")),
    "dog": ("Hund", ("Rüde", "Rüden")),
    "woman": ("Frau", ("Dame",)),
    "boy": ("Junge", ("Bub", "Buben")),
    "girl": ("Mädchen", ("Mädel",)),
    "street": ("Straße", ("Gasse",)),
    "ball": ("Ball", ("Kugel",)),
    "shirt": ("Hemd", ("Gewand",)),
    "water": ("Wasser", ("Nass",)),
    "bench": ("Bank", ("Sitzbank",)),
}
# Phrases that names take the place of: English, and what they are in German as the case demands.
REPLACED = {
    "A man": ("Ein Mann",),
    "A woman": ("Eine Frau",),
    "A boy": ("Ein Junge",),
    "A girl": ("Ein Mädchen",),
    "A dog": ("Ein Hund",),
    "a man": ("ein Mann", "einen Mann", "einem Mann"),
    "a woman": ("eine Frau", "einer Frau"),
    "a dog": ("ein Hund", "einen Hund", "einem Hund"),
    "a ball": ("ein Ball", "einen Ball", "einem Ball"),
    "a camera": ("eine Kamera", "einer Kamera"),
    "a street": ("eine Straße", "einer Straße"),
    "a bench": ("eine Bank", "einer Bank"),
}
# fmt: off
PLACEHOLDERS = [
    "{name}", "{0}", "{{user}}", "${item}", "%s", "%(count)d", "%1$s", "https://example.org/a?b=1",
    "www.example.org", "info@example.org", "@someone", "12 km", "3.5 GB", "20%", "$15", "&nbsp;",
    '<x id="1"/>', "🙂", "<br/>", "👍🏽",
]
# fmt: on


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text of several sentences.

    Attributes:
      text: with its layout.
      frame: what is around the sentences, one more than there are sentences.
      pairs: of the sentences.
    """

    text: str
    frame: list[str]
    pairs: list[Pair]


def read_pairs(prefix: str, languages: Sequence[str] = ("en", "de")) -> list[Pair]:
    """Pairs of `PREFIX.LANG`."""
    sides = [Path(f"{prefix}.{one}").read_text(encoding="utf-8").splitlines() for one in languages]
    return list(zip(*sides, strict=True))


def with_end(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs whose source ends as a sentence does, and has no such end within."""
    return [
        (source.strip(), target.strip())
        for source, target in pairs
        if re.fullmatch(r"[A-Z][^.!?:;\"()\[\]/*]*[^\s.]\.", source.strip())
    ]


def paragraphs(pairs: Sequence[Pair], count: int, seed: int = 0) -> list[Paragraph]:
    """Paragraphs of 3 to 8 sentences with blank lines, bullets and indentation."""
    rng = random.Random(seed)
    results = []
    for _ in range(count):
        chosen = rng.sample(list(pairs), rng.randint(3, 8))
        frame: list[str] = []
        gap = ""
        for _ in chosen:
            starts_line = not frame or "\n" in gap
            frame.append(gap + (rng.choice(_INDENTS) + rng.choice(_BULLETS) if starts_line else ""))
            gap = rng.choice(_GAPS)
        frame.append(rng.choice(["", "\n", "\n\n", "  \n"]))
        text = "".join(before + source for before, (source, _) in zip(frame, chosen, strict=False))
        results.append(Paragraph(text + frame[-1], frame, chosen))
    return results


def pages(pairs: Sequence[Pair], count: int, seed: int = 1) -> list[tuple[str, list[str]]]:
    """(page, its tagged number words) with nested inline tags, of 3 to 8 sentences.

    Each sentence has one number word, in `<b id=N>`, and further tags around runs of words.
    """
    rng = random.Random(seed)
    with_number = [
        source
        for source, target in pairs
        if len(numbers_in(source)) == 1 and _has_once(target, numbers_in(source)[0])
    ]
    results = []
    for page in range(count):
        parts, words = [], []
        for source in rng.sample(with_number, rng.randint(3, 8)):
            words.append(numbers_in(source)[0])
            name = f"{page}-{len(words)}"
            parts.append(f"<p>{_with_tags(source, name, rng)}</p>")
        head = f"<!DOCTYPE html><html><head><title>{page}</title></head><body class='x'>"
        results.append((f"{head}\n{''.join(parts)}<!-- end --></body></html>\n", words))
    return results


def numbers_in(text: str) -> list[str]:
    """Number words of an English text, in its order."""
    return [word for word in re.findall(r"\w+", text.lower()) if word in NUMBERS]


def _has_once(german: str, number: str) -> bool:
    words = re.findall(r"\w+", german.lower())
    return sum(word in NUMBERS[number] for word in words) == 1


def _with_tags(source: str, name: str, rng: random.Random) -> str:
    """A sentence with its number in `<b>`, and random tags that are properly nested."""
    words = source.split()
    number = next(i for i, word in enumerate(words) if numbers_in(word))
    tags = [(number, number + 1, f"b id='{name}'")]
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(words))
        end = min(len(words), start + rng.randint(1, 4))
        crosses = any(a < start < b < end or start < a < end < b for a, b, _ in tags)
        if not crosses and (start, end) not in [(a, b) for a, b, _ in tags]:
            tags.append((start, end, rng.choice(["i", "u", "em", "a href='#x'", "span class='y'"])))
    # Outer tags open first and close last.
    before: dict[int, list[str]] = collections.defaultdict(list)
    after: dict[int, list[str]] = collections.defaultdict(list)
    for start, end, tag in sorted(tags, key=lambda one: (one[0], -one[1])):
        before[start].append(f"<{tag}>")
        after[end - 1].insert(0, f"</{tag.split()[0]}>")
    return " ".join(
        "".join(before[i]) + html.escape(word, quote=False) + "".join(after[i])
        for i, word in enumerate(words)
    )


def placeholder_pairs(
    pairs: Sequence[Pair], count: int, seed: int = 2
) -> list[tuple[str, str, str]]:
    """(source, reference, placeholder): a noun phrase of both sides became a placeholder."""
    rng = random.Random(seed)
    slots = []
    for source, target in pairs:
        for english, german in REPLACED.items():
            forms = [form for form in german if len(_places(target, form)) == 1]
            if len(_places(source, english)) == 1 and len(forms) == 1:
                slots.append((_cut(source, english), _cut(target, forms[0])))
    triples: list[tuple[str, str, str]] = []
    while len(triples) < count:
        (left, right), (before, after) = rng.choice(slots)
        placeholder = rng.choice(PLACEHOLDERS)
        triples.append((left + placeholder + right, before + placeholder + after, placeholder))
    return triples


def _places(text: str, phrase: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"\b{re.escape(phrase)}\b", text))


def _cut(text: str, phrase: str) -> tuple[str, str]:
    (match,) = _places(text, phrase)
    return text[: match.start()], text[match.end() :]


def usual_terms(
    training: Sequence[Pair], least: int = 40, covered: float = 0.85, most_forms: int = 4
) -> list[tuple[str, list[str]]]:
    """(English word, German nouns) of a corpus: what a lexicon of it would have.

    German words that begin with a capital letter within a sentence are nouns. The nouns of a word
    are those by which most targets are covered of the sources that have it.

    Args:
      training: the corpus.
      least: sources that have the word.
      covered: share of their targets that have one of the nouns.
      most_forms: nouns of a word.
    """
    english: dict[str, list[int]] = collections.defaultdict(list)
    german: list[set[str]] = []
    counts: collections.Counter[str] = collections.Counter()
    for number, (source, target) in enumerate(training):
        for word in {*re.findall(r"[a-z]{3,}", source)}:
            english[word].append(number)
        german.append({*re.findall(r"\b[A-ZÄÖÜ][a-zäöüß]{2,}", target[1:])})
        counts.update(german[-1])
    terms = []
    for word, numbers in sorted(english.items()):
        if len(numbers) < least:
            continue
        forms: list[str] = []
        left = [german[number] for number in numbers]
        while len(forms) < most_forms and len(left) > (1 - covered) * len(numbers):
            nouns = collections.Counter(noun for one in left for noun in one)
            # Nouns that are more frequent without the word belong to others.
            likely = {n: c for n, c in nouns.items() if c > 0.3 * counts[n] and c >= 3}
            if not likely:
                break
            forms.append(max(sorted(likely), key=lambda noun: likely[noun]))
            left = [one for one in left if forms[-1] not in one]
        if forms and len(left) <= (1 - covered) * len(numbers):
            terms.append((word, forms))
    return terms


def synonym_pairs(pairs: Sequence[Pair]) -> list[tuple[str, str, str]]:
    """(source, reference, reference with the synonyms) of those that have usual words of them."""
    results = []
    for source, target in pairs:
        words = [word for word in SYNONYMS if _places(source.lower(), word)]
        usual = [_places_of_noun(target, SYNONYMS[word][0]) for word in words]
        if not words or any(len(places) != 1 for places in usual):
            continue
        other = target
        for word in words:
            forms = SYNONYMS[word][1]
            (match,) = _places_of_noun(other, SYNONYMS[word][0])
            form = forms[-1] if match[1] else forms[0]
            other = other[: match.start()] + form + other[match.end() :]
        results.append((source, target, other))
    return results


def _places_of_noun(text: str, noun: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"\b{noun}(en|n|es|s)?\b", text))
