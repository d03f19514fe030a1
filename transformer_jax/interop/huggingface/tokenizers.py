"""The tokenizer files of a Hugging Face directory."""

import dataclasses
from typing import Any

from etils import epath

from transformer_jax.data.foreign_tokenizers import JsonTokenizer, VocabularyTokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop.huggingface.settings import Settings, read_json

MARIAN_TAGS = LanguageTags(">>{}<<")
# Of M2M-100's own list of languages, which its directories name but do not hold.
LANGUAGE_CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
MADE_UP_WORDS = 8  # rows without a token behind M2M-100's language tags
NLLB_LANGUAGE = r"[a-z]{3}_[A-Z][a-z]{3}"  # such as deu_Latn; other tokens are no languages
SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """A pair of tokenizers and the languages its directory names."""

    pair: TokenizerPair
    source_lang: str
    target_lang: str


def read_tokenizers(settings: Settings) -> Tokenization:
    """The tokenizers of a directory: Marian's, M2M-100's, or NLLB's `tokenizer.json`.

    Raises:
      UserError: naming the file that is missing, damaged or of another model.
    """
    folder = settings.folder
    path = folder / "tokenizer_config.json"
    options = read_json(path) if path.exists() else {}
    name = str(options.get("tokenizer_class") or "").removesuffix("Fast")
    if not name:
        known = {"source.spm": "MarianTokenizer", "tokenizer.json": "NllbTokenizer",
                 "sentencepiece.bpe.model": "M2M100Tokenizer"}  # fmt: skip
        name = next((known[f] for f in known if (folder / f).exists()), "MarianTokenizer")
    readers = {"MarianTokenizer": _marian, "M2M100Tokenizer": _m2m_100, "NllbTokenizer": _nllb}
    if name not in readers:
        raise UserError(f"{folder} has the tokenizer {name}; {', '.join(readers)} can be read.")
    result = readers[name](settings, options)
    for tokenizer, special in ((result.pair.source, "pad"), (result.pair.target, "eos")):
        want = settings.token_id(f"{special}_token_id")
        found = tokenizer.pad_id if special == "pad" else tokenizer.eos_id
        if want != found:
            raise UserError(
                f"{folder}: {special}_token_id={want}, but the vocabulary has it at {found}."
            )
    return result


def _special(options: dict[str, Any]) -> dict[str, str]:
    """Names of the special tokens; a tokenizer may keep them with their options."""
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
        raise UserError(f"{path} must map each token to an id of its own.")
    return tokens


def _marian(settings: Settings, options: dict[str, Any]) -> Tokenization:
    folder, separate = settings.folder, bool(options.get("separate_vocabs"))
    if separate and settings.shared:
        raise UserError(
            f"{folder}: separate_vocabs={separate} in tokenizer_config.json does not go with "
            f"share_encoder_decoder_embeddings={settings.shared} in config.json."
        )
    special = {**_special(options), "bos": ""}  # Marian has none
    clean_up = bool(options.get("clean_up_tokenization_spaces"))
    sides = []
    for side, vocab_size in (("source", settings.need("vocab_size")),
                             ("target", settings.decoder_vocab_size)):  # fmt: skip
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
        raise UserError(f"{folder}/tokenizer_config.json: language_codes={codes!r} is not known.")
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
        _read_bytes(folder / "sentencepiece.bpe.model"), vocabulary, _special(options), vocab_size,
        language_codes=False, dropped=names,
        clean_up=bool(options.get("clean_up_tokenization_spaces")),
    )  # fmt: skip
    return Tokenization(TokenizerPair(tokenizer, tokenizer, tags),
                        options.get("src_lang") or "en", options.get("tgt_lang") or "")  # fmt: skip


def _nllb(settings: Settings, options: dict[str, Any]) -> Tokenization:
    if options.get("legacy_behaviour"):
        raise UserError(
            f"{settings.folder}: legacy_behaviour=true (language tags behind the text) is not "
            "supported."
        )
    model = _read_bytes(settings.folder / "tokenizer.json")
    tokenizer = JsonTokenizer(model, _special(options), settings.need("vocab_size"))
    return Tokenization(
        TokenizerPair(tokenizer, tokenizer, LanguageTags("{}", True, NLLB_LANGUAGE)),
        options.get("src_lang") or "eng_Latn",
        options.get("tgt_lang") or "",
    )
