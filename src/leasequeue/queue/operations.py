"""Operations on many items of a queue, in bounded steps: peek, recover, clear leases, purge, delete.

A step is one script. A call may be stopped after any step and made again; other clients act in between.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, Any

from leasequeue.errors import InvalidArgument, LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.keys import FAMILIES, KEYS, MADE_KEYS, NONE
from leasequeue.queue.cleaning import light_clean
from leasequeue.queue.encoding import MAX_REPLY_BYTES, SLOW_ROWS, TRIP_ROWS, pages
from leasequeue.queue.plans.stages import settle_at
from leasequeue.queue.views import ItemView, fetched, read_inspection
from leasequeue.wire.discovery import find_queues

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.leasing import LeasedItem
    from leasequeue.wire.endpoints import Client

#: Leases checked in one step.
STEP = 250
#: Where waiting items are: on their way to a process, in the queue, and in the lanes of a controlled one.
WAITING_PLACES = ("inboxes", "queue", "held", "lanes")
#: The same for `move`: in the order in which they are leased, and twice, as the queue may become a controlled
#: or a plain one in between, with which its items change their places.
MOVED_FROM = ("queue", "lanes", "held", "lower") * 2
#: What follows the queue's name in keys that `delete` does not remove, or removes last.
KEPT = {"fence", "control", "sessions", "workers", "heartbeats", "inbox", "probe", NONE}
#: What follows it in all other keys that are not those of single items or sessions.
WHOLE_KEYS = [name.encode() for name in (*KEYS, *MADE_KEYS) if "<" not in name and name not in KEPT]
#: The maximum number of ids that `peek` looks at.
MAX_PEEKED = 1000

log = Log("leasequeue.queue")


async def list_queues(redis: Client | str, *, prefix: str = "") -> list[str]:
    """Return the names of the queues on a server, sorted, also of empty or deleted ones that were used.

        names = await list_queues("redis://localhost", prefix="shop-")

    No list of queues is stored: all keys of the server are scanned, in steps of 1,000, which block nothing.
    A queue that is made or deleted during the scan may be there or not. Of one with shards, there are these.

    Args:
        redis: The server's URL, or a client of redis-py, of which the address and the login are used. Of a
            cluster, all nodes are scanned.
        prefix: What the names begin with.

    Raises:
        InvalidArgument: If an argument cannot be used.
        ServerError: If the server cannot be reached, or answers with an error.
    """
    if not isinstance(prefix, str):
        raise InvalidArgument("prefix", prefix, "a string")
    return (await find_queues(redis, prefix=prefix)).names


async def peek(engine: Engine, count: int, *, with_data: bool) -> list[ItemView]:
    """Return the items that are leased next. See `AsyncWorkQueue.peek`."""
    found: dict[str, ItemView] = {}
    room = MAX_REPLY_BYTES if with_data else -1
    for start, size in pages(0, MAX_PEEKED, TRIP_ROWS):
        reply = await engine.run("inspect", state=b"waiting", start=start, count=size, max_bytes=room)
        page = read_inspection("waiting", reply, engine.payloads, with_data=with_data)
        for view in page:
            # Without data or under a lease, `lease` drops the id.
            if view.size is not None and view.holder is None and len(found) < count:
                found.setdefault(view.id, view)
        if len(page) < size or len(found) == count:
            break
        room -= fetched(page)
    return [*found.values()]


async def recover(engine: Engine, count: int, elapsed_ms: int, lease_ms: int) -> list[LeasedItem]:
    """Lease again what was leased long ago. See `QueueAdmin.recover`."""
    ours = [lease async for lease in _leases(engine, elapsed_ms) if lease[1] > 0]
    oldest = [(item_id, token) for item_id, token, _ in heapq.nsmallest(count, ours, key=_when)]
    items: list[LeasedItem] = []
    while oldest:
        asked_at = time.monotonic()
        now_ms, checked, _, *leased = await engine.run(
            "recover",
            _rows(oldest[:SLOW_ROWS]),
            elapsed_ms=elapsed_ms,
            hold_ms=lease_ms,
            max_bytes=MAX_REPLY_BYTES,
        )
        traces = leased.pop() if leased and leased[-1].__class__ is list else [None] * (len(leased) // 4)
        items += [
            (*leased[at : at + 4], lease_ms, asked_at, now_ms, traces[at // 4])
            for at in range(0, len(leased), 4)
        ]
        oldest = oldest[checked:]
    return items


async def clear_leases(engine: Engine, elapsed_ms: int, count: int | None) -> list[str]:
    """End leases before they expire. See `QueueAdmin.clear_leases`."""
    if elapsed_ms == 0:
        await light_clean(engine)  # finds the leases of other clients
    found = [lease async for lease in _leases(engine, elapsed_ms)]
    oldest = sorted(found, key=_when) if count is None else heapq.nsmallest(count, found, key=_when)
    ended: list[bytes] = []
    # The last ones first, because what returns to the front later precedes the rest.
    for start in reversed(range(0, len(oldest), SLOW_ROWS)):
        step = [(item_id, token) for item_id, token, _ in oldest[start : start + SLOW_ROWS]]
        answers = await engine.run("end_leases", _rows(step))
        ended[:0] = [item_id for (item_id, _), answer in zip(step, answers, strict=True) if answer == 1]
    return [item_id.decode(errors="surrogateescape") for item_id in ended]


async def purge(engine: Engine, places: Sequence[str], group: bytes = b"") -> int:
    """Remove the items that are in some places now, or those of a group. See `QueueAdmin.purge`."""
    removed = 0
    for place in places:
        left: int | None = None
        checked = TRIP_ROWS
        # Only those that are there now: else a producer could keep this busy for ever.
        while checked > 0 and (left is None or left > 0):
            count = TRIP_ROWS if left is None else min(TRIP_ROWS, left)
            length, checked, some = await engine.run(
                "purge_queue", source=place.encode(), of_group=group, count=count, purged=0
            )
            left = (length if left is None else left) - checked
            removed += some
            if place == "inboxes":
                break
    return removed


async def move(engine: Engine, other: str, count: int | None, ids: Sequence[bytes] | None) -> list[str]:
    """Move items to another queue. See `QueueAdmin.move`."""
    if ids is not None:
        steps = [ids[at : at + SLOW_ROWS] for at in range(0, len(ids), SLOW_ROWS)]
        replies = [await _move_step(engine, other, "ids", 0, SLOW_ROWS, step) for step in steps]
        moved = [item_id for reply in replies for item_id in reply[2:]]
    else:
        moved = []
        left = (await engine.run("counts"))[0] if count is None else count
        for spot in MOVED_FROM:
            some = await _move_from(engine, other, spot, left)
            moved += some
            left -= len(some)
    return [item_id.decode(errors="surrogateescape") for item_id in moved]


async def _move_from(engine: Engine, other: str, spot: str, count: int) -> list[bytes]:
    """Move up to so many items from a list or from the lanes, the first ones first."""
    moved: list[bytes] = []
    checked, stayed = SLOW_ROWS, 0
    while checked > 0 and len(moved) < count:
        size = min(SLOW_ROWS, count - len(moved))
        checked, stay, *some = await _move_step(engine, other, spot, stayed, size)
        moved += some
        stayed += stay
    return moved


async def _move_step(
    engine: Engine, other: str, spot: str, left_out: int, count: int, ids: Sequence[bytes] = ()
) -> list[Any]:
    reply: list[Any] = await engine.run_at(
        other,
        "move_items",
        ids,
        source=engine.keys.prefix,
        spot=spot.encode(),
        left_out=left_out,
        count=count,
    )
    if reply == [-1]:
        raise InvalidArgument("other", other, "a queue in the same format: `leasequeue upgrade` shows both")
    return reply


async def delete(engine: Engine) -> int:
    """Close the queue, and remove its keys. See `QueueAdmin.delete`."""
    removed, ended = 0, SLOW_ROWS
    while ended == SLOW_ROWS:
        ended = await engine.run("close_queue", count=SLOW_ROWS)
        removed += ended
    families = [family.encode() for family in sorted(FAMILIES)]
    cursor = b""
    while cursor != b"0":
        cursor, some = await _delete_step(engine, families, cursor or b"0")
        removed += some
    await _end_stages(engine)
    cursor = b""
    while cursor != b"0":
        cursor, some = await _delete_step(engine, WHOLE_KEYS, b"")
        removed += some
    return removed


async def _end_stages(engine: Engine) -> None:
    """Record the ends of what was removed in the flow runs of other queues, before the notes are removed.

    Nothing that follows there can be added to this queue. A note is left, and so lost, if its run cannot be
    settled by this client: because of its rights, or since a queue is in a newer format.
    """
    key, before = b"%b:unsettled" % engine.keys.prefix, 0
    try:
        # What follows may leave notes, too; those that a whole walk has left stay.
        while (left := await engine.read_at(b"HLEN", key)) not in {0, before}:
            before, cursor = left, b""
            while cursor != b"0":
                cursor, noted = await engine.read_at(b"HSCAN", key, cursor or b"0", b"COUNT", b"100")
                if ids := [one for one in noted[::2] if not (one.startswith(b"!") and b"\0" in one)]:
                    await settle_at(engine, engine.name, ids)
    except LeasequeueError as error:
        if error.transient:
            raise
        log.warning("the stages of flow runs on %s cannot be settled: %s", engine.name, error)


async def _delete_step(engine: Engine, names: list[bytes], cursor: bytes) -> tuple[bytes, int]:
    cursor, removed = await engine.run(
        "delete_queue", names, pattern=engine.keys.pattern, cursor=cursor, count=TRIP_ROWS
    )
    return cursor, removed


async def _leases(engine: Engine, elapsed_ms: int) -> AsyncIterator[tuple[bytes, int, int]]:
    """Yield id, token and time of each lease that began so long ago; the token of a foreign one is 0."""
    cursor, seen = b"", set[bytes]()
    while cursor != b"0":
        cursor, *found = await engine.run(
            "list_leases", elapsed_ms=elapsed_ms, cursor=cursor or b"0", count=STEP
        )
        for at in range(0, len(found), 3):
            item_id, token, leased_ms = found[at : at + 3]
            if item_id not in seen:
                seen.add(item_id)
                yield item_id, token, leased_ms


def _when(lease: tuple[Any, int, int]) -> tuple[int, int]:
    """Return the time of a lease and its token, which orders those of one step."""
    return lease[2], lease[1]


def _rows(held: Sequence[tuple[bytes, int]]) -> list[bytes]:
    return [value for item_id, token in held for value in (item_id, b"%d" % token)]
