"""The package ctranslate2, imported only where one of its directories is written or read."""

import types

from transformer_jax.errors import UserError


def require(purpose: str) -> types.ModuleType:
    """The package `ctranslate2`.

    Args:
      purpose: what needs it, to begin the message.

    Raises:
      UserError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError(
            f"{purpose} needs ctranslate2; install it: pip install 'ctranslate2>=4.8'."
        ) from error
    return ctranslate2
