"""Workers in separate processes: killed, stopped, and several on one queue."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest

from leasequeue import Item
from tests.queue.asking import until
from tests.queue.keyspace import audit
from tests.worker.working import counted, finished, the_dead

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


@asynccontextmanager
async def process_on(url: str, name: str, concurrency: int = 1) -> AsyncIterator[Process]:
    """Start a worker; it is killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.worker.program", url, name, f"{concurrency}"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


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
        async with process_on(redis_url, name) as worker:
            code, _ = await ended(worker)
            assert code == -signal.SIGKILL
        await redis.zadd(f"{name}:deadlines", {"poison": 1})  # let the lease expire
    async with process_on(redis_url, name) as worker:
        letter = await the_dead(queue)
        await queue.add_item(Item("0", id="good"))
        await finished(queue)
        worker.terminate()
        assert await ended(worker) == (0, [["ready"], ["good", "1", ANY]])
    assert (letter.id, letter.attempt) == ("poison", 3)
    assert "2 attempts are used up, and the last one left no outcome" in letter.error


@pytest.mark.seed("WRQ-E2")
async def test_a_run_in_another_process_is_cancelled_and_its_slot_is_free(
    queue: AsyncWorkQueue, redis_url: str, name: str
) -> None:
    await queue.add_item(Item("600", id="long"))
    async with process_on(redis_url, name, 1) as worker:
        assert worker.stdout is not None
        async with asyncio.timeout(120):
            while not (await worker.stdout.readline()).startswith(b"long "):
                pass  # until it runs
        assert await queue.cancel("long")
        await queue.add_item(Item("0", id="next"))
        await finished(queue)
        worker.terminate()
        assert await ended(worker) == (0, [["next", "1", ANY]])
    assert await queue.dead_letters.list() == []


async def test_a_process_whose_thread_is_stuck_stops_and_leaves_nothing_behind(
    make_queue: MakeQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """No lease, no session, and no item that is being moved to it."""
    stuck = make_queue(name=f"{name}-stuck")
    await stuck.add_item(Item("x", id="x"))
    async with process_on(redis_url, name, 2) as worker:
        assert worker.stdout is not None
        async with asyncio.timeout(120):
            while await worker.stdout.readline() != b"x\n":
                pass  # until the thread is stuck
        worker.terminate()
        assert await ended(worker) == (3, [])
    assert (await audit(redis, stuck.name)).waiting == [b"x"]
    for queue_name in (name, stuck.name):
        assert not await redis.exists(f"{queue_name}:sessions")
    (view,) = await stuck.inspect()
    assert view.attempt == 0


@pytest.mark.long
@pytest.mark.seed("GLD-B9")
async def test_no_item_waits_at_a_busy_worker_while_another_is_idle(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """Items of 1 ms and of 5 s over 4 processes."""
    kinds = ["0.001"] * 300 + ["5"] * 6
    random.Random(4).shuffle(kinds)
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(process_on(redis_url, name)) for _ in range(4)]

        async def all_wait() -> bool:
            return int(await redis.zcard(f"{name}:sessions")) == len(workers)

        await until("all workers wait for items", all_wait)
        await queue.add_items(Item(kind, id=f"{number}") for number, kind in enumerate(kinds))
        await counted(queue, "all items are done", lambda counts: not counts.total)
        by_worker = []
        for worker in workers:
            worker.terminate()
            code, lines = await ended(worker)
            assert code == 0
            by_worker.append([(line[0], float(line[2])) for line in lines if len(line) == 3])
    seen = [item_id for runs in by_worker for item_id, _ in runs]
    assert sorted(seen, key=int) == [f"{number}" for number in range(len(kinds))], "each ran once"
    runs = [[(start, float(kinds[int(item_id)])) for item_id, start in one] for one in by_worker]
    gap = longest_idle(runs)
    sys.stderr.write(f"\nlongest time that a worker was idle before the last start: {gap * 1000:.0f} ms\n")
    assert gap < 2.5


def longest_idle(workers: list[list[tuple[float, float]]]) -> float:
    """Return for how long a process was idle although some item had not started yet."""
    longest = 0.0
    starts = [start for runs in workers for start, _ in runs]
    last_start = max(starts)
    for runs in workers:
        free_at = min(starts)
        for start, seconds in sorted(runs):
            longest = max(longest, min(start, last_start) - free_at)
            free_at = start + seconds
        longest = max(longest, last_start - free_at)
    return longest
