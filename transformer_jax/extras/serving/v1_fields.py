"""What is sent and answered in this project's own API, `/v1`."""

from typing import Any, Literal

import pydantic

from transformer_jax.config import DecodeConfig
from transformer_jax.config.setting import all_settings
from transformer_jax.extras.documents.formats import FORMATS

# Searches by request: settings of `DecodeConfig`, but not how many texts are decoded at once.
SEARCH = [s.path for s in all_settings(DecodeConfig) if s.path != "batch_tokens"]


MAX_TERMS = 1000  # of the glossary of a request
MAX_FORMS = 16  # of a target of the glossary


class Request(pydantic.BaseModel):
    """What all requests have."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str = pydantic.Field(
        "", max_length=256, description="Name of a model; empty: the first for the languages."
    )
    source_lang: str = pydantic.Field("", max_length=64, description="Language of the texts.")
    target_lang: str = pydantic.Field(
        "", max_length=64, description="Language of the translations."
    )


class TimedRequest(Request):
    """What requests have that wait for the device."""

    timeout_ms: float | None = pydantic.Field(
        None, gt=0, description="Longest time that a text may wait; at most the server's limit."
    )


class _TranslateFields(TimedRequest):
    source_lang: str = pydantic.Field(
        "",
        max_length=64,
        description="Language of the texts; auto: that of each is detected, but not of sentences.",
    )
    texts: list[str] = pydantic.Field(
        min_length=1, description="Texts, which are translated sentence by sentence."
    )
    format: Literal[("sentence", *FORMATS)] = pydantic.Field(  # type: ignore[valid-type]
        "txt",
        description="Of the texts. sentence: each is one, and is not split, unless it has more "
        "tokens than the model reads at once; nothing is protected or checked.",
    )
    glossary: list[list[str]] = pydantic.Field(
        [],
        max_length=MAX_TERMS,
        description="Terms that translations contain: [source, target] or [source, target, "
        "flags]. Forms of a target are separated by |; flags are case and inflect.",
    )

    @pydantic.field_validator("glossary")
    @classmethod
    def _bound_forms(cls, rows: list[list[str]]) -> list[list[str]]:
        for row in rows:
            if any(cell.count("|") >= MAX_FORMS for cell in row[1:2]):
                raise ValueError(f"a term has more than {MAX_FORMS} forms")
        return rows

    protect: bool = pydantic.Field(
        True, description="Addresses, names in braces, numbers with units and the like stay."
    )
    guards: bool = pydantic.Field(
        True, description="Loops, copies of the source and the like are translated again."
    )
    confidence: bool = pydantic.Field(
        False, description="With the confidence of sentences and words, if the model has it."
    )
    n_best: int = pydantic.Field(
        1, ge=1, description="Translations of each text; a search may find fewer."
    )
    alignment: bool = pydantic.Field(False, description="With links between words.")
    stream: bool = pydantic.Field(
        False,
        description="Send each translation when it and all before it are finished, as server-sent "
        "events: translation, then done; or error.",
    )


# Any: its fields are those of `DecodeConfig`.
_SEARCH_FIELDS: dict[str, Any] = {
    one.path: (one.type | None, pydantic.Field(None, description=one.rules.meaning))
    for one in all_settings(DecodeConfig)
    if one.path in SEARCH
}
TranslateRequest: Any = pydantic.create_model(
    "TranslateRequest", __base__=_TranslateFields, **_SEARCH_FIELDS
)


class SentencesRequest(Request):
    """Texts of several sentences."""

    texts: list[str] = pydantic.Field(min_length=1, description="Texts.")


class SentenceAnswer(pydantic.BaseModel):
    """A sentence, and where it is in its text, in UTF-16 units as JavaScript counts."""

    text: str
    start: int
    end: int


class SentencesAnswer(pydantic.BaseModel):
    """The sentences of each text."""

    texts: list[list[SentenceAnswer]]


class ScoreRequest(TimedRequest):
    """Pairs to score."""

    pairs: list[tuple[str, str]] = pydantic.Field(min_length=1, description="(text, translation)")


class Alternative(pydantic.BaseModel):
    """A translation that is not the best."""

    text: str
    score: float | None


class SentenceTranslationAnswer(pydantic.BaseModel):
    """A sentence of a text, and its translation."""

    source: str
    text: str
    flags: list[str] = pydantic.Field([], description="What is wrong with it, if anything is.")
    unmet: list[str] = pydantic.Field([], description="Terms that could not be placed.")
    confidence: float | None = pydantic.Field(
        None, description="The chrF that it can be expected to have, in 0 .. 1."
    )
    words: list[tuple[str, float]] | None = pydantic.Field(
        None, description="Words, each with the probability that a reference has it too."
    )


class TranslationAnswer(pydantic.BaseModel):
    """A text's translation; scores are the sums of those of its sentences."""

    text: str
    score: float | None = pydantic.Field(description="Log-probability over the length penalty.")
    log_prob: float | None = pydantic.Field(description="Of all tokens and the end.")
    tokens: list[str]
    alternatives: list[Alternative] = []
    source_lang: str | None = pydantic.Field(
        default=None, description="Language of the text; of formats other than sentence."
    )
    source_words: list[str] | None = None
    words: list[str] | None = None
    alignment: list[tuple[int, int]] | None = pydantic.Field(
        default=None, description="Links (source word, word), numbered from 0."
    )
    sentences: list[SentenceTranslationAnswer] | None = pydantic.Field(
        default=None, description="Of formats other than sentence."
    )


class TranslateAnswer(pydantic.BaseModel):
    """Translations of all texts, in their order."""

    model: str
    translations: list[TranslationAnswer]


class PairScore(pydantic.BaseModel):
    """Score of a pair."""

    log_prob: float | None
    tokens: list[str]
    log_probs: list[float | None]


class ScoreAnswer(pydantic.BaseModel):
    """Scores of all pairs, in their order."""

    model: str
    scores: list[PairScore]


class LimitsAnswer(pydantic.BaseModel):
    """What clients may ask for; as of `extras.serving.jobs.Limits`."""

    max_queue: int
    max_texts: int
    max_chars: int
    max_tokens: int
    batch_wait_ms: float
    timeout_ms: float


class ModelAnswer(pydantic.BaseModel):
    """A model, its languages, and the searches that are compiled; {} is its own."""

    name: str
    source_langs: list[str]
    target_langs: list[str]
    searches: list[dict[str, Any]]
    most_alternatives: int
    alignment: bool = pydantic.Field(description="Whether words can be linked.")
    glossary: bool = pydantic.Field(description="Whether terms can be placed.")
    confidence: bool = pydantic.Field(description="Whether it was calibrated.")
    engine: str = pydantic.Field(description="What computes: jax or ctranslate2.")
    limits: LimitsAnswer


class ModelsAnswer(pydantic.BaseModel):
    """The models; the first is that of requests that name none."""

    models: list[ModelAnswer]


class ErrorFields(pydantic.BaseModel):
    """What is wrong: a word, a sentence, and the number of the text that it is about."""

    code: str
    message: str
    item: int | None = None


class ErrorAnswer(pydantic.BaseModel):
    """Why there is no answer."""

    error: ErrorFields
