"""Short programs that use an exported model, for its README."""

import json
from collections.abc import Callable
from typing import Any

from transformer_jax.config import Config, DecodeConfig
from transformer_jax.data.foreign_tokenizers import JsonTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.extras.interop.huggingface.writing import power_of_length


def ctranslate2_search(decode: DecodeConfig, tokenizers: TokenizerPair) -> dict[str, Any]:
    """Arguments of `translate_batch` that are closest to our search settings."""
    search: dict[str, Any] = {
        "beam_size": decode.beam_size,
        "length_penalty": round(power_of_length(decode), 3),
        "max_decoding_length": decode.max_decode_len,
    }
    if decode.suppressed_ids:
        tokens = tokenizers.target.tokens(decode.suppressed_ids)
        search["suppress_sequences"] = [[token] for token in tokens]
    return search


def ctranslate2(config: Config, tokenizers: TokenizerPair, text: str) -> str:
    """A program that translates with a CTranslate2 export, from inside its folder."""
    source_prefix, target_prefix = _prefixes(config, tokenizers)
    search = ctranslate2_search(config.decode, tokenizers)
    prefix, hypothesis = [], "result.hypotheses[0]"
    if isinstance(tokenizers.source, JsonTokenizer):
        head = ["from tokenizers import Tokenizer"]
        load = ['tokenizer = Tokenizer.from_file("tokenizer.json")']
        tokens = "tokenizer.encode(text, add_special_tokens=False).tokens"
    else:
        head = ["from sentencepiece import SentencePieceProcessor"]
        load = [
            'source = SentencePieceProcessor("source.spm")',
            'target = SentencePieceProcessor("target.spm")',
        ]
        lower = ".lower()" if tokenizers.source.lowercase else ""
        tokens = f"source.encode(text{lower}, out_type=str)"
    if source_prefix:
        load.append(f"tags = {_literal(source_prefix)}")
        tokens = f"tags + {tokens}"
    if target_prefix:
        prefix = [f'search["target_prefix"] = [{_literal(target_prefix)}] * len(texts)']
        hypothesis += f"[{len(target_prefix)}:]"
    if isinstance(tokenizers.source, JsonTokenizer):
        output = f"tokenizer.decode([tokenizer.token_to_id(t) for t in {hypothesis}])"
    else:
        output = f"target.decode({hypothesis})"
    return _lines(
        "import ctranslate2",
        *head,
        "",
        f"texts = [{_literal(text)}]",
        *load,
        'translator = ctranslate2.Translator(".")',
        f"tokens = [{tokens} for text in texts]",
        f"search = {_literal(search)}",
        *prefix,
        "for result in translator.translate_batch(tokens, **search):",
        f"    print({output})",
    )


def huggingface(config: Config, tokenizers: TokenizerPair, text: str) -> str:
    """A program that translates with a Hugging Face export, from inside its folder."""
    _, target_prefix = _prefix_ids(config, tokenizers)
    tag, forced = "", ""
    if config.data.target_language_tags and not tokenizers.tags.both_sides:
        template = tokenizers.tags.template if tokenizers.tags.is_word else ">>{}<<"
        tag = f"{template.format(config.data.target_lang)} "
    if target_prefix:
        forced = f", forced_bos_token_id={target_prefix[0]}"
    return _lines(
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f"texts = [{_literal(tag + config.data.source_prefix + text)}]",
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        'model = AutoModelForSeq2SeqLM.from_pretrained(".")',
        'inputs = tokenizer(texts, return_tensors="pt", padding=True)',
        f"outputs = model.generate(**inputs{forced})",
        r'print(*tokenizer.batch_decode(outputs, skip_special_tokens=True), sep="\n")',
    )


def stablehlo(config: Config, tokenizers: TokenizerPair, text: str) -> str:
    """A program that translates greedily with a StableHLO export, from inside its folder."""
    del config, tokenizers  # the export's manifest has what depends on them
    return _lines(
        "from translate import Translator  # translate.py of this folder",
        "",
        f"texts = [{_literal(text)}]",
        'print(*Translator(".").translate(texts), sep="\\n")',
    )


def bundle(name: str, text: str) -> str:
    """A program that translates with a bundle, in its folder."""
    return _lines(
        "from transformer_jax import Translator",
        "",
        f"translator = Translator.load({_literal(name)})",
        f"for translation in translator.translate([{_literal(text)}]):",
        "    print(translation.text)",
    )


Program = Callable[[Config, TokenizerPair, str], str]
PROGRAMS: dict[str, Program] = {
    "marian": huggingface,
    "ctranslate2": ctranslate2,
    "stablehlo": stablehlo,
}


def _prefix_ids(config: Config, tokenizers: TokenizerPair) -> tuple[list[int], list[int]]:
    tags: tuple[list[int], list[int]] = ([], [])
    if config.data.target_language_tags:
        tags = tokenizers.language_tags(config.data.source_lang, config.data.target_lang)
    return tokenizers.with_prefix(tags, config.data.source_prefix)


def _prefixes(config: Config, tokenizers: TokenizerPair) -> tuple[list[str], list[str]]:
    """What is before every source and every target: language tags, and the source's prefix."""
    source, target = _prefix_ids(config, tokenizers)
    return tokenizers.source.tokens(source), tokenizers.target.tokens(target)


def _literal(value: str | list[str] | dict[str, Any]) -> str:
    """Python for strings, numbers, lists and dicts, for which JSON is the same."""
    return json.dumps(value, ensure_ascii=False)


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
