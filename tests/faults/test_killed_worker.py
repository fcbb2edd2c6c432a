"""A worker process is killed at any step: its item stays in one place, and the next waiter gets it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec import Raw

from leasequeue import Item
from leasequeue.queue.plans.inputs import AwaitedSignal, signal_data
from leasequeue.queue.plans.plan import StagePlan
from leasequeue.queue.plans.stages import start_run
from leasequeue.queue.pushes import listener
from leasequeue.queue.queue import engine_of
from tests.faults.stage_program import CHILDREN, STEPS, plan_of, worker_for
from tests.faults.worker_program import STEPS as STEPS_OF_WORK
from tests.plans.flows import call, ended, field, stage, start, states
from tests.processes import printed, program
from tests.queue.asking import blocked, command, keys_like, registered, take, until
from tests.queue.keyspace import audit, left_over
from tests.worker.working import working

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.testing import Proxy


#: Longer than any test: leases expire when the test says so.
LEASE_SECONDS = 3600.0


class Worker:
    """A worker process that is controlled through its pipes."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def reach(self, step: str) -> None:
        """Let it continue until it is about to take this step."""
        for passed in STEPS_OF_WORK[: STEPS_OF_WORK.index(step) + 1]:
            if passed != STEPS_OF_WORK[0]:
                self.proceed()
            await self.announced(passed)

    async def announced(self, step: str) -> None:
        await printed(self._process, f"{step}\n".encode())

    def proceed(self) -> None:
        """Let it take the announced step."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def stop(self) -> None:
        """Freeze the process."""
        os.kill(self._process.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def worker_on(url: str, name: str, lease_seconds: float = LEASE_SECONDS) -> AsyncIterator[Worker]:
    """Start a worker; it is killed at the end of the block if it still runs."""
    async with program("tests.faults.worker_program", url, name, f"{lease_seconds}") as process:
        yield Worker(process)


async def expire(redis: Redis, name: str) -> None:
    """Let all sessions and leases expire."""
    for key in (f"{name}:sessions", f"{name}:deadlines"):
        for member in await redis.zrange(key, 0, -1):
            await command(redis, "ZADD", key, 1, member)


async def recovered(idle: AsyncWorkQueue, redis: Redis, attempt: int) -> None:
    """Let all expire; check that another client gets the item and completes it, with nothing left."""
    await expire(redis, idle.name)
    lease = await take(idle)
    assert (lease.id, lease.attempt) == ("x", attempt)
    assert await idle.complete(lease)
    await idle.close()
    assert not await left_over(redis, idle.name)


async def test_killed_while_it_waits_for_an_item(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    async with worker_on(redis_url, name) as worker:
        await worker.reach("lease")
        worker.proceed()
        await blocked(redis, 1)
        await worker.kill()
    await blocked(redis, 0)
    await queue.add_item(Item(b"x", id="x"))
    assert (await audit(redis, name)).waiting == [b"x"]
    await recovered(queue, redis, attempt=1)


@pytest.mark.seed("GLD-G1")
async def test_killed_when_the_server_has_moved_the_item_to_its_session(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """The item is in the inbox of a process that never reads it, until the session expires."""
    async with worker_on(redis_url, name) as worker:
        await worker.reach("lease")
        worker.proceed()
        await blocked(redis, 1)
        worker.stop()
        await redis.delete(f"{name}:idle")  # otherwise the item would be leased for it
        await queue.add_item(Item(b"x", id="x"))
        await blocked(redis, 0)
        await worker.kill()
    assert (await audit(redis, name)).waiting == [b"x"]
    assert await redis.llen(f"{name}:queue") == 0
    assert await queue.lease(30, block=False) is None
    await recovered(queue, redis, attempt=1)


async def test_killed_when_an_item_was_delivered_that_it_never_received(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """The item is leased, and returns when the lease expires, as after a lease whose reply was lost."""
    async with worker_on(redis_url, name, 20) as worker:
        await worker.reach("lease")
        worker.proceed()
        await registered(redis, queue)
        worker.stop()
        await queue.add_item(Item(b"x", id="x"))
        await worker.kill()
    assert (await audit(redis, name)).leased == [b"x"]
    [note] = await keys_like(redis, f"{name}:delivered:*")
    assert await redis.pttl(note) > 0
    await redis.delete(note)
    await recovered(queue, redis, attempt=2)


def test_a_session_outlives_every_call_that_may_move_an_item_to_it() -> None:
    """A frozen process, or a machine that lost its network, keeps its connection for a while.

    If the server could move an item to a session that has expired, no client would look there.
    """
    assert listener.KEEP_MS > 1000 * (listener.BLOCK_SECONDS + 1)


@pytest.mark.seed("RWQ-G3", "WRQ-O11", "WRQ-O15")
async def test_killed_while_it_holds_the_lease(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(redis_url, name) as worker:
        await worker.reach("work")
        await worker.kill()
    assert (await audit(redis, name)).leased == [b"x"]
    await recovered(queue, redis, attempt=2)


async def test_killed_before_its_completion_is_sent(
    queue: AsyncWorkQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(proxy.url, name) as worker:
        await worker.reach("complete")
        proxy.stall()
        worker.proceed()
        await worker.kill()
        await proxy.cut()
    assert (await audit(redis, name)).leased == [b"x"]
    await recovered(queue, redis, attempt=2)


async def test_killed_before_it_gets_the_reply_to_its_completion(
    queue: AsyncWorkQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    await queue.add_item(Item(b"warm"))
    await queue.complete_many(await queue.lease_many(1, 30))  # loads the script
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(proxy.url, name) as worker:
        await worker.reach("complete")
        proxy.drop_replies = True
        worker.proceed()

        async def applied() -> bool:
            return await redis.exists(f"{name}:item:x") == 0

        await until("the server has completed the item", applied)
        await worker.kill()
    assert await queue.lease(30, block=False) is None
    await queue.close()
    assert not await left_over(redis, name)


# ---------------------------------------------------------------------------------------- stages of flow runs


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
    async with program("tests.faults.stage_program", redis_url, queue.name, step) as process:
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


@pytest.mark.parametrize("step", ["read", "before:done", "after:done"])
async def test_a_deadline_ends_a_stage_once_although_its_worker_was_killed(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, step: str
) -> None:
    """The stage waits for a signal that never comes; the worker dies while it ends the stage."""
    data = signal_data(AwaitedSignal("wait", Raw(b"[1,2]")))
    waits = StagePlan("wait", queue.name, data, delay_ms=1, signal=True)
    await start(queue, waits, stage(queue, "finish", call("finish", {"numbers": "wait"}), after=("wait",)))
    async with program("tests.faults.stage_program", redis_url, queue.name, step) as process:
        async with asyncio.timeout(120):
            assert await process.wait() == -signal.SIGKILL
    await expire(redis, queue.name)
    async with working(worker_for(redis_url, queue.name)):
        await ended(queue)
    assert (await field(queue, "r:wait"), await field(queue, "r:finish")) == ("[1,2]", "2")
    assert (await queue.counts()).total == 0
