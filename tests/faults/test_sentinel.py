"""A fail-over under Sentinel, with workers and producers under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, LeasequeueError, Worker
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from tests.eventually import eventually
from tests.faults.sentinels import Watched, watched
from tests.queue.asking import command, until
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["watched"]

pytestmark = pytest.mark.long

WORKERS, PRODUCERS = 3, 3
#: How many items are added before the primary is killed, and how many after the fail-over.
BEFORE, AFTER = 200, 500
#: How long a step may take (s).
TIMEOUT = 60


class Producer:
    """Adds items one after the other, and repeats what a fail-over interrupts.

    Args:
        number: Its number.
        queue: Where it adds them.
        added: The ids of all items that the server has accepted, in this order.
        enough: Ends it.

    Attributes:
        repeated: How many calls were interrupted.
    """

    def __init__(self, number: int, queue: AsyncWorkQueue, added: list[str], enough: asyncio.Event) -> None:
        self._number, self._queue, self._added, self._enough = number, queue, added, enough
        self.repeated = 0

    async def run(self) -> None:
        """Add items until there are enough."""
        for n in itertools.count():
            if self._enough.is_set():
                return
            item = Item(b"x", id=f"{self._number}-{n}")
            while True:
                try:
                    await self._queue.add_item(item)  # False: the interrupted call was applied
                except LeasequeueError as error:
                    if not error.transient:
                        raise
                    self.repeated += 1
                    await asyncio.sleep(0.05)
                else:
                    break
            self._added.append(item.id)
            await asyncio.sleep(0.002)


async def confirmed(primary: Redis, added: list[str]) -> list[str]:
    """Return ids of accepted items that the replica certainly has."""
    ids = [*added]
    async with primary.client() as one:  # WAIT counts the writes before the last one of its connection
        await one.set("confirmed", len(ids))
        assert await command(one, "WAIT", 1, 5000) == 1
    return ids


async def test_nothing_is_lost_that_the_replica_had_when_the_primary_dies(
    watched: Watched, name: str
) -> None:
    """Workers and producers continue by themselves, with the new primary; nothing else is restarted."""
    runs: Counter[str] = Counter()
    added, enough = list[str](), asyncio.Event()
    async with AsyncExitStack() as stack:

        async def open_queue() -> AsyncWorkQueue:
            client = await stack.enter_async_context(watched.client())
            return await stack.enter_async_context(AsyncWorkQueue(name, client))

        workers: list[Worker] = []
        for _ in range(WORKERS):
            worker = Worker(concurrency=10, lease_time=2, clean_every=1)

            @worker.handler(await open_queue())
            async def handle(_: bytes, lease: Lease) -> None:
                await asyncio.sleep(0.02)
                runs[lease.id] += 1

            workers.append(worker)
        working = [asyncio.create_task(worker.run()) for worker in workers]
        producers = [Producer(number, await open_queue(), added, enough) for number in range(PRODUCERS)]
        producing = [asyncio.create_task(producer.run()) for producer in producers]

        await eventually("the load has begun", lambda: len(added) >= BEFORE, within=TIMEOUT)
        safe = await confirmed(watched.primary, added)
        os.kill((await watched.primary.info("server"))["process_id"], signal.SIGKILL)
        at_the_kill = len(added)

        await watched.promoted([])
        goal = len(added) + AFTER
        await eventually("the load continues", lambda: len(added) >= goal, within=TIMEOUT)
        enough.set()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*producing)
        assert sum(producer.repeated for producer in producers) >= PRODUCERS, "it was under load"
        queue = await open_queue()

        async def is_empty() -> bool:
            with contextlib.suppress(ConnectionLost):
                return not (await queue.counts()).total
            return False

        await until("all is done", is_empty, within=TIMEOUT)
        await eventually("all are healthy", lambda: all(one.health().ok for one in workers), within=TIMEOUT)
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*working)
        # What the replica had confirmed, and what was added after the fail-over; the calls in flight then are
        # neither.
        doubtful = {*added[len(safe) : at_the_kill + PRODUCERS]}
        assert {*added} - doubtful <= {*runs}
        assert len({*added}) == len(added)
        assert not (await audit(watched.replica, name)).all
