"""`leasehold peek`: show the items that are leased next."""

from __future__ import annotations

from typing import Annotated

from leasehold.cli.options import number_option
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, QueueName, Url, command, note, open_queue
from leasehold.cli.show import print_views


@command
async def peek(
    name: QueueName,
    *,
    count: Annotated[int, number_option("How many items.", minimum=1, maximum=1000)] = 1,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Show the items that are leased next, without leasing them.

    With --json each item is a line. The exit code is 1 if no item waits.
    """
    async with open_queue(url, name) as queue:
        views = await queue.peek(count)
    print_views(name, views, as_json=as_json)
    if not views:
        note(f"{name} has no waiting items")
    return Code.DONE if views else Code.MISSED
