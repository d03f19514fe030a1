"""Translates one batch: token ids to arrays, a compiled search, hypotheses to text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.data.shortlist import Shortlist
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.ops.top_k import NEVER
from transformer_jax.search.hypotheses import Hypotheses
from transformer_jax.search.search_settings import (
    SearchConstraints,
    SearchStructure,
    structure_of,
    values_of,
)
from transformer_jax.translator import batching, phrases, ranking, vocabulary_subset
from transformer_jax.translator.batch_functions import DeviceParams
from transformer_jax.translator.batching import Batch, TokenRows
from transformer_jax.translator.phrases import Phrase
from transformer_jax.translator.programs import Programs
from transformer_jax.translator.requests import EncodedText
from transformer_jax.translator.translation import (
    Translation,
    fewest_unmet,
    no_translation,
)

NO_OUTPUT = "an output (these settings forbid every one)"
NOT_FINITE = "finite probabilities (the model gives NaN; its parameters may be damaged)"


@dataclasses.dataclass(frozen=True)
class BatchTranslator:
    """Translates batches; safe to call from several threads.

    Args:
      programs: run the model's functions.
      params: the model's parameters, on the devices.
      tokenizers: turn ids into text.
      max_len: tokens that the model reads and writes.
      bleu_tokenizer: splits words where `mbr` compares by BLEU.
      phrase_room: as of `phrases.within`; None: any.
      shortlist: of the model, to search among its tokens; None: among all.
    """

    programs: Programs
    params: DeviceParams
    tokenizers: TokenizerPair
    max_len: int
    bleu_tokenizer: str
    phrase_room: tuple[int, int, int] | None = None
    shortlist: Shortlist | None = None

    def translate_batch(
        self, batch: Batch, texts: Sequence[EncodedText]
    ) -> list[list[Translation]]:
        """Translations of each text, best first.

        Args:
          batch: the shape.
          texts: at most `batch.rows`, none longer than `batch.length`; what their settings share
            (`TranslationSettings.shared`) is equal.
        """
        sources = batching.pad_rows(
            [text.source for text in texts], batch.rows, batch.length, self.programs.ids.source_pad
        )
        max_decode_len, constraints, subset = self._constraints(batch, texts, [()] * len(texts))
        structure = structure_of(texts[0].settings.search)
        hypotheses = self._search(sources, constraints, subset, structure, max_decode_len)
        results = [self._translations(hypotheses, row, text) for row, text in enumerate(texts)]

        # Texts whose outputs lack a phrase are searched again, with room for their phrases.
        wanted = [
            self._possible_phrases(text) if any(t.unmet for t in translations) else ()
            for text, translations in zip(texts, results, strict=True)
        ]
        if not structure.is_sampling and any(wanted):
            longer, constraints, subset = self._constraints(batch, texts, wanted)
            max_decode_len = max(max_decode_len, longer)
            hypotheses = self._search(sources, constraints, subset, structure, longer)
            for row, (text, phrases_of_row) in enumerate(zip(texts, wanted, strict=True)):
                if phrases_of_row:
                    more = self._translations(hypotheses, row, text)
                    best = fewest_unmet([*more, *results[row]])
                    results[row] = best[: text.settings.num_hypotheses]

        if texts[0].settings.attention:
            self._explain(batch, texts, sources, results, max_decode_len)
        return results

    def _search(
        self,
        sources: TokenRows,
        constraints: SearchConstraints,
        subset: np.ndarray | None,
        structure: SearchStructure,
        max_decode_len: int,
    ) -> Hypotheses:
        return self.programs.run(
            self.programs.functions.search,
            self.params,
            sources,
            constraints,
            subset,
            structure=structure,
            max_decode_len=max_decode_len,
        )

    def _constraints(
        self, batch: Batch, texts: Sequence[EncodedText], wanted: Sequence[Sequence[Phrase]]
    ) -> tuple[int, SearchConstraints, np.ndarray | None]:
        """The room for an output, the constraints of each row, and the tokens of the search.

        The tokens are None, which is all of them, without a shortlist.
        """
        # Any: SearchConstraints hold NumPy arrays until a program runs.
        min_lens: Any = np.zeros(batch.rows, np.int32)
        max_lens: Any = np.zeros(batch.rows, np.int32)
        num_free: Any = np.zeros(batch.rows, np.int32)
        seeds: Any = np.zeros(batch.rows, np.uint32)
        num_hypotheses: Any = np.ones(batch.rows, np.int32)
        for row, (text, row_phrases) in enumerate(zip(texts, wanted, strict=True)):
            least, most = text.settings.length_limits(text.own_length, self.max_len)
            min_lens[row], max_lens[row] = least, max(most, text.min_output(row_phrases))
            num_free[row], seeds[row] = text.num_target_tags, text.seed
            num_hypotheses[row] = text.settings.num_hypotheses
        settings = [text.settings for text in texts]
        rooms = [one.output_room(batch.length, self.max_len) for one in set(settings)]
        room = max(*rooms, batching.output_room(batch.length, int(max_lens.max()), self.max_len))
        phrase_arrays = phrases.stack(wanted, batch.rows, self.phrase_room)
        if phrase_arrays is not None:
            max_lens[[row for row, row_phrases in enumerate(wanted) if not row_phrases]] = 0
        prefix: Any = None
        prefix_len = batching.next_power_of_two(max(len(text.prefix) for text in texts))
        if prefix_len:
            prefixes = [text.prefix for text in texts]
            prefix = batching.pad_rows(prefixes, batch.rows, prefix_len, -1).ids
        values = values_of([one.search for one in settings], batch.rows)
        constraints = SearchConstraints(
            max_lens, min_lens, values, num_hypotheses, prefix, num_free, phrase_arrays, seeds
        )
        if self.shortlist is None:
            return room, constraints, None
        ids, vocab_size = self.programs.ids, self.programs.vocab_size
        num_sharing = self.programs.num_sharing(batch.rows)
        subset: Any = vocabulary_subset.of_batch(
            self.shortlist, texts, wanted, ids, vocab_size, batch, num_sharing
        )
        return room, vocabulary_subset.renumber(constraints, subset, vocab_size), subset.ids

    def _possible_phrases(self, text: EncodedText) -> tuple[Phrase, ...]:
        possible = filter(None, (phrases.possible(p, text.settings.decode) for p in text.phrases))
        return phrases.within(tuple(possible), self.phrase_room)

    def _translations(
        self, hypotheses: Hypotheses, row: int, text: EncodedText
    ) -> list[Translation]:
        """Translations of one text, as many as asked for; an empty one where there is none."""
        ranks = [
            k for k in range(text.settings.search.beam_size) if hypotheses.scores[row, k] > NEVER
        ]
        if not ranks:
            reason = NO_OUTPUT if hypotheses.finite[row] else NOT_FINITE
            return [no_translation(unmet=(reason, *(p.name for p in text.phrases)))]
        translations = (self._translation(hypotheses, row, k, text) for k in ranks)
        return ranking.best_translations(translations, text.settings, self.bleu_tokenizer)

    def _translation(
        self, hypotheses: Hypotheses, row: int, k: int, text: EncodedText
    ) -> Translation:
        ids = hypotheses.tokens[row, k, text.num_target_tags : hypotheses.lengths[row, k]]
        if len(ids) and ids[-1] == self.programs.ids.target_eos:
            ids = ids[:-1]
        target = self.tokenizers.target
        output = target.decode(ids)
        return Translation(
            text=output,
            score=float(hypotheses.scores[row, k]),
            log_prob=float(hypotheses.log_probs[row, k]),
            tokens=tuple(target.tokens(ids)),
            ids=tuple(int(i) for i in ids),
            unmet=phrases.missing(output, text.phrases),
        )

    def _explain(
        self,
        batch: Batch,
        texts: Sequence[EncodedText],
        sources: TokenRows,
        results: list[list[Translation]],
        max_decode_len: int,
    ) -> None:
        """Adds its attention to the source and its log-probabilities to each best translation."""
        choice, ids = texts[0].settings.attention, self.programs.ids
        assert choice is not None
        outputs = [
            [*text.prefix[: text.num_target_tags], *best.ids, ids.target_eos][:max_decode_len]
            for text, (best, *_) in zip(texts, results, strict=True)
        ]
        targets = batching.pad_rows(outputs, batch.rows, max_decode_len, ids.target_pad)
        explanation = self.programs.run(
            self.programs.functions.explain,
            self.params,
            sources,
            targets,
            layer=choice.layer,
            head=choice.head,
        )
        for row, (text, hypotheses) in enumerate(zip(texts, results, strict=True)):
            source = text.source[text.num_before : -1]
            first, num_tokens = text.num_target_tags, len(hypotheses[0].ids)
            weights, log_probs = explanation.attention[row], explanation.log_probs[row]
            # An output that was cut at its limit has no step that reads its last token.
            steps = np.arange(first + choice.shift, first + choice.shift + num_tokens)
            steps = np.minimum(steps, len(weights) - 1)
            columns = slice(text.num_before, text.num_before + len(source))
            hypotheses[0] = dataclasses.replace(
                hypotheses[0],
                source_tokens=tuple(self.tokenizers.source.tokens(source)),
                attention=weights[steps, columns],
                token_log_probs=tuple(map(float, log_probs[first : first + num_tokens + 1])),
            )
