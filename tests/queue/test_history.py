"""The history of a queue: exact, whichever client makes the change, at a price that is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.queue.findings import Problem
from tests.queue.asking import keys_like, take
from tests.queue.keyspace import glob

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.views import HistoryCell
    from tests.queue.fixtures import Clock, MakeQueue

NONE = (0,) * 7
#: What the docstring of `History` and the how-to page say; for how long the server keeps cells, and
#: how long all those of a key are together (s).
HIGHEST_BYTES = 450_000
KEPT = {"minute": (2 * 86_400, 3_600), "hour": (31 * 86_400, 86_400), "day": (366 * 86_400, 32 * 86_400)}


async def now_of(queue: AsyncWorkQueue) -> HistoryCell:
    return (await queue.history("day", count=1)).cells[-1]


async def price(redis: Redis, name: str, now: float) -> int:
    """Return how much memory the history takes of which the time to live has not passed."""
    total = 0
    for key in await keys_like(redis, glob(name) + b":rollup:*"):
        tier, number = key.decode().split(":")[-2:]
        kept, span = KEPT[tier]
        if (int(number) + 2) * span + kept > now:
            used = await redis.memory_usage(key)
            assert used is not None
            total += used
    return total


@pytest.mark.core
async def test_history_says_what_happened_in_each_minute(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.history.keep()
    await queue.add_items([Item(b"x", id=one) for one in "abcd"])
    await queue.stats()
    clock.now += 60
    lease = await take(queue, 600)
    clock.now += 2
    await queue.complete(lease)
    await queue.fail(await take(queue, 600), "an error", retry_in=600)
    await queue.fail(await take(queue, 600), "an error")
    await queue.stats()
    clock.now += 60
    history = await queue.history(count=3)
    assert (history.queue, history.kept, history.at) == (queue.name, True, clock.now)
    first, second, third = history.cells
    assert [cell.start for cell in history.cells] == [clock.now // 60 * 60 - 60 * back for back in (2, 1, 0)]
    assert {cell.seconds for cell in history.cells} == {60.0}
    assert [cell.over for cell in history.cells] == [True, True, False]
    assert (first.added, first.completed, first.runs) == (4, 0, NONE)
    assert (second.added, second.completed, second.failed, second.dead, second.expired) == (0, 1, 2, 1, 0)
    assert (second.runs, second.waits, second.oldest_age) == ((2, 0, 0, 1, 0, 0, 0), NONE, 62.0)
    assert (third.added, third.completed, third.oldest_age) == (0, 0, 0)


@pytest.mark.core
async def test_history_is_exact_with_many_callers_in_several_processes_sessions(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await queue.history.keep()
    others = [queue, make_queue(), make_queue()]

    async def work(at: int) -> bool:
        one = others[at % 3]
        await one.add_item(Item(b"x", id=str(at)))
        lease = await one.lease(60, timeout=None)
        return await one.complete(lease)

    assert all(await asyncio.gather(*map(work, range(300))))
    cell = await now_of(queue)
    assert (cell.added, cell.completed, sum(cell.runs), cell.failed, cell.expired) == (300, 300, 300, 0, 0)


async def test_what_another_client_completes_is_not_counted_and_a_stop_keeps_what_was(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.history.keep()
    await queue.add_item(Item(b"x", id="a"))
    await take(queue)
    await redis.delete(f"{queue.name}:item:a")
    await queue.light_clean()
    await queue.history.stop()
    await queue.add_item(Item(b"x", id="b"))
    cell = await now_of(queue)
    assert (cell.added, cell.completed, cell.failed, cell.dead) == (1, 0, 0, 0)
    assert not (await queue.history()).kept


async def test_history_of_a_queue_that_is_always_busy_takes_as_much_memory_as_the_docs_say(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis
) -> None:
    await queue.history.keep()
    end = clock.now
    for hours in (*range(24 * 400, 60, -24), *range(60, -1, -1)):
        clock.now = end - 3600 * hours
        await queue.add_item(Item(b"x", id=str(hours)))
    busy = await price(redis, queue.name, end)
    assert HIGHEST_BYTES * 0.8 < busy <= HIGHEST_BYTES


async def test_history_of_an_idle_queue_takes_no_memory(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis
) -> None:
    await queue.history.keep()
    for _ in range(10):
        await queue.stats()
        await queue.lease(10, block=False)
        clock.now += 3600
    assert await price(redis, queue.name, 0) == 0
    used = await redis.memory_usage(f"{queue.name}:events:keep")
    assert used is not None
    assert used <= 200  # the switch


@pytest.mark.parametrize(
    ("tier", "count"), [("week", 1), ("minute", 0), ("minute", 2881), ("hour", 745), ("day", 367)]
)
async def test_more_than_is_kept_is_refused(queue: AsyncWorkQueue, tier: str, count: int) -> None:
    with pytest.raises(InvalidArgument):
        await queue.history(tier, count=count)  # type: ignore[arg-type]  # on purpose


async def test_all_that_is_kept_can_be_read_at_once(queue: AsyncWorkQueue) -> None:
    for tier, count in (("minute", 2880), ("hour", 744), ("day", 366)):
        assert len((await queue.history(tier, count=count)).cells) == count  # type: ignore[arg-type]  # a str


async def test_fsck_gives_history_a_time_to_live_and_renames_a_key_of_another_type(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x"))
    await redis.set(f"{queue.name}:rollup:day:1", b"x")
    await redis.rpush(f"{queue.name}:rollup:day:2", "x")
    found = {one.problem for one in (await queue.admin.fsck()).findings}
    assert found == {Problem.NO_TIME_TO_LIVE, Problem.RENAMED}
    assert await redis.pttl(f"{queue.name}:rollup:day:1") > 0
    assert await keys_like(redis, glob(queue.name) + b":lost:*") == [
        f"{queue.name}:lost:rollup:day:2".encode()
    ]
