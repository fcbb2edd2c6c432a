"""`leasequeue peek`: show the items that are leased next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from leasequeue.cli.options import number_option
from leasequeue.cli.server import AsJson, Code, note, queue_command
from leasequeue.cli.show import print_views

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@queue_command
async def peek(
    queue: AsyncWorkQueue,
    *,
    count: Annotated[int, number_option("How many items.", minimum=1, maximum=1000)] = 1,
    as_json: AsJson = False,
) -> Code:
    """Show the items that are leased next, without leasing them.

    With --json each item is a line. The exit code is 1 if no item waits.
    """
    views = await queue.peek(count)
    print_views(queue.name, views, as_json=as_json)
    if not views:
        note(f"{queue.name} has no waiting items")
    return Code.DONE if views else Code.MISSED
