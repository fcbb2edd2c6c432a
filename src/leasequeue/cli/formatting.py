"""Printing the results of the commands: lines, tables, and JSON. All that a command prints passes here.

Ids, data and errors are texts of others, which a terminal must not act on: see
`leasequeue.errors.describing`. JSON has them in full, in ASCII.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import asdict
from types import NoneType
from typing import TYPE_CHECKING, Any

import typer

from leasequeue.cli.options import format_time
from leasequeue.codecs import codec_in
from leasequeue.errors.describing import NAME_LENGTH, TEXT_LENGTH, TRACEBACK_LENGTH, indented, plain
from leasequeue.tasks.wire import call_of, task_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from leasequeue.queue import DeadLetter, ItemView, ScheduleView

#: Where the commands find the codec of queues: `module:name`.
CODEC_VARIABLE = "LEASEQUEUE_CODEC"
#: How many characters of data or of an error a table row shows.
PREVIEW = 48


def print_json(document: Mapping[str, Any]) -> None:
    """Print a JSON document on one line, in ASCII."""
    typer.echo(json.dumps(document))


def print_line(text: str = "") -> None:
    """Print a line, in full: an id may be piped into another command."""
    typer.echo(plain(text, None))


def print_lines(text: str) -> None:
    """Print a text of this program that has several lines."""
    typer.echo(indented(text.rstrip("\n"), len(text), indent=""))


def print_error(text: str) -> None:
    """Print an error, which may have several lines, on standard error, without a mark of the command."""
    typer.echo(indented(text, TRACEBACK_LENGTH, indent=""), err=True)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, with numbers aligned to the right. On a pipe, lines are not truncated."""
    console().print(table_of(titles, rows))


def table_of(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, selected: int | None = None) -> Table:
    """Return a table, with numbers aligned to the right.

    With a selected row, each row is one line: texts are cut before numbers.
    """
    from rich.table import Table  # rich takes long to import, and JSON needs none of it
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    rows, live = [*rows], selected is not None
    numeric = (int, float, NoneType) if live else int
    for at, title in enumerate(titles):
        numbers = bool(rows) and all(isinstance(row[at], numeric) for row in rows)
        table.add_column(
            title, justify="right" if numbers else "left", overflow="fold", no_wrap=live and numbers
        )
    for at, row in enumerate(rows):
        cells = (Text(cell(one), no_wrap=live, overflow="ellipsis" if live else None) for one in row)
        table.add_row(*cells, style="reverse" if at == selected else "")
    return table


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows of the same names: as JSON on a line each, or as a table with the names as titles."""
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        print_table([*rows[0]], [[*row.values()] for row in rows])


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a line for each name and value; leave out values that are None."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value is not None:
            table.add_row(Text(name, "bold"), Text(cell(value)))
    console().print(table)


def print_block(title: str, text: str) -> None:
    """Print a text under a title, each line indented; of a long one, a terminal shows no middle."""
    from rich.text import Text

    console().print(Text(f"\n{title}", "bold"))
    longest = TRACEBACK_LENGTH if sys.stdout.isatty() else len(text)
    typer.echo(f"  {indented(text.rstrip(), longest)}")


#: The fields of views that are times.
_TIMES = {"due", "expires", "died_at", "start", "next_due"}


def view_document(view: DeadLetter | ItemView | ScheduleView) -> dict[str, Any]:
    """Return an item, a dead letter or a schedule as a JSON document, with the name of its task if any."""
    document: dict[str, Any] = {}
    for name, value in asdict(view).items():
        if name == "data":
            document |= encoded(name, value)
        elif name == "age":
            document["leased_seconds_ago"] = value
        else:
            document[name] = format_time(value) if name in _TIMES else value
    task = task_of(getattr(view, "data", None) or b"")
    return document if task is None else {**document, "task": task}


def encoded(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return JSON fields for bytes: UTF-8 text, or else Base64, and the name of the encoding."""
    if data is None:
        return {name: None, f"{name}_encoding": None}
    try:
        return {name: data.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def readable(data: bytes) -> str:
    """Return bytes as text, with escapes for bytes that are not UTF-8; what is encoded is not shown."""
    return (
        f"(encoded by {codec}: set {CODEC_VARIABLE})"
        if (codec := codec_in(data))
        else data.decode(errors="backslashreplace")
    )


def preview(data: bytes | None) -> str | None:
    """Return the beginning of data as one line; of a task, its name and arguments."""
    if data is None:
        return None
    call = call_of(data)
    return shortened(readable(data[: 4 * PREVIEW])) if call is None else shortened(" ".join(call))


def shortened(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = plain(" ".join(text[:TEXT_LENGTH].split()), TEXT_LENGTH)
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def cell(value: Any) -> str:
    """Return a value as a part of a line: see `leasequeue.errors.describing`."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return plain(str(value), NAME_LENGTH if sys.stdout.isatty() else TEXT_LENGTH)


def console() -> Console:
    """Return what draws on standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, highlight=False, soft_wrap=False)
