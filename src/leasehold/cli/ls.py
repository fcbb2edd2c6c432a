"""`leasehold ls`: count the items of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.formatting import print_json, print_table
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, Url, note, open_queue, run_command
from leasehold.errors import WrongKeyType
from leasehold.scripting.discovery import MAX_KEYS, find_queues

if TYPE_CHECKING:
    from leasehold import Counts


def ls(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="The queues' names; by default all queues on the server."),
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Count the items of queues: waiting, leased, scheduled, dead.

    Without names, the command scans the server's keys, at most two million, to
    find the queues. With --json each queue is a line.
    """
    run_command(_ls(url, queues or [], as_json=as_json))


async def _ls(url: str, names: list[str], *, as_json: bool) -> Code:
    if not names:
        names, complete = await find_queues(url)
        if not complete:
            note(
                f"stopped after {MAX_KEYS:,} keys or {len(names):,} queues: name the queues that are missing"
            )
        if not names:
            note("found no queue on this server")
    rows: list[tuple[str, Counts]] = []
    for name in names:
        async with open_queue(url, name) as queue:
            try:
                rows.append((name, await queue.counts()))
            except WrongKeyType as error:
                note(f"{name}: {error}")
    if as_json:
        for name, counts in rows:
            print_json({"queue": name, **counts._asdict()})
    elif rows:
        print_table(("queue", "waiting", "leased", "scheduled", "dead"), [(name, *row) for name, row in rows])
    return Code.DONE
