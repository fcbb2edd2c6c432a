"""`leasehold ls`: how many items the queues hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.formatting import print_json, print_table
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, Url, carry_out, opened, say
from leasehold.errors import WrongKeyType
from leasehold.scripting.discovery import MAX_KEYS, find_queues

if TYPE_CHECKING:
    from leasehold import Counts


def ls(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="The queues' names; without any, those that the server has."),
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Count the items of queues: waiting, leased, scheduled, dead.

    Without names the server's keys are passed over in steps, at most two
    million, to find the queues. With --json each queue is a line.
    """
    carry_out(_ls(url, queues or [], as_json=as_json))


async def _ls(url: str, names: list[str], *, as_json: bool) -> Code:
    if not names:
        names, complete = await find_queues(url)
        if not complete:
            say(f"looked at {MAX_KEYS:,} keys or found {len(names):,} queues: name those that are missing")
        if not names:
            say("no queue was found on this server")
    rows: list[tuple[str, Counts]] = []
    for name in names:
        async with opened(url, name) as queue:
            try:
                rows.append((name, await queue.counts()))
            except WrongKeyType as error:
                say(f"{name}: {error}")
    if as_json:
        for name, counts in rows:
            print_json({"queue": name, **counts._asdict()})
    elif rows:
        print_table(("queue", "waiting", "leased", "scheduled", "dead"), [(name, *row) for name, row in rows])
    return Code.DONE
