"""Tokenizers of published models: SentencePiece with other ids, `tokenizer.json`, and bytes."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from transformer_jax.data.tokenizer import Tokenizer, TokenizerState
from transformer_jax.errors import UserError

# A language at the start of a text, in Marian's form.
CODE = re.compile(r">>[^\s<>]+<<")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a token of `ByteTokenizer`
# Hugging Face's clean_up_tokenization_spaces, in its order.
CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def cleaned_up(text: str) -> str:
    """A text without spaces before punctuation, as Hugging Face's clean-up leaves it."""
    for spaced, joined in CLEAN_UP:
        text = text.replace(spaced, joined)
    return text


class VocabularyTokenizer(Tokenizer):
    """SentencePiece tokens with the ids of a vocabulary file instead of the model's.

    Decoding leaves out special tokens and unknown tokens, as Hugging Face's
    `decode(..., skip_special_tokens=True)` does.

    Args:
      model: SentencePiece model that splits text into tokens.
      vocabulary: id of each token.
      special: the tokens named `pad`, `eos` and `unk`, and `bos` if there is one.
      vocab_size: of the model, whose embedding may have rows without a token.
      language_codes: `>>xx<<` at the start of a text is one token (Marian). Anywhere else it is
        text, like the names of special tokens.
      dropped: further tokens that are not text, such as language tags.
      clean_up: remove spaces before punctuation when decoding.
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
        self._token_of = {token_id: token for token, token_id in self._vocabulary.items()}
        for name in ("pad", "eos", "unk"):
            if self._special.get(name) not in self._vocabulary:
                raise UserError(
                    f"The vocabulary has no token {self._special.get(name)!r} ({name}_token)."
                )
        self.pad_id = self._vocabulary[self._special["pad"]]
        self.eos_id = self._vocabulary[self._special["eos"]]
        self.unk_id = self._vocabulary[self._special["unk"]]
        self.bos_id = self._vocabulary.get(self._special.get("bos", ""), -1)
        markers = (*self._special.values(), *self._dropped)
        self._marker_ids = {self._vocabulary[m] for m in markers if m in self._vocabulary}
        codes = filter(CODE.fullmatch, self._vocabulary) if language_codes else ()
        self._reserved = {*markers, *codes} - {""}

    @property
    def state(self) -> TokenizerState:
        return {
            "kind": "vocabulary",
            "vocabulary": self._vocabulary,
            "special": self._special,
            "vocab_size": self.vocab_size,
            "language_codes": self._language_codes,
            "dropped": self._dropped,
            "clean_up": self._clean_up,
        }

    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        if not texts:
            return []
        codes, bodies = [], []
        for text in texts:
            code = CODE.match(text) if self._language_codes else None
            codes.append([code.group()] if code else [])
            bodies.append(text[code.end() :] if code else text)
        encoded = self._processor.encode(bodies, out_type=str, num_threads=num_threads)
        return [
            [self.token_id(token) for token in (*code, *self._split_reserved(tokens))]
            for code, tokens in zip(codes, encoded, strict=True)
        ]

    def _split_reserved(self, tokens: Sequence[str]) -> Iterable[str]:
        """Splits each token that has the name of a special token, as in a text it is only text."""
        for token in tokens:
            if token not in self._reserved:
                yield token
                continue
            for part in (token[:1], token[1:]):
                first, *others = self._processor.encode(part, out_type=str) or [""]
                # The model puts a space before a text.
                yield from filter(None, (first.removeprefix("▁"), *others))

    @functools.cached_property
    def _user_defined(self) -> frozenset[str]:
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(self.model)
        kind = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
        return frozenset(e.piece for e in proto.pieces if e.type == kind)  # SentencePiece's names

    def encode_marker(self, token: str) -> list[int]:
        if token in self._user_defined:
            # transformers takes it out of a text before it segments the rest: no space is added.
            return [self.token_id(token)]
        return [self.token_id(part) for part in self._processor.encode(token, out_type=str)]

    def decode(self, ids: Iterable[int]) -> str:
        is_text = lambda i: i in self._token_of and i not in self._marker_ids  # noqa: E731
        tokens = self.tokens(filter(is_text, map(int, ids)))
        text = self._processor.decode_pieces(tokens).replace("▁", " ").strip()
        return cleaned_up(text) if self._clean_up else text

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._token_of.get(int(i), self._special["unk"]) for i in ids]

    def token_id(self, token: str) -> int:
        return self._vocabulary.get(token, self.unk_id)


def import_tokenizers() -> Any:
    """Hugging Face's package `tokenizers`.

    Raises:
      UserError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            "The tokenizer of this model needs the package tokenizers: "
            "pip install 'tokenizers>=0.22'."
        ) from error
    return tokenizers


class _OneSegmentation(Tokenizer):
    """A tokenizer without SentencePiece, which cannot sample."""

    lowercase = False

    def sample_batch(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        raise UserError(
            "config.data.subword_sampling needs a tokenizer of SentencePiece's; that of this model "
            "cannot sample."
        )


class JsonTokenizer(_OneSegmentation):
    """A `tokenizer.json`, read by Hugging Face's package `tokenizers` (which needs no torch).

    Unlike in Hugging Face's tokenizers, `</s>` or a language tag in a text is only text.

    Args:
      model: the file's bytes.
      special: the tokens named `pad`, `eos` and `unk`, and `bos` if there is one.
      vocab_size: of the model.
      clean_up: remove spaces before punctuation when decoding, except of BPE, as in Hugging Face.
    """

    def __init__(
        self, model: bytes, special: Mapping[str, str], vocab_size: int, clean_up: bool = False
    ):
        tokenizers = import_tokenizers()
        self.model = model
        self._special = dict(special)
        self.vocab_size = vocab_size
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(model.decode())
        except Exception as error:  # the package raises plain Exceptions
            raise UserError(f"tokenizer.json is damaged ({error}); copy it again.") from error
        self._clean_up = clean_up and type(self._tokenizer.model).__name__ != "BPE"
        self._tokenizer.encode_special_tokens = True  # names of special tokens in a text are text
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        if largest >= vocab_size:
            raise UserError(
                f"tokenizer.json has a token of id {largest}, but config.json says {vocab_size}."
            )
        self.pad_id, self.eos_id = self._special_id("pad"), self._special_id("eos")
        self.unk_id = self._special_id("unk")
        self.bos_id = self._special_id("bos") if self._special.get("bos") else -1

    @property
    def state(self) -> TokenizerState:
        state = {"kind": "tokenizers", "special": self._special, "vocab_size": self.vocab_size}
        return state | ({"clean_up": True} if self._clean_up else {})

    def _special_id(self, name: str) -> int:
        token = self._special.get(name)
        token_id = None if token is None else self._tokenizer.token_to_id(token)
        if token_id is None:
            raise UserError(f"tokenizer.json has no token {token!r} ({name}_token).")
        return int(token_id)

    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        del num_threads  # this library has a pool of its own
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_marker(self, token: str) -> list[int]:
        # As if a user wrote it: a special token is recognised in a text.
        return list(self._as_hugging_face.encode(token, add_special_tokens=False).ids)

    @functools.cached_property
    def _as_hugging_face(self) -> Any:
        return type(self._tokenizer).from_str(self.model.decode())

    def decode(self, ids: Iterable[int]) -> str:
        text = str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))
        return cleaned_up(text) if self._clean_up else text

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._tokenizer.id_to_token(int(i)) or self._special["unk"] for i in ids]

    def token_id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        return self.unk_id if token_id is None else token_id

    def normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text


class ByteTokenizer(_OneSegmentation):
    """UTF-8: the id of a byte is its value + 3 (ByT5: Xue et al. 2021).

    Decoding drops bytes that are not UTF-8, and ids that are no bytes.

    Args:
      model: empty; other tokenizers have a file.
      vocab_size: of the model, whose last rows are not text.
    """

    pad_id, eos_id, unk_id, bos_id = 0, 1, 2, -1
    _special: ClassVar = {0: "<pad>", 1: "</s>", 2: "<unk>"}
    num_special = 3

    def __init__(self, model: bytes, vocab_size: int):
        self.model = model
        self.vocab_size = vocab_size

    @property
    def state(self) -> TokenizerState:
        return {"kind": "bytes", "vocab_size": self.vocab_size}

    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        del num_threads
        return [[byte + self.num_special for byte in text.encode()] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        values = (int(i) - self.num_special for i in ids)
        return bytes(value for value in values if 0 <= value < 256).decode(errors="ignore")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._special.get(int(i)) or self._byte(int(i) - self.num_special) for i in ids]

    @staticmethod
    def _byte(value: int) -> str:
        """A printable ASCII character as it is, another byte in hexadecimal."""
        if value >= 256:
            return "<unused>"
        return chr(value) if 32 < value < 127 else f"<0x{value:02X}>"

    def token_id(self, token: str) -> int:
        ids: dict[str, int] = {name: i for i, name in self._special.items()}
        if token in ids:
            return ids[token]
        if code := _BYTE.fullmatch(token):
            return int(code[1], 16) + self.num_special
        encoded = self.encode(token)
        return encoded[0] if len(encoded) == 1 else self.unk_id

    def normalize(self, text: str) -> str:
        return text
