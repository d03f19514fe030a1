"""What `eval --errors` writes: a page of where translations are wrong."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from absl import flags

from transformer_jax.commands.text_output import writing
from transformer_jax.config import DataConfig
from transformer_jax.data import sources
from transformer_jax.errors import UserError
from transformer_jax.evaluation import corpus_metrics, error_analysis
from transformer_jax.extras.plotting.error_page import ErrorPage
from transformer_jax.training.setup import corpora_fingerprint
from transformer_jax.workdir import directory_kinds
from transformer_jax.workdir import folder as workdir_lib

FLAGS = flags.FLAGS
MAX_TRAINING_TEXTS = 200_000  # in which words are counted


def write(
    name: str,
    data: DataConfig,
    pairs: Sequence[tuple[str, str]],
    systems: Sequence[tuple[str, Sequence[str]]],
    tokenizer: str,
    p_values: Mapping[str, float],
) -> None:
    """Writes the page, and says so.

    Args:
      name: of the data set.
      data: of the run, with the languages of the evaluation.
      pairs: (source, reference).
      systems: names and translations, of one system or two.
      tokenizer: of BLEU.
      p_values: of the difference of two systems, by metric.
    """
    split = error_analysis.splitter(tokenizer)
    references = [reference for _, reference in pairs]
    scores = [corpus_metrics.corpus_scores(texts, references, tokenizer) for _, texts in systems]
    num_words = sum(len(split(text)) for text in references)
    lengths = [sum(len(split(text)) for text in texts) for _, texts in systems]
    frequencies, frequency_source = _frequencies(data, references, split)
    page = ErrorPage(
        title=f"Errors on {name}",
        systems=[name for name, _ in systems],
        scores={
            "BLEU": [score.bleu for score in scores],
            "chrF": [score.chrf for score in scores],
            "exact match, percent": [score.exact_match for score in scores],
            "words, in percent of the references'": [
                100.0 * length / max(num_words, 1) for length in lengths
            ],
        },
        sentences=error_analysis.sentences(pairs, [texts for _, texts in systems]),
        split=split,
        frequencies=frequencies,
        frequency_source=frequency_source,
        languages=(data.source_lang, data.target_lang),
        p_values=p_values,
    )
    html = page.html()  # before the file is opened, which empties it
    with writing(FLAGS.errors) as out:
        out.write(html)
    print(f"wrote {FLAGS.errors}")


def _frequencies(
    data: DataConfig, references: Sequence[str], split: error_analysis.Split
) -> tuple[Mapping[str, int], str]:
    """How often each word is in the training data, and what was counted; else in the references."""

    def targets() -> Iterator[str]:
        for corpus in sources.open_corpora(data, "train"):
            if corpus.target_lang == data.target_lang:
                yield from (target for _, target in corpus.read())

    why = _why_no_training_data(data)
    if not why:
        if texts := list(itertools.islice(targets(), MAX_TRAINING_TEXTS)):
            counted = f"{len(texts):,} targets of the training data"
            return error_analysis.count_words(texts, split), counted
        why = f"its training data has no {data.target_lang}"
    print(f"words are counted in the references: {why}")
    return error_analysis.count_words(references, split), f"the references ({why})"


def _why_no_training_data(data: DataConfig) -> str:
    """Why the text that the model was trained on cannot be read here; "": it can."""
    if not directory_kinds.is_run(FLAGS.workdir):
        return "the model is no run, which would name its training data"
    if data.source != "files":
        return f"data.source is {data.source}, and only text files are read"
    try:
        corpora = sources.open_corpora(data, "train")
    except UserError as error:
        return f"its training data cannot be read: {error}"
    recorded = workdir_lib.read_data_record(FLAGS.workdir) or {}
    if recorded.get("corpus") != corpora_fingerprint(corpora):
        return "its training data has changed since"
    return ""
