"""Text in, text out: a model, or an ensemble, with its tokenizers."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair, special_ids
from transformer_jax.decoding import ON_ERROR, WINDOW, batching, call_settings, workers
from transformer_jax.decoding.batch_translator import BatchTranslator, TranslationSettings
from transformer_jax.decoding.batching import Batch
from transformer_jax.decoding.phrases import starts_word
from transformer_jax.decoding.processors import Processor
from transformer_jax.decoding.programs import Programs, matmul_precision
from transformer_jax.decoding.requests import (
    EncodedText,
    RefusedItem,
    Request,
    RequestEncoder,
    check_text,
    item_error,
    place_of,
    read_requests,
    warn,
    windows,
)
from transformer_jax.decoding.scoring import PairScorer, PairScores
from transformer_jax.decoding.translation import Translation, join_parts, no_translation
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.model.transformer import Params
from transformer_jax.ops import platforms
from transformer_jax.ops.platforms import compute_dtype


class Engine:
    """Translates and scores with given parameters; compiled programs stay for later calls.

    Args:
      config: of the run, with the model's sizes and the default search settings. As many local
        devices as `parallel` asks for share the batches.
      tokenizers: turn text into the model's token ids, and back.
      others: further models of the same vocabularies, whose probabilities are averaged with it.
        Parameters are then a tuple, of the model and of the others.
      processors: decoding rules besides those of the settings.
    """

    def __init__(
        self,
        config: Config,
        tokenizers: TokenizerPair,
        others: Sequence[ModelConfig] = (),
        processors: Sequence[Processor] = (),
    ):
        self.config = config
        self.tokenizers = tokenizers
        self.ids = special_ids(tokenizers, config.model)
        devices, parallel = platforms.local_devices(), config.parallel
        # Fixed now, because a later caller may have another default device.
        platform = platforms.of(devices[0])
        self.models = tuple(
            dataclasses.replace(model, dtype=compute_dtype(model, platform).name)  # type: ignore[arg-type]
            for model in (config.model, *others)
        )
        self.max_len = min(model.max_len for model in self.models)
        sizes = (parallel.data, parallel.fsdp, parallel.tensor)
        if -1 not in sizes:
            devices = devices[: math.prod(sizes)]
        self.device = devices[0]
        may_follow = starts_word(tokenizers.target, config.model.target_vocab_size)
        self.programs = Programs(self.models, self.ids, devices, may_follow, processors)

    def language_tags(
        self, target_lang: str = "", source_lang: str = ""
    ) -> tuple[list[int], list[int]]:
        """Ids before source and target that name the languages to a multilingual model.

        Raises:
          UserError: a language that the model does not know.
        """
        data = self.config.data
        if not (data.target_language_tags or target_lang or source_lang):
            return [], []
        if not (data.target_language_tags or self.tokenizers.has_language_tags):
            for name, given in (("source_lang", source_lang), ("target_lang", target_lang)):
                if given not in ("", getattr(data, name)):
                    raise UserError(
                        f"`{name}={given}`: this model translates from {data.source_lang} to "
                        f"{data.target_lang} only; omit `{name}`."
                    )
            return [], []
        return self.tokenizers.language_tags(
            source_lang or data.source_lang, target_lang or data.target_lang
        )

    def encoder(self, target_lang: str = "", source_lang: str = "") -> RequestEncoder:
        """Encodes text for these languages."""
        tags = self.language_tags(target_lang, source_lang)
        return RequestEncoder(self.tokenizers, tags, self.max_len, self.ids.source_eos)

    # --- Translation ---------------------------------------------------------------------------

    def translate(
        self,
        params: Params | tuple[Params, ...],
        texts: Iterable[str | Request],
        settings: TranslationSettings,
        window: int = WINDOW,
        on_error: str = "raise",
        ready: Callable[[], bool] | None = None,
    ) -> Iterator[list[Translation]]:
        """Translations of each text, best first, one list a text, in order, as batches finish.

        An empty text gives one empty translation. A text longer than the model reads is translated
        in parts, with a message on standard error; its one translation joins the parts. Texts that
        are the same are translated once a window.

        Args:
          params: the model's; a tuple for an ensemble.
          texts: any iterable of text. A list is checked before anything runs, other iterables
            window by window.
          settings: of the search, and more.
          window: texts that are read ahead, to be sorted by length.
          on_error: what a text that cannot be translated gives: `raise`, or `skip`, an empty
            translation with its `error`.
          ready: whether the next text can be read without waiting. While it cannot, the texts read
            so far are translated first. None: always.

        Raises:
          UserError: an item that is no text, with its place.
        """
        if on_error not in ON_ERROR:
            raise UserError(f"`on_error={on_error}` must be one of {', '.join(ON_ERROR)}.")
        window = call_settings.count("window", window)
        requests = read_requests(texts, settings.decode.method)
        if isinstance(texts, Collection):
            items = list(requests)
            for index, item in enumerate(items):
                if isinstance(item, RefusedItem) and on_error == "raise":
                    raise item_error(item.error, place_of(item, index))
            requests = iter(items)
        translator, precision = self._batch_translator(params, settings), matmul_precision()
        run = functools.partial(workers.run, self.device, precision, translator.translate_batch)
        return _translate_windows(translator, run, windows(requests, window, ready), on_error)

    def warmup(
        self,
        params: Params | tuple[Params, ...],
        lengths: Iterable[int],
        num_texts: int,
        settings: TranslationSettings,
    ) -> int:
        """Compiles what calls of `translate` need, and runs each program once.

        Args:
          params: the model's; a tuple for an ensemble.
          lengths: tokens of the longest text of a batch, tags and end symbol included.
          num_texts: most texts of a call.
          settings: of the calls.

        Returns:
          The number of batch shapes.

        Raises:
          UserError: a length that the model does not read.
        """
        translator = self._batch_translator(params, settings)
        shapes: set[tuple[int, int]] = set()
        for index, value in enumerate(lengths):
            length = call_settings.count(f"lengths[{index}]", value)
            if length > self.max_len:
                raise UserError(
                    f"No text has {length} tokens; the model reads 1 to {self.max_len}."
                )
            shapes |= set(batching.shapes(length, num_texts, *translator.batch_limits))
        # An empty text ends the search soon; the shape alone decides what is compiled.
        text = translator.encoder.empty_text()
        calls = [(Batch([0], rows, length), [text]) for rows, length in sorted(shapes)]
        for _ in workers.run(self.device, matmul_precision(), translator.translate_batch, calls):
            pass
        return len(shapes)

    def _batch_translator(
        self, params: Params | tuple[Params, ...], settings: TranslationSettings
    ) -> BatchTranslator:
        data, tokenizer = self.config.data, bleu_tokenizers.DEFAULT
        if (settings.decode.method, settings.decode.mbr_metric) == ("mbr", "bleu"):
            tokenizer = bleu_tokenizers.choose(
                settings.target_lang or data.target_lang, data.pretokenized, data.bleu_tokenizer
            )
            bleu_tokenizers.make_bleu(tokenizer)  # a missing one shows before anything runs
        return BatchTranslator(
            self.programs,
            self.programs.put_on_devices(params),
            self.encoder(settings.target_lang, settings.source_lang),
            settings,
            tokenizer,
        )

    # --- Scoring -------------------------------------------------------------------------------

    def score(
        self,
        params: Params | tuple[Params, ...],
        sources: Sequence[str],
        targets: Sequence[str],
        target_lang: str = "",
        batch_tokens: int = 4096,
        source_lang: str = "",
    ) -> list[PairScores]:
        """Teacher-forced scores of pairs, in order; too long sides are cut, with a message.

        Raises:
          UserError: an item that is no text, with its place; before anything runs.
        """
        for name, texts in (("sources", sources), ("targets", targets)):
            for index, text in enumerate(texts):
                try:
                    check_text(text)
                except UserError as error:
                    raise item_error(error, place_of(text, index, name)) from error
        scorer = PairScorer(
            self.programs,
            self.programs.put_on_devices(params),
            self.encoder(target_lang, source_lang),
            self.device,
        )
        return scorer.score(sources, targets, batch_tokens)


Items = list[Request | RefusedItem]
RunBatches = Callable[
    [Iterable[tuple[Batch, list[EncodedText]]]], Iterator[list[list[Translation]]]
]


def _translate_windows(
    translator: BatchTranslator, run: RunBatches, read_windows: Iterable[Items], on_error: str
) -> Iterator[list[Translation]]:
    """Translations of each item of all windows, in order."""
    num_read = 0
    for items in read_windows:
        places = [place_of(item, index) for index, item in enumerate(items, start=num_read)]
        yield from _translate_window(translator, run, items, places, on_error)
        num_read += len(items)


def _translate_window(
    translator: BatchTranslator,
    run: RunBatches,
    items: Items,
    places: Sequence[str],
    on_error: str,
) -> Iterator[list[Translation]]:
    """Translations of each item, as soon as they and all before them are there.

    Args:
      translator: of batches.
      run: translates batches, in threads.
      items: of the window.
      places: of the items, for messages.
      on_error: what an item that cannot be translated gives.

    Raises:
      UserError: naming an item that cannot be translated, unless `on_error` is `skip`.
    """
    requests = [item for item in dict.fromkeys(items) if isinstance(item, Request)]
    encoded: dict[Request | RefusedItem, list[EncodedText] | UserError] = {
        item: item.error for item in items if isinstance(item, RefusedItem)
    }
    encoded |= zip(requests, translator.encoder.encode(requests), strict=True)
    texts: list[EncodedText] = []
    parts_of: dict[Request | RefusedItem, range] = {}  # numbers of an item's parts in `texts`
    for item, place in zip(items, places, strict=True):
        parts = encoded[item]
        if isinstance(parts, UserError):
            if on_error == "raise":
                raise item_error(parts, place)
        elif item not in parts_of:
            if len(parts) > 1:
                warn(
                    f"{place}: longer than the {translator.encoder.max_len - 1} tokens that "
                    f"the model reads; translated in {len(parts)} parts."
                )
            parts_of[item] = range(len(texts), len(texts) + len(parts))
            texts += parts

    translated: dict[int, list[Translation]] = {}  # of each of `texts`
    batches = batching.group_by_length(
        [len(text.source) for text in texts], *translator.batch_limits
    )
    results = run((batch, [texts[i] for i in batch.indices]) for batch in batches)
    finished = zip(batches, results, strict=True)
    for item, place in zip(items, places, strict=True):
        problem = encoded[item]
        if isinstance(problem, UserError):
            yield [no_translation(error=str(item_error(problem, place)))]
            continue
        while not all(i in translated for i in parts_of[item]):
            batch, batch_translations = next(finished)
            translated |= zip(batch.indices, batch_translations, strict=True)
        hypotheses = [translated[i] for i in parts_of[item]]
        best = hypotheses[0] if len(hypotheses) == 1 else [join_parts([h[0] for h in hypotheses])]
        if best[0].unmet:
            warn(f"{place}: not met: {'; '.join(best[0].unmet)}.")
        yield best
