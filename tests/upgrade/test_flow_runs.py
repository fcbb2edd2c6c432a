"""Flow runs over two queues, one of them in a newer format: an older worker does all that leads elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasequeue import Item, Worker
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.queue.plans.stages import settle
from leasequeue.queue.queue import engine_of
from leasequeue.worker import acknowledger, stages
from leasequeue.worker.outcomes import Release
from tests.plans.flows import ended, states
from tests.queue.asking import until
from tests.upgrade.test_refusals import SAID, is_there, raise_format
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

LEFT = "are left to newer workers"


async def lower(redis: Redis, queue: AsyncWorkQueue) -> None:
    await redis.delete(f"{queue.name}:format", f"{queue.name}:too_new_for:1")


async def met(condition: Callable[[], bool]) -> bool:
    return condition()


def says_so(worker: Worker) -> bool:
    health = worker.health()
    assert health.works, "a restart would not help, and it does what it can"
    return not health.ok and any(LEFT in one and SAID in one for one in health.reasons)


def logged(caplog: pytest.LogCaptureFixture) -> int:
    return sum(LEFT in one.getMessage() and SAID in one.getMessage() for one in caplog.records)


async def test_a_stage_that_leads_to_a_newer_queue_waits_and_nothing_else_does(
    make_queue: MakeQueue,
    redis: Redis,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, other = make_queue(), make_queue(name=f"{name}-other")
    monkeypatch.setattr(acknowledger, "LEFT", Release(delay=0.05))
    worker = new_worker(concurrency=30, feeds={queue.name: [other.name]}, clean_every=None)
    ran, go = list[bytes](), asyncio.Event()

    @worker.handler(queue)
    async def run(data: bytes) -> None:
        ran.append(data)
        await go.wait()

    leads = StagePlan("a", queue.name, b"leads"), StagePlan("b", other.name, b"there", ("a",))
    for number in range(20):
        plan = FlowPlan((StagePlan("a", queue.name, b"x"),) if number != 10 else leads)
        assert await queue.flow_runs.start(plan, f"r{number}")
    async with working(worker):
        await until("all of them run", lambda: met(lambda: len(ran) == 20))
        await raise_format(redis, other)
        before = {*await redis.keys(f"{other.name}:*")}
        go.set()
        for number in {*range(20)} - {10}:
            await ended(queue, run=f"r{number}")
        await until("it says why one waits", lambda: met(lambda: says_so(worker)))
        await until("that has run some times more", lambda: met(lambda: ran.count(b"leads") > 3))
        assert logged(caplog) == 1, "once a minute"
        assert {*await redis.keys(f"{other.name}:*")} == before
        assert await states(queue, "r10") == {"": "active", "a": "w"}
        await queue.add_item(Item(b"plain"))
        await until("plain items are done", lambda: met(lambda: b"plain" in ran))
        await lower(redis, other)
        await until("what waited is done", lambda: is_there(redis, f"{other.name}:item:r10/b"))
    assert await states(queue, "r10") == {"": "active", "a": "d", "b": "w"}
    assert await queue.dead_letters.count() == 0, "no try counts as an attempt"


async def test_a_stage_whose_run_is_on_a_newer_queue_is_not_begun(
    make_queue: MakeQueue,
    redis: Redis,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, home = make_queue(), make_queue(name=f"{name}-home")
    monkeypatch.setattr(stages, "DENIED_SECONDS", 0.05)
    assert await home.flow_runs.start(FlowPlan((StagePlan("a", queue.name, b"stage"),)), "r")
    await raise_format(redis, home)
    before = {key: await redis.dump(key) for key in sorted(await redis.keys(f"{home.name}:*"))}
    worker = new_worker(clean_every=None)
    ran = list[bytes]()

    @worker.handler(queue)
    async def run(data: bytes) -> None:
        ran.append(data)

    await queue.add_item(Item(b"plain"))
    async with working(worker):
        await until("plain items are done", lambda: met(lambda: ran == [b"plain"]))
        await until("it says why one waits", lambda: met(lambda: says_so(worker)))
        assert logged(caplog) == 1
        assert before == {key: await redis.dump(key) for key in sorted(await redis.keys(f"{home.name}:*"))}
        await lower(redis, home)
        await ended(home)
    assert ran == [b"plain", b"stage"]


async def test_what_is_left_of_a_cancelled_run_is_cancelled_where_it_can_be(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue, other = make_queue(), make_queue(name=f"{name}-other")
    names = [other.name, queue.name, other.name]
    plan = FlowPlan(tuple(StagePlan(f"s{n}", one, b"x") for n, one in enumerate(names)))
    assert await queue.flow_runs.start(plan, "r")
    await raise_format(redis, other)
    assert await queue.flow_runs.cancel("r")
    await until("its item here is cancelled", lambda: _gone(redis, f"{queue.name}:item:r/s1"))
    assert await redis.hlen(f"{queue.name}:unsettled") == 1, "it is noted that others are left"
    await lower(redis, other)
    await settle(engine_of(queue))  # as each worker does
    await until("the others are", lambda: _gone(redis, *(f"{other.name}:item:r/{s}" for s in ("s0", "s2"))))


async def _gone(redis: Redis, *keys: str) -> bool:
    return not await redis.exists(*keys)
