"""Ticking: each tick adds one item, whatever the number of processes, and after any pause."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost
from leasequeue.queue.engine import Engine
from leasequeue.queue.queue import engines_of
from leasequeue.queue.schedules import MAX_OF_ALL, MAX_OF_ONE
from tests.queue.asking import DAY, added, at, command, expect_no_reply, only, taken, tick_all
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from leasequeue.queue.schedules import CatchUp
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


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


async def test_a_year_of_missed_minutes_takes_one_step(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.schedules.cron("* * * * *", "a", tz="Europe/Berlin")
    clock.now += 365 * DAY
    assert await queue.schedules.tick() == 20
    assert await added(queue) == [f"a@{at(clock.now - 40)}"]


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


async def test_a_waiting_caller_gets_the_item_of_a_tick(make_queue: MakeQueue, clock: Clock) -> None:
    queue, ticking = make_queue(), make_queue(clock=clock)
    await ticking.schedules.every(1, "a")
    leasing = asyncio.create_task(taken(queue.lease(30, timeout=20)))
    clock.now += 1
    await ticking.schedules.tick()
    assert (await leasing).id == f"a@{at(clock.now)}"


async def test_without_a_clock_argument_ticks_follow_the_servers_clock(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.schedules.every(0.05, "a", catch_up="all")
    async with asyncio.timeout(120):
        while (await queue.counts()).waiting < 3:  # noqa: ASYNC110 - it is a time that passes
            await asyncio.sleep(await queue.schedules.tick())
    seconds, _ = await command(redis, "TIME")
    first = (await queue.inspect(count=1))[0].id
    assert abs(datetime.fromisoformat(first.partition("@")[2]).timestamp() - int(seconds)) < 30


async def test_without_schedules_tick_returns_infinity(queue: AsyncWorkQueue) -> None:
    assert await queue.schedules.tick() == math.inf
    assert await queue.schedules.list() == []
    assert await queue.schedules.remove("unknown") is False
