"""Matrices as heat maps, and attention as maps and alignments.

`[T, S]` is drawn with a row for each target position and a column for each source position.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap

from transformer_jax.extras.plotting.style import (
    BLUE,
    FAINT,
    INK,
    SIGNED,
    Figure,
    make_axes,
    plain_text,
    style,
)
from transformer_jax.translator.alignment import dense

WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#74a9d8", "#08306b"])
# Inches: side of a map's cell, width of a letter in a label.
_CELL, _LETTER = 0.24, 0.085


def heat_map(
    matrix: np.ndarray,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    signed: bool = False,
    numbers: bool | None = None,
) -> Figure:
    """A map of one matrix.

    Args:
      matrix: `[R, C]`; 0 is white.
      rows, columns: R and C labels; None: without.
      title: of the map.
      signed: blue below 0, red above; else darker is larger.
      numbers: write each value into its cell; None: if there are at most 100 cells.
    """
    return heat_maps({title: matrix}, rows, columns, signed, numbers)


@style()
def heat_maps(
    matrices: Mapping[str, np.ndarray],
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    signed: bool = False,
    numbers: bool | None = None,
    per_row: int = 4,
    largest: float | None = None,
) -> Figure:
    """Maps of matrices of one shape, in rows.

    Args:
      matrices: title -> `[R, C]`.
      rows, columns, signed, numbers: as in `heat_map`.
      per_row: maps in a row.
      largest: absolute value of the darkest colour; None: the largest of all matrices.

    Raises:
      ValueError: the matrices differ in shape.
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
    figure, axes = make_axes(size, down, across)
    for number, (panel, (title, array)) in enumerate(zip(axes, arrays.items(), strict=False)):
        panel.imshow(
            array,
            cmap=SIGNED if signed else WEIGHTS,
            vmin=-largest if signed else 0.0,
            vmax=largest,
            interpolation="nearest",
        )
        panel.set_title(plain_text(title))
        _label(panel.yaxis, rows, height, shown=number % across == 0)
        at_bottom = number + across >= len(arrays)
        _label(panel.xaxis, columns, width, 90 if turned else 0, shown=at_bottom)
        if numbers:
            _write_numbers(panel, array, largest)
    for panel in axes[len(arrays) :]:
        panel.set_visible(False)
    return figure


def attention_maps(
    weights: np.ndarray, target: Sequence[str], source: Sequence[str], names: Sequence[str] = ()
) -> Figure:
    """Maps of several heads or layers.

    Args:
      weights: `[H, T, S]`; each row sums to 1.
      target: T labels of the rows.
      source: S labels of the columns.
      names: H titles; empty: "head 0" and so on.
    """
    titles = names or [f"head {h}" for h in range(len(weights))]
    # Where all weights are equal they are pale, not all of them the darkest.
    largest = max(float(np.max(weights)), min(1.0, 3.0 / len(source)))
    named = dict(zip(titles, weights, strict=True))
    return heat_maps(named, target, source, numbers=False, largest=largest)


@style()
def alignment(weights: np.ndarray, target: Sequence[str], source: Sequence[str]) -> Figure:
    """Source above, target below, and between them lines of the attention's strength.

    Args:
      weights: `[T, S]`; those below 0.05 have no line.
      target: T words or tokens.
      source: S words or tokens.
    """
    weights = dense(weights)
    # Where each word ends, in inches, then its centre when both sides are centred.
    edges = [
        np.cumsum([0.0] + [len(word) * 0.09 + 0.22 for word in words]) for words in (source, target)
    ]
    width = max(side[-1] for side in edges)
    centres = [(side[:-1] + side[1:]) / 2 + (width - side[-1]) / 2 for side in edges]
    figure, (axes,) = make_axes((max(width, 2.0) + 0.2, 1.9))
    axes.set(xlim=(0, width), ylim=(-0.25, 1.25))
    axes.axis("off")
    for words, x, y in ((source, centres[0], 1.0), (target, centres[1], 0.0)):
        for word, centre in zip(words, x, strict=True):
            axes.text(centre, y, plain_text(word), ha="center", va="bottom" if y else "top")
    for t, s in np.argwhere(weights >= 0.05):
        axes.plot(
            (centres[0][s], centres[1][t]),
            (0.95, 0.05),
            color=BLUE,
            solid_capstyle="round",
            linewidth=0.4 + 3.0 * weights[t, s],
            alpha=min(1.0, 0.15 + 0.85 * float(weights[t, s])),
        )
    return figure


def _label(
    axis: Axis, names: Sequence[str] | None, size: int, rotation: int = 0, shown: bool = True
) -> None:
    """Labels one axis of a map; without names, long axes keep their numbers."""
    if not shown or (names is None and size <= 12):
        axis.set_ticks([])
    elif names is not None:
        axis.set_ticks(range(size), labels=map(plain_text, names), rotation=rotation)
        axis.set_tick_params(length=0)
    for spine in axis.axes.spines.values():
        spine.set(visible=True, edgecolor=FAINT)


def _write_numbers(axes: Axes, matrix: np.ndarray, largest: float) -> None:
    """Writes each value into its cell, in white where the cell is dark."""
    digits = 2 if np.any(matrix % 1) else 0
    for (row, column), value in np.ndenumerate(matrix):
        axes.text(
            column,
            row,
            f"{value:.{digits}f}",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if abs(value) > 0.6 * largest else INK,
        )
