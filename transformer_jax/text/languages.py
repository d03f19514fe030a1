"""Names of languages, and the language of a text."""

import functools
from collections.abc import Sequence
from typing import Any

import langcodes
from py3langid.langid import MODEL_FILE, LanguageIdentifier

_READ_CHARS = 4000  # of a text, which are enough to know its language


@functools.cache
def name(code: str) -> str:
    """The English name of a language code such as `en`, `pt-BR` or `fra_Latn`; else the code."""
    try:
        return langcodes.Language.get(code).display_name()
    except ValueError:
        return code


@functools.cache
def two_letters(code: str) -> str:
    """The language alone, in two letters where it has such a code: `fr` of `fra_Latn`."""
    try:
        return langcodes.Language.get(code).language or code
    except ValueError:
        return code


def find(language: str, codes: Sequence[str]) -> str | None:
    """The code of a language as a client writes it, such as `fra_Latn` for `FR`; None: it has none.

    Of a variant such as `EN-US`, also that of the language alone.
    """
    wanted = (language.lower(), language.lower().replace("_", "-").partition("-")[0])
    for form in wanted:
        for code in codes:
            if form in (code.lower(), two_letters(code).lower()):
                return code
    return None


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
