"""The events of a queue with shards: read by one cursor, each once, and none lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, InvalidArgument, Item
from leasequeue.errors import EventsLost, NoEventsKept
from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.queue import Event

pytestmark = [pytest.mark.core, pytest.mark.server]

COUNT = 4


@pytest.fixture
async def queue(redis: Redis, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue(name, redis, shards=COUNT) as one:
        yield one


async def add(queue: AsyncWorkQueue, begin: str, count: int = 20) -> list[str]:
    ids = [f"{begin}{n}" for n in range(count)]
    await queue.add_items([Item(b"x", id=one) for one in ids])
    return ids


async def some(queue: AsyncWorkQueue, count: int, since: str | None, *, live: bool = False) -> list[Event]:
    """Read so many events, as a follower that then ends."""
    reading = queue.events(since, live=live)
    async with asyncio.timeout(LIMIT_SECONDS):
        found = [await anext(reading) for _ in range(count)]
    await reading.aclose()  # type: ignore[attr-defined]
    return found


async def rest(queue: AsyncWorkQueue, since: str | None) -> list[Event]:
    return [event async for event in queue.events(since, follow=False)]


async def test_reading_is_resumed_after_each_event(queue: AsyncWorkQueue) -> None:
    await queue.events.keep(count=10_000)
    ids = await add(queue, "i")
    events = await rest(queue, None)
    assert sorted(event.id for event in events) == sorted(ids)
    for place, event in enumerate(events, 1):
        later = await rest(queue, event.cursor)
        assert [one.id for one in later] == [one.id for one in events[place:]]
        assert [one.cursor for one in later] == [one.cursor for one in events[place:]]
    assert await rest(queue, await queue.events.last_cursor()) == []
    assert events[-1].cursor == await queue.events.last_cursor()


@pytest.mark.parametrize("live", [False, True])
async def test_followers_that_take_over_from_each_other_lose_nothing(
    queue: AsyncWorkQueue, *, live: bool
) -> None:
    """A shard of which nothing was read yet has a place in the cursor, too."""
    await queue.events.keep(count=10_000)
    await queue.events.publish()
    await add(queue, "before")
    cursor: str | None = await queue.events.last_cursor() if live else None
    expected = await add(queue, "first", 3) if live else [f"before{n}" for n in range(20)]
    seen: list[str] = []
    for n in range(5):
        expected += await add(queue, f"round{n}-", 7)
        found = await some(queue, 6, cursor, live=live)
        seen += [event.id for event in found]
        cursor = found[-1].cursor
    seen += [event.id for event in await rest(queue, cursor)]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("live", [False, True])
async def test_a_cursor_names_the_begin_of_shards_without_events(
    queue: AsyncWorkQueue, *, live: bool
) -> None:
    """What was dropped there between two readings is missed, and not passed over."""
    await queue.events.keep(count=10_000)
    await queue.events.publish()
    reading = queue.events(live=live)
    first = asyncio.ensure_future(anext(reading))
    while not first.done():
        await queue.add_item(Item(b"x", id="a"))  # published events are read from when the reader has joined
        await queue.admin.purge()
        await asyncio.sleep(0)
    cursor = first.result().cursor
    await reading.aclose()  # type: ignore[attr-defined]
    other = next(shard for shard in queue.shards if shard is not queue.shard_of("a"))
    ids = [one for one in (f"o{n}" for n in range(100)) if queue.shard_of(one) is other]
    await queue.add_items([Item(b"x", id=one) for one in ids])
    await other.events.stop("kept")
    await other.events.keep(count=10_000)
    with pytest.raises(EventsLost) as caught:
        [event async for event in queue.events(cursor, follow=False)]
    assert repr(caught.value.cursor) in str(caught.value)
    after = [event.id for event in await rest(queue, caught.value.cursor)]
    assert not {*after} & {*ids}
    await queue.add_item(Item(b"x", id="new"))
    assert (await rest(queue, caught.value.cursor))[-1].id == "new"


async def test_what_is_no_cursor_of_the_queue_is_refused(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.events.keep(count=100)
    await add(queue, "i", 3)
    good = await queue.events.last_cursor()
    async with (
        AsyncWorkQueue(f"{queue.name}-8", redis, shards=8) as eight,
        AsyncWorkQueue(f"{queue.name}-group", redis, shards=COUNT, shard_by="group") as by_group,
        AsyncWorkQueue(f"{queue.name}-plain", redis) as plain,
    ):
        for other in (eight, by_group, plain):
            await other.events.keep(count=100)
            with pytest.raises(InvalidArgument, match="since"):
                other.events(good)
        others = [await one.events.last_cursor() for one in (eight, by_group, plain)]
        for bad in (
            *others,
            "",
            "x",
            f"{good[:-1]}g",
            f"{good}-1",
            good.replace("-", "-ffffffffffffffff", 1),
        ):
            with pytest.raises(InvalidArgument, match=f"which begins with {COUNT}id-"):
                queue.events(bad)
        with pytest.raises(InvalidArgument, match="`cursor` of an event"):
            queue.events(17)
        await plain.add_item(Item(b"x", id="a"))
        [event] = [one async for one in plain.events(follow=False)]
        assert event.cursor == str(event.number)
        assert [one async for one in plain.events(event.cursor, follow=False)] == []
    ahead = "-".join([f"{COUNT}id", *["f" * 14] * COUNT])
    with pytest.raises(InvalidArgument, match="at most"):
        await rest(queue, ahead)


async def test_a_shard_that_keeps_no_events_ends_the_reading(queue: AsyncWorkQueue) -> None:
    await queue.events.keep(count=100)
    await queue.shards[1].events.stop()
    for follow in (False, True):
        with pytest.raises(NoEventsKept):
            async with asyncio.timeout(LIMIT_SECONDS):
                [event async for event in queue.events(follow=follow)]
