"""The text of a corpus in blocks of a fixed number of pairs, undecoded.

One process reads blocks as fast as the disk is; decoding, checks and tokenising are left to the
processes that get the blocks.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np
from etils import epath

from transformer_jax.data.text_lines import DAMAGED, decode_block, decompressed
from transformer_jax.errors import UserError

READ_BYTES = 4 << 20  # bytes read at once
NEW_LINE = ord("\n")


@dataclasses.dataclass(frozen=True)
class TextBlock:
    """Consecutive pairs of a corpus.

    Attributes:
      number: of the block in its corpus, from 0.
      names: of the files, for messages: of source and target, or of one with two columns.
      first_line: number of the first line in these files, from 1.
      content: undecoded lines of each file; or the pairs themselves, of a corpus that is not files.
      before: texts of the last sources before the block, as many as were asked for.
      parts: blocks of several files that are one block; then it has no content of its own.
    """

    number: int
    names: tuple[str, ...]
    first_line: int
    content: tuple[bytes, ...] | list[tuple[str, str]]
    before: tuple[str, ...] = ()
    parts: tuple["TextBlock", ...] = ()

    @property
    def num_pairs(self) -> int:
        """Pairs in it."""
        if self.parts:
            return sum(part.num_pairs for part in self.parts)
        if isinstance(self.content, list):
            return len(self.content)
        first = self.content[0]
        return first.count(b"\n") + (not first.endswith(b"\n"))

    def texts(self) -> tuple[list[str], list[str]]:
        """Sources and targets.

        Raises:
          UserError: invalid UTF-8, a NUL byte, or a line without two columns.
        """
        if self.parts:
            sources, targets = zip(*(part.texts() for part in self.parts), strict=True)
            return list(itertools.chain(*sources)), list(itertools.chain(*targets))
        if isinstance(self.content, list):
            return [source for source, _ in self.content], [target for _, target in self.content]
        sides = [
            decode_block(content, name, self.first_line)
            for content, name in zip(self.content, self.names, strict=True)
        ]
        if len(sides) == 2:
            return sides[0], sides[1]
        columns = [
            split_columns(line, self.names[0], number)
            for number, line in enumerate(sides[0], start=self.first_line)
        ]
        return [source for source, _ in columns], [target for _, target in columns]


def split_columns(line: str, name: str, number: int) -> tuple[str, str]:
    """Source and target of line `number` of a file with two columns; a blank line has neither.

    Raises:
      UserError: another number of columns.
    """
    columns = line.split("\t") if line.strip() else ["", ""]
    if len(columns) != 2:
        raise UserError(
            f"{name}, line {number}: {len(columns)} columns instead of source, tab, target."
        )
    return columns[0], columns[1]


def join_blocks(blocks: Iterable[TextBlock], num_pairs: int) -> Iterator[TextBlock]:
    """Joins blocks that follow each other, as many as have `num_pairs` together, and numbers them.

    Without this each of many small files would be a shard.
    """
    parts: list[TextBlock] = []
    count, number = 0, 0
    for block in blocks:
        if parts and count + block.num_pairs > num_pairs:
            yield _joined(parts, number)
            parts, count, number = [], 0, number + 1
        parts.append(block)
        count += block.num_pairs
    if parts:
        yield _joined(parts, number)


def _joined(parts: list[TextBlock], number: int) -> TextBlock:
    first = dataclasses.replace(parts[0], number=number)
    if len(parts) == 1:
        return first
    return dataclasses.replace(first, content=(), parts=tuple(parts))


def blocks_of_pairs(
    name: str, pairs: Iterator[tuple[str, str]], num_pairs: int, num_before: int = 0
) -> Iterator[TextBlock]:
    """The blocks of a corpus that is not text files; arguments as of `read_file_blocks`."""
    before: tuple[str, ...] = ()
    for number in itertools.count():
        content = list(itertools.islice(pairs, num_pairs))
        if not content:
            if not number:
                raise UserError(f"{name} is empty; it needs at least one pair.")
            return
        yield TextBlock(number, (name,), 1 + number * num_pairs, content, before)
        before = tuple(source for source, _ in content[-num_before:]) if num_before else ()


def read_file_blocks(
    files: tuple[epath.Path, ...], num_pairs: int, num_before: int = 0
) -> Iterator[TextBlock]:
    """The blocks of one file with two columns, or of two with the same number of lines.

    Args:
      files: the one or two.
      num_pairs: of a block; the last one may have fewer.
      num_before: sources that are given with the block after them.

    Raises:
      UserError: a file is empty or damaged, or one has fewer lines than the other.
    """
    names = tuple(str(file) for file in files)
    streams = [_LineBlocks(file, num_pairs) for file in files]
    block = TextBlock(-1, names, 1 - num_pairs, ())
    while True:
        content = tuple(stream.next() for stream in streams)
        counts = [stream.count for stream in streams]
        first_line = block.first_line + num_pairs
        if len(set(counts)) > 1:
            _raise_uneven(names, first_line, counts, streams)
        if not counts[0]:
            if first_line == 1:
                raise UserError(f"{names[0]} is empty; it needs at least one line.")
            return
        before: tuple[str, ...] = ()
        if num_before and block.content:
            before = tuple(block.texts()[0][-num_before:])
        block = TextBlock(block.number + 1, names, first_line, content, before)
        yield block


def _raise_uneven(
    names: tuple[str, ...], first_line: int, counts: list[int], streams: list["_LineBlocks"]
) -> None:
    short, long = (0, 1) if counts[0] < counts[1] else (1, 0)
    total = first_line - 1 + counts[long]
    while streams[long].next():
        total += streams[long].count
    last = first_line - 1 + counts[short]
    if not last:
        raise UserError(f"{names[short]} is empty; it needs at least one line.")
    raise UserError(
        f"{names[short]} ends after line {last}, but {names[long]} has {total} lines; "
        "parallel files must have the same number of lines."
    )


class _LineBlocks:
    """Reads a file in blocks of a number of lines, which end with a line feed or the file.

    Args:
      path: the file; with the suffix .gz or .zst it is decompressed.
      num_lines: of a block.
    """

    def __init__(self, path: epath.Path, num_lines: int):
        self._path, self._num_lines = path, num_lines
        self._stream: BinaryIO | None = None
        self._raw: BinaryIO
        self._rest = b""
        self._lines_before = 0
        self.count = 0  # lines of the block that was read last

    def next(self) -> bytes:
        """The next block; empty at the end."""
        if self._stream is None:
            self._raw = self._path.open("rb")
            self._stream = decompressed(self._raw, self._path.name)
        parts, missing = [], self._num_lines
        part, self._rest = self._rest, b""
        try:
            while part := part or self._stream.read(READ_BYTES):
                ends = part.count(b"\n")
                if ends >= missing:
                    bytes_ = np.frombuffer(part, np.uint8)
                    end = int(np.flatnonzero(bytes_ == NEW_LINE)[missing - 1]) + 1
                    parts.append(part[:end])
                    self._rest, missing = part[end:], 0
                    break
                parts.append(part)
                missing -= ends
                part = b""
        except DAMAGED as error:
            line = self._lines_before + self._num_lines - missing
            raise UserError(
                f"{self._path}, after line {line}: damaged gzip or zstd file ({error})."
            ) from error
        block = b"".join(parts)
        self.count = self._num_lines - missing + bool(block and not block.endswith(b"\n"))
        self._lines_before += self.count
        if not block:
            self._raw.close()
        return block
