"""Published events: pushed at once, in order, with the results, never a gap without an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    AsyncWorkQueue,
    ConnectionLost,
    Failure,
    InvalidArgument,
    Item,
    LeasequeueError,
    QueueClosed,
)
from leasequeue.errors import EventsLost, NoEventsKept, NoEventsPublished, ServerRefused
from leasequeue.queue.pushes.live_events import LiveEvents
from leasequeue.queue.pushes.seals import unsealed
from tests.eventually import LIMIT_SECONDS, eventually
from tests.queue.asking import command, kept, take, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.embedded import EmbeddedServer
    from leasequeue.testing import Proxy
    from leasequeue.views import Event
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


class Reader:
    """Collects what a reader of published events gets."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self._arrived = asyncio.Event()
        self._error: LeasequeueError | None = None

    async def read(self, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                self.seen.append(event)
                self._arrived.set()
        except LeasequeueError as error:
            self._error = error
            self._arrived.set()
            raise

    async def until(self, what: str, *, count: int = 1) -> list[Event]:
        """Wait until so many events of a kind were read; return all."""
        async with asyncio.timeout(120):
            while sum(event.what == what for event in self.seen) < count:
                await self._next()
        return self.seen

    async def reaches(self, number: int) -> None:
        """Wait until the event with a number was read."""
        async with asyncio.timeout(120):
            while not self.seen or self.seen[-1].number < number:
                await self._next()

    async def _next(self) -> None:
        self._arrived.clear()
        if self._error is None:
            await self._arrived.wait()
        if self._error is not None:
            raise AssertionError(f"after {len(self.seen)} events") from self._error


@asynccontextmanager
async def reading(queue: AsyncWorkQueue, **options: Any) -> AsyncIterator[Reader]:
    """Read the published events of a queue until the block ends."""
    reader, live = Reader(), live_of(queue)
    count = len(live._readers) + 1
    task = asyncio.create_task(reader.read(queue.events(live=True, **options)))
    try:
        await until_read(queue, count)
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def live_of(queue: AsyncWorkQueue) -> LiveEvents:
    """Return what passes on the published events to the readers of a queue object."""
    return queue.events._engine().live_events


async def until_read(queue: AsyncWorkQueue, count: int = 1) -> None:
    """Wait until a queue object has so many readers, which get all that is published from now on."""

    async def are_there() -> bool:
        live = live_of(queue)
        return len(live._readers) == count and live._subscription is not None and live._subscription.ready

    await until(f"{count} readers are there", are_there)
    for _ in range(2):  # replies come in order, of a script that the server does not know at the second try
        with contextlib.suppress(ConnectionLost):  # which was cut just before
            await queue.counts()


async def next_of(
    queue: AsyncWorkQueue, *arguments: int
) -> tuple[AsyncIterator[Event], asyncio.Future[Event]]:
    """Begin to read; return the iterator, and what its first event will be."""
    count, events = len(live_of(queue)._readers) + 1, aiter(queue.events(*arguments, live=True))
    ahead = asyncio.ensure_future(anext(events))
    await until_read(queue, count)
    return events, ahead


@pytest.fixture(autouse=True)
def never_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers go by what is published."""
    monkeypatch.setattr("leasequeue.queue.pushes.live_events.CHECK_SECONDS", 1000.0)


@pytest.mark.seed("WRQ-G7")
async def test_what_is_published_and_kept_is_the_same(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    await queue.events.keep(count=10_000)
    begin = await queue.events.publish()
    async with reading(make_queue()) as reader:
        await queue.add_items([Item(b"x", id=f"{n}") for n in range(300)], delay=0.05)
        await queue.add_items([Item(b"x", id=f"é{n}") for n in range(300)])
        leases = await queue.lease_many(300, 30)
        await queue.renew_many(leases, 60)
        await queue.release_many(leases[:9], delay=60)
        await queue.fail_many(
            [Failure(lease, "nö", 0 if at % 2 else None) for at, lease in enumerate(leases)]
        )
        last = (await kept(queue))[-1]
        await reader.until(
            last.what, count=sum(event.what == last.what for event in await kept(queue, begin))
        )
    assert reader.seen == await kept(queue, begin)


async def test_nothing_is_published_by_default_or_after_stop(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    with pytest.raises(NoEventsPublished, match="publish"):
        await anext(aiter(queue.events(live=True)))
    begin = await queue.events.keep(count=100)
    with pytest.raises(NoEventsPublished):
        await anext(aiter(queue.events(live=True)))
    assert await queue.events.publish() == begin
    async with reading(make_queue()) as reader:
        await queue.add_item(Item(b"", id="a"))
        await reader.until("added")
        await queue.events.stop("kept")
        await queue.add_item(Item(b"", id="b"))
        assert [event.id for event in await reader.until("added", count=2)] == ["a", "b"]
        assert [event.number - begin for event in reader.seen] == [1, 2]
        with pytest.raises(NoEventsKept):
            await kept(queue)
    await queue.events.stop()
    assert not await redis.exists(f"{name}:events", f"{name}:events:keep")
    with pytest.raises(NoEventsPublished):
        await anext(aiter(queue.events(live=True)))
    assert await queue.events.publish() > begin + 2
    await queue.events.keep(count=100)
    await queue.events.stop("live")
    assert await kept(queue) == []
    with pytest.raises(NoEventsPublished):
        await anext(aiter(queue.events(live=True)))


async def test_a_reader_is_told_that_publishing_has_ended(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await queue.events.publish()
    events, first = await next_of(make_queue())
    await queue.add_items([Item(b"", id="a"), Item(b"", id="b")])
    await queue.events.stop()
    async with asyncio.timeout(120):
        assert [(await first).id, (await anext(events)).id] == ["a", "b"]
        with pytest.raises(NoEventsPublished):
            await anext(events)


async def test_a_reader_is_told_that_the_queue_is_deleted(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await queue.events.publish()
    reader, (events, first) = Reader(), await next_of(make_queue())
    await queue.add_items([Item(b"", id="a"), Item(b"", id="b")])
    await queue.admin.delete()
    assert (await first).id == "a"
    async with asyncio.timeout(120):
        with pytest.raises(NoEventsPublished):
            await reader.read(events)
    seen = [(event.what, event.id) for event in reader.seen]
    assert seen[:2] == [("added", "b"), ("deleted", "")]
    assert sorted(seen[2:]) == [("discarded", "a"), ("discarded", "b")]


async def test_a_reader_goes_on_from_a_number_without_a_gap(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await queue.events.keep(count=10_000)
    begin = await queue.events.publish()
    await queue.add_items([Item(b"", id=f"{n}") for n in range(600)])
    seen: list[Event] = []

    async def read(since: int, count: int) -> int:
        async for event in make_queue().events(since, live=True):
            seen.append(event)
            if len(seen) == count:
                break
        return seen[-1].number

    async with asyncio.timeout(120):
        task = asyncio.create_task(read(begin + 100, 700))
        for n in range(600, 900):
            await queue.add_item(Item(b"", id=f"{n}"))
        last = await task
        await read(last, 800)
    assert [event.id for event in seen] == [f"{n}" for n in range(100, 900)]
    with pytest.raises(InvalidArgument, match="since"):
        await anext(aiter(queue.events(begin + 10_000, live=True)))


async def test_from_a_number_that_is_not_kept_events_are_lost(queue: AsyncWorkQueue) -> None:
    begin = await queue.events.publish()
    await queue.add_items([Item(b"", id="a"), Item(b"", id="b")])
    with pytest.raises(EventsLost, match="not connected or too slow") as lost:
        await anext(aiter(queue.events(begin, live=True)))
    assert (lost.value.after, lost.value.first_kept) == (begin, begin + 3)
    _, ahead = await next_of(queue, begin + 2)
    await queue.add_item(Item(b"", id="c"))
    assert (await ahead).id == "c"


@pytest.mark.parametrize("ends", [{"count": 100}, None], ids=["kept", "not kept"])
async def test_what_is_missed_is_taken_from_the_kept_events_or_raises_events_lost(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str, ends: dict[str, int] | None
) -> None:
    """Here a message is missing, as when the server has ended the connection in between."""
    if ends:
        await queue.events.keep(**ends)
    begin = await queue.events.publish()
    live = await redis.hget(f"{name}:events:keep", "live")
    assert live
    other = make_queue()
    async with reading(other) as reader:
        await queue.add_item(Item(b"", id="a"))
        await reader.until("added")
        await redis.hset(f"{name}:events:keep", "live", "")
        await queue.add_item(Item(b"", id="missed"))
        await redis.hset(f"{name}:events:keep", "live", live)
        if ends:
            await queue.add_item(Item(b"", id="b"))
            await reader.until("added", count=3)
            assert [event.id for event in reader.seen] == ["a", "missed", "b"]
            return
    events, ahead = await next_of(other)
    await queue.add_item(Item(b"", id="b"))
    await redis.hset(f"{name}:events:keep", "live", "")
    await queue.add_item(Item(b"", id="missed, too"))
    await redis.hset(f"{name}:events:keep", "live", live)
    await queue.add_item(Item(b"", id="c"))
    assert (await ahead).id == "b"
    with pytest.raises(EventsLost) as lost:
        await anext(events)
    assert (lost.value.after, lost.value.first_kept) == (begin + 3, begin + 5)


async def test_a_server_that_has_lost_its_last_writes_is_noticed(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    begin = await queue.events.publish()
    events, ahead = await next_of(make_queue())
    await queue.add_items([Item(b"", id=id_) for id_ in "abc"])
    assert [(await ahead).id, *[(await anext(events)).id for _ in range(2)]] == [*"abc"]
    await redis.hset(f"{name}:events:keep", "last", begin + 1)  # as a replica that lags, after a fail-over
    await queue.add_item(Item(b"", id="d"))
    with pytest.raises(EventsLost, match="lost its last writes"):
        await anext(events)


async def test_an_event_whose_message_comes_after_its_number_is_read(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.events.publish()
    messages: list[bytes] = []
    added, asked = asyncio.Event(), asyncio.Event()
    receive, last = LiveEvents._received, LiveEvents.last

    async def last_after_adding(events: LiveEvents) -> int:
        if events._subscription is None:
            return await last(events)  # before it subscribes
        await added.wait()
        number = await last(events)
        asked.set()
        return number

    monkeypatch.setattr(LiveEvents, "_received", lambda _, message: messages.append(message))
    monkeypatch.setattr(LiveEvents, "last", last_after_adding)
    monkeypatch.setattr(LiveEvents, "_checked", lambda *_: None)  # what follows messages overtakes none
    other = make_queue()
    _, ahead = await next_of(other)
    for id_ in "ab":
        await queue.add_item(Item(b"", id=id_))
    added.set()
    await asked.wait()
    await eventually("both messages have come", lambda: len(messages) >= 2)
    for message in messages:
        receive(live_of(other), message)
    async with asyncio.timeout(120):
        assert (await ahead).id == "a"


async def test_a_reader_survives_cuts_that_follow_each_other(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loses a call, and the channel is there again in between."""
    await queue.events.publish()
    other = make_queue()
    async with reading(other) as reader:
        await until_read(other)
        live = live_of(other)
        last, calls = live.last, list[None]()

        async def lost_twice() -> int:
            calls.append(None)
            if len(calls) == 1:
                live._lost.set()
            if len(calls) < 3:
                raise ConnectionLost("cut", maybe_applied=False)
            return await last()

        monkeypatch.setattr(live, "last", lost_twice)
        live._lost.set()
        await eventually("it has asked again", lambda: len(calls) >= 3)
        await queue.add_item(Item(b"", id="a"))
        await reader.until("added", count=1)


async def test_a_reader_ends_when_calls_are_lost_though_nothing_cuts_the_channel(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.events.publish()
    other = make_queue()
    _, ahead = await next_of(other)

    async def lost() -> int:
        raise ConnectionLost("cut", maybe_applied=False)

    monkeypatch.setattr(live_of(other), "last", lost)
    live_of(other)._lost.set()
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(ahead, LIMIT_SECONDS)


async def test_a_reader_survives_a_cut_of_its_connection(
    make_queue: MakeQueue, proxy: Proxy, queue: AsyncWorkQueue
) -> None:
    await queue.events.keep(count=1000)
    await queue.events.publish()
    through = make_queue(url=proxy.url)
    async with reading(through) as reader:
        for n in range(5):
            await queue.add_item(Item(b"", id=f"{n}"))
            await reader.until("added", count=2 * n + 1)
            await proxy.cut()
            await until_read(through)
            await queue.add_item(Item(b"", id=f"{n} after"))
            await reader.until("added", count=2 * n + 2)
    assert [event.id for event in reader.seen] == [f"{n}{part}" for n in range(5) for part in ("", " after")]


async def test_a_check_that_is_cut_with_the_channel_is_repeated(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both connections are lost together; the channel may be back before the call has failed."""
    await queue.events.publish()
    async with reading(queue) as reader:
        events, calls = live_of(queue), list[str]()
        run = events._run_script

        async def cut_once(name: str, **arguments: Any) -> Any:
            calls.append(name)
            if len(calls) == 1:
                raise ConnectionLost("cut", maybe_applied=True)
            return await run(name, **arguments)

        monkeypatch.setattr(events, "_run_script", cut_once)
        events._lost.set()
        await eventually("it was repeated", lambda: len(calls) == 2)
        await queue.add_item(Item(b"", id="x"))
        assert [event.id for event in await reader.until("added")] == ["x"]


async def test_readers_end_with_their_queue(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    await queue.events.publish()
    other = make_queue()
    waits = [(await next_of(other))[1] for _ in range(3)]
    await other.close()
    assert [type(error) for error in await asyncio.gather(*waits, return_exceptions=True)] == [
        QueueClosed
    ] * 3


async def test_the_connection_ends_with_the_last_reader(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.events.publish()

    async def connections() -> int:
        return sum(":events:" in one["name"] for one in await redis.client_list())

    async with reading(queue):
        async with reading(queue):
            assert await connections() == 1
        assert await connections() == 1

    async def is_closed() -> bool:
        return await connections() == 0

    await until("the connection is closed", is_closed)


async def test_a_reader_that_is_too_slow_loses_events_and_no_memory(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.queue.pushes.live_events.MAX_WAITING_BYTES", 50_000)
    begin = await queue.events.publish()
    other = make_queue()
    events, ahead = await next_of(other)
    await queue.add_item(Item(b"", id="first"))
    assert (await ahead).number == begin + 1
    await queue.add_items([Item(b"x") for _ in range(3000)])
    [slow] = live_of(other)._readers

    async def has_dropped() -> bool:
        return (slow.next_number or 0) > begin + 2

    await until("the reader has dropped events", has_dropped)
    with pytest.raises(EventsLost) as lost:
        await Reader().read(events)
    assert lost.value.after < lost.value.first_kept - 1


async def test_a_result_that_is_too_large_is_told_by_its_size(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await queue.events.publish()
    async with reading(make_queue()) as reader:
        await queue.add_items([Item(b"", id=id_) for id_ in ("fits", "too large", "none")])
        results = [b"r" * 65_536, b"r" * 65_537, None]
        await queue.complete_many(await queue.lease_many(3, 30), results=results, keep_result=60)
        events = {event.id: event for event in await reader.until("completed", count=3)}
    assert (events["fits"].result, events["fits"].result_size) == (b"r" * 65_536, None)
    assert (events["too large"].result, events["too large"].result_size) == (None, 65_537)
    assert (events["none"].result, events["none"].result_size) == (None, None)


@pytest.mark.seed("WRQ-O6")
async def test_a_result_can_be_published_without_being_kept(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    await queue.events.publish()
    async with reading(make_queue()) as reader:
        await queue.add_item(Item(b"", id="x"))
        assert await queue.complete(await take(queue), result=b"done", keep_result=None)
        assert (await reader.until("completed"))[-1].result == b"done"
    assert await redis.exists(f"{name}:result:x") == 0
    assert await queue.results.get("x") is None


async def test_events_of_the_queue_tell_what_was_done_to_it(
    queue: AsyncWorkQueue, make_queue: MakeQueue, clock: Clock
) -> None:
    await queue.events.publish()
    async with reading(make_queue()) as reader:
        await queue.pause(reason="the bänk is closed", for_=60)
        await queue.pause(group="tenant-7")
        await queue.resume()
        await queue.resume()  # an event comes once
        await queue.limits.set(concurrency=3)
        await queue.limits.set(concurrency=3)
        await queue.limits.remove(group="g")
        await queue.add_items([Item(b"", id="a"), Item(b"", id="b")])
        assert await queue.admin.purge() == 2
        events = await reader.until("purged")
    assert [event.what for event in events if not event.id] == [
        *("paused", "paused", "resumed", "limited", "purged")
    ]
    first, second, resumed, limited, *_ = events
    assert (first.reason, first.until, first.group) == ("the bänk is closed", clock.now + 60, None)
    assert (second.reason, second.until, second.group) == (None, None, "tenant-7")
    assert (resumed.reason, resumed.group) == (None, None)
    assert limited.limits == {"concurrency": "3"}
    assert [(event.what, event.reason) for event in events if event.id in {"a", "b"}] == [
        *(("added", None), ("added", None), ("discarded", "purged"), ("discarded", "purged"))
    ]
    assert events[-1].count == 2


async def test_readers_choose_items_and_kinds(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    await queue.events.keep(count=100)
    await queue.events.publish()
    other = make_queue()
    async with reading(other, ids={"a"}) as one, reading(other, kinds=["completed"]) as ends:
        await queue.add_items([Item(b"", id="a"), Item(b"", id="b")])
        await queue.complete_many(await queue.lease_many(2, 30))
        await ends.until("completed", count=2)
        await one.until("completed")
    assert [(event.what, event.id) for event in one.seen] == [
        *(("added", "a"), ("leased", "a"), ("completed", "a"))
    ]
    assert [(event.what, event.id) for event in ends.seen] == [("completed", "a"), ("completed", "b")]
    found = [event async for event in queue.events(ids={"b"}, kinds=("added", "leased"), follow=False)]
    assert [(event.what, event.id) for event in found] == [("added", "b"), ("leased", "b")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"live": True, "follow": False}, "follow"),
        ({"ids": "a"}, "ids"),
        ({"kinds": "added"}, "kinds"),
        ({"kinds": ["adde"]}, "one of added, "),
        ({"live": True, "since": -1}, "since"),
    ],
)
async def test_invalid_arguments_are_refused(
    queue: AsyncWorkQueue, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        queue.events(**options)
    with pytest.raises(InvalidArgument, match="only"):
        await queue.events.stop("everything")  # type: ignore[arg-type]


async def test_a_message_is_json_behind_its_seal(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.events.publish()
    await redis.hset(f"{name}:events:keep", "live", "plain 5ec4e7")
    async with redis.pubsub() as other:
        await other.subscribe(f"{name}:live")
        await queue.add_items([Item(b"12", id="a"), Item(b"", id='"ü\x00')])

        async def message() -> bool:
            found = await other.get_message(ignore_subscribe_messages=True, timeout=0.1)
            messages.extend([found["data"]] if found else [])
            return bool(messages)

        messages: list[bytes] = []
        await until("a message", message)
    published = json.loads(unsealed(messages[0], b"5ec4e7") or b"")
    last = await queue.events.publish()
    assert published["first"] == last - 1
    common = {"what": "added", "time": published["events"][0]["time"]}
    assert published["events"] == [common | {"id": "a", "size": 2}, common | {"id": '"ü\x00', "size": 0}]


async def test_who_may_not_publish_can_work_and_its_events_are_missed(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.queue.pushes.live_events.CHECK_SECONDS", 0.05)
    await command(admin, "ACL", "SETUSER", "mute", "on", ">pw", f"~{name}:*", "resetchannels", "+@all")
    owner, mute = make_queue(url=own.url), make_queue(url=own.url.replace("redis://", "redis://mute:pw@"))
    await owner.events.publish()
    _, waits = await next_of(owner)
    assert await mute.add_item(Item(b"x"))
    assert await mute.complete(await take(mute))
    async with asyncio.timeout(120):
        with pytest.raises(EventsLost):
            await waits
    with pytest.raises(ServerRefused):
        await anext(aiter(mute.events(live=True)))


async def test_tokens_from_the_clock_are_in_events(queue: AsyncWorkQueue, redis: Redis) -> None:
    """They have more digits than others: the counter was lost."""
    await queue.events.keep(count=100)
    await queue.events.publish()
    async with reading(queue) as reader:
        await queue.add_items([Item(b"", id=one) for one in "ab"])
        await take(queue, block=False)
        await redis.unlink(f"{queue.name}:fence")
        lease = await take(queue, block=False)
        assert lease.token > 10**15
        seen = await reader.until("leased", count=2)
    for events in (seen, await kept(queue)):
        assert [event.token for event in events if event.what == "leased"] == [1, lease.token]
