"""Curves over steps, position tables and lengths of sentences."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from transformer_jax.extras.plotting.style import (
    BLUE,
    INK,
    LINES,
    SIGNED,
    Figure,
    colours,
    legend_of_figure,
    make_axes,
    plain_text,
    style,
    title_and_legend,
)

Metrics = Mapping[str, Any]  # a line of metrics.jsonl

# Title of a panel -> its metrics -> their labels. Exact match has its own: of a good model it may
# be 8% or 99%.
PANELS: dict[str, dict[str, str]] = {
    "loss": {"train_loss": "training, as minimized", "eval_loss": "validation"},
    "BLEU and chrF": {"eval_bleu": "BLEU", "eval_chrf": "chrF"},
    "exact match (%)": {"eval_exact_match": "validation"},
    "token accuracy (%)": {"train_token_accuracy": "training", "eval_token_accuracy": "validation"},
    "learning rate": {"learning_rate": ""},
    "gradient norm": {"grad_norm": ""},
    "target tokens a second": {"target_tokens_per_second": ""},
}
_DASHES = ("-", "--", ":")


@style()
def learning_curves(
    runs: Mapping[str, Sequence[Metrics]],
    panels: Mapping[str, Mapping[str, str]] = PANELS,
) -> Figure:
    """Metrics of one or several runs over steps. Panels without any metric are omitted.

    Of one run each metric has a colour. Of several, each run has one, which the legend above all
    panels names, and the metrics of a panel differ in their dashes.

    Args:
      runs: name of a run -> lines of its `metrics.jsonl`.
      panels: title -> metric -> label.

    Raises:
      ValueError: no run has any of the metrics.
    """
    present = {name for lines in runs.values() for line in lines for name in line}
    shown = {
        title: {name: label for name, label in names.items() if name in present}
        for title, names in panels.items()
        if present & set(names)
    }
    if not shown:
        raise ValueError("no run has any of the metrics asked for")
    across = min(len(shown), 3 if len(shown) <= 6 else 4)
    down = math.ceil(len(shown) / across)
    figure, axes = make_axes((across * 3.7, down * 2.6), down, across)
    of_runs = colours(len(runs)) if len(runs) > 1 else []
    for panel, (title, names) in zip(axes, shown.items(), strict=False):
        for number, lines in enumerate(runs.values()):
            _draw_run(panel, lines, names, of_runs[number] if of_runs else None)
        panel.set(xlabel="step", xlim=(0, None))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))
        handles = [
            _handle(label or name, *_line_style(number, INK if of_runs else None))
            for number, (name, label) in enumerate(names.items())
        ]
        title_and_legend(panel, title, handles if len(names) > 1 else (), columns=2)
    for panel in axes[len(shown) :]:
        panel.set_visible(False)
    if of_runs:
        legend_of_figure(figure, list(map(_handle, runs, of_runs)))
    return figure


@style()
def schedules(rates: Mapping[str, np.ndarray]) -> Figure:
    """Learning rates over steps.

    Args:
      rates: name -> `[steps]`.
    """
    figure, (axes,) = make_axes((5.0, 2.8))
    for (name, values), colour in zip(rates.items(), colours(len(rates)), strict=True):
        axes.plot(np.arange(1, len(values) + 1), values, label=plain_text(name), color=colour)
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    legend_of_figure(figure, axes.lines)
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
    figure, (lengths, plane, bars) = make_axes((10.8, 3.1), 1, 3)
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
    lengths.set(xlabel="positions", ylabel="pairs")
    plane.hist2d(source, target, (edges, edges), cmap="Blues", norm=LogNorm(), cmin=1)
    plane.set(xlabel="source positions", ylabel="target positions")
    bars.barh(list(padding), [100 * share for share in padding.values()], color=BLUE, height=0.55)
    for bar, share in enumerate(padding.values()):
        bars.text(100 * share, bar, f" {100 * share:.1f}%", va="center")
    bars.set(xlim=(0, max(1.0, 125 * max(padding.values()))))
    bars.invert_yaxis()
    title_and_legend(lengths, "lengths", lengths.get_legend_handles_labels()[0])
    title_and_legend(plane, "pairs (log scale)")
    title_and_legend(bars, "padding (% of positions)")
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
    for (name, values), colour in zip(lines.items(), colours(len(lines)), strict=True):
        panel.plot(x, values, label=plain_text(name), color=colour)
    panel.set(xlabel=plain_text(x_label), **axes)
    title_and_legend(panel, title)
    if len(lines) > 1:
        legend_of_figure(figure, panel.lines)
    return figure


def _draw_run(
    axes: Axes, lines: Sequence[Metrics], names: Iterable[str], colour: str | None
) -> None:
    """Draws the metrics `names` of a run, which has a `colour` if it is one of several."""
    for number, name in enumerate(names):
        points = [(line["step"], line[name]) for line in lines if name in line]
        line_colour, dashes = _line_style(number, colour)
        if points:
            axes.plot(
                *np.array(points).T,
                dashes,
                color=line_colour,
                marker="o" if len(points) < 12 else "",
                markersize=3,
                linewidth=1.2,
            )


def _line_style(number: int, colour: str | None) -> tuple[str, str]:
    """Colour and dashes of a panel's metric: dashes differ where a run has a `colour`."""
    return (colour, _DASHES[number % 3]) if colour else (LINES[number % len(LINES)], "-")


def _handle(label: str, colour: str, dashes: str = "-") -> Line2D:
    return Line2D([], [], color=colour, linestyle=dashes, linewidth=1.2, label=plain_text(label))
