"""Vocabularies of Marian's models."""

from collections.abc import Mapping
from typing import Any

import sentencepiece
import yaml
from etils import epath

from transformer_jax.data.foreign_tokenizers import VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface.tokenizers import MARIAN_TAGS
from transformer_jax.extras.interop.marian import files


def read_tokenizers(search: epath.Path, options: Mapping[str, Any]) -> TokenizerPair:
    """The tokenizers of the two vocabularies that `decoder.yml` lists."""
    vocabs = options.get("vocabs")
    if not isinstance(vocabs, list) or len(vocabs) != 2:
        raise UserError(f"{search} must list two `vocabs`, of source and target.")
    read: dict[tuple[epath.Path, epath.Path], VocabularyTokenizer] = {}
    tokenizers = []
    for side, name in zip(("source", "target"), vocabs, strict=True):
        path = files.listed_file(search, name)
        model = path if path.suffix == ".spm" else search.parent / f"{side}.spm"
        if not model.exists():
            raise UserError(
                f"{path} has no SentencePiece model: {model} is missing. A model whose text was "
                "split by other programs cannot be read."
            )
        if (path, model) not in read:
            read[path, model] = _tokenizer(path, model)
        tokenizers.append(read[path, model])
    return TokenizerPair(tokenizers[0], tokenizers[1], MARIAN_TAGS)


def _tokenizer(path: epath.Path, model: epath.Path) -> VocabularyTokenizer:
    """SentencePiece's tokens with the ids of a vocabulary, and a padding token after them."""
    proto = model.read_bytes()
    ids = _spm_ids(model, proto)
    if path != model:
        ids = _yaml_ids(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path} must give its {len(ids)} tokens the ids from 0 to {len(ids) - 1}.")
    for token in ("</s>", "<unk>"):
        if token not in ids:
            raise UserError(f"{path} has no token {token}.")
    pad = "<pad>"
    while pad in ids:
        pad = f"<{pad}>"
    ids[pad] = len(ids)
    special = {"pad": pad, "eos": "</s>", "unk": "<unk>", "bos": ""}
    return VocabularyTokenizer(proto, ids, special, len(ids))


def _spm_ids(path: epath.Path, proto: bytes) -> dict[str, int]:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(proto)
    except RuntimeError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    return {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}


def _yaml_ids(path: epath.Path) -> dict[str, int]:
    """The ids of a vocabulary file, which has TOKEN: ID in each line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".yml", ".yaml"):
        raise UserError(f"{path} is no vocabulary that can be read: .spm, .yml and .yaml are.")
    # YAML has line ends that Marian's texts may have as tokens.
    unused = (char for char in map(chr, range(0xE000, 0xF8FF)) if char not in text)
    stand_ins = {char: next(unused) for char in "\x85\u2028\u2029"}
    text = text.translate(str.maketrans(stand_ins))
    tokens = str.maketrans({new: old for old, new in stand_ins.items()})
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # every token is text: no, 1, null
    try:
        tree = yaml.load(text, Loader=loader)  # text, lists and mappings only
        return {str(token).translate(tokens): int(number) for token, number in tree.items()}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be YAML with TOKEN: ID in each line ({reason}).") from error
