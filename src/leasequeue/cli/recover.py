"""`leasequeue recover`: end leases that began long ago, so that other workers get the items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, printable
from leasequeue.cli.options import number_option
from leasequeue.cli.server import AsJson, Code, queue_command
from leasequeue.cli.times import duration_option

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


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
    ids = await queue.clear_leases(elapsed=elapsed, count=count)
    if as_json:
        print_json({"queue": queue.name, "recovered": len(ids), "ids": ids})
    for item_id in () if as_json else ids:
        typer.echo(printable(item_id))
    return Code.DONE
