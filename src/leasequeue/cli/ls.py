"""`leasequeue ls`: count the items of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import print_rows
from leasequeue.cli.server import (
    DEFAULT_URL,
    AnyQueues,
    AsJson,
    Code,
    Url,
    ask_each,
    command,
    note,
    server_time,
    visit,
)
from leasequeue.queue.limits import read_pause

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.queue import Counts

All = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Also queues without items, limits, schedules, flow runs and workers, and those of autoscalers.",
    ),
]
#: The ends of keys without which a queue that has no items is not listed.
_IN_USE = (b"control", b"schedules", b"workers", b"runs:active", b"unsettled", b"events:keep")
#: The item of an autoscaler's queue, and how its data begins: see `leasequeue.autoscale.leader`.
_PASS, _STATE = "pass", b'{"version":'


@command
async def ls(
    queues: AnyQueues = None,
    *,
    everything: All = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Count the items of queues: waiting, leased, scheduled, dead.

    A queue that is paused is marked. Without names, the command scans the
    server's keys, at most two million, to find the queues. With --json each
    queue is a line.
    """
    rows: list[dict[str, Any]] = []
    hidden = 0

    async def look(queue: AsyncWorkQueue) -> None:
        nonlocal hidden
        counts = await queue.counts()
        if not queues and not everything and await is_idle(queue, counts):
            hidden += 1
            return
        rows.append({"queue": queue.name, **counts._asdict(), "paused": await _is_paused(queue)})
        if not (counts.waiting or counts.leased):
            await _note_deletion(queue)

    await visit(url, queues, look)
    if not as_json:
        is_any = any(row["paused"] for row in rows)
        for row in rows:
            paused = row.pop("paused")
            if is_any:  # the column is for them alone
                row["paused"] = "yes" if paused else None
    print_rows(rows, as_json=as_json)
    if hidden and not as_json:
        note(f"{hidden:,} more, in which nothing is to be done: see --all")
    return Code.DONE


async def is_idle(queue: AsyncWorkQueue, counts: Counts) -> bool:
    """Return whether a queue is not listed: it is used for nothing, or only for the turns of autoscalers.

    That of a deleted queue `fence` is left, as tokens never repeat, is no difference to one that is empty.
    """
    total = sum(counts)
    if total == 1:
        view = await queue.find(_PASS)
        return view is not None and (view.data or b"").startswith(_STATE)
    return not total and not any(await ask_each(queue, b"EXISTS", _IN_USE))


async def _is_paused(queue: AsyncWorkQueue) -> bool:
    """Return whether the whole queue is paused now."""
    found = await ask_each(queue, b"HGET", [b"control"], b"paused")
    texts = [one.decode(errors="surrogateescape") for one in found if isinstance(one, bytes)]
    pauses = [pause for pause in map(read_pause, texts) if pause is not None]
    if len(pauses) < len(found):
        return False
    now = await server_time(queue)
    return all(pause.until is None or pause.until > now for pause in pauses)


async def _note_deletion(queue: AsyncWorkQueue) -> None:
    """Say so if the queue is being deleted: its items are in no state any more, but their keys exist."""
    if 1 in await ask_each(queue, b"HEXISTS", [b"control"], b"closed"):
        note(f"{queue.name} is being deleted: if no client is doing so, `leasequeue rm` finishes it")
