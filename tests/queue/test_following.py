"""Following the kept events: notified at once, resumable, and never a gap without an error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, InvalidArgument, Item, QueueClosed
from leasequeue.errors import EventsLost
from tests.queue.asking import kept
from tests.queue.keyspace import calls

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from leasequeue.views import Event
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def never_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let followers read only when they are notified."""
    monkeypatch.setattr("leasequeue.queue.events.LONGEST_SLEEP", 1000.0)


async def test_a_follower_is_notified_at_once_and_resumes_where_it_stopped(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await queue.events.keep(count=10_000)
    seen: list[Event] = []

    async def follow(since: int | None, until: int) -> None:
        async for event in make_queue().events(since):
            seen.append(event)
            if len(seen) == until:
                break

    async with asyncio.timeout(120):
        first = asyncio.create_task(follow(None, 1500))
        for n in range(3000):
            await queue.add_item(Item(b"", id=f"{n}"))
        await first
        await follow(seen[-1].number, 3000)
    assert [event.id for event in seen] == [f"{n}" for n in range(3000)]


async def test_each_event_arrives_within_a_second(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    await queue.events.keep(count=1000)
    events = aiter(make_queue().events())
    for n in range(30):
        ahead = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.01 * (n % 3))
        await queue.add_item(Item(b"", id=f"{n}"))
        async with asyncio.timeout(120):
            assert (await ahead).id == f"{n}"


@pytest.mark.seed("WRQ-B10")
async def test_an_event_arrives_that_is_emitted_while_a_follower_subscribes(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    last, other = await queue.events.keep(count=1000), make_queue()
    for n in range(100):
        events = aiter(other.events(last))
        ahead = asyncio.ensure_future(anext(events))
        for _ in range(n % 50):
            await asyncio.sleep(0)
        await queue.add_item(Item(b"", id=f"{n}"))
        async with asyncio.timeout(120):
            last = (await ahead).number
        await events.aclose()  # type: ignore[attr-defined]


async def test_where_there_is_no_event_yet_reading_ends_and_following_waits(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    begin = await queue.events.keep(count=1000)
    async with asyncio.timeout(120):
        assert await kept(queue) == []
        other = make_queue()
        waits = asyncio.ensure_future(anext(aiter(other.events())))
        before = await calls(redis, "evalsha")
        for _ in range(200):
            await redis.ping()
        assert await calls(redis, "evalsha") - before < 10
        await queue.add_item(Item(b"", id="first"))
        assert (await waits).number == begin + 1
        await redis.delete(f"{name}:events")  # as when the time of all is over
        assert await kept(queue) == []


async def test_a_follower_survives_a_cut_of_its_connection(
    make_queue: MakeQueue, proxy: Proxy, queue: AsyncWorkQueue
) -> None:
    through, seen = make_queue(url=proxy.url), await queue.events.keep(count=1000)
    events = aiter(through.events(seen))
    async with asyncio.timeout(120):
        for n in range(5):
            ahead = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.05)
            await proxy.cut()
            await queue.add_item(Item(b"", id=f"{n}"))
            try:
                event = await ahead
            except ConnectionLost:  # what was cut was its question
                events = aiter(through.events(seen))
                event = await anext(events)
            assert event.id == f"{n}"
            seen = event.number


async def test_a_follower_ends_with_its_queue(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    await queue.events.keep(count=10)
    other = make_queue()
    waits = asyncio.ensure_future(anext(aiter(other.events())))
    await asyncio.sleep(0.05)
    await other.close()
    with pytest.raises(QueueClosed):
        await waits


@pytest.mark.parametrize("has_read", [0, 10])
async def test_a_follower_that_is_too_slow_gets_events_lost(
    queue: AsyncWorkQueue, make_queue: MakeQueue, has_read: int
) -> None:
    begin = await queue.events.keep(count=200)
    events = aiter(make_queue().events())
    if has_read:
        await queue.add_items([Item(b"", id=f"{n}") for n in range(has_read)])
        assert [(await anext(events)).id for _ in range(has_read)] == [f"{n}" for n in range(has_read)]
    else:
        ahead = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        await queue.add_item(Item(b"", id="woken"))
        assert (await ahead).number == begin + 1
    for _ in range(2):
        await queue.add_items([Item(b"x") for _ in range(1000)])
    with pytest.raises(EventsLost) as lost:
        await anext(events)
    assert lost.value.after == begin + (has_read or 1)
    assert (await kept(queue, lost.value.first_kept - 1))[0].number == lost.value.first_kept


async def test_a_follower_notices_that_the_server_has_lost_events(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    begin = await queue.events.keep(count=1000)
    await queue.add_item(Item(b"", id="a"))
    saved = {key: await redis.dump(key) for key in (f"{name}:events", f"{name}:events:keep")}
    await queue.add_items([Item(b"", id=id_) for id_ in "bcd"])
    events = aiter(make_queue().events(begin))
    assert [(await anext(events)).id for _ in range(4)] == [*"abcd"]
    for key, dumped in saved.items():  # as a replica that lags behind, after a fail-over
        assert dumped
        await redis.restore(key, 0, dumped, replace=True)
    await queue.add_item(Item(b"", id="e"))
    with pytest.raises(EventsLost, match=f"lost its last writes.* since={begin + 2}") as lost:
        await anext(events)
    assert (lost.value.after, lost.value.first_kept) == (begin + 4, begin + 3)
    with pytest.raises(InvalidArgument, match=f"at most {begin + 2}"):
        await kept(queue, begin + 4)
    assert [event.id for event in await kept(queue, begin)] == ["a", "e"]
