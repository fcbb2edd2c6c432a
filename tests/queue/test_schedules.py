"""Schedules: made once, changed, listed, removed; each tick adds one item, after any pause."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost
from leasequeue.queue.engine import Engine
from leasequeue.queue.queue import engine_of, engines_of
from leasequeue.queue.schedules import CLOSED_SECONDS, MAX_OF_ALL, MAX_OF_ONE
from tests.queue.asking import DAY, added, at, expect_no_reply, only, take, tick_all
from tests.queue.keyspace import audit, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from leasequeue.queue.schedules import CatchUp
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def test_an_interval_adds_an_item_each_time_it_has_passed(queue: AsyncWorkQueue, clock: Clock) -> None:
    made = clock.now
    assert await queue.schedules.every(10, "poll", "data") is True
    assert await queue.schedules.tick() == 10
    assert await added(queue) == []
    for n in (1, 2, 3):
        clock.now = made + 10 * n
        assert await queue.schedules.tick() == 10
        assert await queue.schedules.tick() == 10
        lease = await take(queue, block=False)
        assert (lease.id, lease.data) == (f"poll@{at(made + 10 * n)}", b"data")


async def test_repeating_a_schedule_changes_nothing(
    make_queue: MakeQueue, clock: Clock, redis: Redis
) -> None:
    queue, other = make_queue(clock=clock), make_queue(clock=clock)
    start = datetime(2030, 1, 1, tzinfo=UTC)
    await queue.schedules.every(60, "a", b"data", start=start, catch_up="all")
    await queue.schedules.every(60.0, "b")
    await queue.schedules.cron("*/5 * * * *", "c", tz="Asia/Kathmandu", catch_up="skip")
    before = await snapshot(redis)
    clock.now += 1000
    for one in (queue, other):
        assert not await one.schedules.every(timedelta(minutes=1), "a", "data", start=start, catch_up="all")
        assert not await one.schedules.every(60, "b", b"", start=None, catch_up="once")
        assert not await one.schedules.cron("*/5  * * * *", "c", tz="Asia/Kathmandu", catch_up="skip")
    assert await snapshot(redis) == before


async def test_of_many_concurrent_calls_one_returns_that_the_schedule_is_new(make_queue: MakeQueue) -> None:
    queues = [make_queue() for _ in range(8)]
    answers = await asyncio.gather(*(queue.schedules.every(60, "a") for queue in queues))
    assert sorted(answers) == [False] * 7 + [True]
    assert len(await queues[0].schedules.list()) == 1


async def test_other_times_start_after_the_items_that_were_due(queue: AsyncWorkQueue, clock: Clock) -> None:
    made = clock.now
    await queue.schedules.every(10, "a", "old", catch_up="all")
    clock.now += 35
    assert await queue.schedules.every(60, "a", "new", catch_up="all")
    assert [view.data for view in await queue.inspect()] == [b"old"] * 3
    assert await added(queue) == [f"a@{at(made + n)}" for n in (10, 20, 30)]
    assert await queue.schedules.tick() == 60
    assert await queue.schedules.cron("0 * * * *", "a")
    assert (await only(queue)).kind == "cron"


async def test_names_and_data_may_be_any_text(queue: AsyncWorkQueue, clock: Clock) -> None:
    names = ["a b", "ä@ö", "x" * 487, "a@2030-01-01T00:00:00Z", "line\nfeed", "\0", "*", "a"]
    for name in names:
        assert await queue.schedules.every(1, name, bytes(range(256)))
    clock.now += 1
    await queue.schedules.tick()
    assert sorted(await added(queue)) == sorted(f"{name}@{at(clock.now)}" for name in names)
    assert {view.name for view in await queue.schedules.list()} == {*names}
    assert all([await queue.schedules.remove(name) for name in names])


async def test_schedules_are_listed_the_next_due_first(queue: AsyncWorkQueue, clock: Clock) -> None:
    now = datetime.fromtimestamp(clock.now, UTC)
    await queue.schedules.every(60, "b", start=now + timedelta(seconds=5), catch_up="skip")
    await queue.schedules.every(0.5, "a", "data")
    await queue.schedules.cron("0 0 * * MON", "c", tz="Europe/Berlin", catch_up="all")
    rest: dict[str, object] = {
        "interval": None,
        "start": None,
        "expression": None,
        "tz": None,
        "size": 0,
        "data": b"",
    }
    expected: list[dict[str, object]] = [
        {"name": "a", "kind": "every", "interval": 0.5, "catch_up": "once", "size": 4, "data": b"data"},
        {
            "name": "b",
            "kind": "every",
            "interval": 60.0,
            "catch_up": "skip",
            "start": now + timedelta(seconds=5),
        },
        {"name": "c", "kind": "cron", "expression": "0 0 * * MON", "tz": "Europe/Berlin", "catch_up": "all"},
    ]
    due = [now + timedelta(seconds=0.5), now + timedelta(seconds=5), datetime(2030, 3, 17, 23, tzinfo=UTC)]
    views = await queue.schedules.list()
    assert [vars(view) for view in views] == [
        rest | facts | {"next_due": when} for facts, when in zip(expected, due, strict=True)
    ]
    assert [(view.data, view.size) for view in await queue.schedules.list(data=False)] == [
        (None, 4),
        (None, 0),
        (None, 0),
    ]


async def test_cleaning_does_not_change_schedules(queue: AsyncWorkQueue, clock: Clock, redis: Redis) -> None:
    await queue.schedules.every(60, "a", "data")
    await queue.schedules.cron("0 3 * * *", "item:b", "data")
    before = await snapshot(redis)
    clock.now += 10 * DAY
    for _ in range(3):
        await queue.light_clean()
        await queue.deep_clean()
    await queue.dead_letters.drop_all()
    assert await snapshot(redis) == before
    assert await queue.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("clean", ["light_clean", "deep_clean", "fsck"])
async def test_schedules_that_were_ticked_by_a_clock_that_was_ahead_are_due_at_their_next_times(
    queue: AsyncWorkQueue, clock: Clock, clean: str
) -> None:
    await queue.schedules.every(600, "a", "data")
    await queue.schedules.cron("*/10 * * * *", "item:b", "data")
    right = {one.name: one.next_due for one in await queue.schedules.list()}
    clock.now += 2 * 3600
    await queue.schedules.tick()
    clock.now -= 2 * 3600
    assert all(one.next_due != right[one.name] for one in await queue.schedules.list())
    report = await getattr(queue.admin if clean == "fsck" else queue, clean)()
    assert [str(one.problem) for one in report.findings] == ["wrong_tick"]
    assert {one.name: one.next_due for one in await queue.schedules.list()} == right
    assert not (await getattr(queue.admin if clean == "fsck" else queue, clean)()).findings


@pytest.mark.parametrize(
    "definition",
    [
        b"2 once every 1000 -",
        b"1 sometimes every 1000 -",
        b"1 once monthly 5",
        b"1 once every 0 -",
        b"1 once cron Europe/Nowhere 0 3 * * *",
        b"1 once cron UTC 0 25 * * *",
        b"\xff",
        b"",
    ],
)
async def test_a_schedule_that_cannot_be_parsed_is_ignored(
    queue: AsyncWorkQueue,
    clock: Clock,
    redis: Redis,
    name: str,
    definition: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await queue.schedules.every(1, "known")
    await redis.hset(f"{name}:schedules", "odd", definition)
    due = round(clock.now * 1000) - 5000
    await redis.zadd(f"{name}:ticks", {"odd": due})
    with caplog.at_level(logging.WARNING, "leasequeue.schedules"):
        for _ in range(3):
            clock.now += 1
            assert await queue.schedules.tick() == 1
    assert len(await added(queue)) == 3
    [record] = caplog.records
    assert "'odd'" in record.getMessage()
    assert repr(definition) in record.getMessage()
    assert await redis.zscore(f"{name}:ticks", "odd") == due
    odd, _ = await queue.schedules.list()
    assert (odd.name, odd.next_due) == ("odd", datetime.fromtimestamp(due / 1000, UTC))
    assert await queue.schedules.every(1, "odd"), "it can be replaced"
    assert await queue.schedules.remove("odd")


async def test_many_schedules_that_cannot_be_parsed_hide_no_others(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.schedules.every(10, "known")
    odd = [f"odd{n}" for n in range(250)]
    await redis.hset(f"{name}:schedules", mapping=dict.fromkeys(odd, "9 once"))
    await redis.zadd(f"{name}:ticks", dict.fromkeys(odd, clock.now * 1000 - 5))
    clock.now += 10
    assert await queue.schedules.tick() == 10
    assert await added(queue) == [f"known@{at(clock.now)}"]
    kinds = {view.kind for view in await queue.schedules.list() if view.name in odd}
    assert kinds == {"unknown"}


async def test_intervals_work_without_the_cron_library(
    queue: AsyncWorkQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.schedules.cron("* * * * *", "a")
    await queue.schedules.every(60, "b")
    clock.now += 60
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert await queue.schedules.tick() == 60
    assert 'pip install "leasequeue[schedules]"' in caplog.text
    assert await added(queue) == [f"b@{at(clock.now)}"]
    monkeypatch.undo()
    await queue.schedules.tick()
    assert await added(queue) == [f"a@{at(clock.now // 60 * 60)}"]


async def test_a_due_time_whose_schedule_is_gone_is_dropped(queue: AsyncWorkQueue, redis: Redis) -> None:
    await redis.zadd(f"{queue.name}:ticks", {"nothing": 1})
    assert await queue.schedules.tick() == math.inf
    assert await redis.keys() == []


@pytest.mark.parametrize(
    ("catch_up", "late", "expected"),
    [
        ("once", 0, [1]),
        ("once", 35, [4]),
        ("once", 5 * DAY, [5 * DAY // 10 + 1]),
        ("all", 0, [1]),
        ("all", 35, [1, 2, 3, 4]),
        ("skip", 0, [1]),
        ("skip", 9, [1]),
        ("skip", 35, [4]),
    ],
)
async def test_missed_ticks_are_treated_by_the_policy(
    queue: AsyncWorkQueue, clock: Clock, catch_up: CatchUp, late: int, expected: list[int]
) -> None:
    made = clock.now
    await queue.schedules.every(10, "a", catch_up=catch_up)
    clock.now += 10 + late
    assert await tick_all(queue) == 10 - late % 10
    assert await added(queue) == [f"a@{at(made + 10 * n)}" for n in expected]


@pytest.mark.parametrize(
    ("catch_up", "late", "days"),
    [
        ("once", 3600, [18]),
        ("once", 3 * DAY, [21]),
        ("all", 3 * DAY, [18, 19, 20, 21]),
        ("skip", 60, [18]),
        ("skip", 61, []),
        ("skip", 3 * DAY + 30, [21]),
        ("skip", 3 * DAY + 61, []),
    ],
)
async def test_missed_cron_ticks_are_treated_by_the_policy(
    queue: AsyncWorkQueue, clock: Clock, catch_up: CatchUp, late: int, days: list[int]
) -> None:
    await queue.schedules.cron("0 3 * * *", "nightly", catch_up=catch_up)
    clock.now += await queue.schedules.tick() + late
    due_in = await tick_all(queue)
    assert await added(queue) == [f"nightly@2030-03-{day}T03:00:00Z" for day in days]
    assert due_in == DAY - late % DAY
    clock.now += due_in
    await queue.schedules.tick()
    assert len(await added(queue)) == 1, "later ticks add items again"


async def test_many_missed_ticks_are_added_in_steps(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    made = clock.now
    await queue.schedules.every(1, "a", catch_up="all")
    await queue.schedules.every(1, "b", catch_up="all")
    count = 12 * MAX_OF_ONE
    clock.now += count
    assert await queue.schedules.tick() == 0
    waiting = (await queue.counts()).waiting
    assert MAX_OF_ONE <= waiting < 2 * count
    assert await tick_all(queue) == 1
    await audit(redis, name)
    ids = await added(queue)
    for one in ("a", "b"):
        assert [i for i in ids if i[0] == one] == [f"{one}@{at(made + n)}" for n in range(1, count + 1)]


async def test_more_schedules_than_one_step_takes_are_all_ticked(queue: AsyncWorkQueue, clock: Clock) -> None:
    names = {f"s{n}" for n in range(MAX_OF_ALL // 2)}
    for one in names:
        await queue.schedules.every(60, one)
    clock.now += 60
    assert await tick_all(queue) == 60
    assert {i.partition("@")[0] for i in await added(queue)} == names
    assert {view.name for view in await queue.schedules.list()} == names


async def test_large_items_are_added_in_several_steps(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.schedules.every(1, "a", bytes(3 << 20), catch_up="all")
    clock.now += 7
    await tick_all(queue)
    assert (await queue.counts()).waiting == 7
    assert (await only(queue)).size == 3 << 20


async def test_concurrent_ticks_add_each_item_once(
    make_queue: MakeQueue, clock: Clock, redis: Redis, name: str
) -> None:
    queues = [make_queue(clock=clock) for _ in range(5)]
    made = clock.now
    await queues[0].schedules.every(0.5, "a", catch_up="all")
    await queues[0].schedules.cron("* * * * * *", "b", catch_up="all")
    ids: list[str] = []
    for _ in range(10):
        clock.now += 3
        await asyncio.gather(*(tick_all(queue) for queue in queues))
        await audit(redis, name)
        ids += await added(queues[0])
    assert sorted(ids) == sorted(
        [f"a@{at(made + n / 2)}" for n in range(1, 61)] + [f"b@{at(made + n)}" for n in range(1, 31)]
    )


async def test_a_tick_whose_reply_is_lost_is_applied_once(
    make_queue: MakeQueue, clock: Clock, proxy: Proxy
) -> None:
    async def run(name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        proxy.drop_replies = name == "tick"
        if proxy.drop_replies:
            expect_no_reply(engine)
        return await Engine.run(engine, name, rest, **arguments)

    queue, cut_off = make_queue(clock=clock), make_queue(clock=clock, url=proxy.url)
    engine = engines_of(cut_off).here()
    engine.run = run  # type: ignore[method-assign]  # of this object alone
    await queue.schedules.every(1, "a")
    await cut_off.schedules.tick()
    clock.now += 1
    with pytest.raises(ConnectionLost):
        await cut_off.schedules.tick()
    assert await queue.schedules.tick() == 1
    assert await cut_off.schedules.tick() == 1
    assert await added(queue) == [f"a@{at(clock.now)}"]


async def test_what_is_due_in_a_queue_that_is_being_deleted_is_left(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.schedules.every(1, "a", catch_up="all")
    await queue.schedules.every(3, "b")
    clock.now += 3
    await engine_of(queue).bulk.run("close_queue", count=1)
    assert await queue.schedules.tick() == CLOSED_SECONDS
    assert await added(queue) == []
    assert {view.name for view in await queue.schedules.list()} == {"a", "b"}
    await queue.admin.delete()
    assert await queue.schedules.tick() == math.inf


async def test_without_schedules_tick_returns_infinity(queue: AsyncWorkQueue) -> None:
    assert await queue.schedules.tick() == math.inf
    assert await queue.schedules.list() == []
    assert await queue.schedules.remove("unknown") is False
