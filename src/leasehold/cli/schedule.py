"""`leasehold schedule`: list and remove the schedules of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasehold.cli.formatting import encoded, preview, print_json, print_table
from leasehold.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    fail,
    note,
    open_queue,
    run_command,
)
from leasehold.cli.times import format_time

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.queue.schedules import ScheduleView

app = typer.Typer(help="List schedules, or remove some.", no_args_is_help=True, add_completion=False)


@app.command("ls")
def list_schedules(queue: QueueName, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the schedules of a queue, the next due first. With --json each schedule is a line."""
    run_command(_list(url, queue, as_json=as_json))


@app.command("rm")
def remove(
    queue: QueueName,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The schedules' names.")],
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Remove schedules. Items that they have already added stay.

    A program that creates its schedules when it starts creates them again.
    """
    run_command(_remove(url, queue, names, as_json=as_json))


async def _list(url: str, name: str, *, as_json: bool) -> Code:
    async with open_queue(url, name) as queue:
        views = await queue.schedules.list()
    if as_json:
        for view in views:
            print_json({"queue": name, **_document(view)})
    elif views:
        print_table(("name", "when", "next due", "catch up", "bytes", "data"), map(_row, views))
    else:
        note(f"{name} has no schedules")
    return Code.DONE


async def _remove(url: str, name: str, names: list[str], *, as_json: bool) -> Code:
    async with open_queue(url, name) as queue:
        missed = [one for one in names if not await queue.schedules.remove(one)]
    removed = len(names) - len(missed)
    if as_json:
        print_json({"queue": name, "removed": removed, "missed": missed})
    else:
        typer.echo(f"{removed:,} removed")
    for one in missed:
        fail(f"{name!r} has no schedule {one!r}", Code.MISSED)
    return Code.MISSED if missed else Code.DONE


def _document(view: ScheduleView) -> dict[str, Any]:
    return {
        "name": view.name,
        "kind": view.kind,
        "interval": view.interval,
        "start": _moment(view.start),
        "expression": view.expression,
        "tz": view.tz,
        "catch_up": view.catch_up,
        "next_due": _moment(view.next_due),
        "size": view.size,
        **encoded("data", view.data),
    }


def _row(view: ScheduleView) -> list[Any]:
    if view.kind == "every":
        when = f"every {view.interval:,g} s" + (f" from {_moment(view.start)}" if view.start else "")
    elif view.kind == "cron":
        when = f"{view.expression} ({view.tz})"
    else:
        when = "unknown: created by a newer version"
    return [view.name, when, _moment(view.next_due), view.catch_up, view.size, preview(view.data)]


def _moment(when: datetime | None) -> str | None:
    return None if when is None else format_time(when.timestamp())
