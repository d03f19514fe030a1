"""A sequence-to-sequence Transformer for JAX: train, evaluate and decode translators."""

from typing import Any

__version__ = "0.2.0.dev0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: reading a config or an op should not load Orbax.
    if name == "Translator":
        from transformer_jax.api import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
