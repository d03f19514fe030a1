"""Text in, text out: a model, or several, with tokenizers, and what a user asks of them."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.config import Config, DecodeConfig, ModelConfig
from transformer_jax.data.tokenizer_pair import TokenizerPair, special_ids
from transformer_jax.data.writing_systems import separates_words
from transformer_jax.decoding import batching, workers
from transformer_jax.decoding.job import AttentionChoice, Job, Translation, reported, say
from transformer_jax.decoding.programs import Programs, matmul_precision
from transformer_jax.decoding.requests import (
    Request,
    RequestEncoder,
    check_text,
    item_error,
    line_numbers,
    read_requests,
    windows,
)  # fmt: skip
from transformer_jax.decoding.warmup import warm_up
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.ops import platforms
from transformer_jax.ops.platforms import compute_dtype

WINDOW = 4096  # sentences sorted together, and held in memory
ON_ERROR = ("raise", "skip")

Prefixes = tuple[list[int], list[int]]  # ids before source and target


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Teacher-forced scores of one sentence pair, its end symbol included."""

    log_prob: float
    num_tokens: int
    num_correct: int
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]  # of each token


def begins_word(token: str) -> bool:
    """Whether a token cannot continue the word before it.

    It begins with a space or a letter of a script without spaces, or it has no letter.
    """
    is_byte = token.startswith("<0x")  # of any character; the text is looked at afterwards
    if is_byte or token.startswith("▁") or not any(c.isalnum() for c in token):
        return True
    return not separates_words(token[0])


class Engine:
    """Translates and scores with given parameters; compiled functions stay for later calls.

    Args:
      config: of the model; as many local devices as `parallel` asks for share the batches.
      tokenizers: of the model.
      others: further models of the same vocabularies, whose probabilities are averaged with it.
        Parameters are then a tuple, of the model and of the others.
    """

    def __init__(
        self, config: Config, tokenizers: TokenizerPair, others: Sequence[ModelConfig] = ()
    ):
        self.config = config
        self.tokenizers = tokenizers
        self.ids = special_ids(tokenizers, config.model)
        devices, parallel = platforms.local_devices(), config.parallel
        # As whoever calls later may have another default device.
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
        target = tokenizers.target
        ends_word = np.ones(config.model.target_vocab_size, bool)
        names = target.tokens(range(min(target.vocab_size, ends_word.size)))
        ends_word[: len(names)] = [begins_word(name) for name in names]
        ends_word[self.ids.target_eos] = True
        self.programs = Programs(self.models, self.ids, devices, ends_word)

    def prefixes(self, target_lang: str = "", source_lang: str = "") -> Prefixes:
        """Ids before source and target that tell a multilingual model its languages.

        Raises:
          UserError: where the model does not know a language.
        """
        data = self.config.data
        if not (data.target_language_tags or target_lang or source_lang):
            return [], []
        return self.tokenizers.prefixes(
            source_lang or data.source_lang, target_lang or data.target_lang
        )

    def encoder(self, target_lang: str = "", source_lang: str = "") -> RequestEncoder:
        """What turns text into ids, for these languages."""
        prefixes = self.prefixes(target_lang, source_lang)
        return RequestEncoder(self.tokenizers, prefixes, self.max_len, self.ids.source_eos)

    # --- Translation ---------------------------------------------------------------------------

    def translate(
        self,
        params: Any,
        texts: Iterable[str | Request],
        decode: DecodeConfig,
        num_hypotheses: int = 1,
        target_lang: str = "",
        source_lang: str = "",
        attention: AttentionChoice | None = None,
        window: int = WINDOW,
        on_error: str = "raise",
        ready: Callable[[], bool] | None = None,
    ) -> Iterator[list[Translation]]:
        """Hypotheses of each text, best first, one list a text, in order, as batches finish.

        An empty text gives one empty hypothesis. A text longer than the model reads is translated
        in parts, which is said on standard error; its one hypothesis joins the parts. Texts that
        are the same are translated once a window.

        Args:
          params: the model's; a tuple where there are several.
          texts: any iterable of text. A list is checked before anything runs, other iterables
            window by window.
          decode: search settings.
          num_hypotheses: at most decode.beam_size, or decode.mbr_samples.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a model that is told this too; "": the config's.
          attention: to come with the best hypothesis.
          window: texts that are read ahead, to be sorted by length.
          on_error: what a text that cannot be translated gives: `raise`, or `skip`, an empty
            translation whose `error` says why.
          ready: whether the next text can be read without waiting for it; where it cannot, what
            has been read is translated first. None: always.

        Raises:
          UserError: an item that is no text, with its place.
        """
        if on_error not in ON_ERROR:
            raise UserError(f"on_error={on_error!r} must be one of {', '.join(ON_ERROR)}.")
        requests = read_requests(texts)
        if isinstance(texts, Sequence):
            every = list(requests)
            for index, request in enumerate(every if on_error == "raise" else ()):
                if isinstance(request, UserError):
                    raise item_error(request, index + 1)
            requests = iter(every)
        encoder = self.encoder(target_lang, source_lang)
        job = self._job(params, encoder, decode, num_hypotheses, attention, target_lang, on_error)
        return self._windows(job, windows(requests, window, ready))

    @staticmethod
    def _windows(
        job: Job, read_windows: Iterator[list[Request | UserError]]
    ) -> Iterator[list[Translation]]:
        num_read = 0
        for read in read_windows:
            numbers = line_numbers(read, num_read + 1)
            yield from reported(job.window(read, numbers), numbers)
            num_read += len(read)

    def _job(
        self,
        params: Any,
        encoder: RequestEncoder,
        decode: DecodeConfig,
        num_hypotheses: int,
        attention: AttentionChoice | None,
        target_lang: str,
        on_error: str = "raise",
    ) -> Job:
        bleu_tokenizer = self._bleu_tokenizer(decode, target_lang)
        return Job(
            self.programs, self.programs.place(params), encoder, decode, num_hypotheses, attention,
            matmul_precision(), self.device, bleu_tokenizer, on_error,
        )  # fmt: skip

    def warmup(
        self,
        params: Any,
        lengths: Iterable[int],
        num_texts: int,
        decode: DecodeConfig,
        num_hypotheses: int = 1,
        target_lang: str = "",
        source_lang: str = "",
        attention: AttentionChoice | None = None,
    ) -> int:
        """Compiles what calls of `translate` need, and runs each program once.

        Args:
          params: the model's; a tuple where there are several.
          lengths: tokens of the longest text of a batch, tags and end symbol included.
          num_texts: most texts of a call.
          decode: search settings.
          num_hypotheses: as in `translate`, and so on.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a model that is told this too; "": the config's.
          attention: to come with the best hypothesis.

        Returns:
          The number of batch shapes.

        Raises:
          UserError: a length that the model does not read.
        """
        encoder = self.encoder(target_lang, source_lang)
        job = self._job(params, encoder, decode, num_hypotheses, attention, target_lang)
        return warm_up(job, lengths, num_texts)

    def _bleu_tokenizer(self, decode: DecodeConfig, target_lang: str) -> str:
        """What `mbr` by BLEU splits words by; a missing one shows before anything runs."""
        if (decode.method, decode.mbr_metric) != ("mbr", "bleu"):
            return bleu_tokenizers.DEFAULT
        data = self.config.data
        name = bleu_tokenizers.choose(
            target_lang or data.target_lang, data.pretokenized, data.bleu_tokenizer
        )
        bleu_tokenizers.make_bleu(name)
        return name

    # --- Scoring -------------------------------------------------------------------------------

    def score(
        self,
        params: Any,
        sources: Sequence[str],
        targets: Sequence[str],
        target_lang: str = "",
        batch_tokens: int = 4096,
        source_lang: str = "",
    ) -> list[PairScores]:
        """Teacher-forced scores of pairs, in order; over-long sides are cut, and it is said.

        Raises:
          UserError: an item that is no text, with its place; before anything runs.
        """
        for name, texts in (("sources", sources), ("targets", targets)):
            for index, text in enumerate(texts):
                try:
                    check_text(text)
                except UserError as error:
                    raise item_error(error, index + 1, name) from error
        placed, encoder = self.programs.place(params), self.encoder(target_lang, source_lang)
        before = self.prefixes(target_lang, source_lang)[1]
        target_ids = self.tokenizers.target.encode_batch(list(targets))
        limit, pairs, num_cut = self.max_len - 1, [], 0
        for source, ids in zip(encoder.source_ids(sources), target_ids, strict=True):
            target = [*before, *ids]
            num_cut += max(len(source), len(target)) > limit
            pairs.append((
                [*source[:limit], self.ids.source_eos],
                [*target[:limit], self.ids.target_eos],
            ))  # fmt: skip
        if num_cut:
            say(f"{num_cut} sentence pairs exceed the model's {self.max_len} tokens: "
                 "scored as cut.")  # fmt: skip
        results: list[PairScores | None] = [None] * len(pairs)
        groups = batching.group_by_length(
            [max(map(len, pair)) for pair in pairs],
            self.max_len,
            batch_tokens,
            self.programs.num_devices,
        )
        for group in groups:
            sides: list[np.ndarray] = []
            for side, pad in ((0, self.ids.source_pad), (1, self.ids.target_pad)):
                own = [pairs[i][side] for i in group.indices]
                sides += batching.pad_rows(own, group.rows, group.length, pad)
            # Its turn among all programs of the process.
            run = workers.submit(
                self.device, matmul_precision(), self.programs.score, placed, *sides
            )
            found = run.result()
            for row, i in enumerate(group.indices):
                counted = slice(len(before), len(pairs[i][1]))
                log_probs = found.log_probs[row, counted]
                results[i] = PairScores(
                    float(log_probs.sum(dtype=np.float64)),
                    log_probs.size,
                    int(found.correct[row, counted].sum()),
                    tuple(self.tokenizers.target.tokens(pairs[i][1][counted])),
                    tuple(map(float, log_probs)),
                )
        return results  # type: ignore[return-value]
