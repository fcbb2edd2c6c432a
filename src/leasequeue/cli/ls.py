"""`leasequeue ls`: count the items of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.cli.formatting import print_rows
from leasequeue.cli.server import DEFAULT_URL, AnyQueues, AsJson, Code, Url, command, note, open_queue
from leasequeue.errors import WrongKeyType
from leasequeue.queue.queue import engine_of
from leasequeue.wire.discovery import MAX_KEYS, MAX_QUEUES, find_queues

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@command
async def ls(
    queues: AnyQueues = None,
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Count the items of queues: waiting, leased, scheduled, dead.

    Without names, the command scans the server's keys, at most two million, to
    find the queues. With --json each queue is a line.
    """
    names = queues or []
    if not names:
        names, complete = await find_queues(url, max_keys=MAX_KEYS, max_queues=MAX_QUEUES)
        if not complete:
            note(
                f"stopped after {MAX_KEYS:,} keys or {len(names):,} queues: name the queues that are missing"
            )
        if not names:
            note("found no queue on this server")
    rows: list[dict[str, Any]] = []
    for name in names:
        async with open_queue(url, name) as queue:
            try:
                counts = await queue.counts()
                rows.append({"queue": name, **counts._asdict()})
                if not (counts.waiting or counts.leased):
                    await _note_deletion(queue)
            except WrongKeyType as error:
                note(f"{name}: {error}")
    print_rows(rows, as_json=as_json)
    return Code.DONE


async def _note_deletion(queue: AsyncWorkQueue) -> None:
    """Say so if the queue is being deleted: its items are in no state any more, but their keys exist."""
    [is_closed] = await engine_of(queue).runner.ask((b"HEXISTS", f"{queue.name}:control".encode(), b"closed"))
    if is_closed:
        note(f"{queue.name} is being deleted: if no client is doing so, `leasequeue rm` finishes it")
