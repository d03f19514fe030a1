"""Pictures of attention, training and data, and `report.html`.

The functions here take arrays and return Matplotlib figures; `transformer-jax plot` draws them from
a work directory. Matplotlib is in the extra `[plot]` and is loaded on first use.
"""

import importlib
from typing import Any

from transformer_jax.errors import UserError

_MODULES = {
    "style": ("Figure", "to_svg"),
    "map_figures": ("alignment", "attention_maps", "heat_map", "heat_maps"),
    "curve_figures": (
        "PANELS",
        "Metrics",
        "curves",
        "learning_curves",
        "length_statistics",
        "positions",
        "schedules",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        raise UserError(f"Pictures need Matplotlib ({error}): pip install matplotlib.") from error
    return getattr(module, name)
