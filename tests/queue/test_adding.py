"""Adding: once per id, in order, all at once, now, later, or at a time by the server's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from leasequeue import Item
from leasequeue.durations import moment_ms
from leasequeue.wire.batcher import Batcher
from tests.queue.asking import command, take
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


@pytest.mark.seed("RWQ-G4", "WRQ-B6")
async def test_of_many_concurrent_adds_of_one_id_one_returns_true(make_queue: MakeQueue) -> None:
    queues = [make_queue() for _ in range(5)]
    answers = await asyncio.gather(
        *(queue.add_item(Item(b"x", id="x")) for queue in queues for _ in range(50))
    )
    assert answers.count(True) == 1
    assert await queues[0].queue_len() == 1


@pytest.mark.seed("WRQ-T1", "RRQ-O1")
async def test_add_items_returns_results_in_order_and_false_for_doubles(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"", id=f"{n}") for n in range(0, 3000, 3)])
    answers = await queue.add_items([Item(b"", id=f"{n}") for n in range(3000)])
    assert answers == [n % 3 != 0 for n in range(3000)]
    assert await queue.add_items([Item(b"1", id="t"), Item(b"2", id="t"), Item(b"3", id="t")]) == [
        True,
        False,
        False,
    ]
    found = await audit(redis, name)
    assert found.waiting[:4] == [b"0", b"3", b"6", b"9"]
    assert len(found.waiting) == 3001


async def test_callers_wait_when_too_many_bytes_are_gathered(
    queue: AsyncWorkQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This bounds the memory. Some callers are cancelled; the others get their answers."""
    limits = {**(Batcher.__init__.__kwdefaults__ or {}), "max_waiting_bytes": 5000, "max_bytes": 2000}
    monkeypatch.setattr(Batcher.__init__, "__kwdefaults__", limits)
    await queue.counts()
    adding = [asyncio.create_task(queue.add_item(Item(b"x" * 500, id=f"{n}"))) for n in range(200)]
    await asyncio.sleep(0)
    for task in adding[100:150]:
        task.cancel()
    answers = await asyncio.gather(*adding, return_exceptions=True)
    assert answers[:100] + answers[150:] == [True] * 150
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[100:150])
    assert len((await audit(redis, name)).waiting) == 150


@pytest.mark.seed("WRQ-O2")
async def test_add_items_is_one_step(make_queue: MakeQueue) -> None:
    """A client that looks at the same time sees all items of a trip or none."""
    adder, watcher = make_queue(), make_queue()
    seen = set()
    for _ in range(20):
        adding = adder.add_items([Item(b"x") for _ in range(100)])
        looking = asyncio.gather(*(watcher.queue_len() for _ in range(5)))
        added, lengths = await asyncio.gather(adding, looking)
        assert added == [True] * 100
        seen |= {length % 100 for length in lengths}
    assert seen == {0}


async def test_adding_no_items_sends_nothing(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    assert await queue.add_items([]) == []
    assert await queue.add_items(iter([])) == []
    assert not await redis.keys(f"{name}*")


@pytest.mark.seed("GLD-O19", "GLD-T7")
async def test_options_are_stored_with_the_item_and_shown(make_queue: MakeQueue) -> None:
    queue = make_queue(clock=lambda: 1000.0)
    await queue.add_item(Item(b"1", "a"), priority=-3, group="é/\n", expires_in=0.5)
    await queue.add_items([Item(b"2", "b")], priority=9)
    await queue.add_unique_item(Item(b"3", "c"), group="g", delay=60)
    await queue.add_item(Item(b"4", "d"), priority=0, group=None, expires_in=None, dedupe_for=None)
    views = [await queue.find(one) for one in "abcd"]
    assert [(view.priority, view.group, view.expires) for view in views if view] == [
        (-3, "é/\n", 1000.5),
        (9, None, None),
        (0, "g", None),
        (0, None, None),
    ]
    assert [view.priority for view in await queue.inspect("waiting")] == [9, 0, -3]


async def test_an_id_stays_taken_for_the_time_given(queue: AsyncWorkQueue, clock: Clock) -> None:
    assert await queue.add_item(Item(b"1", "a"), dedupe_for=60)
    assert await queue.complete(await take(queue, block=False))
    assert not await queue.add_item(Item(b"2", "a"))
    clock.now += 60
    assert await queue.add_item(Item(b"3", "a"), dedupe_for=60)
    assert await queue.complete(await take(queue, block=False))
    assert not await queue.add_item(Item(b"4", "a")), "the window has begun again"


async def test_options_go_through_a_pipeline(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue()
    async with redis.pipeline(transaction=True) as pipe:
        queue.add_item_to_pipeline(pipe, Item(b"1", "a"), priority=2)
        queue.add_unique_item_to_pipeline(pipe, Item(b"1", "b"), group="g")
        assert await pipe.execute() == [[1], [1]]
    views = [await queue.find(one) for one in "ab"]
    assert [(view.priority, view.group) for view in views if view] == [(2, None), (0, "g")]


@pytest.mark.parametrize("kind", ["plain", "limited", "in a lane", "beside a lane"])
async def test_an_item_that_is_replaced_gets_the_level_that_is_said_then(
    queue: AsyncWorkQueue, kind: str
) -> None:
    if kind == "limited":
        await queue.limits.set(concurrency=100)
    elif kind == "beside a lane":
        await queue.add_item(Item(b"", id="z"), priority=-1)
    await queue.add_items([Item(b"", id=one) for one in "abc"], priority=1 if kind == "in a lane" else 0)
    await queue.add_item(Item(b"", id="c"), priority=5, replace=True)
    await queue.add_item(Item(b"", id="a"), priority=-5, group="g", replace=True)
    leases = await queue.lease_many(9, 30)
    assert [lease.id for lease in leases if lease.id != "z"] == ["c", "b", "a"]
    assert (await queue.counts()).waiting == 0
    assert (await queue.admin.fsck()).findings == ()


NOWHERE = timezone(timedelta(hours=-11, minutes=-30))


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/Berlin"), NOWHERE], ids=str)
async def test_an_item_is_leased_when_its_time_has_come(
    queue: AsyncWorkQueue, clock: Clock, zone: ZoneInfo, redis: Redis, name: str
) -> None:
    at = datetime.fromtimestamp(clock.now + 3600, zone)
    assert await queue.add_item(Item(b"x", id="a"), at=at) is True
    assert await queue.add_item(Item(b"x", id="a"), at=at) is False
    assert (await audit(redis, name)).scheduled == [b"a"]
    [view] = await queue.inspect("scheduled")
    assert view.due == clock.now + 3600
    clock.now += 3599.999
    assert await queue.lease(10, block=False) is None
    clock.now += 0.001
    assert (await take(queue, block=False)).id == "a"


@pytest.mark.parametrize("at", [datetime(1969, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=NOWHERE)])
async def test_an_item_with_a_past_time_is_leased_at_once(queue: AsyncWorkQueue, at: datetime) -> None:
    assert await queue.add_item(Item(b"x"), at=at)
    assert await queue.counts() == (1, 0, 0, 0)


@pytest.mark.seed("RWQ-O9")
async def test_every_way_of_adding_accepts_a_time(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    at = datetime.now(UTC) + timedelta(days=400)  # further than any delay
    assert await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b")], at=at) == [True, True]
    await queue.add_unique_item(Item(b"x", id="c"), at=at)
    async with redis.pipeline(transaction=True) as pipe:
        queue.add_item_to_pipeline(pipe, Item(b"x", id="d"), at=at)
        queue.add_unique_item_to_pipeline(pipe, Item(b"x", id="e"), at=at)
        assert await pipe.execute() == [[1], [1]]
    assert (await audit(redis, name)).scheduled == [b"a", b"b", b"c", b"d", b"e"]
    scores = {await redis.zscore(f"{name}:scheduled", item_id) for item_id in "abcde"}
    assert scores == {moment_ms("at", at)}
    # The clock of this machine has no part in it.
    seconds, _ = await command(redis, "TIME")
    assert abs((await redis.pttl(f"{name}:lease:a")) / 1000 - (at.timestamp() - int(seconds))) < 60


async def test_a_delay_of_zero_may_accompany_a_time(queue: AsyncWorkQueue) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    assert await queue.add_item(Item(b"x"), delay=0, at=at)
    assert await queue.add_item(Item(b"x"), delay=timedelta(0), at=at)
    assert await queue.counts() == (0, 0, 2, 0)


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(2024, 10, 27, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_989_000_000),
        (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_992_600_000),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800_000),
    ],
)
def test_a_time_is_rounded_up_to_milliseconds(at: datetime, ms: int) -> None:
    assert moment_ms("at", at) == ms
