"""`leasequeue schedule`: list, add, run and remove the schedules of a queue."""

from __future__ import annotations

import functools
import os
import time
from datetime import datetime  # noqa: TC003 - typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from leasequeue.cli.formatting import (
    CODEC_VARIABLE,
    preview,
    print_json,
    print_line,
    print_table,
    view_document,
)
from leasequeue.cli.options import (
    TaskArguments,
    TaskName,
    choice_option,
    duration_option,
    format_time,
    task_data,
    time_option,
)
from leasequeue.cli.server import AsJson, Code, fail, group_of, note, queue_command, report_changes
from leasequeue.codecs import codec_in
from leasequeue.item import Item
from leasequeue.queue.cron import stamp
from leasequeue.queue.schedules import CatchUp

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.queue.schedules import ScheduleView

ScheduleName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False),
]

app = group_of(help="List schedules; add, run or remove one.")


@app.command("ls")
@queue_command
async def list_schedules(queue: AsyncWorkQueue, *, as_json: AsJson = False) -> Code:
    """List the schedules of a queue, the next due first. With --json each schedule is a line."""
    views = await queue.schedules.list()
    if as_json:
        for view in views:
            print_json({"queue": queue.name, **view_document(view)})
    elif views:
        print_table(("name", "when", "next due", "catch up", "bytes", "data"), map(_row, views))
    else:
        note(f"{queue.name} has no schedules")
    return Code.DONE


@app.command("add")
@functools.partial(queue_command, creates=True)
async def add(  # noqa: PLR0913 - each is an option of the command
    queue: AsyncWorkQueue,
    schedule: ScheduleName,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="The data of the items.")] = None,
    *,
    every: Annotated[float | None, duration_option("Add an item at this interval: 30s, 5m, 1d.")] = None,
    start: Annotated[
        datetime | None,
        time_option("With --every: when it begins; by default one interval from now."),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="Or at the times of a cron expression; requires the extra schedules."
        ),
    ] = None,
    tz: Annotated[
        str | None, typer.Option(metavar="ZONE", help="With --cron: the time zone; UTC by default.")
    ] = None,
    task: TaskName = None,
    args: TaskArguments = None,
    catch_up: Annotated[
        CatchUp, choice_option("How to treat ticks that were missed.", get_args(CatchUp))
    ] = "once",
    as_json: AsJson = False,
) -> Code:
    """Add a schedule for an item or a task, or change it.

    Workers of the queue add the items. Adding the same schedule again changes nothing.
    """
    if (every is None) == (cron is None):
        raise typer.BadParameter("give either --every or --cron", param_hint="--every")
    if start is not None and every is None:
        raise typer.BadParameter("can only be given with --every", param_hint="--start")
    if tz is not None and cron is None:
        raise typer.BadParameter("can only be given with --cron", param_hint="--tz")
    content = task_data(task, args, data) or os.fsencode(data or "")
    if every is not None:
        changed = await queue.schedules.every(every, schedule, content, start=start, catch_up=catch_up)
    else:
        changed = await queue.schedules.cron(cron or "", schedule, content, tz=tz or "UTC", catch_up=catch_up)
    if as_json:
        print_json({"queue": queue.name, "name": schedule, "changed": changed})
    else:
        print_line("scheduled" if changed else "unchanged")
    return Code.DONE


@app.command("run")
@queue_command
async def run(queue: AsyncWorkQueue, schedule: ScheduleName, *, as_json: AsJson = False) -> Code:
    """Add the item of a schedule now, and print its id. The next tick stays when it is."""
    views = {view.name: view for view in await queue.schedules.list()}
    if schedule not in views:
        return fail(f"{queue.name!r} has no schedule {schedule!r}", Code.MISSED)
    content = views[schedule].data
    if content is None:
        return fail(f"{schedule!r} has {views[schedule].size:,} bytes of data, too many", Code.MISSED)
    if codec := codec_in(content):  # adding it would encode it twice
        return fail(f"the data of {schedule!r} is encoded by {codec}: set {CODEC_VARIABLE}", Code.MISSED)
    item = Item(content, f"{schedule}@{stamp(round(time.time() * 1000))}")
    added = await queue.add_item(item)
    if as_json:
        print_json({"queue": queue.name, "id": item.id, "added": added})
    elif added:
        print_line(item.id)
    if not added:
        return fail(f"not added: {queue.name!r} has an unfinished item with the id {item.id!r}", Code.MISSED)
    return Code.DONE


@app.command("rm")
@queue_command
async def remove(
    queue: AsyncWorkQueue,
    schedules: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="The schedules' names."),
    ],
    *,
    as_json: AsJson = False,
) -> Code:
    """Remove schedules. Items that they have already added stay.

    A program that creates its schedules when it starts creates them again,
    and a running worker those of its tasks, within a minute.
    """
    missed = [one for one in schedules if not await queue.schedules.remove(one)]
    removed = len(schedules) - len(missed)
    problems = [(one, f"{queue.name!r} has no schedule {one!r}") for one in missed]
    return report_changes(queue.name, "removed", removed, problems, as_json=as_json)


def _row(view: ScheduleView) -> list[Any]:
    if view.kind == "every":
        when = f"every {view.interval:,g} s" + (f" from {format_time(view.start)}" if view.start else "")
    elif view.kind == "cron":
        when = f"{view.expression} ({view.tz})"
    else:
        when = "unknown: created by a newer version"
    return [view.name, when, format_time(view.next_due), view.catch_up, view.size, preview(view.data)]
