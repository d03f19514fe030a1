"""Texts on their way through the scheduler, as futures."""

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from transformer_jax.extras.serving.errors import ServiceError
from transformer_jax.translator.batch_translator import NOT_FINITE
from transformer_jax.translator.text_queue import DeadlineError
from transformer_jax.translator.translation import Translation

Result = TypeVar("Result")
Submitted = list[concurrent.futures.Future[list[Translation]]]


def cancel(submitted: Sequence[concurrent.futures.Future[Any]]) -> None:
    """Frees the places of texts that are not begun."""
    for future in submitted:
        future.cancel()


async def in_order(
    submitted: Sequence[concurrent.futures.Future[Result]],
) -> AsyncIterator[Result]:
    """The result of each text, as soon as it and all before it are there.

    Where the reader ends early, or a text fails, the others are cancelled.

    Raises:
      ServiceError: a text that was not begun in time.
    """
    try:
        for index, future in enumerate(submitted):
            try:
                yield await asyncio.wrap_future(future)
            except DeadlineError as error:
                raise ServiceError(
                    504, f"The text was {error}", index, retry_after=1, reason="deadline"
                ) from error
    finally:
        cancel(submitted)


async def translations_in_order(submitted: Submitted) -> AsyncIterator[list[Translation]]:
    """The translations of each text, as of `in_order`.

    Raises:
      ServiceError: as of `in_order`; or the model is damaged, where others would see empty texts.
    """
    index = 0
    async for translations in in_order(submitted):
        if NOT_FINITE in translations[0].unmet:
            cancel(submitted)
            message = f"The model gave no translation, for want of {NOT_FINITE}."
            raise ServiceError(500, message, index, reason="model_damaged")
        yield translations
        index += 1
