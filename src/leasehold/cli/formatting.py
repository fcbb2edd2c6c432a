"""How the commands show what they found: tables for people, JSON for machines."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.cli.times import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasehold import DeadLetter, ItemView

#: Characters of data or of an error that a row of a table shows.
PREVIEW = 48


def print_json(document: Mapping[str, Any]) -> None:
    """Print one document on one line, in ASCII, so that any line of output is a document."""
    typer.echo(json.dumps(document))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under titles; numbers stand to the right. A pipe gets lines that are not cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [*rows]
    for at, title in enumerate(titles):
        numbers = bool(rows) and all(isinstance(row[at], int) for row in rows)
        table.add_column(title, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    _console().print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values below one another; what is None is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value is not None:
            table.add_row(Text(name, "bold"), Text(_cell(value)))
    _console().print(table)


def print_block(title: str, text: str) -> None:
    """Print a text of several lines under a title."""
    _console().print(Text(f"\n{title}", "bold"))
    typer.echo("\n".join(printable(line) for line in text.splitlines()))


def item_row(view: ItemView) -> list[Any]:
    """An item as a row, under the titles `ITEM_TITLES`."""
    size = "gone" if view.size is None else view.size
    return [view.id, view.state, size, view.attempt, written(view.due), holder(view), preview(view.data)]


def holder(view: ItemView) -> str | None:
    """Who has leased an item. What marks a scheduled one is nobody."""
    return None if view.state == "scheduled" else view.holder


ITEM_TITLES = ("id", "state", "bytes", "attempt", "until", "holder", "data")


def item_document(view: ItemView) -> dict[str, Any]:
    """An item for machines."""
    return {
        "id": view.id,
        "state": view.state,
        "size": view.size,
        **encoded("data", view.data),
        "holder": view.holder,
        "token": view.token,
        "attempt": view.attempt,
        "due": written(view.due),
        "leased_seconds_ago": view.age,
    }


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter for machines."""
    return {
        "id": letter.id,
        "size": letter.size,
        **encoded("data", letter.data),
        "error": letter.error,
        "died_at": written(letter.died_at),
        "attempt": letter.attempt,
        "token": letter.token,
    }


def encoded(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes in JSON: as text if they are UTF-8, else as base64; a field beside them says which."""
    if data is None:
        return {name: None, f"{name}_encoding": None}
    try:
        return {name: data.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def readable(data: bytes) -> str:
    """Bytes for people: as text, with escapes for what is none."""
    return data.decode(errors="backslashreplace")


def preview(data: bytes | None) -> str | None:
    """The beginning of data, on one line."""
    return None if data is None else shortened(readable(data[: 4 * PREVIEW]))


def shortened(text: str) -> str:
    """The beginning of a text, on one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def last_words(error: str) -> str:
    """What an error says in a line: the last one that is not indented, as at the end of a traceback."""
    lines = error.rstrip().splitlines() or [""]
    return next((line for line in reversed(lines) if line.strip() and not line[0].isspace()), lines[-1])


def printable(text: str) -> str:
    """A text that does nothing to the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\t" else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _console() -> Console:
    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, highlight=False, soft_wrap=False)
