"""`leasequeue clear-leases`: end all leases of one queue or of all."""

from __future__ import annotations

from typing import Annotated

import typer

from leasequeue.cli.completion import complete_queue
from leasequeue.cli.formatting import print_rows
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, Url, confirm, open_queue, run_command
from leasequeue.queue import list_queues


def clear_leases(
    prefix: Annotated[
        str | None,
        typer.Argument(
            metavar="PREFIX",
            help="The queue's name, which is the prefix of its keys; by default all queues.",
            autocompletion=complete_queue,
        ),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """End all leases of one queue, or of all: the items return to the front.

    Use it when you know that all workers are gone. A worker that is still there goes on with
    its item until it renews its lease; another one may get the item at the same time.
    """
    confirm(f"End all leases of {prefix or 'ALL queues on the server'}?", yes=yes)
    run_command(_clear(url, prefix, as_json=as_json))


async def _clear(url: str, prefix: str | None, *, as_json: bool) -> Code:
    rows = []
    for name in [prefix] if prefix else await list_queues(url):
        async with open_queue(url, name) as queue:
            rows.append({"queue": name, "cleared": len(await queue.clear_leases())})
    print_rows(rows, as_json=as_json)
    return Code.DONE
