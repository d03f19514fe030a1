"""Pictures: arrays in, Matplotlib figures out.

No figure is known to pyplot, so nothing has to be closed; a notebook shows one by its name, and
`figure.savefig` writes it. `[T, S]` is drawn with a row a target and a column a source position.
"""

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.decoding.alignment import dense
from transformer_jax.errors import UserError

try:
    import matplotlib
    from cycler import cycler
    from matplotlib import font_manager
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError as error:
    raise UserError(
        f"Pictures need Matplotlib ({error}): pip install -c constraints.txt -e '.[plot]'."
    ) from error

Metrics = Mapping[str, Any]  # a line of metrics.jsonl

_INK, _FAINT, _BLUE = "#1f2933", "#d5dbe1", "#1864ab"
_LINES = (_BLUE, "#d9480f", "#2b8a3e", "#862e9c", "#e67700", "#0b7285", "#c2255c", "#5c636a")
WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#74a9d8", "#08306b"])
SIGNED = "RdBu_r"
# Behind the default, whichever of these are installed: text may be in any language.
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic",
          "Noto Sans Devanagari", "Noto Sans", "Arial Unicode MS", "WenQuanYi Zen Hei")  # fmt: skip
_CELL, _LETTER = 0.24, 0.085  # inches of a cell of a map, and of a letter beside it

# Metrics that share a panel, and what each is called there.
PANELS: dict[str, dict[str, str]] = {
    "loss": {"train_loss": "training, label smoothing included", "eval_loss": "validation"},
    "token accuracy (%)": {
        "train_token_accuracy": "training", "eval_token_accuracy": "validation"},
    "validation scores": {
        "eval_bleu": "BLEU", "eval_chrf": "chrF", "eval_exact_match": "exact match (%)"},
    "learning rate": {"learning_rate": ""},
    "gradient norm": {"grad_norm": ""},
    "target tokens a second": {"target_tokens_per_second": ""},
}  # fmt: skip


@contextlib.contextmanager
def _style() -> Iterator[None]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    settings = {
        "font.family": [name for name in _FONTS if name in installed],
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.edgecolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.prop_cycle": cycler(color=_LINES),
        "legend.fontsize": 7,
        "legend.frameon": False,
        "text.color": _INK,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
    }
    with matplotlib.rc_context(settings):
        yield


class Figure(MatplotlibFigure):
    """A Matplotlib figure that notebooks show without pyplot."""

    def _repr_svg_(self) -> str:
        return to_svg(self)


def to_svg(figure: MatplotlibFigure) -> str:
    """The figure as an SVG file, whose letters are text; the same one for the same figure."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "transformer_jax"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def heat_map(
    matrix: np.ndarray,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    signed: bool = False,
    numbers: bool | None = None,
) -> Figure:
    """One matrix `[R, C]`.

    Args:
      matrix: white is 0.
      rows, columns: labels, of those axes that have any.
      title: above it.
      signed: blue below 0, red above.
      numbers: write each value into its cell; None: where there are at most 100.
    """
    return heat_maps({title: matrix}, rows, columns, signed, numbers)


@_style()
def heat_maps(
    matrices: Mapping[str, np.ndarray],
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    signed: bool = False,
    numbers: bool | None = None,
    per_row: int = 4,
    largest: float | None = None,
) -> Figure:
    """Matrices of one shape beside each other, by title.

    Args:
      matrices: `[R, C]` each.
      rows, columns, signed, numbers: as of `heat_map`.
      per_row: so many beside each other.
      largest: size of the value that is darkest; None: the largest there is.
    """
    arrays = {title: dense(matrix).astype(np.float64) for title, matrix in matrices.items()}
    (height, width), *others = {array.shape for array in arrays.values()}
    if others:
        raise ValueError(f"matrices of one picture need one shape, not {(height, width)}, {others}")
    numbers = height * width <= 100 if numbers is None else numbers
    cell = 0.5 if numbers else _CELL if rows or columns else min(_CELL, 2.7 / max(height, width))
    left, below = (_LETTER * max(map(len, names or [""])) for names in (rows, columns))
    turned = columns is not None and max(map(len, columns)) * _LETTER > cell
    across = min(per_row, len(arrays))
    down = math.ceil(len(arrays) / across)
    size = (
        max(across * (width * cell + 0.2), 1.6) + left + 0.3,
        down * (max(height * cell, 0.5) + 0.4) + (below if turned else 0.3) + 0.15,
    )
    if largest is None:
        largest = max(float(np.max(np.abs(array), initial=0.0)) for array in arrays.values())
    figure, axes = _axes(size, down, across)
    for number, (place, (title, array)) in enumerate(zip(axes, arrays.items(), strict=False)):
        place.imshow(
            array, cmap=SIGNED if signed else WEIGHTS, vmin=-largest if signed else 0.0,
            vmax=largest, interpolation="nearest",
        )  # fmt: skip
        place.set_title(_plain(title))
        _label(place.yaxis, rows, height, shown=number % across == 0)
        at_bottom = number + across >= len(arrays)
        _label(place.xaxis, columns, width, 90 if turned else 0, shown=at_bottom)
        if numbers:
            _write_numbers(place, array, largest)
    for place in axes[len(arrays) :]:
        place.set_visible(False)
    return figure


def attention_maps(
    weights: np.ndarray, target: Sequence[str], source: Sequence[str], names: Sequence[str] = ()
) -> Figure:
    """Maps of several heads, or layers.

    Args:
      weights: `[H, T, S]`; each row sums to 1.
      target: T labels, of the rows.
      source: S labels, of the columns.
      names: titles; without them "head 0" and so on.
    """
    titles = names or [f"head {h}" for h in range(len(weights))]
    # Even weights are pale, not all of them the darkest.
    largest = max(float(np.max(weights)), min(1.0, 3.0 / len(source)))
    named = dict(zip(titles, weights, strict=True))
    return heat_maps(named, target, source, numbers=False, largest=largest)


@_style()
def alignment(weights: np.ndarray, target: Sequence[str], source: Sequence[str]) -> Figure:
    """Source above, target below, and lines as strong as the attention between them.

    Args:
      weights: `[T, S]`; weights below 0.05 are left out.
      target: T words or tokens.
      source: S words or tokens.
    """
    weights = dense(weights)
    places = [
        np.cumsum([0.0] + [len(w) * 0.09 + 0.22 for w in words]) for words in (source, target)
    ]
    width = max(place[-1] for place in places)
    centres = [(p[:-1] + p[1:]) / 2 + (width - p[-1]) / 2 for p in places]
    figure, (axes,) = _axes((max(width, 2.0) + 0.2, 1.9))
    axes.set(xlim=(0, width), ylim=(-0.25, 1.25))
    axes.axis("off")
    for words, x, y in ((source, centres[0], 1.0), (target, centres[1], 0.0)):
        for word, at in zip(words, x, strict=True):
            axes.text(at, y, _plain(word), ha="center", va="bottom" if y else "top")
    for t, s in np.argwhere(weights >= 0.05):
        axes.plot(
            (centres[0][s], centres[1][t]), (0.95, 0.05), color=_BLUE, solid_capstyle="round",
            linewidth=0.4 + 3.0 * weights[t, s], alpha=min(1.0, 0.15 + 0.85 * float(weights[t, s])),
        )  # fmt: skip
    return figure


@_style()
def learning_curves(
    runs: Mapping[str, Sequence[Metrics]],
    panels: Mapping[str, Mapping[str, str]] = PANELS,
    per_row: int = 3,
) -> Figure:
    """Curves of one or several runs over steps; metrics that no run has are left out.

    Args:
      runs: lines of `metrics.jsonl`, by the name of the run.
      panels: for each title, metrics and what they are called.
      per_row: panels beside each other.

    Raises:
      ValueError: where nothing is left.
    """
    present = {name for lines in runs.values() for line in lines for name in line}
    shown = {title: names for title, names in panels.items() if present & set(names)}
    if not shown:
        raise ValueError("no run has any of the metrics asked for")
    across = min(per_row, len(shown))
    down = math.ceil(len(shown) / across)
    figure, axes = _axes((across * 3.6, down * 2.5), down, across)
    for place, (title, names) in zip(axes, shown.items(), strict=False):
        for number, (run, lines) in enumerate(runs.items()):
            _draw_run(place, run if len(runs) > 1 else "", lines, names, number)
        place.set(title=_plain(title), xlabel="step", xlim=(0, None))
        place.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(place.lines) > 1:
            place.legend()
    for place in axes[len(shown) :]:
        place.set_visible(False)
    return figure


@_style()
def schedules(rates: Mapping[str, np.ndarray]) -> Figure:
    """Learning rates, `[steps]` each, by name."""
    figure, (axes,) = _axes((5.0, 2.8))
    for name, values in rates.items():
        axes.plot(np.arange(1, len(values) + 1), values, label=_plain(name))
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.legend()
    return figure


@_style()
def positions(table: np.ndarray) -> Figure:
    """A table of position encodings `[P, M]`, and the dot products of positions by distance."""
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


@_style()
def length_statistics(
    source: np.ndarray, target: np.ndarray, padding: Mapping[str, float]
) -> Figure:
    """Lengths of a corpus and what share of the positions of its batches is padding.

    Args:
      source, target: `[pairs]` positions of each side.
      padding: 0 .. 1, by the way of making batches.
    """
    figure, (lengths, plane, bars) = _axes((10.8, 2.9), 1, 3)
    longest = int(max(source.max(), target.max()))
    edges = np.arange(0, longest + 2, max(1, longest // 40)) - 0.5
    for values, name in ((source, "source"), (target, "target")):
        lengths.hist(values, list(edges), histtype="step", linewidth=1.4,
                     label=f"{name}: mean {values.mean():.1f}, most {values.max()}")  # fmt: skip
    lengths.set(xlabel="positions", ylabel="pairs", title="lengths")
    lengths.margins(y=0.3)  # room for the legend
    lengths.legend()
    plane.hist2d(source, target, (edges, edges), cmap="Blues", norm=LogNorm(), cmin=1)
    plane.set(xlabel="source positions", ylabel="target positions", title="pairs (log scale)")
    bars.barh(list(padding), [100 * share for share in padding.values()], color=_BLUE, height=0.55)
    for place, share in enumerate(padding.values()):
        bars.text(100 * share, place, f" {100 * share:.1f}%", va="center")
    bars.set(title="padding (% of positions)", xlim=(0, max(1.0, 125 * max(padding.values()))))
    bars.invert_yaxis()
    return figure


@_style()
def curves(
    x: np.ndarray, lines: Mapping[str, np.ndarray], x_label: str = "", title: str = "", **axes: Any
) -> Figure:
    """Lines over common `x`, by name; `axes` are properties of the axes, such as yscale."""
    figure, (place,) = _axes((5.0, 2.8))
    for name, values in lines.items():
        place.plot(x, values, label=_plain(name))
    place.set(xlabel=_plain(x_label), title=_plain(title), **axes)
    if len(lines) > 1:
        place.legend()
    return figure


# --- Parts ---------------------------------------------------------------------------------------


def _axes(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _plain(text: str) -> str:
    """Text that Matplotlib takes as it is: no formula between dollars, no hidden legend entry."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _label(
    axis: Any, names: Sequence[str] | None, size: int, rotation: int = 0, shown: bool = True
) -> None:
    if not shown or (names is None and size <= 12):
        axis.set_ticks([])
    elif names is not None:
        axis.set_ticks(range(size), labels=map(_plain, names), rotation=rotation)
        axis.set_tick_params(length=0)
    for spine in axis.axes.spines.values():
        spine.set(visible=True, edgecolor=_FAINT)


def _write_numbers(axes: Axes, matrix: np.ndarray, largest: float) -> None:
    digits = 2 if np.any(matrix % 1) else 0
    for (row, column), value in np.ndenumerate(matrix):
        strong = abs(value) > 0.6 * largest
        axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=7,
                  color="white" if strong else _INK)  # fmt: skip


def _draw_run(
    axes: Axes, run: str, lines: Sequence[Metrics], names: Mapping[str, str], number: int
) -> None:
    """A curve a metric, each its colour; of several runs, a run its colour, a metric its dash."""
    for metric, (name, label) in enumerate(names.items()):
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points:
            axes.plot(
                *np.array(points).T, ("-", "--", ":")[metric % 3] if run else "-",
                color=_LINES[(number if run else metric) % len(_LINES)],
                label=_plain(", ".join(filter(None, (run, label)))),
                marker="o" if len(points) < 12 else "", markersize=3, linewidth=1.2,
            )  # fmt: skip
