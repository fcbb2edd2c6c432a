"""Counts and inspection show the items and change nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.queue import queue as queue_module
from leasequeue.states import ITEM_STATES
from leasequeue.views import ItemView
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core


async def ids(queue: AsyncWorkQueue, start: int, count: int, state: str = "waiting") -> list[str]:
    views = await queue.inspect(state, start=start, count=count)  # type: ignore[arg-type]
    return [view.id for view in views]


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


@pytest.mark.parametrize("start", [-1000, -300, -251])
async def test_a_start_from_the_end_may_be_before_the_list(queue: AsyncWorkQueue, start: int) -> None:
    """The first page is short then, or empty."""
    await queue.add_items(Item(b"", id=f"{n}") for n in range(200))
    assert await ids(queue, start, -start, "waiting") == [f"{n}" for n in range(200)]


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


async def test_large_payloads_are_left_out_of_the_reply(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "MAX_REPLY_BYTES", 100)
    await queue.add_items([Item(b"x" * size) for size in (60, 60, 40, 1)])
    views = await queue.inspect()
    assert [view.size for view in views] == [60, 60, 40, 1]
    assert [len(view.data) if view.data else None for view in views] == [60, None, 40, None]


@pytest.mark.parametrize(
    ("options", "flow"),
    [
        ('{"run":"home\\u0000r/1\\u0000s/0\\u0000mark"}', ("home", "r/1")),
        ('{"run":"no reference"}', (None, None)),
        ('{"run":7}', (None, None)),
        ("{}", (None, None)),
    ],
)
async def test_an_item_says_of_which_flow_run_it_is(
    queue: AsyncWorkQueue, redis: Redis, options: str, flow: object
) -> None:
    await queue.add_item(Item(b"x", id="r/1/s/0"), priority=1)
    await redis.hset(f"{queue.name}:options", "r/1/s/0", options)
    view = await queue.find("r/1/s/0")
    assert view is not None
    assert (view.flow_home, view.flow_run) == flow


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
