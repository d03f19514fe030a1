"""A sequence-to-sequence Transformer for JAX: train, evaluate and decode translators."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.errors import UserError
    from transformer_jax.translator.requests import Request
    from transformer_jax.translator.translation import Translation
    from transformer_jax.translator.translator import Translator

__version__ = "0.2.0.dev0"
__all__ = ["Request", "Translation", "Translator", "UserError", "__version__"]

_MODULES = {
    "Translator": "translator.translator",
    "Request": "translator.requests",
    "Translation": "translator.translation",
    "UserError": "errors",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: reading a config or an op should not load Orbax.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
