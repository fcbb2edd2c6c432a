"""Kept events: exact and bounded, none while they are off; followed at once, never a gap without an error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, InvalidArgument, Item, QueueClosed
from leasequeue.errors import EventsLost, NoEventsKept, WrongKeyType
from leasequeue.states import FIELDS, EventKind
from leasequeue.views import Event
from tests.queue.asking import kept, take, tick_all, what
from tests.queue.hand import ControllingHand, Hand
from tests.queue.keyspace import calls
from tests.queue.replay import Replay, live

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core

#: The events that random calls of one process do not cause.
RARE = {EventKind.RESTORED, EventKind.VANISHED, EventKind.MOVED, EventKind.DELETED, EventKind.WORKER_DOWN}


@pytest.mark.seed("RWQ-T9", "WRQ-O6", "WRQ-E3")
async def test_each_change_of_state_is_an_event(queue: AsyncWorkQueue, clock: Clock) -> None:
    begin = await queue.events.keep(count=1000)
    await queue.add_item(Item(b"12345", id="x"), delay=10)
    clock.now += 10
    lease = await take(queue, 100)
    await queue.renew(lease, 200)
    clock.now += 200
    late = await take(queue, 100)
    await queue.release(late)
    await queue.fail(await take(queue, 100), "first", retry_in=5)
    clock.now += 5
    await queue.fail(await take(queue, 100), "second")
    await queue.dead_letters.requeue("x")
    await queue.complete(last := await take(queue, 100))
    events = await kept(queue)
    assert [event.number for event in events] == [*range(begin + 1, begin + len(events) + 1)]
    assert [event.what for event in events] == [
        *("added", "due", "leased", "renewed", "expired", "leased", "released", "leased", "failed", "due"),
        *("leased", "died", "requeued", "leased", "completed"),
    ]
    assert {event.id for event in events} == {"x"}
    started = events[0].at
    common: dict[str, Any] = dict.fromkeys(("holder", "token", "attempt", "size", "due", "error"))
    common |= {"id": "x", "front": False}
    assert events[0] == Event(
        **common
        | {"number": begin + 1, "cursor": f"{begin + 1}", "what": "added", "at": started, "size": 5}
        | {"due": started + 10}
    )
    assert events[2] == Event(
        **common
        | {
            "number": begin + 3,
            "cursor": f"{begin + 3}",
            "what": "leased",
            "at": started + 10,
            "holder": queue.session,
            "size": 5,
        }
        | {"token": lease.token, "attempt": 1, "due": started + 110}
    )
    assert (events[3].token, events[3].due) == (lease.token, started + 210)
    assert (events[6].token, events[6].front, events[6].due) == (late.token, True, None)
    assert (events[8].error, events[8].attempt, events[8].due) == ("first", 2, events[8].at + 5)
    assert (events[11].error, events[11].attempt, events[11].size) == ("second", 3, 5)
    assert events[-1].token == last.token


async def test_items_of_schedules_have_events(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.events.keep(count=1000)
    await queue.schedules.every(10, "hourly", data=b"1234")
    clock.now += 10
    await tick_all(queue)
    [event] = await kept(queue)
    lease = await take(queue)
    assert (event.what, event.id, event.size, event.due) == ("added", lease.id, 4, None)


async def test_a_foreign_completion_becomes_an_event_when_a_clean_finds_it(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_item(Item(b"1", id="x"))
    await take(queue, 100)
    await redis.delete(f"{name}:item:x")
    clock.now += 100
    await queue.light_clean()
    assert (await what(queue))[-1] == "vanished x"


async def test_a_foreign_completion_becomes_an_event_when_the_holder_completes(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_item(Item(b"1", id="x"))
    lease = await take(queue)
    await redis.delete(f"{name}:item:x")
    assert not await queue.complete(lease)
    assert not await queue.complete(lease)
    events = await kept(queue)
    assert [event.what for event in events] == ["added", "leased", "vanished"]
    assert events[-1].token is None


async def test_repairs_of_a_deep_clean_are_events(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.events.keep(count=1000)
    await queue.add_item(Item(b"1", id="was leased"))
    await queue.release(await take(queue))  # so there is a ledger of it
    await redis.delete(f"{name}:item:was leased", f"{name}:queue")
    await redis.set(f"{name}:item:in no list", b"1")
    await queue.deep_clean()
    assert sorted((await what(queue))[3:]) == ["restored in no list", "vanished was leased"]


@pytest.mark.seed("WRQ-G4")
async def test_no_events_are_kept_by_default_or_after_stop(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"1"))
    assert not await redis.exists(f"{queue.name}:events", f"{queue.name}:events:keep")
    with pytest.raises(NoEventsKept, match="keep"):
        await kept(queue)
    before = await queue.events.keep(count=10)
    await queue.complete(await take(queue))
    assert [event.what for event in await kept(queue)] == ["leased", "completed"]
    await queue.events.stop()
    assert not await redis.exists(f"{queue.name}:events", f"{queue.name}:events:keep")
    assert await queue.events.keep(count=10) > before


async def test_no_number_is_used_twice_however_soon_events_are_kept_again(queue: AsyncWorkQueue) -> None:
    """The first number comes from the server's clock: two of the same millisecond have to differ."""
    last = 0
    for _ in range(50):
        assert await queue.events.keep(count=10) > last
        await queue.add_items([Item(b""), Item(b"")])
        last = (await kept(queue))[-1].number
        await queue.events.stop()


async def test_numbers_continue_after_a_failed_lease(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.events.keep(count=100)
    await queue.add_item(Item(b"1", id="late"), delay=5)
    await redis.delete(f"{name}:item:late")
    await redis.rpush(f"{name}:item:late", "a list")
    clock.now += 5
    with pytest.raises(WrongKeyType):
        await queue.lease(30, block=False)  # which has requeued the due item
    await queue.add_item(Item(b"1", id="next"))
    assert await what(queue) == ["added late", "due late", "added next"]


async def test_numbers_continue_after_a_step_that_an_error_has_ended(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    begin = await queue.events.keep(count=100)
    await queue.add_items([Item(b"1", id=id_) for id_ in "ab"])
    await redis.hset(f"{name}:events:keep", "last", begin)  # so it is if an error comes after the events
    assert await kept(queue, begin + 2) == []
    assert await queue.events.keep(count=100) == begin + 2
    await redis.hset(f"{name}:events:keep", "last", begin)
    await queue.add_items([Item(b"1", id=id_) for id_ in "cd"])
    events = await kept(queue, begin)
    assert [(event.number - begin, event.id) for event in events] == [*enumerate("abcd", 1)]
    assert [lease.id for lease in await queue.lease_many(9, 30)] == [*"abcd"]


async def test_an_inbox_of_the_wrong_type_ends_no_step(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.events.keep(count=100)
    await queue.add_item(Item(b"1", id="late"), delay=5)
    await redis.set(f"{name}:inbox:gone", "no list")
    await redis.zadd(f"{name}:sessions", {"gone": 1})
    clock.now += 5
    assert (await take(queue)).id == "late"
    assert await what(queue) == ["added late", "due late", "leased late"]


async def test_events_keep_the_end_of_an_error(queue: AsyncWorkQueue) -> None:
    await queue.events.keep(count=10)
    for retry_in in (0, None):
        await queue.add_item(Item(b"1", id="x"))
        await queue.fail(await take(queue), "begin" + "x" * 2000 + "ü end", retry_in=retry_in)
    errors = [event.error for event in await kept(queue) if event.error]
    assert len(errors) == 2
    assert all(error.endswith("xxü end") and len(error.encode()) == 1000 for error in errors)


async def test_the_count_of_kept_events_is_bounded(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.events.keep(count=200)
    await queue.add_items([Item(f"{n}") for n in range(2000)])
    length = await redis.xlen(f"{name}:events")
    assert 200 <= length <= 400
    events = await kept(queue)
    assert len(events) == length
    with pytest.raises(EventsLost) as lost:
        await kept(queue, events[0].number - 2)
    assert (lost.value.after, lost.value.first_kept) == (events[0].number - 2, events[0].number)
    assert await kept(queue, events[0].number - 1) == events


async def test_the_age_of_kept_events_is_bounded(queue: AsyncWorkQueue, clock: Clock, redis: Redis) -> None:
    await queue.events.keep(age=60)
    await queue.add_items([Item(f"{n}", id=f"{n}") for n in range(10)])
    clock.now += 59
    await queue.add_item(Item(b"", id="young"))
    clock.now += 1
    await queue.add_item(Item(b"", id="younger"))
    assert await what(queue) == ["added young", "added younger"]
    assert 0 < await redis.pttl(f"{queue.name}:events") <= 60_000
    last = (await kept(queue))[-1].number
    await redis.delete(f"{queue.name}:events")  # as when its time has come
    assert await kept(queue, last) == []
    with pytest.raises(EventsLost):
        await kept(queue, last - 1)
    await queue.events.keep(count=10)
    await queue.add_item(Item(b"", id="last"))
    assert await redis.pttl(f"{queue.name}:events") == -1


async def test_old_events_are_dropped_in_small_steps(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.events.keep(age=60)
    await queue.add_items([Item(f"{n}") for n in range(100)])
    clock.now += 30
    await queue.add_items([Item(f"{n}", id=f"younger {n}") for n in range(5)])
    clock.now += 30
    lengths = []
    for n in range(11):
        await queue.add_item(Item(b"", id=f"{n}"))
        lengths.append(await redis.xlen(f"{name}:events"))
    assert lengths == [96, 87, 78, 69, 60, 51, 42, 33, 24, 15, 16]
    assert (await what(queue))[:6] == [*(f"added younger {n}" for n in range(5)), "added 0"]


async def test_changed_bounds_keep_the_events(queue: AsyncWorkQueue) -> None:
    begin = await queue.events.keep(count=1000)
    await queue.add_items([Item(b"", id=id_) for id_ in "ab"])
    assert await queue.events.keep(age=60) == begin + 2
    assert await queue.events.keep(count=500, age=60) == begin + 2
    await queue.add_item(Item(b"", id="c"))
    events = await kept(queue, begin)
    assert [(event.number - begin, event.id) for event in events] == [*enumerate("abc", 1)]


async def test_no_bound_and_an_invalid_since_are_refused(queue: AsyncWorkQueue) -> None:
    with pytest.raises(InvalidArgument, match="count, age or both"):
        await queue.events.keep()
    last = await queue.events.keep(count=10)
    with pytest.raises(InvalidArgument, match="since"):
        queue.events(-1)
    with pytest.raises(InvalidArgument, match=f"at most {last}"):
        await kept(queue, last + 1)
    assert await kept(queue, last) == []


async def test_rare_fields_of_an_event_come_as_details(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    begin = await queue.events.keep(count=10)
    await queue.add_item(Item(b"", id="x"))
    details = '{"group":"g","until":1500,"reason":"for \\u00fc","unknown":1}'
    fields: dict[Any, Any] = dict.fromkeys(FIELDS, "")
    fields |= {"what": "paused", "time": 1, "details": details}
    await redis.xadd(f"{name}:events", fields, id=f"{begin + 2}-1")
    plain, paused = await kept(queue)
    assert (plain.reason, plain.until, plain.group, plain.worker) == (None, None, None, None)
    assert (paused.what, paused.id, paused.size) == ("paused", "", None)
    assert (paused.reason, paused.until, paused.group) == ("for ü", 1.5, "g")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [8_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("kind", "return_to"), [(Hand, "end"), (Hand, "front"), (ControllingHand, "end")])
@pytest.mark.seed("WRQ-B16")
async def test_replaying_the_events_gives_the_live_key_space_again(
    make_queue: MakeQueue, redis: Redis, name: str, clock: Clock, kind: type[Hand], return_to: str, count: int
) -> None:
    """Also with levels and groups, in a queue that is limited, paused and purged, and whose workers fail."""
    queue = make_queue(clock=clock, return_to=return_to)
    begin = last = await queue.events.keep(count=10 * count)
    hand, replay, emitted, most = kind(queue, clock, seed=7), Replay(), set[str](), 0
    while last < begin + count:
        for _ in range(50):
            await hand.act()
        await redis.delete(f"{name}:failed_session:{queue.session}")  # as after an hour
        async for event in queue.events(last, follow=False):
            replay.take(event)
            emitted.add(event.what)
            last = event.number
        found = await live(redis, name)
        if kind is ControllingHand:  # in lanes they wait in another order
            replay.waiting.sort()
            found.waiting.sort()
        assert replay == found
        most = max(most, len(replay.items))
    assert most > 100
    assert replay.dead or kind is ControllingHand  # which purges them
    assert kind is Hand or not {*EventKind} - emitted - RARE


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
        first = asyncio.create_task(follow(None, 300))
        for n in range(600):
            await queue.add_item(Item(b"", id=f"{n}"))
        await first
        await follow(seen[-1].number, 600)
    assert [event.id for event in seen] == [f"{n}" for n in range(600)]


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
