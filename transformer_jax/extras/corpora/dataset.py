"""What a public data set is: files on the internet, and parallel texts that are made of them.

`tables.py` lists those that `transformer-jax data` fetches. `download.py` fetches and
verifies the files, `unpacking.py` makes the texts.
"""

import dataclasses
from typing import Literal

Format = Literal["text", "segments", "talks"]


@dataclasses.dataclass(frozen=True)
class Download:
    """A file on the internet.

    Attributes:
      name: of the file in `downloads/`.
      urls: where it is, the first choice first.
      num_bytes: its size.
      sha256: its digest; empty where none is published that this project knows.
    """

    name: str
    urls: tuple[str, ...]
    num_bytes: int
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """Parallel files: one for each language.

    Attributes:
      files: language -> name of a download, and of the file in it; "" if the download is the file.
      format: text: a sentence a line; segments: SGML or XML with `<seg>` elements; talks: lines of
        text, titles and descriptions among other elements, as in `train.tags.*` of IWSLT.
      num_lines: sentences of each language; 0 where the number is not known.
    """

    files: dict[str, tuple[str, str]]
    format: Format = "text"
    num_lines: int = 0


@dataclasses.dataclass(frozen=True)
class Split:
    """Parallel texts that are written as `NAME.LANGUAGE`: the parts one after the other.

    Attributes:
      name: of the files.
      parts: what they are made of, each with the same languages.
      held_out: name of another split that gets every 23rd pair, as fairseq's scripts do; "" if
        none. Pairs with an empty side are then left out first.
    """

    name: str
    parts: tuple[Part, ...]
    held_out: str = ""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A public data set.

    Attributes:
      about: what it is.
      page: where its authors describe it.
      licence: what they allow.
      checksums: where the digests of its files are published.
      downloads: its files.
      splits: the texts.
      command: the next command to give; `{train}` and so on become paths of splits.
    """

    about: str
    page: str
    licence: str
    checksums: str
    downloads: tuple[Download, ...]
    splits: tuple[Split, ...]
    command: str
