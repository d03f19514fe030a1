"""Text in, text out: a model, its tokenizers, and jitted search and scoring."""

import dataclasses
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import Config, DecodeConfig, ModelConfig
from transformer_jax.data.loader import SpecialIds
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.decoding import batching, search
from transformer_jax.model import Transformer
from transformer_jax.ops import losses

WINDOW = 4096  # sentences sorted together, and held in memory
EXTRA_PIECES = 10  # on top of max_decode_ratio

Prefixes = tuple[list[int], list[int]]  # ids before source and target


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis."""

    text: str
    score: float  # log-probability over length penalty
    log_prob: float  # natural log-probability of all pieces and the end symbol
    pieces: tuple[str, ...]
    ids: tuple[int, ...]  # of the pieces


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Teacher-forced sums over one sentence pair, its end symbol included."""

    log_prob: float
    num_tokens: int
    num_correct: int


def special_ids(tokenizers: TokenizerPair, model: ModelConfig) -> SpecialIds:
    """Ids that surround sentences, for this model."""
    return SpecialIds(
        source_pad=tokenizers.source.pad_id,
        source_eos=tokenizers.source.eos_id,
        target_pad=tokenizers.target.pad_id,
        target_eos=tokenizers.target.eos_id,
        decoder_start=model.decoder_start_id,
    )


class Engine:
    """Translates and scores with given parameters; compiled functions stay for later calls."""

    def __init__(self, config: Config, tokenizers: TokenizerPair):
        self.config = config
        self.tokenizers = tokenizers
        self.ids = special_ids(tokenizers, config.model)
        self._model = Transformer(config.model)
        self._search = jax.jit(
            self._search_batch, static_argnames=("decode", "num_hypotheses", "prefix")
        )
        self._score = jax.jit(self._score_batch, static_argnames="prefix_len")

    # --- Translation ---------------------------------------------------------------------------

    def translate(
        self,
        params: Any,
        lines: Iterable[str],
        decode: DecodeConfig,
        num_hypotheses: int = 1,
        target_lang: str = "",
        source_lang: str = "",
    ) -> Iterator[list[Translation]]:
        """Hypotheses of each line, best first, one list a line, in order.

        An empty line gives one empty hypothesis. A line longer than the model reads is translated
        in parts, which is said on standard error; its one hypothesis joins the parts.

        Args:
          params: the model's.
          lines: any iterable of text; read ahead by at most `WINDOW` lines.
          decode: search settings.
          num_hypotheses: at most decode.beam_size.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a model that is told this too; "": the config's.
        """
        number = 0
        prefixes = self.prefixes(target_lang, source_lang)
        for window in _windows(lines):
            yield from self._translate_window(
                params, window, number, decode, num_hypotheses, prefixes
            )
            number += len(window)

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

    def encode_source(self, texts: Sequence[str], prefix: Sequence[int] = ()) -> list[list[int]]:
        """Source ids of each text behind `prefix`, without the end symbol; [] where empty."""
        encoded = self.tokenizers.source.encode_batch(texts)
        return [[*prefix, *ids] if ids else [] for ids in encoded]

    def _translate_window(self, params, window, first, decode, num_hypotheses, prefixes):
        texts = list(dict.fromkeys(window))  # each text once
        limit = self.config.model.max_len - 1  # the end symbol needs a place
        parts: list[list[int]] = []
        spans = []
        for text, ids in zip(texts, self.encode_source(texts, prefixes[0]), strict=True):
            begin = len(parts)
            if len(ids) > limit:
                tag = len(prefixes[0])
                tag += self.tokenizers.begins_with_tag(ids[tag:])
                parts.extend(self._split_long(ids, limit, tag))
                _say(
                    f"line {first + window.index(text) + 1}: {len(ids)} pieces, the model reads "
                    f"{limit}; translated in {len(parts) - begin} parts."
                )
            elif ids:
                parts.append(ids)
            spans.append((begin, len(parts)))
        results = self._translate_ids(params, parts, decode, num_hypotheses, prefixes[1])
        by_text = {}
        for text, (begin, end) in zip(texts, spans, strict=True):
            if end - begin == 1:
                by_text[text] = results[begin]
            else:
                by_text[text] = [_join([hypotheses[0] for hypotheses in results[begin:end]])]
        for text in window:
            yield by_text[text]

    def _split_long(self, ids: list[int], limit: int, tag: int) -> list[list[int]]:
        """Parts of at most `limit`, each behind the first `tag` ids."""
        body = ids[tag:]
        pieces = self.tokenizers.source.pieces(body)
        return [ids[:tag] + part for part in batching.split_ids(body, pieces, limit - tag)]

    def _translate_ids(self, params, sentences, decode, num_hypotheses, prefix):
        results: list[list[Translation]] = [[]] * len(sentences)
        with_end = [[*ids, self.ids.source_eos] for ids in sentences]
        budget = max(1, decode.batch_tokens // decode.beam_size)
        for batch in batching.make_batches(
            with_end, self.config.model.max_len, budget, self.ids.source_pad
        ):
            limits = [self._limit(int(n), decode) if n else 0 for n in batch.lengths]
            found = self._search(
                params,
                batch.inputs,
                batch.lengths,
                np.asarray(limits, np.int32),
                decode=decode,
                num_hypotheses=num_hypotheses,
                prefix=tuple(prefix),
            )
            found = jax.device_get(found)
            for row, index in enumerate(batch.indices):
                results[index] = [
                    self._hypothesis(
                        found.tokens[row, k, len(prefix) : found.lengths[row, k]],
                        found.scores[row, k],
                        found.log_probs[row, k],
                    )
                    for k in range(min(num_hypotheses, decode.beam_size))
                    if found.scores[row, k] > search.NEVER
                ]
        return results

    def _limit(self, source_len: int, decode: DecodeConfig) -> int:
        by_source = math.ceil(decode.max_decode_ratio * source_len) + EXTRA_PIECES
        return min(by_source, decode.max_decode_len, self.config.model.max_len)

    def _search_batch(self, params, inputs, lengths, limits, *, decode, num_hypotheses, prefix=()):
        source_mask = jnp.arange(inputs.shape[1]) < lengths[:, None]
        apply: Any = functools.partial(self._model.apply, {"params": params})
        encoded = apply(inputs, None, source_mask.astype(jnp.int32), method="encode")
        max_decode_len = self._limit(inputs.shape[1], decode)
        cache = apply(encoded, source_mask, decode.beam_size, max_decode_len, method="init_cache")
        return search.beam_search(
            lambda cache, tokens: apply(cache, tokens, method="decode_step"),
            cache,
            limits,
            max_decode_len=max_decode_len,
            start_id=self.ids.decoder_start,
            eos_id=self.ids.target_eos,
            pad_id=self.ids.target_pad,
            config=decode,
            num_hypotheses=num_hypotheses,
            prefix=prefix,
        )

    def _hypothesis(self, tokens, score, log_prob) -> Translation:
        ids = tokens[:-1] if len(tokens) and tokens[-1] == self.ids.target_eos else tokens
        return Translation(
            text=self.tokenizers.target.decode(ids),
            score=float(score),
            log_prob=float(log_prob),
            pieces=tuple(self.tokenizers.target.pieces(ids)),
            ids=tuple(int(i) for i in ids),
        )

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
        """Teacher-forced scores of pairs, in order; over-long sides are cut, and it is said."""
        max_len = self.config.model.max_len
        before_source, before_target = self.prefixes(target_lang, source_lang)
        source_ids = self.encode_source(sources, before_source)
        encoded = self.tokenizers.target.encode_batch(list(targets))
        target_ids = [[*before_target, *ids] for ids in encoded]
        pairs = []
        num_cut = 0
        for source, target in zip(source_ids, target_ids, strict=True):
            num_cut += max(len(source), len(target)) >= max_len
            pairs.append((
                [*source[: max_len - 1], self.ids.source_eos],
                [*target[: max_len - 1], self.ids.target_eos],
            ))  # fmt: skip
        if num_cut:
            _say(f"{num_cut} sentence pairs exceed the model's {max_len} pieces: scored as cut.")
        results: list[PairScores | None] = [None] * len(pairs)
        longest = [source if len(source) > len(target) else target for source, target in pairs]
        for batch in batching.make_batches(longest, max_len, batch_tokens, 0):
            sides = []
            for side, pad in ((0, self.ids.source_pad), (1, self.ids.target_pad)):
                tokens = np.full_like(batch.inputs, pad)
                lengths = np.zeros_like(batch.lengths)
                for row, i in enumerate(batch.indices):
                    lengths[row] = len(pairs[i][side])
                    tokens[row, : lengths[row]] = pairs[i][side]
                sides.append((tokens, lengths))
            sums = jax.device_get(
                self._score(params, *sides[0], *sides[1], prefix_len=len(before_target))
            )
            for row, i in enumerate(batch.indices):
                results[i] = PairScores(
                    -float(sums.nll[row]), int(sums.tokens[row]), int(sums.correct[row])
                )
        return results  # type: ignore[return-value]

    def _score_batch(
        self, params, inputs, source_lengths, targets, target_lengths, *, prefix_len=0
    ):
        def segments(tokens, lengths):
            return (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)

        start = jnp.full((targets.shape[0], 1), self.ids.decoder_start, targets.dtype)
        decoder_inputs = jnp.concatenate([start, targets[:, :-1]], axis=1)
        source_segments = segments(inputs, source_lengths)
        target_segments = segments(targets, target_lengths)
        apply: Any = functools.partial(self._model.apply, {"params": params})
        encoded = apply(inputs, None, source_segments, method="encode")
        hidden = apply(
            encoded, decoder_inputs, source_segments, None, target_segments, method="decode"
        )
        logits = apply(hidden, method="logits")
        counted = target_segments.at[:, :prefix_len].set(0)
        return jax.vmap(losses.cross_entropy)(logits, targets, counted)


def _windows(lines: Iterable[str]) -> Iterator[list[str]]:
    window: list[str] = []
    for line in lines:
        window.append(line)
        if len(window) == WINDOW:
            yield window
            window = []
    if window:
        yield window


def _join(parts: Sequence[Translation]) -> Translation:
    """The translations of a text's parts as one; of no part, an empty one."""
    return Translation(
        text=" ".join(part.text for part in parts if part.text),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        pieces=tuple(piece for part in parts for piece in part.pieces),
        ids=tuple(i for part in parts for i in part.ids),
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
