"""Processes that tick the same schedules and are killed: each tick is added once, and none is missing."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.worker import Worker, maintenance
from tests.eventually import LIMIT_SECONDS, eventually
from tests.processes import printed, program
from tests.queue.asking import command, take, until
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

STEP = timedelta(milliseconds=20)
#: For how long no process ticks (s): longer than twenty ticks take.
GAP = 0.5
TICKING = "tests.faults.ticking_program"


async def taken(queue: AsyncWorkQueue, count: int) -> list[datetime]:
    """Lease and complete `count` items, and return their due times."""
    times: list[datetime] = []
    while len(times) < count:
        lease = await take(queue)
        assert await queue.complete(lease)
        times.append(datetime.fromisoformat(lease.id.partition("@")[2]))
    return times


async def rest(queue: AsyncWorkQueue) -> list[datetime]:
    """Lease and complete all waiting items, when no process ticks any more."""
    return await taken(queue, (await queue.counts()).waiting)


def steps(times: list[datetime]) -> set[timedelta]:
    return {after - before for before, after in pairwise(times)}


@pytest.mark.slow
async def test_each_tick_is_added_once_by_three_processes_of_which_two_are_killed(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    async with AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(program(TICKING, redis_url, name)) for _ in range(3)
        ]
        for process in (first, second, third):
            await printed(process, b"ticking")
        await queue.schedules.every(STEP, "a", catch_up="all")
        times = await taken(queue, 20)
        first.kill()
        times += await taken(queue, 20)
        second.kill()
        times += await taken(queue, 20)
    times += await rest(queue)
    assert steps(times) == {STEP}
    await audit(redis, name)


@pytest.mark.slow
async def test_missed_ticks_follow_the_policy_when_all_processes_were_dead(
    make_queue: MakeQueue, redis: Redis, redis_url: str, name: str
) -> None:
    every, once = make_queue(), make_queue(name=f"{name}-once")
    async with program(TICKING, redis_url, every.name, once.name) as process:
        await printed(process, b"ticking")
        await every.schedules.every(STEP, "a", catch_up="all")
        await once.schedules.every(STEP, "a", catch_up="once")
        times, last_times = await taken(every, 20), await taken(once, 20)
    times += await rest(every)
    last_times += await rest(once)

    async def clock() -> float:
        seconds, microseconds = await command(redis, "TIME")
        return int(seconds) + int(microseconds) / 1e6

    alive_until = await clock()

    async def a_while_is_over() -> bool:
        return await clock() > alive_until + GAP

    await until("no process has ticked for a while", a_while_is_over)
    async with program(TICKING, redis_url, every.name, once.name):
        times += await taken(every, 30)
        after_the_gap = await taken(once, 5)
    assert steps(times + await rest(every)) == {STEP}, "all: none is missing"
    assert after_the_gap[0].timestamp() > alive_until + GAP - STEP.total_seconds(), "once: the last one"
    assert {gap % STEP for gap in steps(last_times + after_the_gap)} == {timedelta(0)}
    assert timedelta(0) not in steps(last_times + after_the_gap)
    for one in (every, once):
        await audit(redis, one.name)


async def test_a_worker_ticks_soon_again_when_the_server_is_back(
    proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 100 * LIMIT_SECONDS)
    caplog.set_level(logging.DEBUG, "leasequeue.worker")
    runs: list[bytes] = []
    async with AsyncWorkQueue.from_url(proxy.url, name) as queue:
        await queue.schedules.every(STEP, "a")
        worker = Worker()

        @worker.handler(queue)
        async def handle(data: bytes) -> None:
            runs.append(data)

        running = asyncio.create_task(worker.run())
        await eventually("it ticks", lambda: len(runs) > 0)
        await proxy.fail()
        await eventually("a tick has failed", lambda: "could not be ticked" in caplog.text)
        await proxy.heal()
        done = len(runs)
        await eventually("it ticks again", lambda: len(runs) > done + 2)
        worker.stop()
        await running
