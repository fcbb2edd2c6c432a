"""A worker process that is killed at any step: its item is in one place, and an idle waiter gets it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasehold import Item
from leasehold.queue import listener
from tests.faults.worker_program import STEPS
from tests.queue.asking import blocked, command, take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue
    from leasehold.testing import Proxy
    from tests.queue.fixtures import MakeQueue

#: Long enough to look at the state before it ends.
LEASE_SECONDS = 2.0


class Worker:
    """A worker process, and the ends of its pipes."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def reach(self, step: str) -> None:
        """Let it go on until it is about to take this step."""
        for passed in STEPS[: STEPS.index(step) + 1]:
            if passed != STEPS[0]:
                self.go_on()
            await self.said(passed)

    async def said(self, step: str) -> None:
        """Wait until it says that this step comes next."""
        if self._process.stdout is None:
            raise AssertionError("it is a pipe")
        async with asyncio.timeout(30):
            assert await self._process.stdout.readline() == f"{step}\n".encode()

    def go_on(self) -> None:
        """Let it take the step that it waits before."""
        if self._process.stdin is None:
            raise AssertionError("it is a pipe")
        self._process.stdin.write(b"\n")

    def stop(self) -> None:
        """Freeze it, as a machine that swaps or a debugger does."""
        os.kill(self._process.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def worker_on(url: str, name: str, lease_seconds: float = LEASE_SECONDS) -> AsyncIterator[Worker]:
    """Start a worker; it is killed at the end, if not before."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.worker_program", url, name, f"{lease_seconds}"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def expire(redis: Redis, name: str) -> None:
    """Let the time pass after which those who wait count as gone."""
    for session in await redis.zrange(f"{name}:sessions", 0, -1):
        await command(redis, "ZADD", f"{name}:sessions", 1, session)


async def recovered(idle: AsyncWorkQueue, redis: Redis, attempt: int) -> None:
    """Check that an idle waiter gets the item, and can finish it, with nothing left."""
    async with asyncio.timeout(30):
        lease = await take(idle)
    assert (lease.id, lease.attempt) == ("x", attempt)
    assert await idle.complete(lease)
    await idle.close()
    assert not await left_over(redis, idle.name)


async def test_before_it_leases(queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str) -> None:
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(redis_url, name) as worker:
        await worker.reach("lease")
        await worker.kill()
    assert (await audit(redis, name)).waiting == [b"x"]
    await recovered(queue, redis, attempt=1)


async def test_while_it_waits(queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str) -> None:
    async with worker_on(redis_url, name) as worker:
        await worker.reach("lease")
        worker.go_on()
        await blocked(redis, 1)
        await worker.kill()
    await blocked(redis, 0)
    await queue.add_item(Item(b"x", id="x"))
    assert (await audit(redis, name)).waiting == [b"x"]
    await expire(redis, name)
    await recovered(queue, redis, attempt=1)


async def test_when_the_item_has_just_been_moved_to_it(
    make_queue: MakeQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """It is in the inbox of a process that will never look there; its session expires."""
    queue = make_queue()
    async with worker_on(redis_url, name) as worker:
        await worker.reach("lease")
        worker.go_on()
        await blocked(redis, 1)
        worker.stop()
        await queue.add_item(Item(b"x", id="x"))
        await blocked(redis, 0)
        await worker.kill()
    assert (await audit(redis, name)).waiting == [b"x"]
    assert await redis.llen(f"{name}:queue") == 0
    assert await queue.lease(30, block=False) is None
    await expire(redis, name)
    await recovered(queue, redis, attempt=1)


def test_the_server_moves_nothing_to_a_process_that_is_not_on_the_list() -> None:
    """A frozen process, or a machine that is gone without a word, keeps its connection for a while.

    If the server might still move an item to it when its session has expired, nobody would look there.
    """
    assert listener.KEEP_MS > 1000 * (listener.BLOCK_SECONDS + 1)


@pytest.mark.parametrize("step", ["work", "complete"])
async def test_with_the_item_under_lease(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str, step: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(redis_url, name) as worker:
        await worker.reach(step)
        await worker.kill()
    assert (await audit(redis, name)).leased == [b"x"]
    await recovered(queue, redis, attempt=2)


async def test_while_it_completes_and_nothing_has_been_sent(
    queue: AsyncWorkQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(proxy.url, name) as worker:
        await worker.reach("complete")
        proxy.stall()
        worker.go_on()
        await worker.kill()
        await proxy.cut()
    assert (await audit(redis, name)).leased == [b"x"]
    await recovered(queue, redis, attempt=2)


async def test_while_it_completes_and_the_answer_is_on_its_way(
    queue: AsyncWorkQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    await queue.add_item(Item(b"warm"))
    await queue.complete_many(await queue.lease_many(1, 30))  # from here on the server knows the script
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(proxy.url, name) as worker:
        await worker.reach("complete")
        proxy.drop_replies = True
        worker.go_on()

        async def applied() -> bool:
            return await redis.exists(f"{name}:item:x") == 0

        await until("the step has been applied", applied)
        await worker.kill()
    assert await queue.lease(30, block=False) is None
    await queue.close()
    assert not await left_over(redis, name)


async def test_after_it_has_completed(queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str) -> None:
    await queue.add_item(Item(b"x", id="x"))
    async with worker_on(redis_url, name) as worker:
        await worker.reach("end")
        await worker.kill()
    assert await queue.lease(30, block=False) is None
    await queue.close()
    assert not await left_over(redis, name)
