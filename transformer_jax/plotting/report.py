"""`report.html`: scores, curves, samples and settings of a run, on one page without network."""

import base64
import dataclasses
import html
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

import transformer_jax
from transformer_jax import plotting
from transformer_jax.api import Translator
from transformer_jax.config import Config, all_settings
from transformer_jax.errors import UserError
from transformer_jax.evaluation.corpus_metrics import NO_FOUR_WORDS
from transformer_jax.evaluation.model_metrics import Evaluation
from transformer_jax.paths import write_atomically
from transformer_jax.plotting import collect
from transformer_jax.runs import history
from transformer_jax.runs import workdir as workdir_lib

NAME = "report.html"
# Attention maps: sentences, tokens of a sentence, and maps of single heads for each sentence. A map
# of a hundred tokens cannot be read, and hundreds of maps take minutes to draw.
NUM_SENTENCES, MAX_TOKENS, MAX_HEADS = 3, 40, 32

_COLUMNS = {
    "loss": "loss",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy",
    "exact_match": "exact match",
    "bleu": "BLEU",
    "chrf": "chrF",
}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light; }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff;
  max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; margin: 0.5rem 0; }}
h2 {{ font-size: 1.15rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid #d5dbe1; }}
p, dl {{ margin: 0.5rem 0; }}
.facts {{ display: grid; gap: 0.5rem;
  grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); }}
.facts div {{ background: #f3f6f9; border-radius: 6px; padding: 0.4rem 0.7rem; }}
dt {{ color: #52606d; font-size: 0.8rem; }}
dd {{ margin: 0; }}
.settings {{ grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); }}
.curves {{ display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); }}
.curves img {{ width: 100%; }}
img {{ display: block; }}
.wide {{ overflow-x: auto; }}
.maps {{ display: flex; flex-wrap: wrap; gap: 0.5rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 0.2rem 0.8rem; border-bottom: 1px solid #e4e7eb;
  overflow-wrap: normal; vertical-align: bottom; }}
@media (max-width: 40rem) {{ th, td {{ padding: 0.2rem; font-size: 0.72rem; }} }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
.best td {{ font-weight: 600; }}
.signature, .note {{ color: #52606d; font-size: 0.85rem; }}
.sample {{ border-left: 3px solid #74a9d8; padding-left: 0.8rem; margin: 1rem 0; }}
summary {{ cursor: pointer; color: #1864ab; }}
pre {{ font-size: 0.8rem; overflow-x: auto; background: #f3f6f9; padding: 0.7rem;
  border-radius: 6px; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_report(workdir: epath.PathLike, scores: Sequence[epath.PathLike] = ()) -> epath.Path:
    """Writes `report.html` into a work directory, in place of an older one.

    Args:
      workdir: of a run that has a checkpoint.
      scores: files that `eval.py --json` wrote, to show too.

    Returns:
      The path of the page.

    Raises:
      UserError: the run, its metrics or the scores are missing.
    """
    workdir = epath.Path(workdir)
    results = [(epath.Path(path).stem, _read_scores(epath.Path(path))) for path in scores]
    config = workdir_lib.read_config(workdir)
    lines = history.read_metrics(workdir)
    path = workdir / "samples.jsonl"
    samples = history.read_lines(path) if path.exists() else []
    # Without an evaluation there is no best checkpoint.
    evaluated = any("eval_loss" in line for line in lines)
    translator = Translator.load(workdir, "best" if evaluated else "latest")
    direction = f"{config.data.source_lang} → {config.data.target_lang}"
    title = f"{workdir.name}: {direction}"
    body = "\n".join(
        [
            f"<h1>{_text(title)}</h1>",
            *_facts(translator, lines),
            "<h2>Scores</h2>",
            *_evaluations(config, lines),
            *_results(results),
            "<h2>Curves</h2>",
            *_curves(lines),
            "<h2>Samples</h2>",
            *_samples(samples),
            "<h2>Attention to the source</h2>",
            *_attention(translator, samples),
            "<h2>Configuration</h2>",
            *_configuration(config),
        ]
    )
    write_atomically(workdir / NAME, _PAGE.format(title=_text(title), body=body))
    return workdir / NAME


def _read_scores(path: epath.Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
        missing = {field.name for field in dataclasses.fields(Evaluation)} - set(result)
    except (OSError, ValueError, TypeError):
        missing = {"readable JSON"}
    if missing:
        raise UserError(
            f"{path} is not a file of eval.py --json: it lacks {', '.join(sorted(missing))}."
        )
    return result


# --- Sections -----------------------------------------------------------------------------------


def _facts(translator: Translator, lines: Sequence[plotting.Metrics]) -> Iterator[str]:
    params = sum(x.size for x in jax.tree.leaves(translator.params))
    trained = [line for line in lines if "train_loss" in line]
    facts = {"parameters": f"{params:,}", "steps": f"{max(line['step'] for line in lines):,}"}
    if trained:
        rate = statistics.median(line["target_tokens_per_second"] for line in trained)
        facts["target tokens a second (median)"] = f"{rate:,.0f}"
        facts["padding"] = f"{100 * trained[-1]['padding']:.1f}%"
        if trained[-1].get("skipped_steps"):
            facts["skipped steps"] = f"{trained[-1]['skipped_steps']:,}"
    facts["checkpoint shown"] = f"step {translator.checkpoint_step:,}"
    facts["written by"] = f"transformer_jax {transformer_jax.__version__}, jax {jax.__version__}"
    yield from _pairs(facts, "facts")


def _evaluations(config: Config, lines: Sequence[plotting.Metrics]) -> Iterator[str]:
    evaluated = [line for line in lines if "eval_loss" in line]
    if not evaluated:
        yield "<p>The run was never evaluated (config.train.eval_every_steps=0).</p>"
        return
    metric = config.checkpoint.best_metric
    best = (min if metric == "eval_loss" else max)(evaluated, key=lambda line: line[metric])
    rows = {f"{line['step']:,}": [line[f"eval_{name}"] for name in _COLUMNS] for line in evaluated}
    search = (
        "greedily"
        if config.train.eval_beam_size == 1
        else (f"with a beam of {config.train.eval_beam_size}")
    )
    count = f"{best['eval_num_sentences']:,} " if "eval_num_sentences" in best else ""
    yield f"<p>{count}validation sentences, decoded {search}; best by {metric}:</p>"
    yield from _table("step", _COLUMNS.values(), rows, f"{best['step']:,}")
    yield from _notes({k.removeprefix("eval_"): v for k, v in best.items()})


def _results(results: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    for name, result in results:
        split = f"{result['split']}, " if "split" in result else ""
        yield (
            f"<p>{_text(name)}.json: {_text(split)}{result['num_sentences']:,} sentences, "
            f"checkpoint of step {result.get('checkpoint_step', 0):,}</p>"
        )
        row = {name: [result[column] for column in _COLUMNS]}
        yield from _table("", _COLUMNS.values(), row)
        yield from _notes(result)


def _curves(lines: Sequence[plotting.Metrics]) -> Iterator[str]:
    yield '<div class="curves">'
    for title, names in plotting.PANELS.items():
        if any(set(names) & set(line) for line in lines):
            yield _image(plotting.learning_curves({"": lines}, {title: names}), title)
    yield "</div>"


def _samples(samples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not samples:
        yield "<p>The run was never evaluated.</p>"
    last = max((sample["step"] for sample in samples), default=0)
    for sample in samples:
        if sample["step"] != last:
            continue
        yield '<div class="sample">'
        yield from _pairs({k: sample[k] for k in ("source", "reference", "hypothesis")})
        earlier = {
            f"step {other['step']:,}": other["hypothesis"]
            for other in samples
            if other["source"] == sample["source"] and other["step"] < last
        }
        if earlier:
            yield "<details><summary>before</summary>"
            yield from _pairs(earlier)
            yield "</details>"
        yield "</div>"


def _attention(translator: Translator, samples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The mean over the heads of each decoder layer; single heads are folded away."""
    last = max((sample["step"] for sample in samples), default=0)
    yield (
        f'<p class="note">Rows are tokens of the hypothesis of step {last:,}, columns those of the '
        "source. A darker cell has more attention when the row's token is written, by the "
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
            yield f"<p>{_text(sample['source'])}</p>"
            yield from _maps(*attention.of("cross"))
    if not shown:
        yield "<p>The run has no sample that is short enough.</p>"


def _maps(weights: Any, rows: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    names = [f"decoder layer {number}" for number in range(len(weights))]
    means = [
        _image(plotting.attention_maps(heads.mean(axis=0)[None], rows, columns, [name]), name)
        for name, heads in zip(names, weights, strict=True)
    ]
    yield f'<div class="maps">{"".join(means)}</div>'
    # If there are too many heads, only those of the last layers.
    first = max(0, len(weights) - max(1, MAX_HEADS // weights.shape[1]))
    for name, heads in zip(names[first:], weights[first:], strict=True):
        picture = _image(plotting.attention_maps(heads, rows, columns), f"{name}, each head")
        yield f"<details><summary>{name}, each head</summary>{picture}</details>"


def _configuration(config: Config) -> Iterator[str]:
    """Settings that differ from the defaults, then all of them."""
    changed = {
        setting.path: setting.value(config)
        for setting in all_settings(Config)
        if setting.value(config) != setting.default
    }
    everything = json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False)
    yield '<p class="note">Settings that are not the defaults:</p>'
    yield from _pairs(changed, "facts settings")
    yield "<details><summary>all settings</summary>"
    yield f"<pre>{_text(everything)}</pre></details>"


# --- HTML ----------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return html.escape(str(value))


def _pairs(values: Mapping[str, Any], kind: str = "") -> Iterator[str]:
    yield f'<dl class="{kind}">'
    for name, value in values.items():
        yield f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
    yield "</dl>"


def _table(
    first: str, columns: Iterable[str], rows: Mapping[str, Sequence[float]], best: str = ""
) -> Iterator[str]:
    yield '<div class="wide"><table><tr>'
    yield "".join(f"<th>{_text(name)}</th>" for name in (first, *columns))
    yield "</tr>"
    for name, values in rows.items():
        yield (
            f'<tr class="best"><td>{_text(name)}</td>'
            if name == best
            else (f"<tr><td>{_text(name)}</td>")
        )
        yield "".join(f"<td>{value:.2f}</td>" for value in values) + "</tr>"
    yield "</table></div>"


def _notes(scores: Mapping[str, Any]) -> Iterator[str]:
    """Signatures of the scores, and why a BLEU of 0 is not an error."""
    if not scores["bleu"] and scores["exact_match"]:
        yield f'<p class="signature">{_text(NO_FOUR_WORDS)}</p>'
    for name, key in (("BLEU", "bleu_signature"), ("chrF", "chrf_signature")):
        if key in scores:
            yield f'<p class="signature">{name}: {_text(scores[key])}</p>'


def _image(figure: plotting.Figure, description: str) -> str:
    """The figure as an image inside the page; wide ones scroll."""
    data = base64.b64encode(plotting.to_svg(figure).encode()).decode()
    image = f'<img alt="{_text(description)}" src="data:image/svg+xml;base64,{data}">'
    return f'<div class="wide">{image}</div>'
