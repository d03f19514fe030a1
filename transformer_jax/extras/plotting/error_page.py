"""The page of `eval --errors`: where translations are wrong, on one page without network."""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence

from transformer_jax.evaluation import error_analysis
from transformer_jax.evaluation.error_analysis import Bucket, NgramMatches, Sentence, WordErrors
from transformer_jax.extras.plotting import report_page
from transformer_jax.extras.plotting.report_page import details, scrolling, table, text

NUM_SENTENCES = 50  # of each list
NUM_WORDS = 30

_STYLE = """<style>
del { text-decoration: none; border-bottom: 2px solid #c92a2a; }
ins { text-decoration: none; border-bottom: 2px dotted #1864ab; }
ol.sentences { list-style: none; padding: 0; display: grid; gap: 1rem; }
ol.sentences > li { background: var(--card); border-radius: 8px; padding: 0.8rem 1rem; }
ol.sentences dd { margin-bottom: 0.4rem; }
</style>"""


@dataclasses.dataclass(frozen=True)
class ErrorPage:
    """What the page shows.

    Attributes:
      title: of the page: the data set.
      systems: names of one system or two.
      scores: name of a score -> that of each system.
      sentences: of the data set.
      split: text to words.
      frequencies: of words.
      frequency_source: the text in which they were counted.
      languages: of source and target.
      p_values: name of a score -> of the difference of two systems.
    """

    title: str
    systems: Sequence[str]
    scores: Mapping[str, Sequence[float]]
    sentences: Sequence[Sentence]
    split: error_analysis.Split
    frequencies: Mapping[str, int]
    frequency_source: str
    languages: tuple[str, str]
    p_values: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def html(self) -> str:
        """The page."""
        return report_page.page(self.title, [_STYLE, *self._body()])

    def _body(self) -> Iterator[str]:
        yield f"<header><h1>{text(self.title)}</h1>"
        yield f'<p class="under">{len(self.sentences):,} sentences</p></header><main>'
        yield "<h2>Scores</h2>"
        rows = {name: list(values) for name, values in self.scores.items()}
        yield table("Scores of the systems", "", self.systems, rows)
        if self.p_values:
            shown = ", ".join(f"{name} p = {p:.4f}" for name, p in self.p_values.items())
            yield f'<p class="note">Difference by paired bootstrap: {text(shown)}.</p>'
        yield "<h2>By length of the reference</h2>"
        yield '<p class="note">chrF of the sentences with this number of words.</p>'
        buckets = error_analysis.by_length(self.sentences, self.split)
        yield self._buckets("words", "sentences", buckets)
        yield "<h2>By frequency of the words</h2>"
        yield (
            '<p class="note">Of the words that occur so often in '
            f"{text(self.frequency_source)}: F1 in percent. A word is right as often as the "
            "reference of its sentence has it.</p>"
        )
        buckets = error_analysis.by_frequency(self.sentences, self.split, self.frequencies)
        yield self._buckets("occurrences", "words in references", buckets)
        yield "<h2>Length of the translations</h2>"
        yield '<p class="note">Translations by their words more than the reference.</p>'
        buckets = error_analysis.by_length_difference(self.sentences, self.split)
        yield self._buckets("difference", "translations", buckets, "{:,.0f}")
        yield "<h2>Words that are most often wrong</h2>"
        for number, name in enumerate(self.systems):
            words = error_analysis.word_errors(self.sentences, self.split, number, NUM_WORDS)
            yield from details(name, [_word_table(words)])
        if len(self.systems) == 2:
            yield "<h2>Words in a row that one system has right more often</h2>"
            better = error_analysis.ngram_matches(self.sentences, self.split, NUM_WORDS)
            for name, ngrams in zip(self.systems, better, strict=True):
                yield from details(f"more often by {name}", [self._ngram_table(ngrams)])
        yield from self._lists()
        yield "</main>"

    def _lists(self) -> Iterator[str]:
        """The worst sentences; of two systems also those in which they differ most."""
        if len(self.systems) == 1:
            yield f"<h2>The {NUM_SENTENCES} worst sentences by chrF</h2>"
            yield from self._list(sorted(self.sentences, key=lambda row: row.chrf[0]))
            return
        differ = [row for row in self.sentences if row.chrf[0] != row.chrf[1]]
        ordered = sorted(differ, key=lambda row: row.chrf[0] - row.chrf[1])
        first, second = self.systems
        better = sum(row.chrf[0] > row.chrf[1] for row in differ)
        yield "<h2>Where the systems differ most</h2>"
        yield (
            f'<p class="note">By chrF, {better:,} sentences are better by {text(first)}, '
            f"{len(differ) - better:,} by {text(second)}, and "
            f"{len(self.sentences) - len(differ):,} are equal.</p>"
        )
        better_by_second = [row for row in ordered if row.chrf[0] < row.chrf[1]]
        better_by_first = [row for row in reversed(ordered) if row.chrf[0] > row.chrf[1]]
        yield from details(f"better by {first}", self._list(better_by_first))
        yield from details(f"better by {second}", self._list(better_by_second))
        worst = sorted(self.sentences, key=lambda row: sum(row.chrf))
        yield from details(f"the {NUM_SENTENCES} worst of both", self._list(worst))

    def _list(self, rows: Sequence[Sentence]) -> Iterator[str]:
        source, target = (report_page.language_marks(language) for language in self.languages)
        yield (
            '<p class="note"><del>Underlined</del> in a translation: not in the reference. '
            "<ins>Dotted</ins> in the reference: not in the first translation.</p>"
        )
        yield '<ol class="sentences">'
        for row in rows[:NUM_SENTENCES]:
            yield f"<li><dl><dt>line {row.number:,}</dt><dd{source}>{text(row.source)}</dd>"
            marked = mark_differences(row.reference, row.hypotheses[0], "ins")
            yield f"<dt>reference</dt><dd{target}>{marked}</dd>"
            for name, hypothesis, chrf in zip(self.systems, row.hypotheses, row.chrf, strict=True):
                marked = mark_differences(hypothesis, row.reference, "del")
                yield f"<dt>{text(name)}, chrF {chrf:.1f}</dt><dd{target}>{marked}</dd>"
            yield "</dl></li>"
        yield "</ol>"

    def _ngram_table(self, ngrams: Sequence[NgramMatches]) -> str:
        rows = {one.words: [one.in_references, *one.right] for one in ngrams}
        columns = ["in references", *(f"right by {name}" for name in self.systems)]
        return table("Words in a row", "words", columns, rows, form="{:,.0f}")

    def _buckets(
        self, first: str, counted: str, buckets: Sequence[Bucket], form: str = "{:.2f}"
    ) -> str:
        rows = {f"{one.name} ({one.count:,})": list(one.scores) for one in buckets}
        title = f"{first} (number of {counted})"
        return table(f"Scores by {first}", title, self.systems, rows, form=form)


def mark_differences(written: str, other: str, mark: str) -> str:
    """HTML of a text, with the parts that another text has not in an element.

    Args:
      written: the text.
      other: the other one. Words are compared, or characters where there are no spaces.
      mark: name of the element.
    """
    joint = " " if " " in written.strip() or " " in other.strip() else ""
    units, others = (t.split(" ") if joint and t else list(t) for t in (written, other))
    matcher = difflib.SequenceMatcher(None, others, units, autojunk=False)
    parts = []
    for kind, _, _, first, last in matcher.get_opcodes():
        if first < last:
            content = text(joint.join(units[first:last]))
            parts.append(content if kind == "equal" else f"<{mark}>{content}</{mark}>")
    return joint.join(parts)


def _word_table(words: Sequence[WordErrors]) -> str:
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("word", "in references", "missing", "not in the reference")
    )
    body = "".join(
        f'<tr><th scope="row">{text(one.word)}</th><td>{one.in_references:,}</td>'
        f"<td>{one.too_few:,}</td><td>{one.too_many:,}</td></tr>"
        for one in words
    )
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return scrolling(content, "Words that are most often wrong")
