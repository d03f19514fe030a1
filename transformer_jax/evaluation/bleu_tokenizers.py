"""The tokenizer of sacreBLEU that splits a language into words for BLEU."""

from typing import Literal

from sacrebleu.metrics.bleu import BLEU

from transformer_jax.config import DataConfig
from transformer_jax.errors import UserError

DEFAULT = "13a"
NO_FOUR_WORDS = "BLEU is 0 because no output shares four words in a row with its reference."
# Script subtag (ISO 15924) -> tokenizer. `flores200` would suit the last group too, but needs a
# model that sacreBLEU downloads, so only users choose it.
_BY_SCRIPT = {
    **dict.fromkeys(("hans", "hant", "hani", "bopo"), "zh"),
    **dict.fromkeys(("jpan", "hira", "kana", "hrkt"), "ja-mecab"),
    **dict.fromkeys(("kore", "hang", "jamo"), "ko-mecab"),
    **dict.fromkeys(
        ("thai", "laoo", "khmr", "mymr", "tibt", "yiii", "tale", "talu", "lana", "tavt", "java",
         "bali", "tang", "nshu"), "char"),
}  # fmt: skip
# Language subtag (ISO 639-1, -2, -3) -> tokenizer, for languages usually in such a script.
_BY_LANGUAGE = {
    **dict.fromkeys(
        ("zh", "zho", "chi", "cmn", "yue", "wuu", "hak", "nan", "gan", "hsn", "cdo", "cjy", "mnp",
         "cpx", "czh", "czo", "lzh", "och", "ltc"), "zh"),
    **dict.fromkeys(("ja", "jpn", "ojp"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor", "okm"), "ko-mecab"),
    **dict.fromkeys(
        ("th", "tha", "tts", "nod", "sou", "lo", "lao", "km", "khm", "my", "mya", "bur", "shn",
         "mnw", "ksw", "rki", "blk", "kht", "bo", "bod", "tib", "dz", "dzo", "adx", "khg", "ii",
         "iii", "khb", "tdd", "blt"), "char"),
}  # fmt: skip
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}
# Languages of Moses' rules: code of ISO 639-1 -> codes of ISO 639-2 and -3.
_THREE_LETTERS = {
    "as": "asm", "bn": "ben", "ca": "cat", "cs": "ces cze", "de": "deu ger", "el": "ell gre",
    "en": "eng", "es": "spa", "et": "est ekk", "fi": "fin", "fr": "fra fre", "ga": "gle",
    "gu": "guj", "hi": "hin", "hu": "hun", "is": "isl ice", "it": "ita", "kn": "kan", "lt": "lit",
    "lv": "lav lvs", "ml": "mal", "mr": "mar", "nl": "nld dut", "or": "ori ory", "pa": "pan",
    "pl": "pol", "pt": "por", "ro": "ron rum", "ru": "rus", "sk": "slk slo", "sl": "slv",
    "sv": "swe", "ta": "tam", "te": "tel",
}  # fmt: skip
_TWO_LETTERS = {three: two for two, codes in _THREE_LETTERS.items() for three in codes.split()}


def for_data(data: DataConfig) -> str:
    """The name of sacreBLEU's tokenizer for the target language of a model.

    Raises:
      UserError: it is not installed.
    """
    name = choose(data.target_lang, data.pretokenized, data.bleu_tokenizer)
    make_bleu(name)
    return name


def choose(target_lang: str, tokenized: bool = False, setting: str = "auto") -> str:
    """The name of sacreBLEU's tokenizer for a language.

    Args:
      target_lang: `zh`, `zho_Hans`, `zh-TW`, `jpn_Jpan`, …: language, then script or region.
      tokenized: spaces separate the words already.
      setting: `config.data.bleu_tokenizer`; any name except `auto` is returned.
    """
    if setting != "auto":
        return setting
    if tokenized:
        return "none"
    language, *rest = _subtags(target_lang)
    by_language = _BY_LANGUAGE.get(language, DEFAULT)
    script = next((tag for tag in rest if len(tag) == 4 and tag.isalpha()), None)
    if script is None:
        return by_language
    by_script = _BY_SCRIPT.get(script, DEFAULT)  # others, such as `Latn`, have spaces
    return by_script if DEFAULT in (by_script, by_language) else by_language


def choose_installed(target_lang: str) -> tuple[Literal["auto", "char"], str]:
    """The setting `data.bleu_tokenizer` that works here, and why it is not `auto`, or nothing."""
    name = choose(target_lang)
    try:
        make_bleu(name)
    except UserError:
        install = f"pip install 'sacrebleu[{_EXTRAS[name]}]'"
        return "char", (
            f"BLEU counts characters: {name}, which splits this language into words, is not "
            f"installed ({install}). Published scores usually count words."
        )
    return "auto", ""


def moses_language(target_lang: str) -> str:
    """Moses' code of a language: `de` for `deu_Latn` and `de-AT`."""
    language = _subtags(target_lang)[0]
    return _TWO_LETTERS.get(language, language)


def make_bleu(tokenizer: str) -> BLEU:
    """BLEU with one of sacreBLEU's tokenizers, by name.

    Raises:
      UserError: a package or a model is missing.
    """
    try:
        # Without `force`, sacreBLEU warns that the text looks tokenised, as it should with `none`.
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except (RuntimeError, ImportError) as error:
        extra = _EXTRAS.get(tokenizer)
        if extra is None:
            raise
        raise UserError(
            f"BLEU splits this language into words by {tokenizer}, which is not installed: "
            f"pip install 'sacrebleu[{extra}]', or choose another tokenizer, such as "
            "config.data.bleu_tokenizer=char."
        ) from error
    except (OSError, SystemExit) as error:  # sacreBLEU exits if a connection is insecure
        raise UserError(
            f"config.data.bleu_tokenizer={tokenizer} needs a model that sacreBLEU downloads once "
            f"into ~/.sacrebleu (or $SACREBLEU), and could not ({error}); copy it there from a "
            "machine that can, or choose another tokenizer, such as char."
        ) from error


def _subtags(code: str) -> list[str]:
    return code.lower().replace("_", "-").split("-")
