"""What the description of the API says of routes that read their bodies themselves."""

from collections.abc import Mapping
from typing import Any

import pydantic

from transformer_jax.extras.serving.context import FORMS

# More than one route may answer so. The value of `description` is what OpenAPI needs.
_STATUSES = {"4XX": "What is wrong with the request.", "5XX": "Why there is no answer now."}


def body_of(model: type[pydantic.BaseModel], forms: bool = False) -> dict[str, Any]:
    """The argument `openapi_extra` of a route whose body has the fields of `model`."""
    schema = {"schema": model.model_json_schema()}
    kinds = ("application/json", *(FORMS if forms else ()))
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, schema)}}


def errors_as(model: type[pydantic.BaseModel]) -> Mapping[int | str, dict[str, Any]]:
    """The argument `responses` of a route whose errors have the fields of `model`."""
    return {status: {"model": model, "description": text} for status, text in _STATUSES.items()}
