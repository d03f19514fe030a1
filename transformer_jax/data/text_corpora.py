"""Corpora in text files: two parallel ones, or one with two columns."""

import functools
import hashlib
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

from etils import epath

from transformer_jax import paths
from transformer_jax.data import file_digests
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.shards.text_blocks import split_columns
from transformer_jax.data.text_lines import read_lines
from transformer_jax.errors import UserError, but_there_is, missing_package

SUFFIXES = ("", ".gz", ".zst")  # of a text file
COLUMNS = tuple(f".tsv{suffix}" for suffix in SUFFIXES)  # of a file with both texts
PARQUET = ".parquet"
_PUBLIC_CORPORA = "transformer_jax.extras.corpora.tables"  # imported where a text is missing


def open_text(prefix: str, source_lang: str, target_lang: str, setting: str) -> Corpus:
    """Opens `PREFIX.source_lang` and `PREFIX.target_lang`, or one `.tsv` or `.parquet` file.

    Text files may be compressed: .gz, .zst.

    Args:
      prefix: path without the language suffix, or with one; or of a file with both texts. With
        `*`, `?` or `[]`, unless it is the name of a file, it stands for all that match, in the
        order of their names.
      source_lang, target_lang: the direction.
      setting: the one that names the prefix, for messages.

    Raises:
      UserError: a file is missing.
    """
    if set(prefix) & {*"*?["} and not _is_there(prefix, (source_lang, target_lang)):
        return _open_matches(prefix, source_lang, target_lang, setting)
    if prefix.endswith(PARQUET):
        return open_parquet(epath.Path(prefix), source_lang, target_lang, setting)
    if prefix.endswith(COLUMNS):
        names = [prefix]
    else:
        prefix = _without_language(prefix, (source_lang, target_lang), setting)
        names = [f"{prefix}.{language}" for language in (source_lang, target_lang)]
    files = tuple(_existing(name, setting) for name in names)
    read = functools.partial(_read_tsv if len(files) == 1 else read_parallel, *files)
    return Corpus(prefix, source_lang, target_lang, read, file_digests.digest(files), files)


def _is_there(name: str, languages: tuple[str, str]) -> bool:
    """Whether there is a file of that very name, or one of a language."""
    return any(_find(one) for one in (name, *(f"{name}.{language}" for language in languages)))


def _open_matches(pattern: str, source_lang: str, target_lang: str, setting: str) -> Corpus:
    """All files that a pattern matches, as one corpus."""
    folder, _, name = pattern.rpartition("/")
    has_both = name.endswith((*COLUMNS, PARQUET))
    endings = [""] if has_both else [f".{source_lang}{suffix}" for suffix in SUFFIXES]
    place = epath.Path(folder or ".")
    find = functools.partial(paths.matching, place) if place.exists() else place.glob
    matches = [path for end in endings for path in find(f"{name}{end}")]
    if not matches:
        raise UserError(
            f"{setting}={pattern} matches no file; quote it, so that the shell leaves it alone."
        )
    prefixes = [
        str(path) if has_both else str(path)[: str(path).rindex(f".{source_lang}")]
        for path in sorted(matches)
    ]
    unique = dict.fromkeys(prefixes)  # a file may be there compressed and not
    parts = tuple(open_text(prefix, source_lang, target_lang, setting) for prefix in unique)
    digest = hashlib.blake2b(" ".join(p.fingerprint for p in parts).encode(), digest_size=16)

    def read() -> Iterator[tuple[str, str]]:
        return itertools.chain.from_iterable(part.read() for part in parts)

    return Corpus(pattern, source_lang, target_lang, read, digest.hexdigest(), parts=parts)


def _without_language(path: str, languages: tuple[str, str], setting: str) -> str:
    """`path` without the language, if it names one of two parallel files, such as `corpus.en`.

    Raises:
      UserError: it is a file of no language.
    """
    if any(_find(f"{path}.{language}") for language in languages):
        return path
    prefix, _, suffix = path.removesuffix(".gz").removesuffix(".zst").rpartition(".")
    if suffix in languages:
        return prefix
    if not epath.Path(path).is_file():
        return path
    files = " and ".join(f"PREFIX.{language}" for language in languages)
    raise UserError(
        f"{setting}={path} is one file. Name the PREFIX of {files}, or a .tsv file with both texts."
    )


def _find(name: str) -> epath.Path | None:
    """The file of this name, compressed or not."""
    paths.require(name, "a text file")
    for candidate in (f"{name}{suffix}" for suffix in SUFFIXES):
        path = epath.Path(candidate)
        if path.exists() and not path.is_dir():
            return path
    return None


def _existing(name: str, setting: str) -> epath.Path:
    path = _find(name)
    if path is None:
        raise UserError(
            f"{setting}: no file {name} or {name}.gz{but_there_is(name)}. Name the path without "
            f"the language suffix, or a .tsv file.{_fetch_hint(name)}"
        )
    return path


def _fetch_hint(name: str) -> str:
    """The command that fetches a missing text, if its folder is named as a public data set."""
    hint: str = importlib.import_module(_PUBLIC_CORPORA).fetch_hint(name)
    return hint


def read_parallel(source: epath.Path, target: epath.Path) -> Iterator[tuple[str, str]]:
    """The pairs of two files with the same number of lines.

    Raises:
      UserError: one file has fewer lines, is empty or damaged.
    """
    source_lines, target_lines = read_lines(source), read_lines(target)
    count = 0
    for source_line, target_line in itertools.zip_longest(source_lines, target_lines):
        if source_line is None or target_line is None:
            longer, shorter = (source, target) if target_line is None else (target, source)
            if not count:
                raise UserError(f"{shorter} is empty; it needs at least one line.")
            rest = 1 + sum(1 for _ in (source_lines if longer is source else target_lines))
            raise UserError(
                f"{shorter} ends after line {count}, but {longer} has {count + rest} lines; "
                "parallel files must have the same number of lines."
            )
        count += 1
        yield source_line, target_line
    if not count:
        raise UserError(f"{source} is empty; it needs at least one line.")


def _read_tsv(path: epath.Path) -> Iterator[tuple[str, str]]:
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        yield split_columns(line, str(path), number)
    if not number:
        raise UserError(f"{path} is empty; it needs at least one line.")


def has_text(name: str) -> bool:
    """Whether there is a text file of this name, compressed or not."""
    return _find(name) is not None


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
