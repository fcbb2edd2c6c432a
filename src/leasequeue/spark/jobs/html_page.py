"""The HTML of a report: one self-contained file, for screens and paper."""

from __future__ import annotations

from datetime import datetime
from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1d2430; --soft: #5c6675; --line: #d5dae2; --box: #f4f6f9;
  --first: #2563b0; --second: #c2570c; --third: #8a3ab9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --ink: #e4e8ee; --soft: #9aa4b2; --line: #3a4352; --box: #1d232d;
    --first: #6ea8fe; --second: #f2994a; --third: #c792ea;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem;
  background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 0.5rem; }
p { margin: 0.25rem 0 0.75rem; color: var(--soft); }
dl {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 0.75rem; margin: 1.5rem 0;
}
dl div { background: var(--box); border-radius: 0.5rem; padding: 0.6rem 0.9rem; }
dt { color: var(--soft); font-size: 0.85rem; }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
svg.narrow { display: none; max-width: 34rem; }
figure { margin: 0 0 1rem; }
.table { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: 0.5rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right; }
tr:last-child td { border-bottom: 0; }
th { font-weight: 600; vertical-align: bottom; position: sticky; top: 0; background: var(--box); }
td { white-space: nowrap; }
th.text, td.text { text-align: left; }
td.long { min-width: 20rem; white-space: normal; overflow-wrap: anywhere; }
@media screen and (max-width: 52rem) {
  body { padding: 1.25rem 1rem 3rem; }
  dl { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: 0.5rem; }
  svg.wide { display: none; }
  svg.narrow { display: block; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --box: #f4f4f4; }
  body { max-width: none; padding: 0; font-size: 11pt; }
  .table { max-height: none; overflow: visible; border: 0; }
  table { font-size: 7pt; }
  th, td { padding: 0.1rem 0.25rem; }
  td.long { min-width: 0; }
  td.text { white-space: normal; overflow-wrap: break-word; }
  th { position: static; }
  figure, dl div, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
}
</style>
</head>
<body>
<header>
<h1>$title</h1>
<p>$subtitle</p>
</header>
<main>
$body
</main>
</body>
</html>
""")


def page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    """Return a page with parts that are HTML already."""
    return _PAGE.substitute(title=escape(title), subtitle=escape(subtitle), body="\n".join(parts))


def figures(named: dict[str, Any]) -> str:
    """Return single figures, each with its name."""
    boxes = (f"<div><dt>{escape(name)}</dt><dd>{cell(value)}</dd></div>" for name, value in named.items())
    return f"<dl>{''.join(boxes)}</dl>"


def section(title: str, text: str, *contents: str) -> str:
    """Return a section with a heading, an explanation and its contents."""
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{''.join(contents)}</section>"


def chart(svgs: Iterable[str]) -> str:
    """Return a chart, drawn for wide and for narrow screens."""
    return f"<figure>{''.join(svgs)}</figure>"


def table(name: str, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table that scrolls in its own box; columns of text are aligned to the left."""
    classes = [_class_of([row[at] for row in rows]) for at in range(len(titles))]

    def line(tag: str, cells: Iterable[str]) -> str:
        marks = (f' class="{one}"' if one else "" for one in classes)
        shown = (f"<{tag}{mark}>{one}</{tag}>" for mark, one in zip(marks, cells, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    head = line("th", (escape(title) for title in titles))
    body = "".join(line("td", map(cell, row)) for row in rows)
    # The box can be reached, and scrolled, with the keyboard.
    box = f'<div class="table" tabindex="0" role="region" aria-label="{escape(name)}">'
    return f"{box}<table><thead>{head}</thead><tbody>{body}</tbody></table></div>"


def _class_of(column: Sequence[Any]) -> str:
    """Return the class of a column: only long texts are broken into lines."""
    texts = [len(value) for value in column if isinstance(value, str)]
    return ("text long" if max(texts) > 40 else "text") if texts else ""


class Share(float):
    """A part of a whole, shown in per cent."""


def share(value: float | None) -> Share | None:
    """Mark a number as a part of a whole."""
    return None if value is None else Share(value)


class Seconds(float):
    """A duration, shown in a suitable unit."""


def seconds(value: float | None) -> Seconds | None:
    """Mark a number as a duration."""
    return None if value is None else Seconds(value)


def cell(value: Any) -> str:
    """Return a value as the page shows it."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, Seconds):
        return duration(value)
    if isinstance(value, Share):
        return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def interval(value: int) -> str:
    """Return a whole number of seconds as text, in the largest unit of which it is a multiple."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{value:,} s"


def duration(value: float) -> str:
    """Return a duration in seconds as text, in a suitable unit."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= 2 * size:
            return f"{value / size:,.1f} {unit}"
    return (
        f"{value:,.1f} s" if value >= 10 else f"{value:,.2f} s" if value >= 1 else f"{1000 * value:,.0f} ms"
    )
