"""`BatchRunner`: what computes the batches of an engine."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Protocol

from transformer_jax.translator.alignment import AttentionChoice
from transformer_jax.translator.batching import Batch
from transformer_jax.translator.requests import EncodedText
from transformer_jax.translator.scoring import Pair, TokenScores
from transformer_jax.translator.translation import Translation
from transformer_jax.translator.translation_settings import TranslationSettings

TranslateBatch = Callable[[Batch, Sequence[EncodedText]], list[list[Translation]]]
ScoreBatch = Callable[[Batch, Sequence[Pair]], list[TokenScores]]


class BatchRunner(Protocol):
    """Translates and scores batches of token ids; its functions may run in any thread.

    Attributes:
      kind: what computes, `jax` or `ctranslate2`.
      max_len: tokens that the model reads and writes at once, the end symbol included.
      spans_processes: whether the devices of all processes compute each batch together. All of
        them then have to run the same batches, one after the other.
      phrase_room: phrases of a text, forms of a phrase and tokens of a form that programs are
        compiled for; None: as many as texts have.
    """

    kind: str
    max_len: int
    spans_processes: bool
    phrase_room: tuple[int, int, int] | None

    @property
    def num_devices(self) -> int:
        """Devices that share a batch."""

    @property
    def alignment(self) -> AttentionChoice | None:
        """The attention that links words best; None where there is none."""

    @property
    def compiles(self) -> bool:
        """Whether every shape of a batch needs a program."""

    @property
    def step_rows(self) -> float:
        """As of `Lane`."""

    @property
    def num_compiled(self) -> int:
        """Programs that were compiled."""

    def freeze(self) -> None:
        """Lets nothing compile any more."""

    def describe(self, params: Any, has_shortlist: bool = False) -> dict[str, Any]:
        """What outputs depend on besides texts, tokenizers and settings, for JSON.

        Args:
          params: as of `translate_batch`.
          has_shortlist: whether the search has one.
        """

    def check(self, settings: TranslationSettings, given: Collection[str] = ()) -> None:
        """Refuses what this runner cannot do.

        Args:
          settings: of a call.
          given: names of the search settings that the caller gave.

        Raises:
          UserError: naming the setting.
        """

    def why_no_phrases(self, method: str) -> str:
        """Why outputs of a search method cannot contain given phrases; "" if they can.

        Args:
          method: of `DecodeConfig`.
        """

    def batch_limits(self, settings: TranslationSettings) -> tuple[int, int, int]:
        """Longest source, positions of a batch on a device, and number of devices."""

    def row_options(self, settings: TranslationSettings, length: int) -> Sequence[int]:
        """Numbers of rows that batches of a padded length may have, rising."""

    def shapes(
        self, settings: TranslationSettings, length: int, num_texts: int
    ) -> Sequence[tuple[int, int]]:
        """(rows, padded length) of all batches that have to be compiled for a call.

        Args:
          settings: of the call.
          length: of the longest text, in tokens.
          num_texts: most texts of a call.
        """

    def vocabulary_sizes(self, settings: TranslationSettings) -> Sequence[int]:
        """Numbers of target tokens for which each shape is compiled; 0: all."""

    def lane_key(self, settings: TranslationSettings) -> Hashable:
        """Equal for settings whose texts can share a batch."""

    def translate_batch(self, params: Any, settings: TranslationSettings) -> TranslateBatch:
        """What translates batches: of each text of a batch, its translations, best first.

        Args:
          params: of the model, where the runner has none of its own.
          settings: of the texts, as far as they have them in common.
        """

    def score_batch(self, params: Any) -> ScoreBatch:
        """What scores batches of pairs, teacher-forced: of each pair, its target's tokens.

        Args:
          params: as of `translate_batch`.
        """
