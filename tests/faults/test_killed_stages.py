"""A worker is killed at any step of a flow run: each stage is entered once, and the run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from leasequeue.queue.plans.stages import start_run
from leasequeue.queue.queue import engine_of
from tests.faults.stage_program import CHILDREN, STEPS, plan_of, worker_for
from tests.faults.test_killed_worker import expire
from tests.plans.flows import ended, field, states
from tests.worker.working import working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

#: Before the run, in it, before a reply, and while it fans out; the others are for `make test-long`.
QUICK = {"read", "handler", "before:more", "after:finish"}


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in QUICK else pytest.mark.long) for step in STEPS]
)
@pytest.mark.seed("GLD-G5", "GLD-B2", "GLD-B3", "GLD-B4", "GLD-B5")
async def test_a_run_ends_although_its_worker_was_killed(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, step: str
) -> None:
    await queue.events.keep(count=10_000)
    assert await start_run(engine_of(queue), plan_of(queue), "r")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.stage_program", redis_url, queue.name, step),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    async with asyncio.timeout(120):
        assert await process.wait() == -signal.SIGKILL
    await expire(redis, queue.name)
    async with working(worker_for(redis_url, queue.name)):
        await ended(queue)

    children = {f"plan/{n}": "d" for n in range(CHILDREN)}
    assert await states(queue) == {"": "completed", "plan": "d", "finish": "d"} | children
    assert await field(queue, "r:finish") == str(CHILDREN)
    counts = await queue.counts()
    assert (counts.total, counts.dead) == (0, 0)
    happened = Counter([(event.what, event.id) async for event in queue.events(follow=False)])
    once = dict.fromkeys(
        ((kind, f"r/{path}") for kind in ("added", "completed") for path in ("plan", "finish", *children)), 1
    )
    assert {what: number for what, number in happened.items() if what[0] in ("added", "completed")} == once
