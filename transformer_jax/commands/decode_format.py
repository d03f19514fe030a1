"""The lines that `decode` writes: text or JSON, for translations and for scores."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.commands.text_output import as_line
from transformer_jax.translator import alignment
from transformer_jax.translator.scoring import PairScores
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.words import words_of


@dataclasses.dataclass(frozen=True)
class OutputFormat:
    """What is written of each result.

    Attributes:
      json_lines: one JSON object a line, instead of text.
      n_best: hypotheses of each source; above 1 a line of text is `line ||| text ||| score`.
      alignment: add word alignments.
      attention: add attention to the source; JSON only.
      per_token: add the log-probability of every token to scores.
    """

    json_lines: bool
    n_best: int
    alignment: bool
    attention: bool
    per_token: bool

    def translation(self, line: int, hypotheses: Sequence[Translation]) -> str:
        """Lines for the hypotheses of one source, best first; `line` counts from 0."""
        best = hypotheses[0]
        links = _pharaoh_links(best) if self.alignment else None
        if self.json_lines:
            return _json_line(self._translation_json(hypotheses, links))
        ending = "" if links is None else f" ||| {links}"
        if self.n_best == 1:
            return as_line(best.text + ending)
        lines = []
        for hypothesis in hypotheses:
            text = " ".join(hypothesis.text.splitlines())
            fields = f"{line} ||| {text} ||| {hypothesis.score:.6f}"
            lines.append(as_line(fields + (ending if hypothesis is best else "")))
        return "".join(lines)

    def score(self, target: str, scores: PairScores) -> str:
        """The line for a given translation and its score."""
        if self.json_lines:
            fields: dict[str, Any] = {"text": target, "log_prob": scores.log_prob}
            if self.per_token:
                fields["tokens"] = list(scores.tokens)
                fields["token_log_probs"] = list(scores.log_probs)
            return _json_line(fields)
        columns = [f"{scores.log_prob:.6f}"]
        if self.per_token:
            tokens = zip(scores.tokens, scores.log_probs, strict=True)
            columns += [f"{token} {log_prob:.6f}" for token, log_prob in tokens]
        return as_line("\t".join(columns))

    def _translation_json(
        self, hypotheses: Sequence[Translation], links: str | None
    ) -> dict[str, Any]:
        best, *alternatives = hypotheses
        if best.error:
            return {"text": "", "error": best.error}
        fields = best.as_json()
        if alternatives:
            fields["alternatives"] = [hypothesis.as_json() for hypothesis in alternatives]
        if links is not None:
            fields["alignment"] = links
        if best.confidence:
            fields["confidence"] = best.confidence.sentence
            words = zip(words_of(best.text), best.confidence.words, strict=True)
            fields["words"] = [*map(list, words)]
        if self.attention and best.attention is not None:
            fields["source_tokens"] = list(best.source_tokens)
            fields |= _attention_json(best.attention)
        return fields


def _pharaoh_links(translation: Translation) -> str:
    """Word alignments such as `0-0 1-2`, source first; empty without attention."""
    if translation.attention is None:
        return ""
    weights = alignment.word_attention(
        translation.attention, translation.source_tokens, translation.tokens
    )
    return alignment.pharaoh(alignment.links(weights))


def _attention_json(attention: Any) -> dict[str, Any]:
    """Attention weights, a list for each token of the translation.

    Args:
      attention: `[T, S]`. Of a text that was translated in parts it is a sparse array: each list
        then covers the source tokens of its part, from position `attention_starts` on.
    """
    if isinstance(attention, np.ndarray):
        return {"attention": np.round(attention.astype(float), 6).tolist()}
    row_starts = attention.indptr[:-1]
    if not len(row_starts):
        return {"attention": [], "attention_starts": []}
    rows = np.split(np.round(attention.data.astype(float), 6), row_starts[1:])
    return {
        "attention": [row.tolist() for row in rows],
        "attention_starts": attention.indices[row_starts].tolist(),
    }


def _json_line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
