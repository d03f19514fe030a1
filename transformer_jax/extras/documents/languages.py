"""Names of languages, and the language of a text."""

import functools
from collections.abc import Sequence
from typing import Any

import langcodes
from py3langid.langid import MODEL_FILE, LanguageIdentifier

_READ_CHARS = 4000  # of a text, which are enough to know its language


@functools.lru_cache(1024)
def name(code: str) -> str:
    """The English name of a language code such as `en`, `pt-BR` or `fra_Latn`; else the code."""
    try:
        return langcodes.Language.get(code).display_name()
    except ValueError:
        return code


@functools.lru_cache(1024)
def two_letters(code: str) -> str:
    """The language alone, in two letters where it has such a code: `fr` of `fra_Latn`."""
    try:
        return langcodes.Language.get(code).language or code
    except ValueError:
        return code


def standard(code: str) -> str:
    """A code as BCP 47 has it, such as `de` for `deu_Latn`, `zh-Hant` for `zho_Hant`."""
    try:
        return str(langcodes.standardize_tag(code))
    except ValueError:
        return code


def find(language: str, codes: Sequence[str]) -> str | None:
    """The code of a language as a client writes it, such as `fra_Latn` for `FR`; None: it has none.

    Of a variant such as `EN-US`, also that of the language alone; of several in other scripts, such
    as `zho_Hans` and `zho_Hant`, the one in the script of the variant.
    """
    form = language.lower().replace("_", "-")
    forms = {code: code.lower().replace("_", "-") for code in codes}
    for wanted in (form, form.partition("-")[0]):
        known = [code for code in codes if wanted in (forms[code], two_letters(code).lower())]
        exact = [code for code in known if forms[code] == form]
        if known:
            return next(iter(exact or [c for c in known if is_same(c, language)] or known))
    return None


def is_same(code: str, other: str) -> bool:
    """Whether two codes are of one language in one script, of any country."""
    return two_letters(code) == two_letters(other) and _script(code) == _script(other)


@functools.lru_cache(1024)  # clients write them
def _script(code: str) -> str:
    """The usual script of a language code, such as `Hant` of `zh-TW`; "" where none is known."""
    try:
        return langcodes.Language.get(code).maximize().script or ""
    except ValueError:
        return ""


@functools.cache
def _identifier(languages: tuple[str, ...] = ()) -> LanguageIdentifier:
    """Tells apart those of `languages` that it knows; all of them if none are given."""
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if languages:
        identifier.set_languages(languages)
    return identifier


@functools.cache
def _candidates(codes: tuple[str, ...]) -> dict[str, str]:
    """Languages that can be detected -> their codes."""
    by_language = {two_letters(code): code for code in reversed(codes)}
    return {one: by_language[one] for one in sorted(by_language.keys() & {*_identifier().labels})}


def detect(text: str, codes: Sequence[str]) -> list[dict[str, Any]]:
    """Languages of a text by their likelihood, as `language` and `confidence` in percent.

    Args:
      text: any.
      codes: of the languages that it may be in, at least one.
    """
    candidates = _candidates(tuple(codes))
    if len(candidates) < 2:
        return [{"language": codes[0], "confidence": 100.0 if len(codes) == 1 else 0.0}]
    ranked = _identifier(tuple(candidates)).rank(text[:_READ_CHARS])
    return [
        {"language": candidates[language], "confidence": round(100 * float(share), 1)}
        for language, share in ranked
    ]
