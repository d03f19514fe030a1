"""Reads the tokenizer files of a Hugging Face directory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import sentencepiece
from etils import epath

from transformer_jax.data.foreign_tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    VocabularyTokenizer,
    import_tokenizers,
)
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop.huggingface.settings import Settings, read_json

MARIAN_TAGS = LanguageTags(">>{}<<")
# M2M-100's lists of languages: its directories only name the list.
LANGUAGE_CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
# mBART-50's, in the order of their ids.
MBART_50_CODES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL "
    "hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN "
    "th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
MBART_50_LANGUAGE = r"[a-z]{2}_[A-Z]{2}"  # such as de_DE
MADE_UP_WORDS = 8  # rows without a token that follow M2M-100's language tags
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
    name = str(options.get("tokenizer_class") or "").removesuffix("Fast")
    name = name or _usual_class(settings)
    if name not in _READERS:
        raise UserError(f"{folder} has the tokenizer {name}; {', '.join(_READERS)} can be read.")
    result = _READERS[name](settings, options)
    for tokenizer, special in ((result.pair.source, "pad"), (result.pair.target, "eos")):
        config_id = settings.token_id(f"{special}_token_id")
        vocabulary_id = tokenizer.pad_id if special == "pad" else tokenizer.eos_id
        if config_id != vocabulary_id:
            raise UserError(
                f"{folder}: {special}_token_id={config_id}, but its id in the vocabulary is "
                f"{vocabulary_id}."
            )
    return result


def _usual_class(settings: Settings) -> str:
    """The tokenizer of a directory that does not name its class."""
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


def _read_bytes(path: epath.Path) -> bytes:
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}.")
    return path.read_bytes()


def _read_vocabulary(path: epath.Path) -> dict[str, int]:
    tokens = read_json(path)
    ids = list(tokens.values())
    if (
        not ids
        or not all(type(i) is int for i in ids)
        or len(set(ids)) != len(ids)
        or min(ids, default=0) < 0
    ):
        raise UserError(f"{path} must map each token to a different id.")
    return tokens


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
        vocabulary = _read_vocabulary(path)
        if len(vocabulary) != vocab_size or max(vocabulary.values()) >= vocab_size:
            raise UserError(
                f"{path} has {len(vocabulary)} tokens up to id {max(vocabulary.values())}, "
                f"but config.json says {vocab_size}."
            )
        model = _read_bytes(folder / f"{side}.spm")
        sides.append(VocabularyTokenizer(model, vocabulary, special, vocab_size, clean_up=clean_up))
    return Tokenization(
        TokenizerPair(sides[0], sides[1], MARIAN_TAGS),
        options.get("source_lang") or "",
        options.get("target_lang") or "",
    )


def _m2m_100(settings: Settings, options: dict[str, Any]) -> Tokenization:
    folder, vocab_size = settings.folder, settings.need("vocab_size")
    tags = LanguageTags("__{}__", both_sides=True)
    vocabulary = _read_vocabulary(folder / "vocab.json")
    codes = options.get("language_codes") or "m2m100"
    if codes not in LANGUAGE_CODES:
        raise UserError(
            f"{folder}/tokenizer_config.json: language_codes={codes!r} is not supported."
        )
    # Language tags follow the vocabulary.
    names = [tags.token(language) for language in LANGUAGE_CODES[codes].split()]
    vocabulary |= {name: len(vocabulary) + i for i, name in enumerate(names)}
    extra = options.get("num_madeup_words", MADE_UP_WORDS)
    if max(vocabulary.values()) >= len(vocabulary) or len(vocabulary) + extra != vocab_size:
        raise UserError(
            f"{folder}/vocab.json, {len(names)} language tags and {extra} made-up words are "
            f"{len(vocabulary) + extra} tokens, but config.json says {vocab_size}."
        )
    tokenizer = VocabularyTokenizer(
        _read_bytes(folder / "sentencepiece.bpe.model"),
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
    model = _read_bytes(settings.folder / "tokenizer.json")
    tokenizer = JsonTokenizer(model, _special(options), settings.need("vocab_size"))
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, LanguageTags("{}", True, NLLB_LANGUAGE)),
        options.get("src_lang") or "eng_Latn",
        options.get("tgt_lang") or "",
    )


def _t5(settings: Settings, options: dict[str, Any]) -> Tokenization:
    """T5's, mT5's or MADLAD-400's, which has language tags."""
    folder, vocab_size = settings.folder, settings.need("vocab_size")
    special = {**_special(options), "bos": ""}
    tokenizer: JsonTokenizer | VocabularyTokenizer
    if (folder / "tokenizer.json").exists():
        model = (folder / "tokenizer.json").read_bytes()
        tokenizer = JsonTokenizer(model, special, vocab_size)
    else:
        tokenizer = _t5_sentencepiece(folder, options, special, vocab_size)
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, LanguageTags("<2{}>", is_word=True)), "", ""
    )


def _t5_sentencepiece(
    folder: epath.Path, options: dict[str, Any], special: dict[str, str], vocab_size: int
) -> VocabularyTokenizer:
    """`spiece.model`, then the marks of T5's first training, the last one with the lowest id."""
    model = _read_bytes(folder / "spiece.model")
    tokens = _tokens(folder / "spiece.model", model)
    extra = options.get("extra_ids", 100)
    marks = [f"<extra_id_{i}>" for i in reversed(range(extra))]
    vocabulary = {token: i for i, token in enumerate([*tokens, *marks])}
    if len(vocabulary) > vocab_size:
        raise UserError(
            f"{folder}/spiece.model has {len(tokens)} tokens, and {extra} marks follow, but "
            f"config.json says {vocab_size}."
        )
    return VocabularyTokenizer(
        model, vocabulary, special, vocab_size, language_codes=False, dropped=marks
    )


def _tokens(path: epath.Path, model: bytes) -> list[str]:
    """The tokens of a SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again.") from error
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def _byt5(settings: Settings, options: dict[str, Any]) -> Tokenization:
    del options  # its marks are not text
    tokenizer = ByteTokenizer(b"", settings.need("vocab_size"))
    return Tokenization(TokenizerPair(tokenizer, tokenizer), "", "")


def _mbart_50(settings: Settings, options: dict[str, Any]) -> Tokenization:
    folder, vocab_size = settings.folder, settings.need("vocab_size")
    special = _special(options)
    tokenizer: JsonTokenizer | VocabularyTokenizer
    if (folder / "tokenizer.json").exists():
        model = (folder / "tokenizer.json").read_bytes()
        tokenizer = JsonTokenizer(model, special, vocab_size)
    else:
        model = _read_bytes(folder / "sentencepiece.bpe.model")
        # fairseq's ids: its special tokens, SentencePiece's tokens from the fourth on, languages.
        first = [special[name] for name in ("bos", "pad", "eos", "unk")]
        tokens = _tokens(folder / "sentencepiece.bpe.model", model)[3:]
        codes = [*MBART_50_CODES.split(), "<mask>"]
        vocabulary = {token: i for i, token in enumerate([*first, *tokens, *codes])}
        if len(vocabulary) != vocab_size:
            raise UserError(
                f"{folder}/sentencepiece.bpe.model and {len(codes)} further tokens are "
                f"{len(vocabulary)} tokens, but config.json says {vocab_size}."
            )
        tokenizer = VocabularyTokenizer(
            model, vocabulary, special, vocab_size, language_codes=False, dropped=codes
        )
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, LanguageTags("{}", True, MBART_50_LANGUAGE)),
        options.get("src_lang") or "en_XX",
        options.get("tgt_lang") or "",
    )


def _bart(settings: Settings, options: dict[str, Any]) -> Tokenization:
    """Byte-level BPE; every text follows `<s>`."""
    folder, special = settings.folder, _special(options)
    path = folder / "tokenizer.json"
    model = path.read_bytes() if path.exists() else _byte_level_bpe(folder, special)
    tokenizer = JsonTokenizer(model, special, settings.need("vocab_size"))
    tags = LanguageTags(special["bos"], both_sides=True)
    return Tokenization(TokenizerPair(tokenizer, tokenizer, tags), "", "")


def _byte_level_bpe(folder: epath.Path, special: dict[str, str]) -> bytes:
    """A `tokenizer.json` of `vocab.json` and `merges.txt`, as older versions saved them."""
    tokenizers = import_tokenizers()
    vocabulary = _read_vocabulary(folder / "vocab.json")
    lines = _read_bytes(folder / "merges.txt").decode().splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    except Exception as error:  # the package raises plain Exceptions
        raise UserError(f"{folder}/merges.txt does not fit vocab.json ({error}).") from error
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    names = dict.fromkeys([*special.values(), "<mask>"])
    tokenizer.add_special_tokens([name for name in names if name in vocabulary])
    return tokenizer.to_str().encode()


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
}
