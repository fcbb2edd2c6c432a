"""`leasequeue mv`: move items to another queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.completion import complete_queue
from leasequeue.cli.options import number_option
from leasequeue.cli.server import AsJson, Code, queue_command, report_changes

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@queue_command
async def mv(
    queue: AsyncWorkQueue,
    other: Annotated[
        str,
        typer.Argument(
            metavar="OTHER",
            help="The name of the queue that gets the items.",
            autocompletion=complete_queue,
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
    as_json: AsJson = False,
) -> Code:
    """Move items that wait to the end of another queue, in their order.

    They keep their options and attempts. An item whose id is in the other queue stays; so
    does one that is leased. If it was given as ID, the exit code is 1.
    """
    if ids and count is not None:
        raise typer.BadParameter("give ids or --count, not both", param_hint="--count")
    moved = await queue.move_to(other, count=count, ids=ids or None)
    left = [one for one in ids or () if one not in {*moved}]
    why = f"does not wait in {queue.name}, or is in {other} already"
    missed = [(one, f"{one!r} was not moved: it {why}") for one in left]
    return report_changes(queue.name, "moved", len(moved), missed, as_json=as_json)
