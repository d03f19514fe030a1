"""One call of translation: requests into batches, results into text, in order."""

import concurrent.futures
import dataclasses
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding import alignment, batching, long_texts, mbr, phrases, workers
from transformer_jax.decoding.alignment import AttentionChoice
from transformer_jax.decoding.hypotheses import Hypotheses
from transformer_jax.decoding.phrases import Phrase
from transformer_jax.decoding.processors import SearchConstraints
from transformer_jax.decoding.programs import Placed, Programs
from transformer_jax.decoding.requests import Part, Request, RequestEncoder, item_error
from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers
from transformer_jax.ops.top_k import NEVER

NO_OUTPUT = "an output (these settings forbid every one)"
NOT_FINITE = "finite probabilities (the model gives NaN; its parameters may be damaged)"


@dataclasses.dataclass(frozen=True)
class Translation:
    """One hypothesis."""

    text: str
    score: float  # log-probability over length penalty; of `mbr`, the expected metric
    log_prob: float  # natural log-probability of all tokens and the end symbol
    tokens: tuple[str, ...]
    ids: tuple[int, ...]  # of the tokens
    source_tokens: tuple[str, ...] = ()  # where attention was asked for
    # [T, S]; of a text that was translated in parts a scipy.sparse.csr_array
    attention: Any = dataclasses.field(default=None, compare=False)
    error: str = ""  # why the text was not translated, with on_error="skip"; text is then ""
    unmet: tuple[str, ...] = ()  # what was asked for and is not so, such as "phrase 'Haus'"

    def as_json(self) -> dict[str, Any]:
        """What a line of JSON says of it; a score of -inf, of no output, is None."""
        found = {name: getattr(self, name) for name in ("text", "score", "log_prob")}
        found |= {"tokens": list(self.tokens)} | ({"unmet": [*self.unmet]} if self.unmet else {})
        return {name: None if value == -math.inf else value for name, value in found.items()}


@dataclasses.dataclass(frozen=True)
class Job:
    """One call of `translate`."""

    programs: Programs
    placed: Placed
    encoder: RequestEncoder
    decode: DecodeConfig
    num_hypotheses: int
    attention: AttentionChoice | None
    precision: str | None  # of products, as the caller has set it; threads do not inherit it
    device: jax.Device  # the first of those that compute
    bleu_tokenizer: str = bleu_tokenizers.DEFAULT  # of `mbr`
    on_error: str = "raise"  # or skip: a request that cannot be translated gives its error

    @functools.cached_property
    def search(self) -> DecodeConfig:
        """Settings of the search itself, in which a sample is a beam."""
        samples = {"sample": self.num_hypotheses, "mbr": self.decode.mbr_samples}
        beams = samples.get(self.decode.method, self.decode.beam_size)
        return dataclasses.replace(self.decode, beam_size=beams)

    def window(
        self, window: list[Request | UserError], line_numbers: Sequence[int]
    ) -> Iterator[list[Translation]]:
        """Hypotheses of some requests, as soon as they and all before them are there.

        Args:
          window: requests; an error instead of one that could not be read.
          line_numbers: of the requests in the user's input, for messages.

        Raises:
          UserError: naming a request that cannot be translated, unless `on_error` is `skip`.
        """
        unique = [x for x in dict.fromkeys(window) if isinstance(x, Request)]  # each once
        found: dict[Request | UserError, list[Part] | UserError] = {
            x: x for x in window if isinstance(x, UserError)}  # fmt: skip
        found |= zip(unique, self.encoder.encode(unique), strict=True)
        parts: list[Part] = []
        places: dict[Request | UserError, range] = {}  # of each request's parts
        numbers = dict(zip(reversed(window), reversed(line_numbers), strict=True))  # of the first
        for request, own in found.items():
            number = numbers[request]
            if isinstance(own, UserError):
                if self.on_error == "raise":
                    raise item_error(own, number)
                continue
            if len(own) > 1:
                say(
                    f"line {number}: longer than the {self.encoder.max_len - 1} tokens that "
                    f"the model reads; translated in {len(own)} parts."
                )
            places[request] = range(len(parts), len(parts) + len(own))
            parts += own
        results: dict[int, list[Translation]] = {}
        batches = self._in_turn(parts)
        for request in window:
            if request not in places:
                # Its score is below all others.
                error = str(found[request])
                yield [Translation("", -math.inf, -math.inf, (), (), error=error)]
                continue
            place = places[request]
            while not all(i in results for i in place):
                results.update(next(batches))
            if len(place) == 1:
                yield results[place.start]
            else:
                yield [_join([results[i][0] for i in place])]

    @property
    def batch_sizes(self) -> tuple[int, int, int]:
        """Longest source, positions of a batch on a device, and devices."""
        budget = max(1, self.decode.batch_tokens // self.search.beam_size)
        return self.encoder.max_len, budget, self.programs.num_devices

    def submit(self, group: batching.Group, parts: list[Part]) -> concurrent.futures.Future:
        """Has a worker translate a batch, under the caller's JAX settings."""
        return workers.submit(self.device, self.precision, self._translate, group, parts)

    def _in_turn(self, parts: list[Part]) -> Iterator[dict[int, list[Translation]]]:
        """Results of the batches of `parts`, a few batches ahead of who reads them."""
        lengths = [len(part.source) for part in parts]
        groups = batching.group_by_length(lengths, *self.batch_sizes)
        waiting: list[concurrent.futures.Future] = []
        try:
            for group in groups:
                own = [parts[i] for i in group.indices]
                waiting.append(self.submit(group, own))
                if len(waiting) > workers.NUM_WORKERS:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()

    def _translate(self, group: batching.Group, parts: list[Part]) -> dict[int, list[Translation]]:
        ids = self.programs.ids
        inputs, lengths = batching.pad_rows(
            [part.source for part in parts], group.rows, group.length, ids.source_pad
        )
        longest, results = self._searched(group, parts, inputs, lengths)
        if self.attention:
            tags = [part.prefix[: self.encoder.free_prefix] for part in parts]
            outputs = [
                [*tag, *own[0].ids, ids.target_eos][:longest]
                for tag, own in zip(tags, results, strict=True)
            ]
            targets = batching.pad_rows(outputs, group.rows, longest, ids.target_pad)
            choice = self.attention
            with jax.default_matmul_precision(self.precision):
                weights = self.programs.attention(
                    self.placed, inputs, lengths, *targets, layer=choice.layer, head=choice.head
                )
            for row, (own, part) in enumerate(zip(results, parts, strict=True)):
                own[0] = self._with_attention(own[0], part, weights[row])
        return dict(zip(group.indices, results, strict=True))

    def _searched(
        self, group: batching.Group, parts: list[Part], inputs: np.ndarray, lengths: np.ndarray
    ) -> tuple[int, list[list[Translation]]]:
        """The longest possible output, and hypotheses of each part.

        The first search asks for no phrases. Parts whose outputs lack one are searched again.
        """

        def search(wanted: list[tuple[Phrase, ...]]) -> tuple[int, list[list[Translation]]]:
            longest, demands = self._demands(group, parts, wanted)
            if demands.phrases is not None:  # rows that ask for none are done already
                idle = [row for row, asked in enumerate(wanted) if not asked]
                demands.limits[idle] = 0
            with jax.default_matmul_precision(self.precision):
                found: Hypotheses = self.programs.search(
                    self.placed, inputs, lengths, demands, decode=self.search,
                    max_decode_len=longest, num_hypotheses=self.num_hypotheses,
                    free_prefix=self.encoder.free_prefix,
                )  # fmt: skip
            return longest, [self._hypotheses(found, i, part) for i, part in enumerate(parts)]

        longest, results = search([()] * len(parts))
        wanted = [
            tuple(p for p in part.phrases if phrases.is_possible(p, self.decode))
            if any(one.unmet for one in own) else ()
            for part, own in zip(parts, results, strict=True)
        ]  # fmt: skip
        if self.decode.method == "beam" and any(wanted):
            more, second = search(wanted)
            longest = max(longest, more)
            for row in (row for row, asked in enumerate(wanted) if asked):
                fewest = _fewest_unmet([*second[row], *results[row]])
                results[row] = fewest[: self.num_hypotheses]
        return longest, results

    def _hypotheses(self, found: Hypotheses, row: int, part: Part) -> list[Translation]:
        """Of one sentence, as many as asked for; an empty one where there is none."""
        hypotheses = [
            self._translation(found, row, k, part)
            for k in range(self.search.beam_size)
            if found.scores[row, k] > NEVER
        ]
        if not hypotheses:
            unmet = (
                NO_OUTPUT if found.finite[row] else NOT_FINITE,
                *(p.name for p in part.phrases),
            )
            return [Translation("", -math.inf, -math.inf, (), (), unmet=unmet)]
        if self.decode.method == "mbr":
            hypotheses = _by_utility(hypotheses, self.decode.mbr_metric, self.bleu_tokenizer)
        if self.decode.method != "sample":
            hypotheses = _distinct(hypotheses)
        return hypotheses[: self.num_hypotheses]

    def _demands(
        self, group: batching.Group, parts: list[Part], wanted: list[tuple[Phrase, ...]]
    ) -> tuple[int, SearchConstraints]:
        """The longest output of the batch's shape, and what is asked of each row."""
        limits = [self._limits(len(part.source)) for part in parts]
        needs = [dataclasses.replace(part, phrases=asked).needed
                 for part, asked in zip(parts, wanted, strict=True)]  # fmt: skip
        free = [0] * (group.rows - len(parts))
        most = [max(m, need) for (_, m), need in zip(limits, needs, strict=True)]
        longest = max(*most, self._limits(group.length)[1])
        longest = batching.output_room(group.length, longest, self.encoder.max_len)
        stacked, word_ends = phrases.stack(wanted, group.rows)
        return longest, SearchConstraints(
            limits=np.asarray(most + free, np.int32),
            minimums=np.asarray([least for least, _ in limits] + free, np.int32),
            prefix=_stack([part.prefix for part in parts], group.rows),
            phrases=stacked,
            word_ends=word_ends,
            seeds=np.asarray([part.seed for part in parts] + free, np.uint32),
        )

    def _limits(self, source_len: int) -> tuple[int, int]:
        """Fewest and most tokens of output for a source, end symbols included."""
        decode = self.decode
        most = math.ceil(decode.max_decode_ratio * source_len) + batching.EXTRA_TOKENS
        most = min(most, decode.max_decode_len, self.encoder.max_len)
        least = max(decode.min_decode_len, math.ceil(decode.min_decode_ratio * source_len))
        return min(least, most), most

    def _translation(self, found: Hypotheses, row: int, k: int, part: Part) -> Translation:
        ids = found.tokens[row, k, self.encoder.free_prefix : found.lengths[row, k]]
        if len(ids) and ids[-1] == self.programs.ids.target_eos:
            ids = ids[:-1]
        target = self.encoder.tokenizers.target
        text = target.decode(ids)
        return Translation(
            text=text,
            score=float(found.scores[row, k]),
            log_prob=float(found.log_probs[row, k]),
            tokens=tuple(target.tokens(ids)),
            ids=tuple(int(i) for i in ids),
            unmet=phrases.missing(text, part.phrases),
        )

    def _with_attention(self, best: Translation, part: Part, attention: Any) -> Translation:
        before, source = self.encoder.free_prefix, part.source[part.num_tags : -1]
        return dataclasses.replace(
            best,
            source_tokens=tuple(self.encoder.tokenizers.source.tokens(source)),
            # A copy: a view would keep the batch's array alive.
            attention=attention[before : before + len(best.ids),
                                part.num_tags : part.num_tags + len(source)].copy(),
        )  # fmt: skip


def _stack(sequences: Sequence[Sequence[int]], rows: int) -> np.ndarray | None:
    """Sequences as `[rows, L]` behind which -1 stands; None where all are empty."""
    longest = max(map(len, sequences))
    if not longest:
        return None
    return batching.pad_rows(sequences, rows, batching.roomy(longest), -1)[0]


def _fewest_unmet(hypotheses: list[Translation]) -> list[Translation]:
    """Those that lack as few of the phrases as the best of them, by score."""
    fewest = min(len(one.unmet) for one in hypotheses)
    kept = [one for one in hypotheses if len(one.unmet) == fewest]
    return _distinct(sorted(kept, key=lambda one: -one.score))


def _by_utility(hypotheses: list[Translation], metric: str, tokenizer: str) -> list[Translation]:
    utilities = mbr.expected_utilities([h.text for h in hypotheses], metric, tokenizer)
    scored = [dataclasses.replace(h, score=u) for h, u in zip(hypotheses, utilities, strict=True)]
    return sorted(scored, key=lambda h: -h.score)


def _distinct(hypotheses: list[Translation]) -> list[Translation]:
    """The first of those with the same tokens, which groups may find and samples repeat."""
    first: dict[tuple[int, ...], Translation] = {}
    for hypothesis in hypotheses:
        first.setdefault(hypothesis.ids, hypothesis)
    return list(first.values())


def _join(parts: Sequence[Translation]) -> Translation:
    """The translations of a text's parts as one; of no part, an empty one."""
    found = [part.attention for part in parts if part.attention is not None]
    return Translation(
        text=long_texts.join([part.text for part in parts]),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        tokens=tuple(token for part in parts for token in part.tokens),
        ids=tuple(i for part in parts for i in part.ids),
        source_tokens=tuple(token for part in parts for token in part.source_tokens),
        attention=alignment.block_diagonal(found) if found else None,
        unmet=tuple(dict.fromkeys(what for part in parts for what in part.unmet)),
    )


def reported(
    results: Iterable[list[Translation]], line_numbers: Sequence[int]
) -> Iterator[list[Translation]]:
    """The same results; what the best of a line lacks is said with the line's number."""
    for number, result in zip(line_numbers, results, strict=True):
        if result[0].unmet:
            say(f"line {number}: not met: {'; '.join(result[0].unmet)}.")
        yield result


def say(message: str) -> None:
    """Tells the user, on standard error."""
    print(message, file=sys.stderr, flush=True)
