"""Text as the token ids of a SentencePiece model, and back.

What decoding gives back is the text as the model normalises it, lower-cased first where
`lowercase` says so. The rule `identity`, the default, keeps all but spaces at the ends and in runs.
"""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sentencepiece

from transformer_jax.errors import UserError

_SAMPLING = threading.Lock()


class Tokenizer:
    """Text to token ids and back.

    `pad_id`, `bos_id`, `eos_id` and `unk_id` are four different ids; those that the model file does
    not define are added behind its tokens.
    """

    def __init__(self, model: bytes, lowercase: bool = False):
        self.model = model
        self.lowercase = lowercase
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(f"The tokenizer is no SentencePiece model ({error}).") from error
        self.vocab_size = self._processor.get_piece_size()
        self.unk_id = self._processor.unk_id()
        self.pad_id = self._defined(self._processor.pad_id())
        self.bos_id = self._defined(self._processor.bos_id())
        self.eos_id = self._defined(self._processor.eos_id())

    def _defined(self, special_id: int) -> int:
        if special_id >= 0:
            return special_id
        self.vocab_size += 1
        return self.vocab_size - 1

    @property
    def special_ids(self) -> tuple[int, int, int, int]:
        return self.pad_id, self.bos_id, self.eos_id, self.unk_id

    @property
    def state(self) -> dict[str, Any]:
        """What makes this tokenizer besides its model, as JSON."""
        return {"kind": "sentencepiece", "lowercase": self.lowercase}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without start or end symbols."""
        if self.lowercase:
            texts = [text.lower() for text in texts]
        return self._processor.encode(list(texts), num_threads=-1) if texts else []

    def sample_batch(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """As `encode_batch`, but each text cut in one of its ways, drawn at random.

        Of a BPE model each merge is left out with probability `rate` (BPE-dropout, Provilkov et al.
        2020); of a unigram model a segmentation is drawn with its probability to the power `rate`
        (Kudo 2018).

        Args:
          texts: what to cut.
          rate: in 0 .. 1.
          seed: 0 .. 2^32 - 1; the same texts, rate and seed give the same tokens.

        Raises:
          UserError: tokens of this kind are cut in one way only.
        """
        if self.lowercase:
            texts = [text.lower() for text in texts]
        # Each thread has a generator of its own, seeded from a global when first used.
        with _SAMPLING, ThreadPoolExecutor(1) as thread:
            sentencepiece.set_random_generator_seed(seed)
            drawn = thread.submit(
                self._processor.encode, list(texts), enable_sampling=True, alpha=rate,
                nbest_size=-1, num_threads=1,
            )  # fmt: skip
            try:
                return drawn.result()
            except RuntimeError as error:
                raise UserError(
                    "config.data.subword_sampling needs a tokenizer of kind bpe or unigram; this "
                    f"one cannot sample ({error})."
                ) from error

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; start, end and padding symbols are left out."""
        dropped = (self.pad_id, self.bos_id, self.eos_id)
        return self._processor.decode([int(i) for i in ids if i not in dropped])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens as SentencePiece writes them, for display."""
        size = self._processor.get_piece_size()
        added = {self.pad_id: "<pad>", self.bos_id: "<s>", self.eos_id: "</s>"}
        return [self._processor.id_to_piece(int(i)) if i < size else added[int(i)] for i in ids]

    def token_id(self, token: str) -> int:
        """Id of a token; `unk_id` where there is none."""
        return self._processor.piece_to_id(token)

    def normalize(self, text: str) -> str:
        """The text that `decode(encode(text))` gives back where no token is unknown."""
        return self._processor.normalize(text.lower() if self.lowercase else text)

    def lost_texts(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """Those of `texts` that do not survive encoding and decoding, each with what comes back."""
        decoded = (self.decode(ids) for ids in self.encode_batch(texts))
        return [pair for pair in zip(texts, decoded, strict=True) if pair[0] != pair[1]]
