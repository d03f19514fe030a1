"""Tokenizers as other tools keep them: Marian's and M2M-100's, and `tokenizer.json` (NLLB)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError

# A language at the start of a text, as Marian takes it.
CODE = re.compile(r">>[^\s<>]+<<")
# Hugging Face's clean_up_tokenization_spaces, in its order.
CLEAN_UP = ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
            (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))  # fmt: skip


class VocabularyTokenizer(Tokenizer):
    """SentencePiece pieces under the ids of a vocabulary file, not those of the model.

    Decoded text is without special pieces, unknown ones included, as Hugging Face's
    `decode(..., skip_special_tokens=True)` gives it.

    Args:
      model: SentencePiece model that cuts text into pieces.
      vocabulary: id of each piece.
      special: names of the pieces `pad`, `eos`, `unk`; `bos` where there is one.
      vocab_size: of the model, which may have rows without a piece.
      language_codes: `>>xx<<` at the start of a text is one piece (Marian); anywhere else it is
        text, as the names of special pieces are.
      dropped: further pieces that are no text, such as language tags.
      clean_up: take out spaces before punctuation when decoding.
    """

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        special: Mapping[str, str],
        vocab_size: int,
        language_codes: bool = True,
        dropped: Sequence[str] = (),
        clean_up: bool = False,
    ):
        super().__init__(model)
        self._vocabulary, self._special = dict(vocabulary), dict(special)
        self._language_codes, self._dropped = language_codes, list(dropped)
        self._clean_up = clean_up
        self.vocab_size = vocab_size
        self._pieces = {i: piece for piece, i in self._vocabulary.items()}
        for name in ("pad", "eos", "unk"):
            if self._special.get(name) not in self._vocabulary:
                raise UserError(
                    f"The vocabulary has no piece {self._special.get(name)!r} ({name}_token)."
                )
        self.pad_id = self._vocabulary[self._special["pad"]]
        self.eos_id = self._vocabulary[self._special["eos"]]
        self.unk_id = self._vocabulary[self._special["unk"]]
        self.bos_id = self._vocabulary.get(self._special.get("bos", ""), -1)
        no_text = (*self._special.values(), *self._dropped)
        self._no_text = {self._vocabulary[p] for p in no_text if p in self._vocabulary}
        codes = filter(CODE.fullmatch, self._vocabulary) if language_codes else ()
        self._reserved = {*no_text, *codes} - {""}

    @property
    def state(self) -> dict[str, Any]:
        return {
            "kind": "vocabulary",
            "vocabulary": self._vocabulary,
            "special": self._special,
            "vocab_size": self.vocab_size,
            "language_codes": self._language_codes,
            "dropped": self._dropped,
            "clean_up": self._clean_up,
        }

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        found = [CODE.match(text) if self._language_codes else None for text in texts]
        bodies = [text[code.end() :] if code else text
                  for code, text in zip(found, texts, strict=True)]  # fmt: skip
        split = self._processor.encode(bodies, out_type=str, num_threads=-1) if bodies else []
        return [
            [self.piece_id(piece)
             for piece in (*([code.group()] if code else ()), *self._as_text(pieces))]
            for code, pieces in zip(found, split, strict=True)
        ]  # fmt: skip

    def _as_text(self, pieces: Sequence[str]) -> Iterable[str]:
        """Pieces of a text; one that has the name of a special piece is cut into two."""
        for piece in pieces:
            if piece not in self._reserved:
                yield piece
                continue
            for part in (piece[:1], piece[1:]):
                first, *others = self._processor.encode(part, out_type=str) or [""]
                # The model puts a space before a text.
                yield from filter(None, (first.removeprefix("▁"), *others))

    def decode(self, ids: Iterable[int]) -> str:
        pieces = self.pieces(i for i in ids if int(i) not in self._no_text)
        text = self._processor.decode_pieces(pieces).replace("▁", " ").strip()
        for spaced, joined in CLEAN_UP if self._clean_up else ():
            text = text.replace(spaced, joined)
        return text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.get(int(i), self._special["unk"]) for i in ids]

    def piece_id(self, piece: str) -> int:
        return self._vocabulary.get(piece, self.unk_id)


class JsonTokenizer(Tokenizer):
    """A `tokenizer.json` of Hugging Face's `tokenizers`, which it needs; no torch.

    Unlike there, `</s>` or a language tag in a text is text.

    Args:
      model: the file's bytes.
      special: names of the pieces `pad`, `bos`, `eos`, `unk`.
      vocab_size: of the model.
    """

    lowercase = False

    def __init__(self, model: bytes, special: Mapping[str, str], vocab_size: int):
        try:
            import tokenizers
        except ImportError as error:
            raise UserError(
                "A tokenizer.json is read by the package tokenizers; install it: "
                "pip install 'transformer-jax[interop]'."
            ) from error
        self.model = model
        self._special = dict(special)
        self.vocab_size = vocab_size
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(model.decode())
        except Exception as error:  # the package raises nothing more special
            raise UserError(f"tokenizer.json is damaged ({error}); copy it again.") from error
        self._tokenizer.encode_special_tokens = True  # names of special pieces in a text are text
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if largest >= vocab_size:
            raise UserError(
                f"tokenizer.json has a piece of id {largest}, but config.json says {vocab_size}."
            )
        ids = {name: self._tokenizer.token_to_id(piece) for name, piece in special.items()}
        for name in ("pad", "bos", "eos", "unk"):
            if ids.get(name) is None:
                raise UserError(
                    f"tokenizer.json has no piece {special.get(name)!r} ({name}_token)."
                )
        self.pad_id, self.bos_id = ids["pad"], ids["bos"]
        self.eos_id, self.unk_id = ids["eos"], ids["unk"]

    @property
    def state(self) -> dict[str, Any]:
        return {"kind": "tokenizers", "special": self._special, "vocab_size": self.vocab_size}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._tokenizer.id_to_token(int(i)) or self._special["unk"] for i in ids]

    def piece_id(self, piece: str) -> int:
        found = self._tokenizer.token_to_id(piece)
        return self.unk_id if found is None else found

    def normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text
