"""Tags of HTML."""

import re

from transformer_jax.text.tagged_text import Kept, Tag

_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""
# No part gives back what it has matched, so the time is linear.
TAG = re.compile(rf"<(/?)([a-zA-Z][^\s/>]*+)((?:[\s/]++|{_ATTRIBUTE})*+)>")
# fmt: off
VOID = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
    "wbr",
}
# fmt: on


def has_tags(text: str) -> bool:
    """Whether there is a tag of HTML."""
    return TAG.search(text) is not None


def inline_part(markup: str) -> Kept | Tag:
    """A tag, comment or declaration within a paragraph."""
    tag = TAG.fullmatch(markup)
    if tag is None or tag[2].lower() in VOID or tag[3].rstrip().endswith("/"):
        return Kept(markup)
    return Tag(markup, tag[2].lower(), bool(tag[1]))
