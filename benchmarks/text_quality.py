"""Translates paragraphs, pages, placeholders and terms with a model, and counts what is right.

    python benchmarks/text_quality.py --workdir=runs/m30k --checkpoint=average:10 \
        --data=multi30k --json=text_quality.json

`--data` is a folder with Multi30k as `transformer-jax data multi30k` writes it; the sets are made
of its test sentences (`text_sets.py`). `--parts` names some of: paragraphs, pages, placeholders,
glossary, confidence.
"""

import collections
import dataclasses
import html.parser
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import sacrebleu
import text_sets
import timing
from absl import app, flags

from transformer_jax import Translator
from transformer_jax.evaluation.corpus_metrics import corpus_scores
from transformer_jax.extras.documents import copying, document_translation, glossary, term_placement
from transformer_jax.extras.documents.sentence_translator import Preparer
from transformer_jax.translator import calibration, confidence, phrases
from transformer_jax.translator.requests import Request
from transformer_jax.workdir import machine

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "Of the model, English to German.")
flags.DEFINE_string("checkpoint", "best", "Of the run.")
flags.DEFINE_string("data", "multi30k", "Folder of Multi30k.")
flags.DEFINE_list("parts", [], "Parts to run; none: all.")
flags.DEFINE_integer("count", 1000, "Paragraphs and pages; placeholders are twice as many.")
flags.DEFINE_string("json", "", "File for the results.")
flags.mark_flag_as_required("workdir")
TEST = "test_2016_flickr"


def measure_paragraphs(model: Translator) -> dict[str, Any]:
    """Lost or doubled sentences, layout, and BLEU compared with sentence by sentence."""
    pairs = text_sets.with_end(_pairs())
    paragraphs = text_sets.paragraphs(pairs, FLAGS.count)
    num_wrong = num_layouts = 0
    outputs: list[str] = []
    for one in paragraphs:
        result = model.translate_document(one.text)
        num_wrong += [s.source for s in result.sentences] != [source for source, _ in one.pairs]
        texts = [s.text for s in result.sentences]
        wanted = "".join(a + b for a, b in zip(one.frame, texts, strict=False)) + one.frame[-1]
        num_layouts += result.text == wanted
        outputs += texts
    sources = [source for one in paragraphs for source, _ in one.pairs]
    references = [target for one in paragraphs for _, target in one.pairs]
    single = [one.text for one in model.translate(sources)]
    return {
        "paragraphs": len(paragraphs),
        "sentences": len(sources),
        "paragraphs_with_lost_or_doubled_sentences": num_wrong,
        "layouts_kept": num_layouts,
        "bleu": corpus_scores(outputs, references).bleu,
        "bleu_sentence_by_sentence": corpus_scores(single, references).bleu,
    }


class _Tree(html.parser.HTMLParser):
    """The tree of a page's tags, and the text within each `<b id=…>`."""

    def __init__(self, text: str):
        super().__init__()
        self._open: list[tuple[str, list[Any]]] = [("", [])]
        self._ids: list[str] = []
        self.within: dict[str, str] = {}
        self.is_well_formed = True
        self.feed(text)
        self.is_well_formed &= len(self._open) == 1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = f"{tag} {attrs}"
        self._open.append((name, []))
        self._ids.append(dict(attrs).get("id") or "")
        self.within[self._ids[-1]] = ""

    def handle_endtag(self, tag: str) -> None:
        name, children = self._open.pop()
        self._ids.pop()
        self.is_well_formed &= name.startswith(f"{tag} ") and bool(self._open)
        self._open[-1][1].append((name, sorted(children)))

    def handle_data(self, data: str) -> None:
        for one in self._ids:
            self.within[one] += data

    @property
    def tags(self) -> list[Any]:
        """Names and attributes; those of one parent in any order."""
        return sorted(self._open[0][1])


def measure_pages(model: Translator) -> dict[str, Any]:
    """Trees of tags that are the same, and number words that keep their tag."""
    pages = text_sets.pages(_pairs(), FLAGS.count)
    counts: collections.Counter[str] = collections.Counter()
    for page, (text, words) in enumerate(pages):
        result = model.translate_document(text, "html")
        before, after = _Tree(text), _Tree(result.text)
        counts["same_tree"] += after.is_well_formed and before.tags == after.tags
        for number, (word, sentence) in enumerate(
            zip(words, result.sentences, strict=True), start=1
        ):
            forms = text_sets.NUMBERS[word]
            numbers = [w for w in re.findall(r"\w+", sentence.text.lower()) if w in forms]
            if len(numbers) != 1:
                counts["number_not_translated"] += 1
                continue
            tagged = re.findall(r"\w+", after.within[f"{page}-{number}"].lower())
            counts["tagged_words"] += 1
            counts["on_the_word"] += tagged == numbers
            counts["around_the_word"] += numbers[0] in tagged
    return {"pages": len(pages), **counts}


def measure_placeholders(model: Translator) -> dict[str, Any]:
    """Placeholders that are there once, and BLEU, of three ways to keep them."""
    triples = text_sets.placeholder_pairs(_pairs(), 2 * FLAGS.count)
    sources, references = [one[0] for one in triples], [one[1] for one in triples]
    ways: dict[str, Callable[[], list[str]]] = {
        "not protected": lambda: [one.text for one in model.translate(sources)],
        "stand-ins, by attention": lambda: _with_stand_ins(model, sources, False),
        "stand-ins, constrained": lambda: _with_stand_ins(model, sources, True),
        "constrained": lambda: [
            one.text for one in model.translate([Request(s, phrases=(p,)) for s, _, p in triples])
        ],
    }
    results = {}
    for name, translate in ways.items():
        started = time.perf_counter()
        outputs = translate()
        kept = [o.count(p) == s.count(p) for o, (s, _, p) in zip(outputs, triples, strict=True)]
        results[name] = {
            "kept_percent": 100 * float(np.mean(kept)),
            "bleu": corpus_scores(outputs, references).bleu,
            "seconds": time.perf_counter() - started,
        }
    return {"placeholders": len(triples), "ways": results}


def _with_stand_ins(model: Translator, sources: Sequence[str], constrained: bool) -> list[str]:
    """Documents of a sentence each; `constrained`: the search has to write the stand-ins."""
    options = document_translation.options()
    outputs = []
    translator = document_translation.sentence_translator(model, options)
    if constrained:
        preparer = _ConstrainedPreparer(**vars(translator.preparer))
        translator = dataclasses.replace(translator, preparer=preparer)
    read = [
        document_translation.read(model, text, "txt", options, splitting="0") for text in sources
    ]
    results = iter(list(translator.translate([s for one in read for s in one.sentences])))
    for document in read:
        outputs.append(document.join([next(results) for _ in document.sentences]))
    return outputs


class _ConstrainedPreparer(Preparer):
    """Asks the search for the stand-ins of each sentence."""

    def _part(self, sentence: Any, shown: copying.Shown) -> Any:
        part = super()._part(sentence, shown)
        forms = tuple(
            phrases.OneOf(tuple(dict.fromkeys((one, one[:1].upper() + one[1:]))))
            for one in shown.stand_ins
        )
        request = Request(shown.text, phrases=forms)
        return dataclasses.replace(part, request=request)


class _InReference(glossary.Glossary):
    """Those terms of a glossary that the reference of a text has too."""

    def __init__(self, terms: glossary.Glossary, references: dict[str, str]):
        super().__init__(terms.terms)
        self._references = references

    def occurrences(self, text: str) -> list[glossary.Occurrence]:
        """Those whose term is in the reference."""
        reference = self._references[text]
        return [
            one
            for one in super().occurrences(text)
            if any(phrases.contains(reference, form, one.term.inflect) for form in one.term.forms)
        ]


def measure_glossary(model: Translator) -> dict[str, Any]:
    """Terms that are placed, what they cost, and what constraints of the search cost instead."""
    train = text_sets.read_pairs(f"{FLAGS.data}/train")
    usual = glossary.of_rows(
        (source, glossary.SEPARATOR.join(forms)) for source, forms in text_sets.usual_terms(train)
    )
    pairs = _pairs()
    sources, references = [one for one, _ in pairs], [one for _, one in pairs]
    in_reference = _InReference(usual, dict(pairs))
    result: dict[str, Any] = {
        "usual terms in the reference": _terms(model, sources, references, in_reference),
        "usual terms": _terms(model, sources, references, usual),
    }
    chosen = text_sets.synonym_pairs(pairs)
    synonyms = glossary.of_rows(
        (source, glossary.SEPARATOR.join(forms))
        for source, (_, forms) in text_sets.SYNONYMS.items()
    )
    sources = [source for source, _, _ in chosen]
    result["synonyms"] = {
        "bleu_of_usual_words": corpus_scores(
            [one.text for one in model.translate(sources)], [plain for _, plain, _ in chosen]
        ).bleu,
        **_terms(model, sources, [other for _, _, other in chosen], synonyms),
    }
    empty = term_placement.translate(
        model, glossary.Glossary([]), list(map(Request, sources)), attention=model.alignment
    )
    plain = model.translate(sources)
    result["same_without_terms"] = [best.text for best, *_ in empty] == [one.text for one in plain]
    return result


def _terms(
    model: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    terms: glossary.Glossary,
) -> dict[str, Any]:
    """Of each way to translate: terms that are in the translations, BLEU and seconds."""
    requests = list(map(Request, sources))
    tokenizers, room = model.engine.tokenizers, model.engine.max_len // 2

    def placed() -> list[str]:
        outputs = term_placement.translate(model, terms, requests, attention=model.alignment)
        return [best.text for best, *_ in outputs]

    def constrained() -> list[str]:
        wanted = [term_placement.constrained(terms, one, tokenizers, room) for one in requests]
        return [one.text for one in model.translate(wanted)]

    ways: dict[str, Callable[[], list[str]]] = {
        "without terms": lambda: [one.text for one in model.translate(sources)],
        "placed": placed,
        "constraints of the search": constrained,
    }
    by_sentence = [terms.find(source) for source in sources]
    result: dict[str, Any] = {"applicable": sum(map(len, by_sentence))}
    for name, translate in ways.items():
        started = time.perf_counter()
        outputs = translate()
        result[name] = {
            "terms": _placed(outputs, by_sentence),
            "bleu": corpus_scores(outputs, references).bleu,
            "seconds": time.perf_counter() - started,
        }
    return result


def _placed(outputs: Sequence[str], terms: Sequence[Sequence[glossary.Term]]) -> int:
    return sum(
        any(phrases.contains(output, form, term.inflect) for form in term.phrase.forms)
        for output, some in zip(outputs, terms, strict=True)
        for term in some
    )


def measure_confidence(model: Translator) -> dict[str, Any]:
    """How well confidence tells apart good and bad translations of test sentences."""
    result = {}
    for name in (TEST, "test_2017_flickr"):
        pairs = text_sets.read_pairs(f"{FLAGS.data}/{name}")
        outputs = model.translate([source for source, _ in pairs], confidence=True)
        chrf = sacrebleu.CHRF()
        scores = np.array(
            [
                chrf.sentence_score(one.text, [reference]).score / 100
                for one, (_, reference) in zip(outputs, pairs, strict=True)
            ]
        )
        expected = np.array([one.confidence.sentence for one in outputs if one.confidence])
        words = np.array(
            [word for one in outputs if one.confidence for word in one.confidence.words]
        )
        is_right = np.concatenate(
            [
                calibration.words_in_reference(one.text, reference)
                for one, (_, reference) in zip(outputs, pairs, strict=True)
            ]
        )
        is_worst = scores <= np.quantile(scores, 0.1)
        result[name] = {
            "sentences": len(pairs),
            "worst_decile_auroc": confidence.auroc(-expected, is_worst),
            "calibration_error": confidence.calibration_error(expected, scores),
            "correlation": float(np.corrcoef(expected, scores)[0, 1]),
            "words": len(words),
            "word_calibration_error": confidence.calibration_error(words, is_right),
            "wrong_word_auroc": confidence.auroc(-words, is_right < 0.5),
        }
    return result


def _pairs() -> list[text_sets.Pair]:
    return text_sets.read_pairs(f"{FLAGS.data}/{TEST}")


PARTS: dict[str, Callable[[Translator], dict[str, Any]]] = {
    "paragraphs": measure_paragraphs,
    "pages": measure_pages,
    "placeholders": measure_placeholders,
    "glossary": measure_glossary,
    "confidence": measure_confidence,
}


def main(_: list[str]) -> None:
    """Prints the results of each part."""
    model = Translator.load(FLAGS.workdir, FLAGS.checkpoint)
    results: dict[str, Any] = {"machine": machine.describe(jax.local_devices())}
    for name in FLAGS.parts or PARTS:
        started = time.perf_counter()
        results[name] = PARTS[name](model)
        print(name, json.dumps(results[name], indent=2), flush=True)
        print(f"{time.perf_counter() - started:.0f} s", flush=True)
    timing.write_json(FLAGS.json, results)


if __name__ == "__main__":
    app.run(main)
