"""What all figures share: fonts, colours, and how they become files.

No figure is known to pyplot, so nothing has to be closed. A notebook shows a figure by its name,
and `figure.savefig` writes it.
"""

import contextlib
import io
import math
import textwrap
from collections.abc import Iterator, Sequence

import matplotlib
from cycler import cycler
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure as MatplotlibFigure

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


# Points: of an inch, of a line of a legend and of its widest letters. Letters that a line's sample
# and the gaps around it take.
_POINTS, _LINE, _LETTER, _HANDLE = 72, 11.5, 7.0, 6


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


def colours(count: int) -> list[str]:
    """As many colours of lines: those of `LINES`, else hues at equal distances."""
    if count <= len(LINES):
        return list(LINES[:count])
    # Three levels in turns, so that neighbours differ by more than their hue.
    levels = [(1.0, 0.85), (0.75, 0.55), (0.6, 0.75)]
    hues = [(number / count, *levels[number % 3]) for number in range(count)]
    return [to_hex(hsv_to_rgb(hue)) for hue in hues]


def title_and_legend(
    axes: Axes, title: str, handles: Sequence[Artist] = (), columns: int = 1
) -> None:
    """Writes a title above the axes, and between them a legend, where it covers no data."""
    if not handles:
        axes.set_title(plain_text(title), loc="left", pad=4.0)
        return
    axes.legend(
        handles=list(handles),
        title=plain_text(title),
        title_fontsize=matplotlib.rcParams["axes.titlesize"],
        ncols=columns,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        alignment="left",
        borderaxespad=0.2,
        borderpad=0.2,
    )


def legend_of_figure(figure: Figure, handles: Sequence[Artist]) -> None:
    """Writes a legend above all axes of a figure, which becomes higher by it."""
    width, height = figure.get_size_inches()
    letters = int(width * _POINTS / _LETTER)  # of a line
    labels = [textwrap.wrap(str(handle.get_label()), letters - _HANDLE) for handle in handles]
    longest = max(len(line) for label in labels for line in label)
    columns = max(1, letters // (longest + _HANDLE))
    lines = math.ceil(len(labels) / columns) * max(map(len, labels))
    texts = list(map("\n".join, labels))
    figure.legend(list(handles), texts, ncols=columns, loc="outside upper left", borderpad=0.2)
    figure.set_size_inches(width, height + lines * _LINE / _POINTS)
