"""What all figures share: fonts, colours, and how they become files.

No figure is known to pyplot, so nothing has to be closed. A notebook shows a figure by its name,
and `figure.savefig` writes it.
"""

import contextlib
import io
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

INK, FAINT, BLUE = "#1f2933", "#d5dbe1", "#1864ab"
LINES = (BLUE, "#d9480f", "#2b8a3e", "#862e9c", "#a37200", "#0b7285", "#c2255c", "#5c636a")
SIGNED = "RdBu_r"  # colour map: blue below 0, red above
# Labels may be in any language, so installed ones of these follow the default font.
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Sans",
    "Arial Unicode MS",
    "WenQuanYi Zen Hei",
)


# Points: of an inch, of a line of a legend, and of a line's sample with the gaps around it.
_POINTS, _LINE, _HANDLE = 72, 11.5, 32


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings while a figure is drawn."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    settings = {
        "font.family": [name for name in _FONTS if name in installed],
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.edgecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "axes.prop_cycle": cycler(color=LINES),
        "legend.fontsize": 7,
        "legend.frameon": False,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
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
    """The figure as SVG text. Letters stay text, and equal figures give equal files."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "transformer_jax"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def make_axes(
    size: tuple[float, float], rows: int = 1, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure of `size` inches with a grid of axes, row by row."""
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def plain_text(text: str) -> str:
    """Text that Matplotlib draws unchanged: no formula between dollars, no hidden legend entry."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def legend_above(axes: Axes, handles: Sequence[Artist], width: float) -> float:
    """Writes a legend above the axes, where it covers no data.

    Args:
      axes: of a plot.
      handles: what the legend names; each has a label.
      width: of the axes, in inches.

    Returns:
      The height of the legend in points, for `title_above`.
    """
    return _legend(axes, handles, width, loc="lower left", bbox_to_anchor=(0.0, 1.0))


def title_above(axes: Axes, title: str, height: float = 0.0) -> None:
    """Writes a title above the axes and their legend, which is `height` points high."""
    axes.set_title(plain_text(title), loc="left", pad=4.0 + height)


def legend_of_figure(figure: Figure, handles: Sequence[Artist]) -> None:
    """Writes a legend above all axes of a figure, which becomes higher by it."""
    width, height = figure.get_size_inches()
    points = _legend(figure, handles, width, loc="outside upper left")
    figure.set_size_inches(width, height + points / _POINTS)


def _legend(parent: Axes | Figure, handles: Sequence[Artist], width: float, **place: Any) -> float:
    """A legend in as many columns as fit `width` inches; long labels are broken into lines.

    Returns:
      Its height in points.
    """
    points = width * _POINTS
    labels = [_wrapped(str(handle.get_label()), points - _HANDLE) for handle in handles]
    sizes = [_HANDLE + max(map(_text_width, label)) for label in labels]
    columns = next(
        n
        for n in range(len(labels), 0, -1)
        # Matplotlib fills a column before the next one.
        if n == 1 or sum(max(column) for column in np.array_split(sizes, n)) <= points
    )
    texts = ["\n".join(label) for label in labels]
    parent.legend(list(handles), texts, ncols=columns, borderaxespad=0.2, borderpad=0.2, **place)
    lines = max(sum(column) for column in np.array_split([*map(len, labels)], columns))
    return lines * _LINE + 4.0


def _wrapped(text: str, width: float) -> list[str]:
    """`text` in lines of at most `width` points."""
    letters = max(1, int(len(text) * width / max(_text_width(text), 1.0)))
    return textwrap.wrap(text, letters) or [text]


def _text_width(text: str) -> float:
    """Width of a line of a legend in points; in a picture of pixels letters are up to 5% wider."""
    font = FontProperties(size=matplotlib.rcParams["legend.fontsize"])
    return 1.05 * float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])
