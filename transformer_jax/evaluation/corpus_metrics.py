"""Scores of translated text by sacreBLEU, each with its signature."""

import dataclasses
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.evaluation.significance import (
    Comparison,
    Statistics,
    of_sacrebleu,
    paired_bootstrap,
)

MIN_SENTENCES = 100  # resampling of fewer has no meaning


@dataclasses.dataclass(frozen=True)
class CorpusScores:
    """BLEU and chrF with sacreBLEU's signatures, and exact match in percent of the sentences."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float


@dataclasses.dataclass(frozen=True)
class ConventionScore:
    """BLEU of the same translations under one convention.

    Attributes:
      name: of the convention.
      bleu: None if it cannot be computed here.
      signature: sacreBLEU's, with `text:…` added if the text was changed before scoring. Without a
        score, what to install.
    """

    name: str
    bleu: float | None
    signature: str


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = bleu_tokenizers.DEFAULT
) -> CorpusScores:
    """BLEU and chrF on untouched references, cased, and exact match.

    Args:
      hypotheses, references: in the same order.
      tokenizer: of BLEU, from `bleu_tokenizers.choose`.
    """
    bleu, chrf = bleu_tokenizers.make_bleu(tokenizer), CHRF()
    hypotheses, references = list(hypotheses), list(references)
    equal = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    return CorpusScores(
        bleu=bleu_score,
        bleu_signature=str(bleu.get_signature()),  # known only after scoring
        chrf=chrf_score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=100.0 * equal / max(len(references), 1),
    )


def conventions(
    hypotheses: Sequence[str],
    references: Sequence[str],
    target_lang: str,
    tokenized: bool = False,
    tokenizer: str = bleu_tokenizers.DEFAULT,
) -> list[ConventionScore]:
    """BLEU of the same translations in every convention that papers use.

    For conventions of tokenised text, untokenised hypotheses and references are tokenised by Moses'
    rules, after its normalisation of punctuation.

    Args:
      hypotheses, references: in the same order.
      target_lang: code of their language.
      tokenized: whether they are tokenised already.
      tokenizer: of BLEU, from `bleu_tokenizers.choose`. A convention of its own, listed first,
        unless it is one of the usual ones.
    """
    pair = [list(hypotheses), list(references)]
    as_given = "tokenised" if tokenized else ""
    scores = [
        _score("13a, cased", pair, as_given, tokenize="13a"),
        _score("intl, cased", pair, as_given, tokenize="intl"),
        _score("intl, lower-cased", pair, as_given, tokenize="intl", lowercase=True),
    ]
    if tokenizer not in (bleu_tokenizers.DEFAULT, "intl", "none"):
        scores.insert(0, _score(f"{tokenizer}, cased", pair, as_given, tokenize=tokenizer))
    if bleu_tokenizers.choose(target_lang) != bleu_tokenizers.DEFAULT:
        if tokenized:
            scores.insert(0, _score("tokenised, cased", pair, as_given, tokenize="none"))
        return scores  # Moses' rules do not cover such a language
    names = ("tokenised, cased", "tokenised, lower-cased", "tokenised, compounds split")
    if not tokenized and not importlib.util.find_spec("sacremoses"):
        why = "needs sacremoses (pip install sacremoses)"
        return scores + [ConventionScore(name, None, why) for name in names]
    split = _moses(target_lang) if not tokenized else str
    how = as_given or f"sacremoses.{importlib.metadata.version('sacremoses')}"
    cased = [[split(text) for text in texts] for texts in pair]
    # Lower-cased before tokenisation, which treats abbreviations by case. Multi30k's published form
    # was produced in this order.
    lower = [[split(text.lower()) for text in texts] for texts in pair]
    apart = [[split_compounds(text) for text in texts] for texts in cased]
    for name, texts, steps in zip(
        names, (cased, lower, apart), (how, f"lc.{how}", f"{how}.compounds"), strict=True
    ):
        scores.append(_score(name, texts, steps, tokenize="none"))
    return scores


def _score(
    name: str, pair: list[list[str]], steps: str, tokenize: str, lowercase: bool = False
) -> ConventionScore:
    """BLEU of (hypotheses, references).

    Args:
      name: of the convention.
      pair: hypotheses and references.
      steps: what was done to the text before, for the signature.
      tokenize, lowercase: settings of sacreBLEU.
    """
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    score = metric.corpus_score(pair[0], [pair[1]]).score
    signature = str(metric.get_signature()) + (f"|text:{steps}" if steps else "")
    return ConventionScore(name, score, signature)


def _moses(target_lang: str) -> Callable[[str], str]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    language = bleu_tokenizers.moses_language(target_lang)
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return lambda text: tokenizer.tokenize(normalizer.normalize(text), return_str=True)


def split_compounds(text: str) -> str:
    """Makes hyphens within words separate words, as in tensor2tensor's `get_ende_bleu.sh`."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)


def check_comparable(num_sentences: int) -> None:
    """Raises UserError if there are too few sentences for `compare`."""
    if num_sentences < MIN_SENTENCES:
        raise UserError(
            f"`compare` needs at least {MIN_SENTENCES} sentences, here are {num_sentences}: "
            "resampling of fewer has no meaning."
        )


def compare(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    tokenizer: str = bleu_tokenizers.DEFAULT,
    more: Sequence[tuple[Statistics, Statistics]] = (),
) -> list[Comparison]:
    """Whether one system's BLEU and chrF differ from another's by more than chance.

    Args:
      hypotheses, others, references: in the same order.
      tokenizer: of BLEU, from `bleu_tokenizers.choose`.
      more: statistics of both systems by other metrics, which are compared too.

    Raises:
      UserError: there are too few sentences.
    """
    check_comparable(len(references))
    usual = [
        (of_sacrebleu(metric, hypotheses, references), of_sacrebleu(metric, others, references))
        for metric in (bleu_tokenizers.make_bleu(tokenizer), CHRF())
    ]
    identical = list(hypotheses) == list(others)
    return [paired_bootstrap(*both, identical=identical) for both in (*usual, *more)]
