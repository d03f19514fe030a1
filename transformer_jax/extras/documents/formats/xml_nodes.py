"""Tags and texts of an XML file, with their places."""

import dataclasses
import xml.parsers.expat

from transformer_jax.errors import UserError


@dataclasses.dataclass
class Node:
    """A tag, text, or something else of a file, with its place in bytes.

    Attributes:
      kind: `open`, `close`, `text` or `other`.
      start: of it.
      name: of a tag, with its prefix.
      attributes: of an opening tag.
      text: of a text, without escapes.
      end: of it; `start`, of the end of an element that is one tag.
      partner: index of the closing tag.
    """

    kind: str
    start: int
    name: str = ""
    attributes: dict[str, str] = dataclasses.field(default_factory=dict)
    text: str = ""
    end: int = 0
    partner: int = -1

    @property
    def local_name(self) -> str:
        return self.name.rpartition(":")[2]


def read(data: bytes) -> list[Node]:
    """Everything in a file, in its order. A CDATA section is one text.

    Args:
      data: the file, in UTF-8.

    Raises:
      UserError: it is no XML.
    """
    reader = _Reader(data)
    try:
        reader.parser.Parse(data, True)
    except xml.parsers.expat.ExpatError as error:
        reason = xml.parsers.expat.ErrorString(error.code)
        raise UserError(f"line {error.lineno} is not valid XML: {reason}.") from error
    reader.nodes[-1].end = len(data)
    return reader.nodes


class _Reader:
    """Notes what the parser reads, and where."""

    def __init__(self, data: bytes):
        self.nodes: list[Node] = []
        self._data = data
        self._waiting: list[int] = []  # elements that are open
        self._in_section = False
        self.parser = xml.parsers.expat.ParserCreate("utf-8")  # whatever the declaration says
        self.parser.StartElementHandler = self._open
        self.parser.EndElementHandler = self._close
        self.parser.CharacterDataHandler = self._text
        self.parser.DefaultHandler = self._other

    def _add(self, node: Node) -> None:
        if self.nodes:
            self.nodes[-1].end = node.start
        self.nodes.append(node)

    def _open(self, name: str, attributes: dict[str, str]) -> None:
        self._waiting.append(len(self.nodes))
        self._add(Node("open", self.parser.CurrentByteIndex, name, attributes))

    def _close(self, name: str) -> None:
        opening = self._waiting.pop()
        self.nodes[opening].partner = len(self.nodes)
        self._add(Node("close", self.parser.CurrentByteIndex, name, partner=opening))

    def _text(self, text: str) -> None:
        if self._in_section:
            self.nodes[-1].text += text
        else:
            self._add(Node("text", self.parser.CurrentByteIndex, text=text))

    def _other(self, raw: str) -> None:
        if raw == "<![CDATA[":
            self._text("")
            self._in_section = True
        elif self._in_section:
            self._in_section = False
        else:
            self._add(Node("other", self.parser.CurrentByteIndex))
