"""`leasehold schedule`: list and remove the schedules of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasehold.cli.formatting import preview, print_json, print_table, view_document
from leasehold.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    command,
    note,
    open_queue,
    report_changes,
)
from leasehold.cli.times import format_time

if TYPE_CHECKING:
    from leasehold.queue.schedules import ScheduleView

app = typer.Typer(help="List schedules, or remove some.", no_args_is_help=True, add_completion=False)


@app.command("ls")
@command
async def list_schedules(name: QueueName, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> Code:
    """List the schedules of a queue, the next due first. With --json each schedule is a line."""
    async with open_queue(url, name) as queue:
        views = await queue.schedules.list()
    if as_json:
        for view in views:
            print_json({"queue": name, **view_document(view)})
    elif views:
        print_table(("name", "when", "next due", "catch up", "bytes", "data"), map(_row, views))
    else:
        note(f"{name} has no schedules")
    return Code.DONE


@app.command("rm")
@command
async def remove(
    name: QueueName,
    schedules: Annotated[list[str], typer.Argument(metavar="NAME", help="The schedules' names.")],
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Remove schedules. Items that they have already added stay.

    A program that creates its schedules when it starts creates them again.
    """
    async with open_queue(url, name) as queue:
        missed = [one for one in schedules if not await queue.schedules.remove(one)]
    removed = len(schedules) - len(missed)
    problems = [(one, f"{name!r} has no schedule {one!r}") for one in missed]
    return report_changes(name, "removed", removed, problems, as_json=as_json)


def _row(view: ScheduleView) -> list[Any]:
    if view.kind == "every":
        when = f"every {view.interval:,g} s" + (f" from {format_time(view.start)}" if view.start else "")
    elif view.kind == "cron":
        when = f"{view.expression} ({view.tz})"
    else:
        when = "unknown: created by a newer version"
    return [view.name, when, format_time(view.next_due), view.catch_up, view.size, preview(view.data)]
