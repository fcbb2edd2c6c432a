"""Workers in separate processes: killed, stopped, and several on one queue."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest

from leasequeue import Item
from tests.processes import printed, program
from tests.queue.keyspace import audit
from tests.worker.working import finished, the_dead

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


PROGRAM = "tests.worker.program"


async def ended(process: Process) -> tuple[int | None, list[list[str]]]:
    """Wait for the end of a process, and return its exit code and the words of its further lines."""
    async with asyncio.timeout(120):
        output, _ = await process.communicate()
    return process.returncode, [line.split() for line in output.decode().splitlines()]


async def test_an_item_that_kills_its_worker_ends_in_the_dead_letters(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    await queue.add_item(Item("kill", id="poison"))
    for _ in range(2):
        async with program(PROGRAM, redis_url, name, "1") as worker:
            code, _ = await ended(worker)
            assert code == -signal.SIGKILL
        await redis.zadd(f"{name}:deadlines", {"poison": 1})  # let the lease expire
    async with program(PROGRAM, redis_url, name, "1") as worker:
        letter = await the_dead(queue)
        await queue.add_item(Item("0", id="good"))
        await finished(queue)
        worker.terminate()
        assert await ended(worker) == (0, [["ready"], ["good", "1", ANY]])
    assert (letter.id, letter.attempt) == ("poison", 3)
    assert "2 attempts are used up, and the last one left no outcome" in letter.error


@pytest.mark.seed("WRQ-E2")
async def test_a_run_is_cancelled_and_a_process_whose_thread_is_stuck_stops_and_leaves_nothing_behind(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """The slot of the cancelled run is free. No lease, no session, and no item being moved is left."""
    stuck = make_queue(name=f"{name}-stuck")
    await queue.add_item(Item("600", id="long"))
    async with program(PROGRAM, redis_url, name, "1") as worker:
        await printed(worker, b"long ")
        assert await queue.cancel("long")
        await queue.add_item(Item("0", id="next"))
        await printed(worker, b"next ")
        await finished(queue)
        await stuck.add_item(Item("x", id="x"))
        await printed(worker, b"x\n")
        worker.terminate()
        assert await ended(worker) == (3, [])
    assert await queue.dead_letters.list() == []
    assert (await audit(redis, stuck.name)).waiting == [b"x"]
    for queue_name in (name, stuck.name):
        assert not await redis.exists(f"{queue_name}:sessions")
    (view,) = await stuck.inspect()
    assert view.attempt == 0
