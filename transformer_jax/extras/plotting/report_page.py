"""The page of a report: its style sheet, and text, tables and figures as HTML.

A page is one file without scripts that loads nothing. It is readable from 320 pixels on, in light
and dark mode, with a keyboard and with a screen reader.
"""

import base64
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.extras import plotting

if TYPE_CHECKING:
    from transformer_jax.extras.plotting.style import Figure

# Contrast of text on its background is at least 4.5, as WCAG 2 asks for.
_LIGHT = """
  --ink: #1f2933; --muted: #52606d; --accent: #1864ab; --line: #d5dbe1;
  --page: #ffffff; --card: #f3f6f9; --best: #e3effa; --figure: none;"""
# Figures are drawn for the light mode. The filter swaps light and dark, and keeps the hues.
_DARK = """
  --ink: #e4e9ee; --muted: #a5b1bd; --accent: #7cb8f2; --line: #364351;
  --page: #12181f; --card: #1c252e; --best: #1e3347; --figure: invert(1) hue-rotate(180deg);"""

_STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  color: var(--ink); background: var(--page); max-width: 76rem; margin: 0 auto;
  padding: 1.25rem 1rem 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.5rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.5rem; }
p { margin: 0.5rem 0; }
dl { margin: 0; }
dt { color: var(--muted); font-size: 0.8rem; line-height: 1.3; }
dd { margin: 0; }
summary { cursor: pointer; color: var(--accent); padding: 0.25rem 0; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.under { color: var(--muted); margin: 0.15rem 0 0; }
.note, .signature { color: var(--muted); font-size: 0.85rem; }
.signature { font-family: ui-monospace, monospace; font-size: 0.75rem; margin: 0.2rem 0; }
.top { display: grid; gap: 1rem 2.5rem; margin-top: 1rem; }
.top > * { min-width: 0; }
.score { display: flex; align-items: baseline; gap: 0.6rem; }
.score strong { font-size: 4rem; line-height: 1; font-weight: 700; letter-spacing: -0.03em;
  color: var(--accent); }
.score span { font-size: 1.25rem; font-weight: 600; }
.scores { display: flex; flex-wrap: wrap; gap: 0.5rem 1.75rem; margin-top: 0.75rem; }
.scores dd { font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.facts { display: grid; gap: 0.6rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(9.5rem, 100%), 1fr)); }
.facts dd { font-size: 0.92rem; line-height: 1.35; }
.label { color: var(--muted); font-size: 0.8rem; font-weight: 400; margin: 1rem 0 0.25rem; }
.commands code { display: block; font: inherit; padding-left: 1em; text-indent: -1em; }
.commands span { display: inline-block; max-width: 100%; text-indent: 0; }
pre { font: 0.8rem/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; margin: 0;
  white-space: pre-wrap; background: var(--card); border-radius: 6px; padding: 0.55rem 0.8rem; }
.scroll { overflow-x: auto; max-width: 100%;
  /* a shadow at the right edge as long as there is more to scroll to */
  background: linear-gradient(to left, var(--page) 40%, transparent) right / 2.5rem 100% no-repeat
    local, linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll; }
.curves { display: grid; gap: 1.25rem 1.5rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); }
.curves img { width: 100%; height: auto; }
img { display: block; filter: var(--figure); }
.maps { display: flex; flex-wrap: wrap; gap: 0.75rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { text-align: right; padding: 0.3rem 0.9rem; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; white-space: nowrap; font-weight: 400; }
thead th { color: var(--muted); font-size: 0.8rem; vertical-align: bottom; }
tr > :first-child { text-align: left; padding-left: 0.4rem; position: sticky; left: 0;
  background: var(--page); }
.best > * { font-weight: 600; background: var(--best) !important; }
.samples { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); }
.sample { background: var(--card); border-radius: 8px; padding: 0.8rem 1rem; }
.sample dl > div + div { margin-top: 0.4rem; }
.settings { grid-template-columns: repeat(auto-fill, minmax(min(14rem, 100%), 1fr)); }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 0.75rem; }
@media (max-width: 40rem) {
  body { padding-top: 0.75rem; }
  .top { gap: 1rem; margin-top: 0.5rem; }
  .score strong { font-size: 3.25rem; }
  .scores { margin-top: 0.4rem; }
  .facts { gap: 0.4rem 1rem; }
  .curves { margin-top: 1rem; }
  th, td { padding: 0.3rem 0.5rem; }
}
@media (min-width: 60rem) { .top { grid-template-columns: minmax(0, 4fr) minmax(0, 7fr); } }
""".replace("LIGHT", _LIGHT).replace("DARK", _DARK)


def page(title: str, body: Iterable[str]) -> str:
    """The HTML of a page.

    Args:
      title: text.
      body: HTML.
    """
    content = "\n".join(body)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
{content}
</body>
</html>
"""


def text(value: Any) -> str:
    """A value as HTML that shows it unchanged."""
    return html.escape(str(value))


def language_marks(language: str) -> str:
    """Attributes of an element whose text is in `language`, from left or from right."""
    return f' lang="{text(language)}" dir="auto"'


def pairs(
    values: Mapping[str, Any], kind: str = "", languages: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A list of names and values.

    Args:
      values: name -> value.
      kind: class of the list in the style sheet.
      languages: name -> language of its value, where that is not English.
    """
    yield f'<dl class="{kind}">' if kind else "<dl>"
    for name, value in values.items():
        marks = language_marks(languages[name]) if languages else ""
        yield f"<div><dt>{text(name)}</dt><dd{marks}>{text(value)}</dd></div>"
    yield "</dl>"


def scrolling(content: str, description: str) -> str:
    """HTML that scrolls sideways by itself where it is wider than the page, by keyboard too."""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{text(description)}">'
        f"{content}</div>"
    )


def table(
    description: str,
    first: str,
    columns: Iterable[str],
    rows: Mapping[str, Sequence[float | None]],
    best: str = "",
    form: str = "{:.2f}",
) -> str:
    """A table of numbers.

    Args:
      description: of the table, for screen readers.
      first: title of the first column, which names the rows.
      columns: titles of the others.
      rows: name -> its numbers; None: it has none.
      best: name of the row to mark.
      form: how a number is written.
    """
    parts = ["<table><thead><tr>"]
    parts += [f'<th scope="col">{text(name)}</th>' for name in (first, *columns)]
    parts.append("</tr></thead><tbody>")
    for name, values in rows.items():
        parts.append('<tr class="best">' if name == best else "<tr>")
        parts.append(f'<th scope="row">{text(name)}</th>')
        shown = ["–" if value is None else form.format(value) for value in values]
        parts += [f"<td>{value}</td>" for value in shown]
        parts.append("</tr>")
    parts.append("</tbody></table>")
    return scrolling("".join(parts), description)


def image(figure: "Figure", description: str) -> str:
    """The figure as an image inside the page, without a background."""
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    data = base64.b64encode(plotting.to_svg(figure).encode()).decode()
    return f'<img alt="{text(description)}" src="data:image/svg+xml;base64,{data}">'


def details(summary: str, content: Iterable[str]) -> Iterator[str]:
    """HTML that is folded away."""
    yield f"<details><summary>{text(summary)}</summary>"
    yield from content
    yield "</details>"
