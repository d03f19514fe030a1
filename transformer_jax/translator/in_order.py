"""Translations of many texts, in their order: read window by window, batched by length."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from transformer_jax.errors import UserError
from transformer_jax.translator import batching, scheduler
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.requests import (
    EncodedText,
    RefusedItem,
    Request,
    RequestEncoder,
    item_error,
    place_of,
    warn,
)
from transformer_jax.translator.translation import Translation, join_hypotheses, no_translation
from transformer_jax.translator.translation_settings import TranslationSettings

Items = list[Request | RefusedItem]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of `translate`.

    Args:
      encoder: of its languages.
      settings: of all its texts.
      batch_limits: longest source, positions of a batch on a device, and number of devices.
      translate_batch: run by the scheduler.
      on_error: what an item that cannot be translated gives.
      num_ahead: as of `Scheduler.run`.
    """

    encoder: RequestEncoder
    settings: TranslationSettings
    batch_limits: tuple[int, int, int]
    translate_batch: Callable[[Batch, list[EncodedText]], list[list[Translation]]]
    on_error: str
    num_ahead: int | None = None


def translate_windows(call: Call, read_windows: Iterable[Items]) -> Iterator[list[Translation]]:
    """Translations of each item of all windows, in order."""
    num_read = 0
    for items in read_windows:
        places = [place_of(item, index) for index, item in enumerate(items, start=num_read)]
        yield from _translate_window(call, items, places)
        num_read += len(items)


def _translate_window(
    call: Call, items: Items, places: Sequence[str]
) -> Iterator[list[Translation]]:
    """Translations of each item, as soon as they and all before them are there.

    Args:
      call: its settings.
      items: of the window.
      places: of the items, for messages.

    Raises:
      UserError: naming an item that cannot be translated, unless `on_error` is `skip`.
    """
    requests = [item for item in dict.fromkeys(items) if isinstance(item, Request)]
    encoded: dict[Request | RefusedItem, list[EncodedText] | UserError] = {
        item: item.error for item in items if isinstance(item, RefusedItem)
    }
    encoded |= zip(requests, call.encoder.encode(requests, call.settings), strict=True)
    texts: list[EncodedText] = []
    parts_of: dict[Request | RefusedItem, range] = {}  # numbers of an item's parts in `texts`
    for item, place in zip(items, places, strict=True):
        parts = encoded[item]
        if isinstance(parts, UserError):
            if call.on_error == "raise":
                raise item_error(parts, place)
        elif item not in parts_of:
            if len(parts) > 1:
                warn(
                    f"{place}: longer than the {call.encoder.max_len - 1} tokens that "
                    f"the model reads; translated in {len(parts)} parts."
                )
            parts_of[item] = range(len(texts), len(texts) + len(parts))
            texts += parts

    translated: dict[int, list[Translation]] = {}  # of each of `texts`
    batches = batching.group_by_length([len(text.source) for text in texts], *call.batch_limits)
    results = scheduler.of_process().run(
        call.translate_batch,
        ((batch, [texts[i] for i in batch.indices]) for batch in batches),
        call.num_ahead,
    )
    finished = zip(batches, results, strict=True)
    for item, place in zip(items, places, strict=True):
        problem = encoded[item]
        if isinstance(problem, UserError):
            yield [no_translation(error=str(item_error(problem, place)))]
            continue
        while not all(i in translated for i in parts_of[item]):
            batch, batch_translations = next(finished)
            translated |= zip(batch.indices, batch_translations, strict=True)
        best = join_hypotheses([translated[i] for i in parts_of[item]])
        if best[0].unmet:
            warn(f"{place}: not met: {'; '.join(best[0].unmet)}.")
        yield best
