"""Workers and the history of a queue: it is exact after a SIGKILL, and they see how long items wait."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from leasequeue.worker import maintenance
from tests.processes import program
from tests.queue.asking import until
from tests.worker.working import add, finished, new_worker, working

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.views import HistoryCell


async def today(queue: AsyncWorkQueue) -> HistoryCell:
    return (await queue.history("day", count=1)).cells[0]


@pytest.mark.slow
async def test_a_worker_that_is_killed_loses_nothing_of_what_was_accepted(
    queue: AsyncWorkQueue, redis_url: str, name: str
) -> None:
    await queue.history.keep()
    await add(queue, *["0"] * 50, "kill", *["0"] * 50)
    async with program("tests.worker.program", redis_url, name, "5") as worker:
        assert await worker.wait() == -signal.SIGKILL
    done = 101 - (await queue.counts()).total
    cell = await today(queue)
    assert 0 < done < 101
    assert (cell.added, cell.completed, sum(cell.runs)) == (101, done, done)


async def test_a_worker_that_stops_has_counted_each_run(queue: AsyncWorkQueue) -> None:
    await queue.history.keep()
    worker = new_worker()

    @worker.handler(queue)
    async def handle(payload: bytes) -> None:
        if payload == b"fails":
            raise ValueError

    await add(queue, *["works"] * 20, "fails")
    async with working(worker):
        await until_ended(queue)
    cell = await today(queue)
    # Of three attempts, the last makes it a dead letter.
    assert (cell.completed, cell.failed, cell.dead, sum(cell.runs)) == (20, 3, 1, 23)


async def until_ended(queue: AsyncWorkQueue) -> None:
    async def ended() -> bool:
        counts = await queue.counts()
        return (counts.total, counts.dead) == (0, 1)

    await until("all items have ended", ended)


async def test_a_worker_sees_how_long_items_wait_although_nobody_asks(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONGEST_SLEEP", "SAMPLE_EVERY", "ASK_EVERY"):
        monkeypatch.setattr(maintenance, name, 0.02)
    free = asyncio.Event()
    worker = new_worker(concurrency=1, clean_every=60)

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        await free.wait()

    async def aged() -> bool:
        return (await today(queue)).oldest_age > 0

    async def waited() -> bool:
        return any((await today(queue)).waits)

    await add(queue, *["x"] * 30)
    async with working(worker):
        await queue.history.keep()
        await until("the age of the oldest is in the history", aged)
        free.set()
        await finished(queue)
        await until("a wait is in the history", waited)
