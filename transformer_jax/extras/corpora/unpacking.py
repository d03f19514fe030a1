"""Makes parallel texts of the files of a public data set.

Only files that `tables.py` names are read from an archive, and their names there are never used
as paths. So an archive cannot write outside the folder.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import html
import itertools
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from transformer_jax import paths
from transformer_jax.data.text_lines import decode_lines
from transformer_jax.errors import UserError
from transformer_jax.extras.corpora.dataset import Dataset, Download, Part, Split
from transformer_jax.extras.corpora.download import DownloadError, Say, digest, fetch

DOWNLOADS, SUMS = "downloads", "SHA256SUMS"
HELD_OUT_EVERY = 23  # pairs; fairseq's number
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
# Entities of XML. SGML of WMT also has a bare `&`, and no others.
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);")
_ELEMENT = re.compile(r"</?[a-z]+[ >].*")


def make_texts(name: str, dataset: Dataset, folder: Path, say: Say) -> None:
    """Fetches a data set, and writes its texts and `SHA256SUMS` into `folder`.

    Texts that are there and have the digests of `SHA256SUMS` are kept.

    Args:
      name: of the data set, for messages.
      dataset: its files and texts.
      folder: made if missing; `downloads/` in it keeps the files.
      say: gets a line about each file.

    Raises:
      UserError: a file cannot be downloaded, or is not what `dataset` says.
    """
    if _are_written(folder):
        say(f"{folder}: the texts are there, as {SUMS} says")
        return
    for download in dataset.downloads:
        try:
            fetch(download, folder / DOWNLOADS, say)
        except DownloadError as error:
            raise UserError(_by_hand(name, dataset, folder, download, error)) from error
    _report_verified(dataset, folder, say)
    rows = []
    for split in dataset.splits:
        say(f"writing {folder / split.name}")
        try:
            written = _write_split(split, folder)
        except OSError as error:
            raise UserError(
                f"{folder / split.name} cannot be written: {error.strerror}; the downloads are "
                "kept, and the same command continues."
            ) from error
        for texts in written:
            rows += [f"{text.sha256}  {text.path.name}\n" for text in texts]
            languages = ",".join(text.path.suffix[1:] for text in texts)
            prefix = texts[0].path.with_suffix("")
            say(f"{prefix}.{{{languages}}}: {texts[0].num_lines:,} lines each")
    paths.write_atomically(folder / SUMS, "".join(rows))


def _are_written(folder: Path) -> bool:
    """Whether all texts of an earlier call are there, unchanged."""
    if not (folder / SUMS).exists():
        return False
    rows = [
        line.split("  ", 1) for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()
    ]
    return all((folder / row[1]).exists() and digest(folder / row[1]) == row[0] for row in rows)


def _report_verified(dataset: Dataset, folder: Path, say: Say) -> None:
    published = [download for download in dataset.downloads if download.sha256]
    if published:
        say(f"{len(published)} file(s) in {folder / DOWNLOADS}: verified by their SHA-256")
    for download in dataset.downloads:
        if not download.sha256:
            path = folder / DOWNLOADS / download.name
            say(
                f"{path} has the expected size, and SHA-256 {digest(path)}; this project knows no "
                "published checksum of it, so its texts are checked by their numbers of lines"
            )


def _by_hand(
    name: str, dataset: Dataset, folder: Path, failed: Download, error: DownloadError
) -> str:
    """What to do without a connection."""
    missing = [d for d in dataset.downloads if not (folder / DOWNLOADS / d.name).exists()]
    rows = [
        f"  {d.urls[0]}  ({d.num_bytes:,} bytes, SHA-256 {d.sha256 or 'not published'})"
        for d in missing
    ]
    return (
        f"{failed.name} of {name} could not be downloaded ({error}). Download what follows on "
        f"another machine, put it into {folder / DOWNLOADS}, and give the same command again:\n"
        + "\n".join(rows)
    )


# --- Texts --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Text:
    """A text that was written."""

    path: Path
    num_lines: int
    sha256: str


def _write_split(split: Split, folder: Path) -> list[list[_Text]]:
    """Writes the texts of a split, and of the one that is held out; returns each's languages.

    They get their names when all of them are complete.
    """
    languages = tuple(split.parts[0].files)
    names = [split.name, *([split.held_out] if split.held_out else [])]
    rows = itertools.chain.from_iterable(_read_part(part, folder) for part in split.parts)
    with contextlib.ExitStack() as stack:
        writers = [
            [stack.enter_context(_Writer(folder / f"{name}.{side}")) for side in languages]
            for name in names
        ]
        number = 0
        for row in rows:
            if split.held_out and not all(row):
                continue
            number += 1
            is_held_out = bool(split.held_out) and number % HELD_OUT_EVERY == 0
            for writer, line in zip(writers[is_held_out], row, strict=True):
                writer.write(line)
        for group in writers:
            for writer in group:
                writer.check_replaceable()
    return [[writer.finish() for writer in group] for group in writers]


class _Writer:
    """A text that gets its name by `finish`; an error before leaves nothing."""

    def __init__(self, path: Path):
        self._path = path
        self._temporary = path.with_name(f".{path.name}.part")
        self._digest, self._num_lines = hashlib.sha256(), 0

    def __enter__(self) -> "_Writer":
        self._file = self._temporary.open("wb")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._file.close()  # writes what is buffered, which may not fit
        except OSError:
            kind = OSError
            raise
        finally:
            if kind is not None:
                self._temporary.unlink()

    def write(self, line: str) -> None:
        data = f"{line}\n".encode()
        self._file.write(data)
        self._digest.update(data)
        self._num_lines += 1

    def check_replaceable(self) -> None:
        """Refuses to replace a file with another content, which may be somebody's work."""
        if self._path.exists() and digest(self._path) != self._digest.hexdigest():
            raise UserError(
                f"{self._path} is there with another content; move it away to have it written, or "
                "choose another `output`."
            )

    def finish(self) -> _Text:
        """Renames the file."""
        os.replace(self._temporary, self._path)
        return _Text(self._path, self._num_lines, self._digest.hexdigest())


def _read_part(part: Part, folder: Path) -> Iterator[tuple[str, ...]]:
    """Rows of parallel sentences, one for each language.

    Raises:
      UserError: the files differ in length, or have another number of lines than is known.
    """
    readers = {"text": _read_text, "segments": _read_segments, "talks": _read_talks}
    with contextlib.ExitStack() as stack:
        names = [f"{file}:{member}" if member else file for file, member in part.files.values()]
        columns = [
            readers[part.format](
                stack.enter_context(_open(folder / DOWNLOADS / file, member)), name
            )
            for (file, member), name in zip(part.files.values(), names, strict=True)
        ]
        num_lines = 0
        for row in itertools.zip_longest(*columns):
            if None in row:
                raise UserError(f"{' and '.join(names)} have different numbers of lines.")
            num_lines += 1
            yield row
    if part.num_lines and num_lines != part.num_lines:
        raise UserError(f"{names[0]} has {num_lines:,} sentences, expected {part.num_lines:,}.")


@contextlib.contextmanager
def _open(path: Path, member: str) -> Iterator[IO[bytes]]:
    """A file, or a file in an archive, decompressed.

    Raises:
      UserError: the archive is damaged, or has no such file.
    """
    try:
        with contextlib.ExitStack() as stack:
            if member:
                archive = stack.enter_context(tarfile.open(path))
                stream = stack.enter_context(_member(archive, member))
            else:
                stream = stack.enter_context(path.open("rb"))
            is_compressed = (member or path.name).endswith(".gz")
            if is_compressed:
                stream = cast(IO[bytes], stack.enter_context(gzip.open(stream)))
            yield stream
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}); remove it to download it again.") from error


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """A file in an archive."""
    info = next((info for info in archive if info.name == name), None)
    stream = archive.extractfile(info) if info is not None and info.isfile() else None
    if stream is None:
        path = os.fsdecode(archive.name or "")
        raise UserError(f"{path} has no file {name}; it is another archive than expected.")
    return stream


def _read_text(stream: IO[bytes], name: str) -> Iterator[str]:
    """Lines of a text, without NUL characters, which training refuses."""
    for line in decode_lines(stream, name, allow_nul=True):
        yield line.replace("\0", "")


def _read_segments(stream: IO[bytes], name: str) -> Iterator[str]:
    """Contents of the `<seg>` elements of SGML or XML; an empty one is an empty line.

    Such files are not always well-formed, so no XML parser is used.
    """
    text = "\n".join(_read_text(stream, name))
    for segment in _SEGMENT.findall(text):
        yield _as_line(segment)


def _read_talks(stream: IO[bytes], name: str) -> Iterator[str]:
    """Sentences, titles and descriptions of talks; other elements are empty lines.

    Three elements are no lines at all, so that lines are counted as fairseq's script does.
    """
    for line in _read_text(stream, name):
        if not any(element in line for element in ("<url>", "<talkid>", "<keywords>")):
            content = re.sub(r"</?(?:title|description)>", "", line).strip(" \t")
            yield "" if _ELEMENT.fullmatch(content) else _as_line(content)


def _as_line(text: str) -> str:
    """The text of an element: entities replaced, white space of XML as one space."""
    plain = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return re.sub(r"[ \t\r\n]+", " ", plain).strip(" ")
