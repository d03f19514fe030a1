"""Scores of given translations: `score` and `score_tokens` of a `Translator`."""

from collections.abc import Iterable, Sequence
from typing import Any, overload

from transformer_jax.errors import UserError
from transformer_jax.translator import call_settings
from transformer_jax.translator.engine import Engine
from transformer_jax.translator.scoring import PairScores


class TextScorer:
    """A model that scores translations.

    Attributes:
      engine: of the model.
      device_params: of the model; a tuple for an ensemble.
    """

    engine: Engine
    device_params: Any

    @overload
    def score(  # type: ignore[overload-overlap]  # a string is an iterable of strings
        self, sources: str, targets: str, target_lang: str = "", source_lang: str = ""
    ) -> float: ...
    @overload
    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[float]: ...
    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> float | list[float]:
        """Natural log-probability of each target with its end, without length penalty.

        Args:
          sources: texts, or one text.
          targets: a translation of each.
          target_lang: of a multilingual model; "": the config's.
          source_lang: of a multilingual model that needs it; "": the config's.
          contexts: the sentences before each source, of a model that was trained with
            `data.context_sentences`; (): there are none.

        Raises:
          UserError: an item that is no text, or not one target for each source.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], target_lang, source_lang, contexts)[0]
        pairs = self.score_tokens(sources, targets, target_lang, source_lang, contexts)
        return [pair.log_prob for pair in pairs]

    def score_tokens(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        target_lang: str = "",
        source_lang: str = "",
        contexts: Sequence[Sequence[str]] = (),
    ) -> list[PairScores]:
        """As `score` of several texts, with the log-probability of every token."""
        call_settings.check_list("sources", sources, "strings")
        call_settings.check_list("targets", targets, "strings")
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources cannot be scored with {len(targets)} targets.")
        if contexts and len(contexts) != len(sources):
            raise UserError(
                f"{len(contexts)} contexts are not one for each of {len(sources)} sources."
            )
        return self.engine.score(
            self.device_params,
            sources,
            targets,
            target_lang,
            source_lang=source_lang,
            contexts=contexts,
        )
