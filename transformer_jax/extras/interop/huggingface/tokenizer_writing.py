"""Writes the tokenizer files of a Hugging Face directory."""

from typing import Any

from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.foreign_tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    VocabularyTokenizer,
)
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import LanguageTags, TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.extras.interop.huggingface import families
from transformer_jax.extras.interop.huggingface.families import Family
from transformer_jax.extras.interop.huggingface.settings import write_json
from transformer_jax.extras.interop.huggingface.tokenizers import MARIAN_TAGS, SPECIAL
from transformer_jax.extras.interop.huggingface.vocabularies import LANGUAGE_CODES


def write_tokenizers(
    folder: epath.Path, config: Config, tokenizers: TokenizerPair, family: Family
) -> None:
    """Writes the tokenizer files, as `read_tokenizers` and transformers read them."""
    source = tokenizers.source
    refuse_extended(source, family.is_t5)
    if isinstance(source, ByteTokenizer):
        options: dict[str, Any] = {"tokenizer_class": "ByT5Tokenizer"}
    elif family.tokenizer:
        options = _write_as_read(folder, config, source, family)
    elif isinstance(source, JsonTokenizer):
        options = _write_nllb(folder, config, source)
    elif tokenizers.tags.both_sides:
        options = _write_m2m_100(folder, config, source)
    else:
        options = _write_marian(folder, config, tokenizers)
    write_json(folder / "tokenizer_config.json", options)


def refuse_extended(tokenizer: Tokenizer, is_t5: bool) -> None:
    """Refuses tokens that `data.new_tokens` has added to a tokenizer of T5, M2M-100 or mBART.

    transformers numbers their tokens by the order in the SentencePiece model (T5's by nothing
    else), and tags after them.

    Raises:
      UserError: the tokenizer has such tokens.
    """
    if not isinstance(tokenizer, VocabularyTokenizer):
        return
    vocabulary, dropped = tokenizer.state["vocabulary"], tokenizer.state["dropped"]
    tags = {token: vocabulary[token] for token in dropped if token in vocabulary}
    text = max(i for token, i in vocabulary.items() if token not in tags)
    if (tags and text > min(tags.values())) or (is_t5 and text >= tokenizer.num_model_tokens):
        raise UserError(
            "This model's vocabulary was extended (config.data.new_tokens), and Hugging Face's "
            "tokenizer has no such ids. Export it as ctranslate2 or as a bundle."
        )


def _write_as_read(
    folder: epath.Path, config: Config, tokenizer: Tokenizer, family: Family
) -> dict[str, Any]:
    """Writes an imported tokenizer, and returns the content of tokenizer_config.json."""
    options = {"tokenizer_class": family.tokenizer, "model_max_length": config.model.max_len}
    if isinstance(tokenizer, JsonTokenizer):
        (folder / "tokenizer.json").write_bytes(tokenizer.model)
    elif family.is_t5:
        (folder / "spiece.model").write_bytes(tokenizer.model)
        options["extra_ids"] = len(tokenizer.state["dropped"])
    else:
        (folder / "sentencepiece.bpe.model").write_bytes(tokenizer.model)
    if family is families.MBART:
        languages = {"src_lang": config.data.source_lang, "tgt_lang": config.data.target_lang}
        options |= {name: value or None for name, value in languages.items()}
    special = tokenizer.state["special"].items()
    return options | {f"{name}_token": token for name, token in special if token}


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
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size))):
        language = tags.language(token)
        token = MARIAN_TAGS.token(language) if language else token
        if token in vocabulary:
            raise UserError(
                f"The tokenizer has two tokens {token!r} (ids {vocabulary[token]}, {i})."
            )
        vocabulary[token] = i
    return vocabulary
