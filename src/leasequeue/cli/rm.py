"""`leasequeue rm`: delete queues."""

from __future__ import annotations

from typing import Annotated

import typer

from leasequeue.cli.formatting import print_rows
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, QueueNames, Url, confirm, open_queue, run_command


def rm(
    queues: QueueNames,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete queues, with all their items, dead letters, results, schedules, events and limits.

    Workers are notified, and cancel what they run. Run the command again if it was interrupted:
    until it has ended, nothing can be added to the queue. Then the name can be used anew.
    """
    confirm(f"Delete {', '.join(queues)}, with all items and all that is kept?", yes=yes)
    run_command(_rm(url, queues, as_json=as_json))


async def _rm(url: str, names: list[str], *, as_json: bool) -> Code:
    deleted: dict[str, int] = {}
    for name in names:
        async with open_queue(url, name) as queue:
            deleted[name] = await queue.delete()
    print_rows([{"queue": name, "deleted": count} for name, count in deleted.items()], as_json=as_json)
    return Code.DONE
