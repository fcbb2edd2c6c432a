"""`leasequeue add`: add items to a queue."""

from __future__ import annotations

import itertools
import os
import sys
from datetime import datetime  # noqa: TC003 - typer reads the annotations when it runs
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import print_error, print_json, print_line
from leasequeue.cli.options import (
    TaskArguments,
    TaskName,
    duration_option,
    number_option,
    parse_arguments,
    task_data,
    time_option,
)
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, QueueName, Url, fail, open_queue, run_command
from leasequeue.errors import InvalidCall, PartlyApplied, ServerError
from leasequeue.item import Item
from leasequeue.queue.encoding import MAX_LEVEL, MAX_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Lines of a file that are added in one call.
LINES_AT_ONCE = 2_000


#: Some of the options.
Delay = Annotated[
    float, duration_option("Delay the item: 30s, 5m, 2d.", instead="use --at, which takes any time")
]
Priority = Annotated[
    int, number_option("Its level; a higher one is leased first.", minimum=-MAX_LEVEL, maximum=MAX_LEVEL)
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag of the item; repeat it for others.")
]
Weight = Annotated[
    int, number_option("As how many items it counts for a rate.", minimum=1, maximum=MAX_WEIGHT)
]
UntilStart = Annotated[
    str | None, typer.Option(metavar="KEY", help="Add it unless another with this key waits to be started.")
]
ExpiresIn = Annotated[
    float | None, duration_option("Discard the item after this time, unless a worker has begun with it.")
]
DedupeFor = Annotated[
    float | None, duration_option("Keep the id taken for this time, even if the item is completed.")
]
App = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:TASKS",
        help="With --task: the program that has it, as for `leasequeue worker`. It names the server, "
        "checks the arguments, and the task is added as it says.",
    ),
]
#: Those that say how an item is added.
_WHEN = (
    *("delay", "at", "priority", "group", "tags", "weight"),
    *("expires_in", "dedupe_for", "unique_until_start", "replace"),
)


def add(  # noqa: PLR0913 - each is an option of the command
    context: typer.Context,
    queue: QueueName,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA|-", help="The item's data; - reads it from standard input.")
    ] = None,
    *,
    id: Annotated[str | None, typer.Option(help="The item's id; a random one by default.")] = None,  # noqa: A002 - the option's name
    content_id: Annotated[
        bool,
        typer.Option(
            "--content-id", help="Use the SHA-256 of the data as the id, so that equal data is added once."
        ),
    ] = False,
    delay: Delay = 0,
    at: Annotated[datetime | None, time_option("Delay the item until 2030-01-31T09:00Z.")] = None,
    priority: Priority = 0,
    group: Annotated[str | None, typer.Option(help="The item's group.")] = None,
    tags: Tags = None,
    weight: Weight = 1,
    expires_in: ExpiresIn = None,
    dedupe_for: DedupeFor = None,
    unique_until_start: UntilStart = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an item with this id, unless it is leased.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Add each line that is not empty as an item; - is standard input."),
    ] = None,
    task: TaskName = None,
    args: TaskArguments = None,
    app: App = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add an item to a queue, or one for each line of a file.

    An item whose id is already in the queue is not added, and the exit code is 1.
    With --file such items are counted, and the exit code is 0.
    Data from standard input is taken byte for byte.
    """
    given = locals()
    when = {name: given[name] for name in _WHEN} | {"tags": tags or ()}
    content = task_data(task, args, data)
    if [data, file, content].count(None) != 2:
        choices = "give either the data, - for standard input, or --file, or --task"
        raise typer.BadParameter(choices, param_hint="DATA")
    if id is not None and (content_id or file):
        raise typer.BadParameter("cannot be combined with --content-id or --file", param_hint="--id")
    if app is not None:
        source = context.get_parameter_source("url")
        if task is None or (source is not None and source.name == "COMMANDLINE"):
            raise typer.BadParameter("goes with --task, and names the server: no --url", param_hint="--app")
        options = {**when, "id": id, "content_id": content_id}
        run_command(_add_call(app, task, queue, parse_arguments(args), options, as_json=as_json))
    if file is not None:
        run_command(_add_lines(url, queue, file, when, content_id=content_id, as_json=as_json))
    if content is None:
        content = sys.stdin.buffer.read() if data == "-" else os.fsencode(data or "")
    run_command(_add(url, queue, content, id, when, content_id=content_id, as_json=as_json))


async def _add(
    url: str,
    name: str,
    data: bytes,
    item_id: str | None,
    when: dict[str, Any],
    *,
    content_id: bool,
    as_json: bool,
) -> Code:
    item = Item.with_content_id(data) if content_id else Item(data, item_id)
    async with open_queue(url, name, create=True) as queue:
        found, added = await queue.add_or_find(item, **when)
    return _report(name, found, added=added, as_json=as_json, waits=found != item.id)


async def _add_call(
    app: str, task: str, name: str, arguments: dict[str, Any], options: dict[str, Any], *, as_json: bool
) -> Code:
    """Add a call of a task as its program would. Options with a value that is the default are not given."""
    from leasequeue.cli.worker.target import Unusable, find_task  # only then, to start quickly

    try:
        found = find_task(app, task)
        given = {option: value for option, value in options.items() if value}
        call = found.options(**given).call(**arguments)
    except (Unusable, InvalidCall) as error:
        print_error(f"leasequeue: {error}")
        return Code.USAGE
    if found.queue.name != name:
        return fail(f"the queue of the task {task!r} is {found.queue.name!r}, not {name!r}", Code.USAGE)
    async with found.queue:
        job = await call.add()
    waits = given.get("unique_until_start") is not None
    return _report(name, job.id, added=bool(job.created), as_json=as_json, waits=waits)


def _report(name: str, item_id: str, *, added: bool, as_json: bool, waits: bool) -> Code:
    if as_json:
        print_json({"queue": name, "id": item_id, "added": added})
    elif added:
        print_line(item_id)
    if added:
        return Code.DONE
    if as_json:
        return Code.MISSED
    taken = f"{name!r} has an unfinished item with the id {item_id!r}, or the id is still taken"
    if waits:
        taken = f"the item {item_id!r} of {name!r} waits to be started"
    return fail(f"not added: {taken}", Code.MISSED)


async def _add_lines(
    url: str, name: str, file: Path, when: dict[str, Any], *, content_id: bool, as_json: bool
) -> Code:
    added = existing = 0
    try:
        with sys.stdin.buffer if file == Path("-") else file.open("rb") as lines:
            items = _items_of(lines, content_id=content_id)
            async with open_queue(url, name, create=True) as queue:
                while some := [*itertools.islice(items, LINES_AT_ONCE)]:
                    try:
                        answers = await queue.add_items(some, **when)
                    except PartlyApplied as error:
                        added += error.answers.count(True)
                        raise
                    added += sum(answers)
                    existing += len(answers) - sum(answers)
    except ServerError as error:
        error.add_note(f"({added:,} items were added before the error)")
        raise
    except OSError as error:
        return fail(f"{file}: {error.strerror}; {added:,} items were added", Code.USAGE)
    if as_json:
        print_json({"queue": name, "added": added, "already_there": existing})
    else:
        print_line(f"{added:,} added" + f", {existing:,} already there" * bool(existing))
    return Code.DONE


def _items_of(lines: Iterable[bytes], *, content_id: bool) -> Iterator[Item]:
    """Yield an item for each line that is not empty."""
    for line in lines:
        if data := line.rstrip(b"\r\n"):
            yield Item.with_content_id(data) if content_id else Item(data)
