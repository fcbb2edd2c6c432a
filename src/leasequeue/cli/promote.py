"""`leasequeue promote`, `leasequeue priority`: say when an item that waits or is delayed is leased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.options import number_option
from leasequeue.cli.server import AsJson, Code, queue_command, report_changes
from leasequeue.queue.encoding import MAX_LEVEL

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="The ids of items.")]


@queue_command
async def promote(queue: AsyncWorkQueue, ids: Ids, *, as_json: AsJson = False) -> Code:
    """Run delayed items now, also those that are to be retried.

    Each is leased next, before all others of its level and group. The exit code is 1 if one of
    the ids is of no delayed item.
    """
    # The last one first: each goes to the front.
    missed = [one for one in reversed(ids) if not await queue.promote(one)][::-1]
    return _report(queue, "promoted", ids, missed, "delayed item", as_json=as_json)


@queue_command
async def priority(
    queue: AsyncWorkQueue,
    ids: Ids,
    *,
    level: Annotated[
        int,
        number_option("The new level; a higher one is leased first.", minimum=-MAX_LEVEL, maximum=MAX_LEVEL),
    ],
    as_json: AsJson = False,
) -> Code:
    """Change the priority of items that wait or are delayed.

    Each waits behind all others of its new level and group. The exit code is 1 if one of the
    ids is of no such item: it is leased, or gone.
    """
    missed = [one for one in ids if not await queue.set_priority(one, level)]
    return _report(queue, "changed", ids, missed, "item that waits or is delayed", as_json=as_json)


def _report(
    queue: AsyncWorkQueue, word: str, ids: list[str], missed: list[str], what: str, *, as_json: bool
) -> Code:
    problems = [(one, f"{queue.name!r} has no {what} with the id {one!r}") for one in missed]
    return report_changes(queue.name, word, len(ids) - len(missed), problems, as_json=as_json)
