"""A sequence-to-sequence Transformer for JAX: train, evaluate and decode translators."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.api import Translator
    from transformer_jax.decoding.requests import Request
    from transformer_jax.decoding.translation import Translation
    from transformer_jax.errors import UserError

__version__ = "0.2.0.dev0"
__all__ = ["Request", "Translation", "Translator", "UserError", "__version__"]

_MODULES = {
    "Translator": "api",
    "Request": "decoding.requests",
    "Translation": "decoding.translation",
    "UserError": "errors",
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: reading a config or an op should not load Orbax.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
