"""Formatting the results of the commands: tables, and JSON."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.cli.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasehold import DeadLetter, ItemView

#: How many characters of data or of an error a table row shows.
PREVIEW = 48


def print_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document on one line, in ASCII."""
    typer.echo(json.dumps(document))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, with numbers aligned to the right. On a pipe, lines are not truncated."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [*rows]
    for at, title in enumerate(titles):
        numbers = bool(rows) and all(isinstance(row[at], int) for row in rows)
        table.add_column(title, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    _console().print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a line for each name and value; leave out values that are None."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value is not None:
            table.add_row(Text(name, "bold"), Text(_cell(value)))
    _console().print(table)


def print_block(title: str, text: str) -> None:
    """Print a text under a title."""
    _console().print(Text(f"\n{title}", "bold"))
    typer.echo("\n".join(printable(line) for line in text.splitlines()))


def item_row(view: ItemView) -> list[Any]:
    """Return an item as a row under `ITEM_TITLES`."""
    size = "gone" if view.size is None else view.size
    return [view.id, view.state, size, view.attempt, format_time(view.due), holder(view), preview(view.data)]


def holder(view: ItemView) -> str | None:
    """Return the session that has leased an item. The mark of a scheduled item is not a session."""
    return None if view.state == "scheduled" else view.holder


ITEM_TITLES = ("id", "state", "bytes", "attempt", "until", "holder", "data")


def item_document(view: ItemView) -> dict[str, Any]:
    """Return an item as a JSON document."""
    return {
        "id": view.id,
        "state": view.state,
        "size": view.size,
        **encoded("data", view.data),
        "holder": view.holder,
        "token": view.token,
        "attempt": view.attempt,
        "due": format_time(view.due),
        "leased_seconds_ago": view.age,
    }


def dead_letter_document(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a JSON document."""
    return {
        "id": letter.id,
        "size": letter.size,
        **encoded("data", letter.data),
        "error": letter.error,
        "died_at": format_time(letter.died_at),
        "attempt": letter.attempt,
        "token": letter.token,
    }


def encoded(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return JSON fields for bytes: UTF-8 text, or else Base64, and the name of the encoding."""
    if data is None:
        return {name: None, f"{name}_encoding": None}
    try:
        return {name: data.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def readable(data: bytes) -> str:
    """Return bytes as text, with escapes for bytes that are not UTF-8."""
    return data.decode(errors="backslashreplace")


def preview(data: bytes | None) -> str | None:
    """Return the beginning of data as one line."""
    return None if data is None else shortened(readable(data[: 4 * PREVIEW]))


def shortened(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def last_line(error: str) -> str:
    """Return the last line of an error that is not indented, as at the end of a traceback."""
    lines = error.rstrip().splitlines() or [""]
    return next((line for line in reversed(lines) if line.strip() and not line[0].isspace()), lines[-1])


def printable(text: str) -> str:
    """Return a text with escapes for characters that a terminal would act on."""
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
