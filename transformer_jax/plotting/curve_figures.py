"""Curves over steps, position tables and lengths of sentences."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from transformer_jax.plotting.style import BLUE, LINES, SIGNED, Figure, make_axes, plain_text, style

Metrics = Mapping[str, Any]  # a line of metrics.jsonl

PANELS_IN_A_ROW = 3
# Title of a panel -> its metrics -> their labels.
PANELS: dict[str, dict[str, str]] = {
    "loss": {"train_loss": "training, label smoothing included", "eval_loss": "validation"},
    "token accuracy (%)": {"train_token_accuracy": "training", "eval_token_accuracy": "validation"},
    "validation scores": {
        "eval_bleu": "BLEU",
        "eval_chrf": "chrF",
        "eval_exact_match": "exact match (%)",
    },
    "learning rate": {"learning_rate": ""},
    "gradient norm": {"grad_norm": ""},
    "target tokens a second": {"target_tokens_per_second": ""},
}


@style()
def learning_curves(
    runs: Mapping[str, Sequence[Metrics]],
    panels: Mapping[str, Mapping[str, str]] = PANELS,
) -> Figure:
    """Metrics of one or several runs over steps. Panels without any metric are omitted.

    Args:
      runs: name of a run -> lines of its `metrics.jsonl`.
      panels: title -> metric -> label.

    Raises:
      ValueError: no run has any of the metrics.
    """
    present = {name for lines in runs.values() for line in lines for name in line}
    shown = {title: names for title, names in panels.items() if present & set(names)}
    if not shown:
        raise ValueError("no run has any of the metrics asked for")
    across = min(PANELS_IN_A_ROW, len(shown))
    down = math.ceil(len(shown) / across)
    figure, axes = make_axes((across * 3.6, down * 2.5), down, across)
    for panel, (title, names) in zip(axes, shown.items(), strict=False):
        for number, (run, lines) in enumerate(runs.items()):
            _draw_run(panel, run if len(runs) > 1 else "", lines, names, number)
        panel.set(title=plain_text(title), xlabel="step", xlim=(0, None))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(panel.lines) > 1:
            panel.legend()
    for panel in axes[len(shown) :]:
        panel.set_visible(False)
    return figure


@style()
def schedules(rates: Mapping[str, np.ndarray]) -> Figure:
    """Learning rates over steps.

    Args:
      rates: name -> `[steps]`.
    """
    figure, (axes,) = make_axes((5.0, 2.8))
    for name, values in rates.items():
        axes.plot(np.arange(1, len(values) + 1), values, label=plain_text(name))
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.legend()
    return figure


@style()
def positions(table: np.ndarray) -> Figure:
    """Position encodings, and the dot products of positions by distance.

    Args:
      table: `[P, M]`.
    """
    figure = Figure(figsize=(9.0, 3.2), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2, width_ratios=(5, 3))
    image = left.imshow(table, cmap=SIGNED, vmin=-1, vmax=1, aspect="auto")
    left.set(xlabel="dimension", ylabel="position", title="encodings")
    figure.colorbar(image, ax=left)
    middle = len(table) // 2
    distance = np.arange(len(table)) - middle
    right.plot(distance, np.asarray(table, np.float64) @ np.asarray(table[middle], np.float64))
    right.set(xlabel="distance", title=f"dot product with position {middle}")
    return figure


@style()
def length_statistics(
    source: np.ndarray, target: np.ndarray, padding: Mapping[str, float]
) -> Figure:
    """Lengths of a corpus, and the share of padding in its batches.

    Args:
      source, target: `[pairs]` positions of each side.
      padding: kind of batches -> share of padding, 0 to 1.
    """
    figure, (lengths, plane, bars) = make_axes((10.8, 2.9), 1, 3)
    longest = int(max(source.max(), target.max()))
    edges = np.arange(0, longest + 2, max(1, longest // 40)) - 0.5
    for values, name in ((source, "source"), (target, "target")):
        lengths.hist(
            values,
            list(edges),
            histtype="step",
            linewidth=1.4,
            label=f"{name}: mean {values.mean():.1f}, most {values.max()}",
        )
    lengths.set(xlabel="positions", ylabel="pairs", title="lengths")
    lengths.margins(y=0.3)  # room for the legend
    lengths.legend()
    plane.hist2d(source, target, (edges, edges), cmap="Blues", norm=LogNorm(), cmin=1)
    plane.set(xlabel="source positions", ylabel="target positions", title="pairs (log scale)")
    bars.barh(list(padding), [100 * share for share in padding.values()], color=BLUE, height=0.55)
    for bar, share in enumerate(padding.values()):
        bars.text(100 * share, bar, f" {100 * share:.1f}%", va="center")
    bars.set(title="padding (% of positions)", xlim=(0, max(1.0, 125 * max(padding.values()))))
    bars.invert_yaxis()
    return figure


@style()
def curves(
    x: np.ndarray, lines: Mapping[str, np.ndarray], x_label: str = "", title: str = "", **axes: Any
) -> Figure:
    """Lines over one `x`.

    Args:
      x: `[N]`.
      lines: name -> `[N]`.
      x_label, title: of the axes.
      **axes: further properties of Matplotlib's axes, such as yscale.
    """
    figure, (panel,) = make_axes((5.0, 2.8))
    for name, values in lines.items():
        panel.plot(x, values, label=plain_text(name))
    panel.set(xlabel=plain_text(x_label), title=plain_text(title), **axes)
    if len(lines) > 1:
        panel.legend()
    return figure


def _draw_run(
    axes: Axes, run: str, lines: Sequence[Metrics], names: Mapping[str, str], number: int
) -> None:
    """Draws one run's metrics: a colour for each, or for each run if there are several.

    Args:
      axes: to draw on.
      run: name of the run; empty: it is the only one.
      lines: of its `metrics.jsonl`.
      names: metric -> label.
      number: of the run.
    """
    for metric, (name, label) in enumerate(names.items()):
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points:
            axes.plot(
                *np.array(points).T,
                ("-", "--", ":")[metric % 3] if run else "-",
                color=LINES[(number if run else metric) % len(LINES)],
                label=plain_text(", ".join(filter(None, (run, label)))),
                marker="o" if len(points) < 12 else "",
                markersize=3,
                linewidth=1.2,
            )
