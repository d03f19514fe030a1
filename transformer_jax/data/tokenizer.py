"""SentencePiece tokenizers: trained on the corpus or given, kept in the work directory.

What decoding gives back is the text after SentencePiece's `nmt_nfkc` normalisation (Unicode NFKC,
runs of white space as one space), lower-cased first where `lowercase` says so.
"""

import dataclasses
import hashlib
import io
import json
import logging
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
from etils import epath

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import Corpus
from transformer_jax.errors import UserError

MAX_TRAINING_SENTENCES = 4_000_000  # beyond, SentencePiece samples


class Tokenizer:
    """Text to piece ids and back.

    `pad_id`, `bos_id`, `eos_id` and `unk_id` are four different ids; those that the model file does
    not define are added behind its pieces.
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

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Piece ids of each text, without start or end symbols."""
        if self.lowercase:
            texts = [text.lower() for text in texts]
        return self._processor.encode(list(texts), num_threads=-1) if texts else []

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of piece ids; start, end and padding symbols are left out."""
        dropped = (self.pad_id, self.bos_id, self.eos_id)
        return self._processor.decode([int(i) for i in ids if i not in dropped])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as SentencePiece writes them, for display."""
        size = self._processor.get_piece_size()
        added = {self.pad_id: "<pad>", self.bos_id: "<s>", self.eos_id: "</s>"}
        return [self._processor.id_to_piece(int(i)) if i < size else added[int(i)] for i in ids]

    def piece_id(self, piece: str) -> int:
        """Id of a piece; `unk_id` where there is none."""
        return self._processor.piece_to_id(piece)

    def normalize(self, text: str) -> str:
        """The text that `decode(encode(text))` gives back where no piece is unknown."""
        return self._processor.normalize(text.lower() if self.lowercase else text)


def language_tag(language: str) -> str:
    """The piece before a source sentence that names the target language."""
    return f"<2{language}>"


@dataclasses.dataclass(frozen=True)
class TokenizerPair:
    """Source and target tokenizer; the same object where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        return self.source is self.target

    @property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for tokenizer in (self.source, self.target):
            digest.update(tokenizer.model + bytes([tokenizer.lowercase]))
        return digest.hexdigest()

    def tag_ids(self, language: str) -> list[int]:
        """The tag for `language` as source ids.

        Raises:
          UserError: where the tokenizer was trained without it.
        """
        tag = self.source.piece_id(language_tag(language))
        if tag == self.source.unk_id:
            raise UserError(
                f"The tokenizer has no piece {language_tag(language)}: this model was not trained "
                f"to translate into {language!r}."
            )
        return [tag]

    def save(self, folder: epath.Path) -> None:
        """Writes `tokenizer.json` and one or two SentencePiece models."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.shared:
            (folder / "shared.model").write_bytes(self.source.model)
        else:
            (folder / "source.model").write_bytes(self.source.model)
            (folder / "target.model").write_bytes(self.target.model)
        # Written last: it marks the folder as complete.
        state = {"shared": self.shared, "lowercase": self.source.lowercase}
        (folder / "tokenizer.json").write_text(json.dumps(state, indent=2) + "\n")

    @classmethod
    def load(cls, folder: epath.Path) -> "TokenizerPair":
        """Inverse of `save`.

        Raises:
          UserError: where files are missing or no SentencePiece models.
        """
        try:
            state = json.loads((folder / "tokenizer.json").read_text())
            names = ["shared"] if state["shared"] else ["source", "target"]
            models = [(folder / f"{name}.model").read_bytes() for name in names]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder} holds no usable tokenizer ({error}).") from error
        tokenizers = [Tokenizer(model, state["lowercase"]) for model in models]
        return cls(tokenizers[0], tokenizers[-1])


def make_tokenizers(config: DataConfig, corpora: Sequence[Corpus]) -> TokenizerPair:
    """Loads the models that `config.tokenizer_model` names, or trains on the training corpora."""
    if config.tokenizer_model:
        paths = [epath.Path(path.strip()) for path in config.tokenizer_model.split(",")]
        if len(paths) != (1 if config.shared_vocab else 2):
            raise UserError(
                f"config.data.tokenizer_model names {len(paths)} files, but with "
                f"config.data.shared_vocab={config.shared_vocab} it must name "
                f"{1 if config.shared_vocab else '2, SOURCE,TARGET'}."
            )
        for path in paths:
            if not path.exists():
                raise UserError(f"There is no tokenizer file {path} (config.data.tokenizer_model).")
        tokenizers = [Tokenizer(path.read_bytes(), config.lowercase) for path in paths]
        return TokenizerPair(tokenizers[0], tokenizers[-1])
    tags = sorted({language_tag(c.target_lang) for c in corpora}) if (
        config.target_language_tags) else []  # fmt: skip

    def texts(sides: Sequence[int]) -> Iterator[str]:
        for corpus in corpora:
            for pair in corpus.read():
                for side in sides:
                    yield pair[side].lower() if config.lowercase else pair[side]

    if config.shared_vocab:
        shared = Tokenizer(_train(config, texts((0, 1)), tags), config.lowercase)
        return TokenizerPair(shared, shared)
    return TokenizerPair(
        Tokenizer(_train(config, texts((0,)), tags), config.lowercase),
        Tokenizer(_train(config, texts((1,)), []), config.lowercase),
    )


def _train(config: DataConfig, texts: Iterator[str], tags: list[str]) -> bytes:
    logging.info("training a SentencePiece tokenizer of %d pieces", config.vocab_size)
    model = io.BytesIO()
    damage: list[UserError] = []

    def sentences() -> Iterator[str]:
        try:
            yield from texts
        except UserError as error:  # SentencePiece would wrap it in its own words
            damage.append(error)

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            model_writer=model,
            model_type=config.tokenizer,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            user_defined_symbols=tags,
            input_sentence_size=MAX_TRAINING_SENTENCES,
            shuffle_input_sentence=True,
            max_sentence_length=65_536,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            minloglevel=2,
        )
    except RuntimeError as error:
        if damage:
            raise damage[0] from error
        reason = " ".join(str(error).split()).rpartition("] ")[2]
        raise UserError(
            f"A tokenizer of config.data.vocab_size={config.vocab_size} pieces cannot be trained "
            f"on this corpus: {reason}"
        ) from error
    if damage:
        raise damage[0]
    return model.getvalue()
