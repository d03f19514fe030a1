"""Lines of text files: UTF-8, compressed or not, with any mark or line end of Windows."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

from etils import epath

from transformer_jax.errors import UserError, missing_package

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # errors of damaged compressed files


def decompressed(raw: BinaryIO, name: str) -> BinaryIO:
    """The content of a file, which its name says is compressed if it ends with .gz or .zst."""
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if name.endswith(".zst"):
        return cast(BinaryIO, io.BufferedReader(_Zstandard(raw)))
    return raw


class _Zstandard(io.RawIOBase):
    """The content of a .zst file, whose damage is an `EOFError`, as that of a .gz file."""

    def __init__(self, raw: BinaryIO):
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise missing_package(error, "formats") from error
        self._error = zstandard.ZstdError
        self._reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except self._error as error:
            raise EOFError(str(error)) from error


def read_lines(path: epath.Path, allow_nul: bool = False) -> Iterator[str]:
    """Lines of a UTF-8 text file, .gz and .zst too; see `decode_lines`."""
    with path.open("rb") as raw:
        yield from decode_lines(decompressed(raw, path.name), str(path), allow_nul)


def decode_block(content: bytes, name: str, first_line: int) -> list[str]:
    """Lines of a part of a file, as `decode_lines`; faster, because most parts need no care."""
    may_be_mac = first_line == 1 and b"\n" not in content
    if b"\0" not in content and not may_be_mac and (first_line > 1 or content[:1] < b"\xef"):
        try:
            lines = content.removesuffix(b"\n").decode("utf-8").split("\n")
        except UnicodeDecodeError:
            pass
        else:
            return [line.removesuffix("\r") for line in lines] if b"\r" in content else lines
    stream = io.BytesIO(content)
    return list(decode_lines(stream, name, first_line=first_line))


def decode_lines(
    stream: Iterable[bytes], name: str, allow_nul: bool = False, first_line: int = 1
) -> Iterator[str]:
    r"""Lines of a binary stream as UTF-8, without their `\n` or `\r\n`, and without a BOM.

    Args:
      stream: of lines.
      name: of the stream, for messages.
      allow_nul: whether a line may have a NUL byte.
      first_line: number of the first line of the stream.

    Raises:
      UserError: naming stream and line, for invalid UTF-8, other line ends, a damaged gzip, or a
        NUL byte.
    """
    number = first_line - 1
    try:
        for number, line in enumerate(stream, start=first_line):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise UserError(f"{name} is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {name}")
            if number == 1 and b"\r" in line.rstrip(b"\r") and not line.endswith(b"\n"):
                raise UserError(
                    f"{name} has the line ends of old Macs, which make one line of it; convert it: "
                    f"tr '\\r' '\\n' < {name} > NEW"
                )
            if b"\0" in line and not allow_nul:
                raise UserError(
                    f"{name}, line {number}: a NUL byte; the file is damaged or not text."
                )
            # Some editors write a byte order mark before the first line.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: invalid UTF-8 at byte {error.start}; "
            "convert the file, for example with iconv."
        ) from error
    except DAMAGED as error:
        raise UserError(
            f"{name}, after line {number}: damaged gzip or zstd file ({error})."
        ) from error
