"""What a caller asks for."""

import dataclasses
import functools
import math
from collections.abc import Hashable

from transformer_jax.config import DecodeConfig
from transformer_jax.search.search_settings import structure_of, suppressed_size
from transformer_jax.translator import batching
from transformer_jax.translator.alignment import AttentionChoice


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """The settings of a call.

    Args:
      decode: search settings.
      num_hypotheses: translations of each text; at most `decode.beam_size`, or
        `decode.mbr_samples`.
      target_lang: of a multilingual model; "": the config's.
      source_lang: of a multilingual model that needs it; "": the config's.
      attention: to come with the best translation; None: without.
      most_rows: texts of a batch of single texts, where few programs are compiled; None: the
        engine's own number.
    """

    decode: DecodeConfig
    num_hypotheses: int = 1
    target_lang: str = ""
    source_lang: str = ""
    attention: AttentionChoice | None = None
    most_rows: int | None = None

    @functools.cached_property
    def search(self) -> DecodeConfig:
        """Settings of the search itself, in which a sample is a beam."""
        samples = {"sample": self.num_hypotheses, "mbr": self.decode.mbr_samples}
        beam_size = samples.get(self.decode.method, self.decode.beam_size)
        return dataclasses.replace(self.decode, beam_size=beam_size)

    @property
    def shared(self) -> Hashable:
        """What the texts of a batch have in common; all else may differ from row to row."""
        decode = self.decode
        size = suppressed_size(len(decode.suppressed_ids))
        search = structure_of(self.search), decode.method, decode.batch_tokens, decode.shortlist
        return *search, self.attention, size, self.most_rows

    def length_limits(self, source_len: int, max_len: int) -> tuple[int, int]:
        """Fewest and most output tokens, end symbols included.

        Args:
          source_len: tokens of the source, its end symbol included.
          max_len: most tokens that the model writes.
        """
        decode = self.decode
        most = math.ceil(decode.max_decode_ratio * source_len) + batching.EXTRA_TOKENS
        most = min(most, decode.max_decode_len, max_len)
        least = max(decode.min_decode_len, math.ceil(decode.min_decode_ratio * source_len))
        return min(least, most), most

    def output_room(self, source_len: int, max_len: int) -> int:
        """Positions for outputs in a batch of sources padded to `source_len`."""
        most = self.length_limits(source_len, max_len)[1]
        return batching.output_room(source_len, most, max_len)
