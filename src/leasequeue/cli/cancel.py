"""`leasequeue cancel`: cancel items by their ids or their data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.options import duration_option, number_option
from leasequeue.cli.server import AsJson, Code, queue_command, report_changes
from leasequeue.queue.cancelling import KEEP_SECONDS, MAX_CANCELLED

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@queue_command
async def cancel(
    queue: AsyncWorkQueue,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of items.")] = None,
    *,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA|-", help="Cancel the items with this data, in all states; - is standard input."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        number_option("With --data: how many at most; all by default.", minimum=1, maximum=MAX_CANCELLED),
    ] = None,
    keep: Annotated[
        float,
        duration_option("How long callers that ask for the result learn that it was cancelled: 30s, 5m, 2d."),
    ] = KEEP_SECONDS,
    as_json: AsJson = False,
) -> Code:
    """Cancel items, whether they wait or run.

    None of them is leased again or completed. A worker of Leasequeue that runs one is notified
    at once. The exit code is 1 if there is no unfinished item with one of the ids.
    """
    if (data is None) == (not ids):
        raise typer.BadParameter("give either ids or --data", param_hint="ID")
    if limit is not None and data is None:
        raise typer.BadParameter("goes with --data", param_hint="--limit")
    if data is not None:
        payload = sys.stdin.buffer.read() if data == "-" else data.encode(errors="surrogateescape")
        found = await queue.cancel_data(payload, limit=limit, keep=keep)
        return report_changes(queue.name, "cancelled", len(found), [], as_json=as_json)
    answers = await queue.cancel_many(ids or [], keep=keep)
    missed = [
        (one, f"{queue.name!r} has no unfinished item with the id {one!r}")
        for one, done in zip(ids or [], answers, strict=True)
        if not done
    ]
    return report_changes(queue.name, "cancelled", sum(answers), missed, as_json=as_json)
