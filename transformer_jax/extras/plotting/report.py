"""`report.html`: scores, curves, samples and settings of a run, on one page without network."""

import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

import transformer_jax
from transformer_jax.config import Config, all_settings
from transformer_jax.config.metrics import METRICS
from transformer_jax.errors import UserError
from transformer_jax.evaluation.bleu_tokenizers import NO_FOUR_WORDS
from transformer_jax.extras import plotting
from transformer_jax.extras.plotting import collect, report_headline, report_page
from transformer_jax.extras.plotting.report_page import (
    details,
    image,
    pairs,
    scrolling,
    table,
    text,
)
from transformer_jax.paths import write_atomically
from transformer_jax.translator.model_metrics import Evaluation
from transformer_jax.translator.translator import Translator
from transformer_jax.workdir import folder as workdir_lib
from transformer_jax.workdir import history, scores, summary
from transformer_jax.workdir.scores import Scores
from transformer_jax.workdir.summary import RunSummary

# Attention maps: sentences, tokens of a sentence, and maps of single heads for each sentence. A map
# of a hundred tokens cannot be read, and hundreds of maps take minutes to draw.
NUM_SENTENCES, MAX_TOKENS, MAX_HEADS = 3, 40, 32
MAX_ROWS = 12  # of a table; the others are folded away


def write_report(workdir: epath.PathLike, score_files: Sequence[epath.PathLike] = ()) -> epath.Path:
    """Writes `report.html` into a work directory, in place of an older one.

    Args:
      workdir: of a run that has a checkpoint.
      score_files: that `eval --json` wrote, to show too.

    Returns:
      The path of the page.

    Raises:
      UserError: the run, its metrics or the scores are missing.
    """
    workdir = epath.Path(workdir)
    files = {epath.Path(path).name: _read_scores(epath.Path(path)) for path in score_files}
    config = workdir_lib.read_config(workdir)
    lines = history.read_metrics(workdir)
    records = history.read_history(workdir)
    path = workdir / "samples.jsonl"
    samples = history.read_lines(path) if path.exists() else []
    run = summary.summarize(workdir)
    best = run.best(run.shown_metric)
    # Without an evaluation there is no best checkpoint.
    translator = Translator.load(workdir, "best" if best else "latest")
    body = [
        "<header>",
        f'<h1>{text(workdir.name)}</h1><p class="under">{_direction(config)}</p>',
        '<div class="top"><div>',
        *report_headline.headline(run, files),
        "</div><div>",
        *report_headline.facts(run, translator, lines, records),
        "</div></div>",
        *report_headline.commands(records),
        "</header><main>",
        *_curves(lines, best),
        "<h2>Scores</h2>",
        *_evaluations(config, run),
        *_evals(_distinct(files, run.evals)),
        "<h2>Samples</h2>",
        *_samples(samples, config),
        "<h2>Attention to the source</h2>",
        *_attention(translator, samples),
        "<h2>Configuration</h2>",
        *_configuration(config),
        "</main>",
        *_footer(),
    ]
    title = f"{workdir.name}: {_direction(config)}"
    path = workdir / workdir_lib.REPORT
    write_atomically(path, report_page.page(title, body))
    return path


def _read_scores(path: epath.Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        missing = {field.name for field in dataclasses.fields(Evaluation)} - set(result)
    except (OSError, ValueError, TypeError):
        missing = {"readable JSON"}
    if missing:
        raise UserError(
            f"{path} is not a file of eval's scores: it lacks {', '.join(sorted(missing))}."
        )
    return result


# --- Sections -----------------------------------------------------------------------------------


def _direction(config: Config) -> str:
    return f"{config.data.source_lang} → {config.data.target_lang}"


def _distinct(files: Mapping[str, Scores], evals: Sequence[Scores]) -> Mapping[str, Scores]:
    """What was scored -> its scores: the files given, then evaluations that the run records.

    Of equal evaluations the newest counts, and what is in a file is not repeated.
    """
    newest = {}
    for one in evals:
        data = " ".join(dict.fromkeys(filter(None, (one["split"], one["data"]))))
        newest[f"{data}, {report_headline.checkpoint(one)}"] = one
    given = [_numbers(one) for one in files.values()]
    return {name: {"split": "", **one} for name, one in files.items()} | {
        name: one for name, one in newest.items() if _numbers(one) not in given
    }


def _numbers(one: Scores, names: Iterable[str] = scores.LABELS) -> list[float | None]:
    return [one.get(name) for name in names]


def _footer() -> Iterator[str]:
    today = datetime.datetime.now(datetime.UTC).isoformat()
    yield (
        f'<footer><p class="note">Written {report_headline.date(today)} by transformer_jax '
        f"{transformer_jax.__version__}, jax {jax.__version__}.</p></footer>"
    )


def _evaluations(config: Config, run: RunSummary) -> Iterator[str]:
    best = run.best(run.shown_metric)
    if best is None:
        yield "<p>The run was never evaluated (config.train.eval_every_steps=0).</p>"
        return
    names = scores.names_in(run.evaluations)
    rows = {f"{one['step']:,}": _numbers(one, names) for one in run.evaluations}
    search = (
        "greedily"
        if config.train.eval_beam_size == 1
        else f"with a beam of {config.train.eval_beam_size}"
    )
    count = f"{best['num_sentences']:,} " if "num_sentences" in best else "All "
    yield "<h3>Validation set</h3>"
    yield (
        f'<p class="note">{count}sentences, decoded {search}. The marked row is the best by '
        f"eval_{run.shown_metric}.</p>"
    )
    marked = f"{best['step']:,}"
    shown = {name: rows[name] for name in [*spread(list(rows), MAX_ROWS), marked]}
    ordered = {name: rows[name] for name in rows if name in shown}
    columns = [METRICS[name].label for name in names]
    yield table("Scores on the validation set", "step", columns, ordered, marked)
    if len(shown) < len(rows):
        everything = table("All scores on the validation set", "step", columns, rows, marked)
        yield from details(f"all {len(rows)} evaluations", [everything])
    yield from _notes(best)


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items at equal distances, the last one among them."""
    if len(items) <= count:
        return list(items)
    return [items[(n + 1) * len(items) // count - 1] for n in range(count)]


def _evals(evals: Mapping[str, Scores]) -> Iterator[str]:
    for name, one in evals.items():
        yield f"<h3>{text(name)}</h3>"
        split = f"{one['split']} set, " if one["split"] else ""
        yield (
            f'<p class="note">{text(split)}{one["num_sentences"]:,} sentences, '
            f"checkpoint of step {one.get('checkpoint_step', 0):,}</p>"
        )
        names = scores.names_in([one])
        row = {one["split"] or "scores": _numbers(one, names)}
        yield table(f"Scores of {name}", "", [METRICS[each].label for each in names], row)
        yield from _notes(one)


def _notes(one: Scores) -> Iterator[str]:
    """Signatures of the scores, and why a BLEU of 0 is not an error."""
    if scores.has_too_few_words(one):
        yield f'<p class="note">{text(NO_FOUR_WORDS)}</p>'
    for name in scores.names_in([one]):
        if signature := one.get(f"{name}_signature"):
            yield f'<p class="signature">{METRICS[name].label}: {text(signature)}</p>'


def _curves(lines: Sequence[plotting.Metrics], best: Scores | None) -> Iterator[str]:
    panels = dict(plotting.PANELS)
    if best and scores.has_too_few_words(best):
        panels = {title.replace("BLEU and ", ""): names for title, names in panels.items()}
        panels["chrF"] = {"eval_chrf": "validation"}
    yield '<section class="curves" aria-label="Curves over steps">'
    for title, names in panels.items():
        changes = []
        for name, label in names.items():
            values = [line[name] for line in lines if name in line]
            if values:
                changes.append(f"{label} {values[0]:.4g} to {values[-1]:.4g}".strip())
        if changes:
            figure = plotting.learning_curves({"": lines}, {title: names})
            yield image(figure, f"{title} over steps: {'; '.join(changes)}")
    yield "</section>"


def _samples(samples: Sequence[Mapping[str, Any]], config: Config) -> Iterator[str]:
    target = config.data.target_lang
    languages = {"source": config.data.source_lang, "reference": target, "hypothesis": target}
    if not samples:
        yield "<p>The run was never evaluated.</p>"
    last = max((sample["step"] for sample in samples), default=0)
    yield '<div class="samples">'
    for sample in samples:
        if sample["step"] != last:
            continue
        yield '<div class="sample">'
        yield from pairs({name: sample[name] for name in languages}, languages=languages)
        earlier = {
            f"step {other['step']:,}": other["hypothesis"]
            for other in samples
            if other["source"] == sample["source"] and other["step"] < last
        }
        if earlier:
            some = dict(spread(list(earlier.items()), MAX_ROWS))
            yield from details("before", pairs(some, languages=dict.fromkeys(some, target)))
        yield "</div>"
    yield "</div>"


def _attention(translator: Translator, samples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The mean over the heads of each decoder layer; single heads are folded away."""
    last = max((sample["step"] for sample in samples), default=0)
    yield (
        f'<p class="note">Rows are tokens of the hypothesis of step {last:,}, columns those of the '
        "source. The stronger the blue, the more attention when the row's token is written, by the "
        f"checkpoint of step {translator.checkpoint_step:,}. First the mean over each layer's "
        f"heads. Sentences of more than {MAX_TOKENS} tokens are not shown.</p>"
    )
    shown = 0
    for sample in samples:
        if sample["step"] != last or shown == NUM_SENTENCES:
            continue
        try:
            attention = collect.sentence_attention(
                translator, sample["source"], sample["hypothesis"]
            )
        except UserError:  # empty, or longer than the model reads
            continue
        if max(len(attention.source), len(attention.target)) <= MAX_TOKENS:
            shown += 1
            marks = report_page.language_marks(translator.config.data.source_lang)
            yield f"<h3{marks}>{text(sample['source'])}</h3>"
            yield from _maps(*attention.of("cross"))
    if not shown:
        yield "<p>The run has no sample that is short enough.</p>"


def _maps(weights: Any, rows: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    names = [f"decoder layer {number}" for number in range(len(weights))]

    def drawn(heads: Any, name: str, titles: Sequence[str] = ()) -> str:
        return scrolling(image(plotting.attention_maps(heads, rows, columns, titles), name), name)

    yield '<div class="maps">'
    for name, heads in zip(names, weights, strict=True):
        yield drawn(heads.mean(axis=0)[None], name, [name])
    yield "</div>"
    # If there are too many heads, only those of the last layers.
    first = max(0, len(weights) - max(1, MAX_HEADS // weights.shape[1]))
    for name, heads in zip(names[first:], weights[first:], strict=True):
        yield from details(f"{name}, each head", [drawn(heads, f"{name}, each head")])


def _configuration(config: Config) -> Iterator[str]:
    """Settings that differ from the defaults, then all of them."""
    changed = {
        setting.path: setting.value(config)
        for setting in all_settings(Config)
        if setting.value(config) != setting.default
    }
    everything = json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)
    yield '<p class="note">Settings that are not the defaults:</p>'
    yield from pairs(changed, "facts settings")
    yield from details("all settings", [f"<pre>{text(everything)}</pre>"])
