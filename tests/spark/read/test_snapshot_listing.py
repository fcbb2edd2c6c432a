"""How the tasks of a snapshot list ids while the queue changes. These tests need no session of Spark."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.queue.bulk import FIRST_PAGE, PAGE, Bulk
from leasequeue.queue.queue import engine_of, engines_of
from leasequeue.spark.read.snapshot import LISTINGS, IdPartition, Share, SnapshotReader, list_ids
from leasequeue.spark.schema import ITEMS
from leasequeue.states import STATES
from tests.queue.asking import take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock, MakeQueue

ALL = frozenset(STATES)
#: The numbers of ids of a list that is read in three slices.
MANY = FIRST_PAGE + PAGE + 500


class Interrupted(Bulk):
    """The calls of a queue; an action comes before one of the listings."""

    def __init__(self, queue: AsyncWorkQueue, listing: int, action: Callable[[], Awaitable[object]]) -> None:
        engine = engines_of(queue).all[0]
        super().__init__(engine.run, engine.read)
        self._left, self._action = listing, action

    async def pages(self, state: str) -> AsyncIterator[list[bytes]]:
        if self._left == 0:
            await self._action()
        self._left -= 1
        async for page in super().pages(state):
            yield page


async def moving(queue: AsyncWorkQueue, clock: Clock, move: str) -> Callable[[], Awaitable[object]]:
    """Put an item into a state, and return what moves it to another."""
    before, _, after = move.partition(" to ")
    await queue.add_item(Item(b"x", id="moving"), delay=900 if before == "scheduled" else 0)
    if before == "scheduled":

        async def fall_due() -> None:
            clock.now += 1000
            await queue.light_clean()

        return fall_due
    if before == "waiting":
        return lambda: take(queue, 600)
    lease = await take(queue, 600)
    if before == "dead":
        await queue.fail(lease, "no", retry_in=None)
        return lambda: queue.dead_letters.requeue("moving")
    if after == "waiting":
        return lambda: queue.release(lease)
    return lambda: queue.fail(lease, "no", retry_in=None if after == "dead" else 600)


@pytest.mark.parametrize(
    "move",
    [
        "waiting to leased",
        "leased to waiting",
        "leased to scheduled",
        "leased to dead",
        "scheduled to waiting",
        "dead to waiting",
    ],
)
async def test_an_item_that_moves_once_is_listed(make_queue: MakeQueue, clock: Clock, move: str) -> None:
    """Whenever it moves: before the first listing, between two of them, or after the last."""
    for moment in range(len(LISTINGS)):
        queue = make_queue(name=f"{make_queue.name}-{moment}", clock=clock)
        action = await moving(queue, clock, move)
        before = await queue.counts()
        ids = await list_ids(Interrupted(queue, moment, action), Share(0, 1), ALL)
        assert ids == [b"moving"], f"moved before listing {moment}"
        assert await queue.counts() != before


@pytest.mark.parametrize("pages_before", [1, 2])
@pytest.mark.parametrize("end", ["start", "end", "both ends"])
async def test_ids_that_stay_in_a_list_are_listed_while_others_leave_it(
    queue: AsyncWorkQueue, redis: Redis, end: str, pages_before: int
) -> None:
    """Ids are listed by position: what leaves before a position moves the others past it."""
    await queue.add_items([Item(b"", id=f"{number}") for number in range(MANY)])
    met: set[bytes] = set()
    pages = 0
    async for page in engine_of(queue).bulk.pages("waiting"):
        met |= {*page}
        pages += 1
        if pages == pages_before:
            start = 300 if end != "end" else 0
            await redis.ltrim(f"{queue.name}:queue", start, -300 if end != "start" else -1)
    assert {*await redis.lrange(f"{queue.name}:queue", 0, -1)} <= met


async def test_ids_that_stay_in_a_list_are_listed_while_others_are_added(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"", id=f"{number}") for number in range(MANY)])
    met: set[bytes] = set()
    async for page in engine_of(queue).bulk.pages("waiting"):
        if not met:
            await queue.add_items([Item(b"", id=f"new{number}") for number in range(2 * PAGE)])
        met |= {*page}
    assert {b"%d" % number for number in range(MANY)} <= met


async def test_a_list_that_is_emptied_meanwhile_ends(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_items([Item(b"", id=f"{number}") for number in range(MANY)])
    sizes = []
    async for page in engine_of(queue).bulk.pages("waiting"):
        sizes.append(len(page))
        if page:
            await redis.delete(f"{queue.name}:queue")
    assert [size for size in sizes if size] == [FIRST_PAGE], "there is nothing in lanes"


@pytest.mark.parametrize("state", ["leased", "processing", "scheduled", "dead"])
async def test_all_ids_of_a_long_listing_are_met(queue: AsyncWorkQueue, state: str) -> None:
    ids = [f"{number}" for number in range(MANY)]
    await queue.add_items([Item(b"", id=one) for one in ids], delay=600 if state == "scheduled" else 0)
    if state != "scheduled":
        leases = [lease for _ in range(0, MANY, 1000) for lease in await queue.lease_many(1000, 600)]
        if state == "dead":
            await asyncio.gather(*(queue.fail(lease, "no", retry_in=None) for lease in leases))
    met = [one async for page in engine_of(queue).bulk.pages(state) for one in page]
    assert {*met} == {one.encode() for one in ids}


@pytest.mark.parametrize("count", [1, 2, 7])
async def test_each_id_is_in_one_share(queue: AsyncWorkQueue, count: int) -> None:
    ids = {f"item-{number}" for number in range(3_000)}
    await queue.add_items([Item(b"", id=one) for one in ids])
    shares = [await list_ids(engine_of(queue).bulk, Share(number, count), ALL) for number in range(count)]
    assert sum(map(len, shares)) == len(ids)
    assert {one.decode() for share in shares for one in share} == ids
    assert min(map(len, shares)) > 0.7 * len(ids) / count


async def test_the_driver_lists_no_ids(queue: AsyncWorkQueue, redis: Redis) -> None:
    """What it sends, receives and plans does not grow with the queue."""

    async def plan() -> tuple[int, int]:
        reader = SnapshotReader({"url": str(queue.url), "queue": queue.name, "partitions": "3"}, ITEMS)
        before = int((await redis.info("stats"))["total_net_output_bytes"])
        parts = await asyncio.to_thread(reader.partitions)
        assert parts == [Share(number, 3, queue.name) for number in range(3)]
        sent = int((await redis.info("stats"))["total_net_output_bytes"]) - before
        return sent, len(pickle.dumps(parts))

    await queue.add_item(Item(b"", id="first"))
    small_sent, small = await plan()
    await queue.add_items([Item(b"", id=f"item-{number}") for number in range(20_000)])
    sent, size = await plan()
    assert size == small
    assert sent - small_sent < 2_000


async def test_the_number_of_partitions_follows_that_of_the_items(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.spark.read.snapshot.ITEMS_PER_PARTITION", 100)
    await queue.add_items([Item(b"", id=f"{number}") for number in range(250)])
    await queue.add_items([Item(b"", id=f"later{number}") for number in range(100)], delay=600)

    async def planned(*states: str) -> int:
        reader = SnapshotReader({"url": str(queue.url), "queue": queue.name}, ITEMS)
        reader.filter = type(reader.filter)(frozenset(states or STATES))
        return len(await asyncio.to_thread(reader.partitions))

    assert [await planned(), await planned("waiting"), await planned("scheduled")] == [4, 3, 1]
    assert await planned("dead") == 1
    monkeypatch.setattr("leasequeue.spark.read.snapshot.ITEMS_PER_PARTITION", 1)
    assert await planned() == 16


async def test_items_that_change_between_listing_and_lookup_are_found(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"", id=one) for one in ("died", "held", "first", "second")])
    await queue.fail(await take(queue, 600), "an error", retry_in=None)
    await take(queue, 600)
    await queue.add_item(Item(b"", id="later"), delay=600)
    ids = await list_ids(engine_of(queue).bulk, Share(0, 1), ALL)
    assert await queue.dead_letters.requeue("died")
    leases = await queue.lease_many(10, 600)
    for lease in leases:
        await queue.fail(lease, "no", retry_in=None)
    reader = SnapshotReader({"url": str(queue.url), "queue": queue.name}, ITEMS)
    batches = await asyncio.to_thread(lambda: [*reader.read(IdPartition(ids))])
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert {row["id"]: row["state"] for row in rows} == (
        {"held": "leased", "later": "scheduled"} | dict.fromkeys(("died", "first", "second"), "dead")
    )
