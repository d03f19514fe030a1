"""Encodes text as token ids of a SentencePiece model, and decodes ids to text.

Decoding returns the text as the model normalises it, in lower case if `lowercase` is set. The
default normalization rule, `identity`, changes nothing except leading, trailing and repeated
spaces.
"""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import sentencepiece

from transformer_jax.data.word_ids import WordIds, separates_words
from transformer_jax.errors import UserError

TokenizerState = dict[str, Any]  # an object of JSON
CONTEXT_SEPARATOR = "<context>"  # after a sentence before a source; no text can spell it

# From 0.2.2 on, SentencePiece samples differently in each process, whatever its seed.
UNSEEDED_SAMPLING = tuple(map(int, sentencepiece.__version__.split(".")[:3])) >= (0, 2, 2)
_SAMPLING = threading.Lock()
# From this number on, the time for starting SentencePiece's threads is well spent: they take 0.5 ms
# to start, and a sentence 0.01 ms to encode.
MANY_TEXTS = 100


class Tokenizer:
    """Text to token ids and back.

    `pad_id`, `bos_id`, `eos_id` and `unk_id` are four different ids. Those that the model file does
    not define are added after its tokens.

    Args:
      model: content of a SentencePiece model file.
      lowercase: whether text is lower-cased before encoding.
    """

    def __init__(self, model: bytes, lowercase: bool = False):
        self.model = model
        self.lowercase = lowercase
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(f"The tokenizer is not a SentencePiece model ({error}).") from error
        self._words = WordIds(self._processor) if separates_words(model) else None
        self.vocab_size = self._processor.get_piece_size()
        self.unk_id = self._processor.unk_id()
        self.pad_id = self._id_or_new(self._processor.pad_id())
        self.bos_id = self._id_or_new(self._processor.bos_id())
        self.eos_id = self._id_or_new(self._processor.eos_id())

    def _id_or_new(self, special_id: int) -> int:
        if special_id >= 0:
            return special_id
        self.vocab_size += 1
        return self.vocab_size - 1

    @property
    def special_ids(self) -> tuple[int, int, int, int]:
        return self.pad_id, self.bos_id, self.eos_id, self.unk_id

    @property
    def state(self) -> TokenizerState:
        """Everything except the model that is needed to create this tokenizer again."""
        return {"kind": "sentencepiece", "lowercase": self.lowercase}

    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        """Token ids of each text, without start or end symbols; -1: a thread for each core."""
        if self.lowercase:
            texts = [text.lower() for text in texts]
        if len(texts) < MANY_TEXTS:
            return [self._processor.encode(text) for text in texts]
        if self._words is not None:
            ids_of = self._words.__getitem__
            return [[*chain.from_iterable(map(ids_of, text.split(" ")))] for text in texts]
        return self._processor.encode(list(texts), num_threads=num_threads)

    def sample_batch(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """Token ids of each text in a segmentation that is drawn at random.

        A BPE model skips each merge with probability `rate` (BPE-dropout, Provilkov et al. 2020). A
        unigram model draws a segmentation with its probability to the power `rate` (Kudo 2018).

        Args:
          texts: to be encoded.
          rate: in 0 .. 1.
          seed: 0 .. 2^32 - 1; the same texts, rate and seed give the same tokens. With
            `UNSEEDED_SAMPLING` they do so in one process only.

        Raises:
          UserError: a model of this kind has only one segmentation of a text.
        """
        if self.lowercase:
            texts = [text.lower() for text in texts]
        # SentencePiece has one generator per thread, seeded when the thread first samples.
        with _SAMPLING, ThreadPoolExecutor(1) as thread:
            sentencepiece.set_random_generator_seed(seed)
            ids = thread.submit(
                self._processor.encode,
                list(texts),
                enable_sampling=True,
                alpha=rate,
                nbest_size=-1,
                num_threads=1,
            )
            try:
                return ids.result()
            except RuntimeError as error:
                raise UserError(
                    "config.data.subword_sampling needs a tokenizer of kind bpe or unigram; this "
                    f"one cannot sample ({error})."
                ) from error

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_marker(self, token: str) -> list[int]:
        """Ids of a text that is one token of the vocabulary, such as a language tag."""
        return self.encode(token)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids, without start, end and padding symbols."""
        dropped = (self.pad_id, self.bos_id, self.eos_id)
        return self._processor.decode([int(i) for i in ids if i not in dropped])

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens as SentencePiece writes them, for display."""
        size = self._processor.get_piece_size()
        added = {self.pad_id: "<pad>", self.bos_id: "<s>", self.eos_id: "</s>"}
        return [self._processor.id_to_piece(int(i)) if i < size else added[int(i)] for i in ids]

    @property
    def num_model_tokens(self) -> int:
        """Tokens of the SentencePiece model."""
        return self._processor.get_piece_size()

    def token_id(self, token: str) -> int:
        """Id of a token; `unk_id` where there is none."""
        return self._processor.piece_to_id(token)

    def normalize(self, text: str) -> str:
        """The text that `decode(encode(text))` returns if no token is unknown."""
        return self._processor.normalize(text.lower() if self.lowercase else text)

    def lost_texts(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """The texts that encoding and decoding change, each with the decoded text."""
        decoded = (self.decode(ids) for ids in self.encode_batch(texts))
        return [pair for pair in zip(texts, decoded, strict=True) if pair[0] != pair[1]]
