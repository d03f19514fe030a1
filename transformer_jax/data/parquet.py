"""Corpora in Parquet files, as data sets on the Hugging Face Hub have them."""

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from etils import epath

from transformer_jax.data import file_digests
from transformer_jax.data.corpus import Corpus
from transformer_jax.errors import UserError, missing_package

BATCH = 10_000  # rows read at once
COLUMN = "translation"  # of structs with a field for each language


def open_parquet(path: epath.Path, source_lang: str, target_lang: str, setting: str) -> Corpus:
    """A file with a column for each language, or with structs of both in `translation`.

    Raises:
      UserError: the file is missing, or has no such column; pyarrow is not installed.
    """
    if not path.exists():
        raise UserError(f"{setting}: there is no file {path}.")
    languages = (source_lang, target_lang)
    try:
        with path.open("rb") as file:
            schema = _library().ParquetFile(file).schema_arrow
    except (OSError, ValueError) as error:  # errors of pyarrow are of these types
        raise UserError(f"{path} is no Parquet file ({error}).") from error
    names = schema.names
    if COLUMN in names:
        field = schema.field(COLUMN).type
        names = [field.field(i).name for i in range(field.num_fields)]
    for language in languages:
        if language not in names:
            raise UserError(
                f"{path} has the columns {', '.join(names)}, not {language!r}; set "
                "config.data.source_lang and config.data.target_lang."
            )
    read = functools.partial(_read, path, languages)
    return Corpus(str(path), *languages, read, file_digests.digest([path]))


def _read(path: epath.Path, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    with path.open("rb") as file:
        for batch in _library().ParquetFile(file).iter_batches(BATCH):
            has_structs = COLUMN in batch.schema.names
            columns = batch.column(COLUMN).flatten() if has_structs else batch.columns
            fields = batch.schema.field(COLUMN).type if has_structs else batch.schema
            names = [fields.field(i).name for i in range(len(columns))]
            sides = [columns[names.index(language)].to_pylist() for language in languages]
            for pair in zip(*sides, strict=True):
                source, target = (" ".join((text or "").split("\n")) for text in pair)
                yield source, target


def _library() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise missing_package(error, "formats") from error
