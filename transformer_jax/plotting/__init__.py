"""Pictures of attention, training and data, and `report.html`.

The functions here take arrays and give Matplotlib figures; `python -m transformer_jax.plotting`
draws them from a work directory. Matplotlib comes with the extra `[plot]`.
"""

from transformer_jax.errors import UserError

try:
    from transformer_jax.plotting.figures import (
        PANELS,
        Figure,
        alignment,
        attention_maps,
        curves,
        heat_map,
        heat_maps,
        learning_curves,
        length_statistics,
        positions,
        schedules,
        to_svg,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise UserError(
        "Pictures need Matplotlib: pip install -c constraints.txt -e '.[plot]'."
    ) from error

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
