"""Pictures of attention, training and data, and `report.html`.

The functions here take arrays and give Matplotlib figures; `python -m transformer_jax.plotting`
draws them from a work directory. Matplotlib comes with the extra `[plot]`, and is loaded when it is
needed.
"""

from typing import Any

__all__ = [
    "PANELS",
    "Figure",
    "alignment",
    "attention_maps",
    "curves",
    "heat_map",
    "heat_maps",
    "learning_curves",
    "length_statistics",
    "positions",
    "schedules",
    "to_svg",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_jax.plotting import figures

    return getattr(figures, name)
