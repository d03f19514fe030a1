"""Pairs for training, made of texts and a model's translations of them.

Forward, the model's translation is the target: sequence-level distillation (Kim and Rush, 2016).
Back, it is the source of a text that people wrote: back-translation (Sennrich et al., 2016), with a
tag before the source so that a model tells it from text of people (Caswell et al., 2019).
"""

import dataclasses
from collections.abc import Sequence

from transformer_jax.extras.documents.guards import Guards
from transformer_jax.translator.translation import Translation

NOTHING = ""  # a line without a pair, which training leaves out


@dataclasses.dataclass(frozen=True)
class PairRules:
    """Which translations become pairs, and how.

    Attributes:
      is_back: whether translations become sources; otherwise targets.
      tag: before each source, with a space; "": none.
      n_best: pairs of each text, at most.
      min_log_prob: of a translation, per token, the end symbol included.
      guards: whether translations that `extras.documents.guards` catches are left out.

    A pair with a NUL character is left out too.
    """

    is_back: bool = False
    tag: str = ""
    n_best: int = 1
    min_log_prob: float = -1e9
    guards: bool = True

    def lines(
        self, text: str, translations: Sequence[Translation], source_lang: str, target_lang: str
    ) -> list[str]:
        """`n_best` lines of source, tab, target; `NOTHING` where a translation is left out.

        Args:
          text: that was translated.
          translations: of it, best first.
          source_lang, target_lang: of the model that translated.
        """
        guards = Guards(source_lang, target_lang)
        text = _as_column(text)
        lines: list[str] = []
        for one in translations[: self.n_best]:
            written = _as_column(one.text)
            pair = (written, text) if self.is_back else (text, written)
            line = f"{self.tag} {pair[0]}\t{pair[1]}".removeprefix(" ")
            is_wrong = self.guards and bool(guards.problems(text, written))
            is_kept = text and written and not is_wrong and self._is_likely(one)
            is_kept = is_kept and "\0" not in line  # which training refuses
            lines.append(line if is_kept and line not in lines else NOTHING)
        return lines + [NOTHING] * (self.n_best - len(lines))

    def translations(self, lines: Sequence[str]) -> list[str]:
        """The translations in some `lines`, which may be joined, without their tags."""
        column = 0 if self.is_back else -1
        texts = [line.split("\t")[column] for joined in lines for line in joined.split("\n")]
        return [text.removeprefix(f"{self.tag} ") for text in texts] if self.is_back else texts

    def _is_likely(self, one: Translation) -> bool:
        return one.log_prob >= self.min_log_prob * (len(one.ids) + 1)


def _as_column(text: str) -> str:
    """The text in one line and without tabs."""
    return " ".join(text.split("\n")).replace("\t", " ").replace("\r", " ").strip()
