"""Reads the tokenizer files of a Hugging Face directory."""

import dataclasses
from collections.abc import Callable
from typing import Any

from etils import epath

from transformer_jax.data.foreign_tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    VocabularyTokenizer,
)
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import families, vocabularies
from transformer_jax.extras.interop.huggingface.settings import Settings, read_json
from transformer_jax.extras.interop.huggingface.vocabularies import LANGUAGE_CODES, Vocabulary

MARIAN_TAGS = LanguageTags(">>{}<<")
MBART_50_LANGUAGE = r"[a-z]{2}_[A-Z]{2}"  # such as de_DE
NLLB_LANGUAGE = r"[a-z]{3}_[A-Z][a-z]{3}"  # such as deu_Latn; other tokens are not languages
SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """A pair of tokenizers, and the languages that the directory names."""

    pair: TokenizerPair
    source_lang: str
    target_lang: str


def read_tokenizers(settings: Settings) -> Tokenization:
    """The tokenizers of a directory.

    Raises:
      UserError: naming a file that is missing, damaged or of another model.
    """
    folder = settings.folder
    path = folder / "tokenizer_config.json"
    options = read_json(path) if path.exists() else {}
    name = options.get("tokenizer_class") or settings.raw.get("tokenizer_class")
    name = str(name or "").removesuffix("Fast") or _usual_class(settings)
    if name not in _READERS:
        raise UserError(f"{folder} has the tokenizer {name}; {', '.join(_READERS)} can be read.")
    result = _READERS[name](settings, options)
    _check_added(settings, options, result.pair)
    for tokenizer, special in ((result.pair.source, "pad"), (result.pair.target, "eos")):
        config_id = settings.token_id(f"{special}_token_id")
        vocabulary_id = tokenizer.pad_id if special == "pad" else tokenizer.eos_id
        if config_id != vocabulary_id:
            raise UserError(
                f"{folder}: {special}_token_id={config_id}, but its id in the vocabulary is "
                f"{vocabulary_id}."
            )
    return result


def _check_added(settings: Settings, options: dict[str, Any], pair: TokenizerPair) -> None:
    """Refuses tokens that were added to a tokenizer, where the files that are read lack them.

    Raises:
      UserError: naming such a token.
    """
    folder = settings.folder
    if isinstance(pair.source, ByteTokenizer):
        return  # of which only bytes are text
    if isinstance(pair.source, JsonTokenizer) and (folder / "tokenizer.json").exists():
        return  # which has them
    path = folder / "added_tokens.json"
    added: dict[str, int] = read_json(path) if path.exists() else {}
    for number, entry in (options.get("added_tokens_decoder") or {}).items():
        added |= {entry["content"]: int(number)}
    for token, token_id in added.items():
        if all(one.tokens([token_id]) != [token] for one in (pair.source, pair.target)):
            raise UserError(
                f"{folder}: the token {token!r} (id {token_id}) was added to the tokenizer, and is "
                "not in its vocabulary; let transformers 5 save the tokenizer, whose "
                "tokenizer.json has it."
            )


def _usual_class(settings: Settings) -> str:
    """The tokenizer of a directory that does not name its class."""
    is_mbart = settings.family is families.MBART
    if is_mbart and settings.token_id("decoder_start_token_id") != settings.need("eos_token_id"):
        return "MBartTokenizer"  # of the first mBART, which has the language after the text
    if settings.family.tokenizer:
        return settings.family.tokenizer
    known = {
        "source.spm": "MarianTokenizer",
        "tokenizer.json": "NllbTokenizer",
        "sentencepiece.bpe.model": "M2M100Tokenizer",
    }
    return next((known[f] for f in known if (settings.folder / f).exists()), "MarianTokenizer")


def _special(options: dict[str, Any]) -> dict[str, str]:
    """Texts of the special tokens; a directory may store each with its options."""
    names = {}
    for name, default in SPECIAL.items():
        given = options.get(f"{name}_token") or default
        names[name] = given["content"] if isinstance(given, dict) else given
    return names


def _marian(settings: Settings, options: dict[str, Any]) -> Tokenization:
    folder, separate = settings.folder, bool(options.get("separate_vocabs"))
    if separate and settings.shared:
        raise UserError(
            f"{folder}: separate_vocabs={separate} in tokenizer_config.json does not go with "
            f"share_encoder_decoder_embeddings={settings.shared} in config.json."
        )
    special = {**_special(options), "bos": ""}  # Marian has no bos
    clean_up = bool(options.get("clean_up_tokenization_spaces"))
    sides = []
    for side, vocab_size in (
        ("source", settings.need("vocab_size")),
        ("target", settings.decoder_vocab_size),
    ):
        path = folder / ("target_vocab.json" if separate and side == "target" else "vocab.json")
        vocabulary = vocabularies.read_ids(path)
        # Rows may follow that have no token, of a table that was enlarged.
        if not len(vocabulary) == max(vocabulary.values()) + 1 <= vocab_size:
            raise UserError(
                f"{path} has {len(vocabulary)} tokens up to id {max(vocabulary.values())}, "
                f"but config.json says {vocab_size}."
            )
        model = vocabularies.read_bytes(folder / f"{side}.spm")
        sides.append(VocabularyTokenizer(model, vocabulary, special, vocab_size, clean_up=clean_up))
    return Tokenization(
        TokenizerPair(sides[0], sides[1], MARIAN_TAGS),
        options.get("source_lang") or "",
        options.get("target_lang") or "",
    )


def _m2m_100(settings: Settings, options: dict[str, Any]) -> Tokenization:
    folder, vocab_size = settings.folder, settings.need("vocab_size")
    tags = LanguageTags("__{}__", both_sides=True)
    vocabulary = vocabularies.read_ids(folder / "vocab.json")
    codes = options.get("language_codes") or "m2m100"
    if codes not in LANGUAGE_CODES:
        raise UserError(
            f"{folder}/tokenizer_config.json: language_codes={codes!r} is not supported."
        )
    # Language tags follow the vocabulary.
    names = [tags.token(language) for language in LANGUAGE_CODES[codes].split()]
    vocabulary |= {name: len(vocabulary) + i for i, name in enumerate(names)}
    if max(vocabulary.values()) >= len(vocabulary) or len(vocabulary) > vocab_size:
        raise UserError(
            f"{folder}/vocab.json and {len(names)} language tags are {len(vocabulary)} tokens up "
            f"to id {max(vocabulary.values())}, but config.json says {vocab_size}."
        )
    tokenizer = VocabularyTokenizer(
        vocabularies.read_bytes(folder / "sentencepiece.bpe.model"),
        vocabulary,
        _special(options),
        vocab_size,
        language_codes=False,
        dropped=names,
        clean_up=bool(options.get("clean_up_tokenization_spaces")),
    )
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, tags),
        options.get("src_lang") or "en",
        options.get("tgt_lang") or "",
    )


def _nllb(settings: Settings, options: dict[str, Any]) -> Tokenization:
    if options.get("legacy_behaviour"):
        raise UserError(
            f"{settings.folder}: legacy_behaviour=true (language tags after the text) is not "
            "supported."
        )
    folder = settings.folder
    if not (folder / "tokenizer.json").exists() and (folder / "sentencepiece.bpe.model").exists():
        raise UserError(
            f"{folder} has no tokenizer.json, only sentencepiece.bpe.model. Let transformers write "
            f'it: AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}").'
        )
    model = vocabularies.read_bytes(folder / "tokenizer.json")
    tokenizer = JsonTokenizer(model, _special(options), settings.need("vocab_size"))
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, LanguageTags("{}", True, NLLB_LANGUAGE)),
        options.get("src_lang") or "eng_Latn",
        options.get("tgt_lang") or "",
    )


def _marked(
    settings: Settings,
    options: dict[str, Any],
    special: dict[str, str],
    read: Callable[[epath.Path, dict[str, Any], dict[str, str], int], Vocabulary],
) -> JsonTokenizer | VocabularyTokenizer:
    """The tokenizer of `tokenizer.json`; without this file, of a SentencePiece model.

    Args:
      settings: of the directory.
      options: of its tokenizer.
      special: texts of the special tokens.
      read: one of `vocabularies`.
    """
    folder, vocab_size = settings.folder, settings.need("vocab_size")
    clean_up = bool(options.get("clean_up_tokenization_spaces"))
    if (folder / "tokenizer.json").exists():
        model = (folder / "tokenizer.json").read_bytes()
        return JsonTokenizer(model, special, vocab_size, clean_up)
    vocabulary = read(folder, options, special, vocab_size)
    return VocabularyTokenizer(
        vocabulary.model,
        vocabulary.ids,
        special,
        vocab_size,
        language_codes=False,
        dropped=vocabulary.marks,
        clean_up=clean_up,
    )


def _t5(settings: Settings, options: dict[str, Any]) -> Tokenization:
    """T5's, mT5's or MADLAD-400's, which has language tags."""
    tokenizer = _marked(settings, options, {**_special(options), "bos": ""}, vocabularies.t5)
    tags = LanguageTags("<2{}>", is_word=True)
    return Tokenization(TokenizerPair(tokenizer, tokenizer, tags), "", "")


def _pegasus(settings: Settings, options: dict[str, Any]) -> Tokenization:
    special = {**_special(options), "bos": ""}
    tokenizer = _marked(settings, options, special, vocabularies.pegasus)
    return Tokenization(TokenizerPair(tokenizer, tokenizer), "", "")


def _mbart_50(settings: Settings, options: dict[str, Any]) -> Tokenization:
    tokenizer = _marked(settings, options, _special(options), vocabularies.mbart_50)
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, LanguageTags("{}", True, MBART_50_LANGUAGE)),
        options.get("src_lang") or "en_XX",
        options.get("tgt_lang") or "",
    )


def _byt5(settings: Settings, options: dict[str, Any]) -> Tokenization:
    del options  # its marks are not text
    tokenizer = ByteTokenizer(b"", settings.need("vocab_size"))
    return Tokenization(TokenizerPair(tokenizer, tokenizer), "", "")


def _bart(settings: Settings, options: dict[str, Any]) -> Tokenization:
    """Byte-level BPE; every text follows `<s>`."""
    folder, special = settings.folder, _special(options)
    path = folder / "tokenizer.json"
    model = path.read_bytes() if path.exists() else vocabularies.byte_level_bpe(folder, special)
    tokenizer = JsonTokenizer(model, special, settings.need("vocab_size"))
    tags = LanguageTags(special["bos"], both_sides=True)
    return Tokenization(TokenizerPair(tokenizer, tokenizer, tags), "", "")


_READERS: dict[str, Callable[[Settings, dict[str, Any]], Tokenization]] = {
    "MarianTokenizer": _marian,
    "M2M100Tokenizer": _m2m_100,
    "NllbTokenizer": _nllb,
    "MBart50Tokenizer": _mbart_50,
    "BartTokenizer": _bart,
    "RobertaTokenizer": _bart,
    "T5Tokenizer": _t5,
    "MT5Tokenizer": _t5,
    "ByT5Tokenizer": _byt5,
    "PegasusTokenizer": _pegasus,
}
