"""Reads and writes the tokenizer files of a Hugging Face directory."""

import dataclasses
from typing import Any

from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.foreign_tokenizers import JsonTokenizer, VocabularyTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop.huggingface.settings import Settings, read_json, write_json

MARIAN_TAGS = LanguageTags(">>{}<<")
# M2M-100's lists of languages: its directories only name the list.
LANGUAGE_CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
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
    """The tokenizers of a directory: Marian's, M2M-100's, or NLLB's `tokenizer.json`.

    Raises:
      UserError: naming a file that is missing, damaged or of another model.
    """
    folder = settings.folder
    path = folder / "tokenizer_config.json"
    options = read_json(path) if path.exists() else {}
    name = str(options.get("tokenizer_class") or "").removesuffix("Fast")
    if not name:
        known = {
            "source.spm": "MarianTokenizer",
            "tokenizer.json": "NllbTokenizer",
            "sentencepiece.bpe.model": "M2M100Tokenizer",
        }
        name = next((known[f] for f in known if (folder / f).exists()), "MarianTokenizer")
    readers = {"MarianTokenizer": _marian, "M2M100Tokenizer": _m2m_100, "NllbTokenizer": _nllb}
    if name not in readers:
        raise UserError(f"{folder} has the tokenizer {name}; {', '.join(readers)} can be read.")
    result = readers[name](settings, options)
    for tokenizer, special in ((result.pair.source, "pad"), (result.pair.target, "eos")):
        config_id = settings.token_id(f"{special}_token_id")
        vocabulary_id = tokenizer.pad_id if special == "pad" else tokenizer.eos_id
        if config_id != vocabulary_id:
            raise UserError(
                f"{folder}: {special}_token_id={config_id}, but its id in the vocabulary is "
                f"{vocabulary_id}."
            )
    return result


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


def write_tokenizers(folder: epath.Path, config: Config, tokenizers: TokenizerPair) -> None:
    """Writes the tokenizer files, as `read_tokenizers` and transformers read them."""
    if isinstance(tokenizers.source, JsonTokenizer):
        options = _write_nllb(folder, config, tokenizers.source)
    elif tokenizers.tags.both_sides:
        options = _write_m2m_100(folder, config, tokenizers.source)
    else:
        options = _write_marian(folder, config, tokenizers)
    write_json(folder / "tokenizer_config.json", options)


def _write_nllb(folder: epath.Path, config: Config, tokenizer: JsonTokenizer) -> dict[str, Any]:
    """Writes the tokenizer, and returns the content of tokenizer_config.json."""
    (folder / "tokenizer.json").write_bytes(tokenizer.model)
    return {
        "tokenizer_class": "NllbTokenizer",
        "src_lang": config.data.source_lang,
        "tgt_lang": config.data.target_lang or None,
        "model_max_length": config.model.max_len,
        **_special_tokens(tokenizer.state["special"]),
    }


def _write_m2m_100(folder: epath.Path, config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    state = tokenizer.state
    vocabulary, tags = state["vocabulary"], state["dropped"]
    codes = [name for name, codes in LANGUAGE_CODES.items() if len(codes.split()) == len(tags)]
    (folder / "sentencepiece.bpe.model").write_bytes(tokenizer.model)
    write_json(folder / "vocab.json", {p: i for p, i in vocabulary.items() if p not in tags})
    return {
        "tokenizer_class": "M2M100Tokenizer",
        "src_lang": config.data.source_lang,
        "tgt_lang": config.data.target_lang or None,
        "model_max_length": config.model.max_len,
        "language_codes": codes[0],
        "clean_up_tokenization_spaces": state["clean_up"],
        "num_madeup_words": tokenizer.vocab_size - len(vocabulary),
        **_special_tokens(state["special"]),
    }


def _write_marian(folder: epath.Path, config: Config, tokenizers: TokenizerPair) -> dict[str, Any]:
    source, target = tokenizers.source, tokenizers.target
    separate = config.model.norm_position == "post" and config.model.tie_embeddings != "all"
    (folder / "source.spm").write_bytes(source.model)
    (folder / "target.spm").write_bytes(target.model)
    write_json(folder / "vocab.json", _marian_vocabulary(source, tokenizers.tags))
    if separate:
        write_json(folder / "target_vocab.json", _marian_vocabulary(target, tokenizers.tags))
    unk, pad, eos = source.tokens([source.unk_id, source.pad_id, source.eos_id])
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_lang,
        "target_lang": config.data.target_lang,
        "separate_vocabs": separate,
        "unk_token": unk,
        "pad_token": pad,
        "eos_token": eos,
        "model_max_length": config.model.max_len,
        "clean_up_tokenization_spaces": bool(source.state.get("clean_up")),
    }


def _special_tokens(special: dict[str, str]) -> dict[str, str]:
    return {f"{name}_token": special.get(name) or SPECIAL[name] for name in SPECIAL}


def _marian_vocabulary(tokenizer: Tokenizer, tags: LanguageTags) -> dict[str, int]:
    """Token -> id, with our language tags written as Marian's."""
    if isinstance(tokenizer, VocabularyTokenizer):
        return tokenizer.state["vocabulary"]
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    before, after = tags.template.split("{}")  # of a language
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token.startswith(before) and token.endswith(after) and len(token) > len(before + after):
            token = MARIAN_TAGS.token(token[len(before) : len(token) - len(after)])
        if token in vocabulary:
            raise UserError(
                f"The tokenizer has two tokens {token!r} (ids {vocabulary[token]}, {i})."
            )
        vocabulary[token] = i
    return vocabulary
