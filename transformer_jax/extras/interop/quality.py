"""BLEU and chrF of a model's translations before and after quantization."""

import dataclasses
from collections.abc import Sequence

from transformer_jax.errors import UserError
from transformer_jax.evaluation import bleu_tokenizers, corpus_metrics
from transformer_jax.evaluation.corpus_metrics import CorpusScores
from transformer_jax.extras.interop.sample_text import SampleText


@dataclasses.dataclass(frozen=True)
class Quality:
    """Scores of the same model without and with rounded weights, on the same sentences.

    Attributes:
      text: the sentences.
      quantization: of the model.
      before, after: by the references. Without references `before` is None, and `after` compares
        with the translations of the model that is not rounded.
      num_changed: outputs that differ.
    """

    text: SampleText
    quantization: str
    before: CorpusScores | None
    after: CorpusScores
    num_changed: int

    @property
    def loss(self) -> float:
        """BLEU that is lost; chrF, if BLEU is 0 before."""
        assert self.before is not None
        if not self.before.bleu:
            return self.before.chrf - self.after.chrf
        return self.before.bleu - self.after.bleu

    def describe(self, max_bleu_loss: float) -> str:
        """The result, and what may be lost, as lines for the user."""
        total, after = len(self.text.sentences), self.after
        lines = [f"{self.quantization} on {total} sentences of {self.text.name}: "]
        if self.before is None:
            lines[0] += (
                f"BLEU {after.bleu:.2f}, chrF {after.chrf:.2f} of its outputs by those of float32 "
                f"(there are no references), {self.num_changed} outputs differ"
            )
        else:
            lines[0] += (
                f"BLEU {self.before.bleu:.2f} before, {after.bleu:.2f} after; "
                f"chrF {self.before.chrf:.2f} before, {after.chrf:.2f} after; "
                f"{self.num_changed} outputs differ; at most {max_bleu_loss:g} BLEU may be lost"
            )
            if not self.before.bleu:
                lines.append(f"  {bleu_tokenizers.NO_FOUR_WORDS}")
        if total < corpus_metrics.MIN_SENTENCES:
            lines.append(
                f"  {total} sentences say little about the loss; {corpus_metrics.MIN_SENTENCES} or "
                "more say more"
            )
        lines.append(f"  {after.bleu_signature}, {after.chrf_signature}")
        return "\n".join(lines)


def compare(
    text: SampleText,
    quantization: str,
    before: Sequence[str],
    after: Sequence[str],
    tokenizer: str,
) -> Quality:
    """Scores of a model's translations before and after quantization.

    Args:
      text: that was translated.
      quantization: of the model.
      before, after: translations.
      tokenizer: of BLEU.
    """
    references = text.references or before
    return Quality(
        text=text,
        quantization=quantization,
        before=corpus_metrics.corpus_scores(before, references, tokenizer)
        if text.references
        else None,
        after=corpus_metrics.corpus_scores(after, references, tokenizer),
        num_changed=sum(one != other for one, other in zip(before, after, strict=True)),
    )


def check(quality: Quality, max_bleu_loss: float) -> None:
    """Refuses a quantization that loses too much.

    Raises:
      UserError: it loses more than `max_bleu_loss`.
    """
    if quality.before is not None and quality.loss > max_bleu_loss:
        metric = "BLEU" if quality.before.bleu else "chrF"
        raise UserError(
            f"{quality.quantization} loses {quality.loss:.2f} {metric} on "
            f"{len(quality.text.sentences)} sentences, more than "
            f"`max_bleu_loss={max_bleu_loss:g}`: "
            "nothing is written. Use `quantization=float16`, or raise `max_bleu_loss` if you "
            "accept the loss."
        )
