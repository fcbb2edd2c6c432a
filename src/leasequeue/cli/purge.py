"""`leasequeue purge`: remove the items of a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from leasequeue.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    confirm,
    open_queue,
    report_changes,
    run_command,
)


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

    Items that workers hold stay, and so do items that are added meanwhile.
    """
    others = [text for wanted, text in ((scheduled, "scheduled items"), (dead, "dead letters")) if wanted]
    what = ", ".join(["all waiting items", *others])
    confirm(f"Remove {what} of {name}, with their data?", yes=yes)
    run_command(_purge(url, name, scheduled=scheduled, dead=dead, as_json=as_json))


async def _purge(url: str, name: str, *, scheduled: bool, dead: bool, as_json: bool) -> Code:
    async with open_queue(url, name) as queue:
        removed = await queue.purge(scheduled=scheduled, dead=dead)
    return report_changes(name, "purged", removed, [], as_json=as_json)
