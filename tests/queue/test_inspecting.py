"""Counts and inspection show the items and change nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.queue import queue as queue_module
from leasequeue.states import ITEM_STATES
from leasequeue.views import Counts, ItemView
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core


async def ids(queue: AsyncWorkQueue, start: int, count: int, state: str = "waiting") -> list[str]:
    views = await queue.inspect(state, start=start, count=count)  # type: ignore[arg-type]
    return [view.id for view in views]


async def test_counts_and_inspection_of_an_empty_queue(queue: AsyncWorkQueue, redis: Redis) -> None:
    assert await queue.counts() == Counts(0, 0, 0, 0)
    assert (await queue.queue_len(), await queue.processing()) == (0, 0)
    for state in ("waiting", "leased", "scheduled"):
        assert await ids(queue, 0, 100, state) == []
        assert await ids(queue, -1, 100, state) == []
    assert not await redis.keys(f"{queue.name}*")


@pytest.mark.seed("RWQ-O15", "RWQ-O16", "WRQ-O13", "WRQ-O19", "GLD-O20", "RRQ-O8")
async def test_counts_of_each_state(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_items([Item(b"x") for _ in range(5)])
    await queue.add_items([Item(b"x") for _ in range(4)], delay=10)
    await queue.lease_many(2, 5)
    counts = await queue.counts()
    assert counts == (3, 2, 4, 0)
    assert (counts.waiting, counts.leased, counts.scheduled, counts.dead, counts.total) == (3, 2, 4, 0, 9)
    assert (await queue.queue_len(), await queue.processing()) == (3, 2)
    clock.now += 100  # no client has reclaimed what is due
    assert await queue.counts() == (3, 2, 4, 0)
    await queue.lease_many(1, 5)
    assert await queue.counts() == (8, 1, 0, 0)
    [lease] = await queue.lease_many(1, 5)
    assert await queue.fail(lease, "given up")
    counts = await queue.counts()
    assert (counts, counts.total) == ((7, 1, 0, 1), 8), "dead letters are not unfinished items"


@pytest.mark.parametrize("state", ["waiting", "leased", "scheduled"])
@pytest.mark.seed("WRQ-O20", "GLD-O20", "RRQ-O6")
async def test_any_start_and_count(queue: AsyncWorkQueue, state: str) -> None:
    """The window is a slice of the list of all items, the next one first."""
    everything = [f"{n}" for n in range(7)]
    for n, item_id in enumerate(everything):
        await queue.add_item(Item(b"x", id=item_id), delay=10 + n if state == "scheduled" else 0)
        if state == "leased":
            await take(queue, 10 + n)
    for start in range(-9, 10):
        begin = start if start >= 0 else max(0, 7 + start)
        for count in (1, 2, 3, 7, 1000):
            end = max(0, start + count) if start >= 0 else max(0, 7 + start + count)
            assert await ids(queue, start, count, state) == everything[begin:end], (start, count)
    assert await ids(queue, 2**53, 1000, state) == []
    assert await ids(queue, -(2**53), 1000, state) == []


@pytest.mark.seed("WRQ-O18")
async def test_inspect_shows_a_waiting_item(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"data", id="x"))
    assert await queue.inspect() == [
        ItemView(
            id="x",
            state="waiting",
            size=4,
            data=b"data",
            holder=None,
            token=None,
            attempt=0,
            due=None,
            age=None,
            error=None,
        )
    ]
    [view] = await queue.inspect(data=False)
    assert (view.size, view.data) == (4, None)


@pytest.mark.seed("RRQ-O7")
async def test_inspect_shows_a_leased_item(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_item(Item(b"data", id="x"))
    await queue.lease(10)
    clock.now += 20
    lease = await take(queue, 10)
    clock.now += 3
    [view] = await queue.inspect("leased")
    assert (view.holder, view.token, view.attempt) == (queue.session, lease.token, 2)
    assert view.due == pytest.approx(clock.now + 7)
    assert view.age == pytest.approx(3)
    await queue.release(lease)
    clock.now += 1
    [view] = await queue.inspect()
    assert (view.holder, view.token, view.attempt, view.due) == (None, lease.token, 1, None)
    assert view.age == pytest.approx(4)


async def test_inspect_shows_when_a_scheduled_item_falls_due_by_the_servers_clock(
    queue: AsyncWorkQueue,
) -> None:
    await queue.add_item(Item(b"data", id="x"), delay=50)
    [view] = await queue.inspect("scheduled")
    assert view.due == pytest.approx(time.time() + 50, abs=10)
    assert (view.data, view.attempt, view.token) == (b"data", 0, None)


async def test_inspect_shows_a_ghost(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await redis.lpush(f"{name}:queue", "ghost")
    [view] = await queue.inspect()
    assert (view.id, view.size, view.data) == ("ghost", None, None)


async def test_large_payloads_are_left_out_of_the_reply(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "MAX_REPLY_BYTES", 100)
    await queue.add_items([Item(b"x" * size) for size in (60, 60, 40, 1)])
    views = await queue.inspect()
    assert [view.size for view in views] == [60, 60, 40, 1]
    assert [len(view.data) if view.data else None for view in views] == [60, None, 40, None]


@pytest.mark.usefixtures("clock")
@pytest.mark.seed("WRQ-O8", "GLD-O12")
async def test_an_item_is_found_in_each_state(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"data", id="scheduled"), delay=50)
    await queue.add_item(Item(b"data", id="leased"))
    await take(queue, 10)
    await queue.add_item(Item(b"data", id="waiting"))
    for state in ITEM_STATES:
        [view] = await queue.inspect(state)
        assert await queue.find(state) == view
        assert (view.id, view.state, view.data) == (state, state, b"data")
        bare = await queue.find(state, data=False)
        assert bare
        assert (bare.size, bare.data) == (4, None)


async def test_an_item_that_waits_for_its_retry_has_its_last_error(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    async def error() -> tuple[str | None, str | None]:
        view = await queue.find("x")
        assert view is not None
        (again,) = await queue.inspect(view.state)
        assert again.error == view.error
        return view.state, view.error

    await queue.add_items([Item(b"", id="x")])
    assert await error() == ("waiting", None)
    assert await queue.fail(await take(queue, 30), "é" * 600 + " first", retry_in=3600)
    assert await error() == ("scheduled", "é" * 497 + " first")
    await redis.zadd(f"{queue.name}:scheduled", {"x": 1})
    lease = await take(queue, 30)
    assert (await error())[0] == "leased"
    assert await queue.fail(lease, ValueError("second"), retry_in=0)
    assert await error() == ("waiting", "ValueError: second\n")
    assert await queue.fail(await take(queue, 30), "third")
    assert await queue.find("x") is None
    assert await queue.dead_letters.requeue("x") == [True]
    assert await error() == ("waiting", None)
    assert await queue.fail(await take(queue, 30), "fourth", retry_in=0)
    assert await queue.complete(await take(queue, 30))
    assert await queue.add_item(Item(b"", id="x"))
    assert await error() == ("waiting", None)
    assert not await redis.exists(f"{queue.name}:errors")


async def test_find_returns_none_for_an_id_without_an_item(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"data", id="done"))
    await queue.complete(await take(queue))
    await redis.lpush(f"{queue.name}:queue", "ghost")
    for item_id in ("done", "ghost", "never"):
        assert await queue.find(item_id) is None
    with pytest.raises(InvalidArgument):
        await queue.find("\ud800")


@pytest.mark.seed("RWQ-T6", "RWQ-B16")
async def test_counts_are_of_one_instant(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"work"))
    totals = set[int]()
    for _ in range(20):
        counts, lease = await asyncio.gather(queue.counts(), queue.lease(30, block=False))
        assert lease is not None
        later, released = await asyncio.gather(queue.counts(), queue.release(lease))
        assert released
        totals |= {counts.total, later.total}
    assert totals == {1}
