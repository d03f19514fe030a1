"""Vocabularies of JoeyNMT's models."""

from collections.abc import Mapping
from typing import Any

from etils import epath
from sentencepiece import sentencepiece_model_pb2

from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop import yaml_settings
from transformer_jax.extras.interop.joeynmt import files

# Special tokens in the order of their ids, and JoeyNMT's names for them.
SPECIAL = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}


def read_tokenizers(folder: epath.Path, settings: Mapping[str, Any]) -> TokenizerPair:
    """The tokenizers of source and target.

    Raises:
      UserError: a file is missing or damaged.
    """
    special = {
        name: str(yaml_settings.get(settings, f"data.special_symbols.{name}_token", default))
        for name, default in SPECIAL.items()
    }
    source, target = (_tokenizer(folder, settings, side, special) for side in ("src", "trg"))
    if (source.model, source.state) == (target.model, target.state):
        target = source  # one vocabulary
    return TokenizerPair(source, target)


def _tokenizer(
    folder: epath.Path, settings: Mapping[str, Any], side: str, special: dict[str, str]
) -> VocabularyTokenizer:
    path = folder / f"{side}_vocab.txt"
    if not path.exists():
        raise UserError(f"{path} is missing; copy all files of the model.")
    try:
        # Other marks at which Python splits lines may be tokens.
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8 ({error}); copy it again.") from error
    tokens = dict.fromkeys([*special.values(), *lines])  # each once, in this order
    setting = f"data.{side}.tokenizer_cfg.model_file"
    model = files.named_file(folder, yaml_settings.get(settings, setting), setting)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    proto = restricted(model, vocabulary)
    return VocabularyTokenizer(proto, vocabulary, special, len(tokens), language_codes=False)


def restricted(path: epath.Path, vocabulary: Mapping[str, int]) -> bytes:
    """A SentencePiece model that segments into tokens of the vocabulary and letters.

    JoeyNMT does the same by `SentencePieceProcessor.SetVocabulary`.

    Args:
      path: of the model.
      vocabulary: its keys are the tokens.

    Raises:
      UserError: the model is damaged.
    """
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # of a type that depends on the version of protobuf
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for entry in proto.pieces:  # of the SentencePiece model
        if entry.type in (kinds.NORMAL, kinds.UNUSED):
            is_used = entry.piece in vocabulary or len(entry.piece) == 1  # of SentencePiece
            entry.type = kinds.NORMAL if is_used else kinds.UNUSED
    return proto.SerializeToString()
