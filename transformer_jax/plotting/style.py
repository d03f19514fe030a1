"""What all figures share: fonts, colours, and how they become files.

No figure is known to pyplot, so nothing has to be closed. A notebook shows a figure by its name,
and `figure.savefig` writes it.
"""

import contextlib
import io
from collections.abc import Iterator

import matplotlib
from cycler import cycler
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

INK, FAINT, BLUE = "#1f2933", "#d5dbe1", "#1864ab"
LINES = (BLUE, "#d9480f", "#2b8a3e", "#862e9c", "#e67700", "#0b7285", "#c2255c", "#5c636a")
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
