"""`leasequeue mv`, `purge`, `rm`, `recover`, `clear-leases`: commands on whole queues."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import print_json, print_line, print_rows
from leasequeue.cli.options import duration_option, number_option
from leasequeue.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    Create,
    QueueName,
    QueueNames,
    Url,
    command,
    confirm,
    open_queue,
    queue_command,
    report_changes,
    run_command,
    run_confirmed,
    visit,
)

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@command
async def mv(
    name: QueueName,
    other: Annotated[
        str,
        typer.Argument(
            metavar="OTHER",
            help="The name of the queue that gets the items.",
        ),
    ],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="The ids of items that wait or are scheduled; by default all that wait."
        ),
    ] = None,
    *,
    count: Annotated[int | None, number_option("Move at most so many; by default all.", minimum=1)] = None,
    create: Create = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Move items that wait to the end of another queue, in their order.

    They keep their options and attempts. An item whose id is in the other queue stays; so
    does one that is leased. If it was given as ID, the exit code is 1.
    """
    if ids and count is not None:
        raise typer.BadParameter("give ids or --count, not both", param_hint="--count")
    async with open_queue(url, other, create=create) as there, open_queue(url, name) as queue:
        moved = await queue.admin.move(there, count=count, ids=ids or None)
    left = [one for one in ids or () if one not in {*moved}]
    why = f"does not wait in {name}, or is in {other} already"
    missed = [(one, f"{one!r} was not moved: it {why}") for one in left]
    return report_changes(name, "moved", len(moved), missed, as_json=as_json)


def purge(
    name: QueueName,
    *,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="Also remove scheduled items.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="Also remove dead letters.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Remove all items of a queue that wait.

    Items that workers hold stay, and so do items that are added while it runs.
    """
    others = [text for wanted, text in ((scheduled, "scheduled items"), (dead, "dead letters")) if wanted]
    what = ", ".join(["all waiting items", *others])
    question = f"Remove {what} of {name}, with their data?"
    work = partial(_purge, url, name, scheduled=scheduled, dead=dead, as_json=as_json)
    run_confirmed(work, question, yes=yes, url=url, names=[name])


async def _purge(url: str, name: str, *, scheduled: bool, dead: bool, as_json: bool) -> Code:
    async with open_queue(url, name) as queue:
        removed = await queue.admin.purge(scheduled=scheduled, dead=dead)
    return report_changes(name, "purged", removed, [], as_json=as_json)


def rm(
    queues: QueueNames,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete queues, with all their items, dead letters, results, schedules, events and limits.

    Workers are notified, and cancel what they run. Run the command again if it was interrupted:
    until it has ended, nothing can be added to the queue. Then the name can be used again.
    """
    question = f"Delete {', '.join(queues)}, with all items and all that is kept?"
    run_confirmed(partial(_rm, url, queues, as_json=as_json), question, yes=yes, url=url, names=queues)


async def _rm(url: str, names: list[str], *, as_json: bool) -> Code:
    async with AsyncExitStack() as stack:  # all are opened before one is deleted: a name may be wrong
        queues = [await stack.enter_async_context(open_queue(url, name)) for name in dict.fromkeys(names)]
        deleted = {queue.name: await queue.admin.delete() for queue in queues}
    print_rows([{"queue": name, "deleted": count} for name, count in deleted.items()], as_json=as_json)
    return Code.DONE


@queue_command
async def recover(
    queue: AsyncWorkQueue,
    *,
    elapsed: Annotated[float, duration_option("End leases that began at least so long ago: 30s, 5m, 2d.")],
    count: Annotated[int | None, number_option("At most so many, those that began first.", minimum=1)] = None,
    as_json: AsJson = False,
) -> Code:
    """Return items that were leased long ago to the front of the queue, and print their ids.

    Their leases end as if they had expired, also those of workers that still renew them.
    """
    ids = await queue.admin.clear_leases(elapsed=elapsed, count=count)
    if as_json:
        print_json({"queue": queue.name, "recovered": len(ids), "ids": ids})
    for item_id in () if as_json else ids:
        print_line(item_id)
    return Code.DONE


def clear_leases(
    prefix: Annotated[
        str | None,
        typer.Argument(
            metavar="PREFIX",
            help="The queue's name, which is the prefix of its keys; by default all queues.",
        ),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """End all leases of one queue, or of all: the items return to the front.

    Use it when you know that all workers are gone. A worker that is still there continues with
    its item until it renews its lease; another one may get the item at the same time.
    """
    confirm(f"End all leases of {prefix or 'ALL queues on the server'}?", yes=yes)
    run_command(_clear(url, prefix, as_json=as_json))


async def _clear(url: str, prefix: str | None, *, as_json: bool) -> Code:
    rows: list[dict[str, Any]] = []

    async def clear(queue: AsyncWorkQueue) -> None:
        rows.append({"queue": queue.name, "cleared": len(await queue.admin.clear_leases())})

    try:
        complete = await visit(url, [prefix] if prefix else None, clear, limited=False)
    finally:  # what was done is said also if the next queue fails
        print_rows(rows, as_json=as_json)
    return Code.DONE if complete else Code.SERVER
