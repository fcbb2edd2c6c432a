"""A producer process of the soak: adds items, requeues and drops dead letters, and logs each call.

python -m tests.soak.producer_program URL FOLDER NAME SEED ITEMS_PER_SECOND KIND ROUND

It exits on SIGTERM, or when its standard input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue
from leasequeue.errors import ConnectionLost, ServerBusy
from tests.history.events import Event, HistoryLog
from tests.history.recording import record_calls
from tests.soak.jobs import QUEUES, SHARED, Job, draw, item
from tests.soak.parent import exit_with_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue import Item
    from leasequeue.queue.encoding import AddOptions

#: Nothing is added while so many items are unfinished.
MAX_UNFINISHED = 200
#: How many items a burst has, and the chance of one.
BURST, BURST_CHANCE = 200, 0.03
#: The pause after an error.
PAUSE_SECONDS = 0.1


class Producer:
    """Adds items to one queue.

    Args:
        shared: What the ids that all producers of a round add again and again begin with.
    """

    def __init__(
        self, queue: AsyncWorkQueue, name: str, chance: random.Random, stop: asyncio.Event, *, shared: str
    ) -> None:
        self._queue = queue
        self._name = name
        self._chance = chance
        self._stop = stop
        self._shared = shared
        self._numbers = itertools.count(1)
        self._is_controlled = False

    async def control(self) -> None:
        """Limit the queue, and add to groups at several levels from now on."""
        limits = self._queue.limits
        await self._repeat(partial(limits.set, rate="300/s", burst=30, concurrency=20, ageing=5))
        await self._repeat(partial(limits.set, group="*", rate="100/s", burst=10, concurrency=4))
        self._is_controlled = True

    async def add(self, pause: float) -> None:
        """Add items until `stop` is set, about one in each pause."""
        while not self._stop.is_set():
            count = self._chance.choice([1, 1, 1, 2, 10])
            items = [self._next() for _ in range(count)]
            if self._chance.random() < BURST_CHANCE:
                # So that workers prefetch.
                items += [item(Job(), f"{self._name}-{next(self._numbers)}") for _ in range(BURST)]
            delay = self._chance.choice([0, 0, 0, 0, 0.05, 0.5])
            await self._repeat(partial(self._queue.add_items, items, delay=delay, **self._options()))
            await asyncio.sleep(self._chance.uniform(0.0, 2.0 * pause) * count)
            await self._wait_for_workers()

    async def handle_dead_letters(self) -> None:
        """Requeue or drop dead letters until `stop` is set."""
        while not self._stop.is_set():
            await asyncio.sleep(self._chance.uniform(0.2, 0.8))
            try:
                letters = await self._queue.dead_letters.list(start=-20, count=20, data=False)
                for letter in letters:
                    # Most requeued items fail again; so most are dropped.
                    act = self._queue.dead_letters
                    await (act.requeue if self._chance.random() < 0.3 else act.drop)(letter.id)
            except (ConnectionLost, ServerBusy):
                await asyncio.sleep(PAUSE_SECONDS)

    def _options(self) -> AddOptions:
        if not self._is_controlled or self._chance.random() < 0.3:
            return {}
        return {"priority": self._chance.choice([-1, 0, 0, 2]), "group": self._chance.choice("abcde")}

    def _next(self) -> Item:
        if self._chance.random() < 0.1:
            return item(draw(self._chance), f"{self._shared}-{self._chance.randrange(SHARED)}")
        return item(draw(self._chance), f"{self._name}-{next(self._numbers)}")

    async def _wait_for_workers(self) -> None:
        with suppress(ConnectionLost, ServerBusy):
            while not self._stop.is_set():
                if (await self._queue.counts()).total <= MAX_UNFINISHED:
                    return
                await asyncio.sleep(0.2)

    async def _repeat(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call until the server answers it."""
        while True:
            try:
                await call()
            except (ConnectionLost, ServerBusy):
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return


async def main(url: str, folder: str, name: str, seed: str, rate: str, kind: str, number: str) -> None:
    """Add items until SIGTERM."""
    log = HistoryLog(Path(folder) / f"{name}.jsonl")
    chance, stop = random.Random(seed), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    queues = [record_calls(AsyncWorkQueue.from_url(url, queue, reply_timeout=3.0), log) for queue in QUEUES]
    producers = [Producer(queue, name, chance, stop, shared=f"shared-{number}") for queue in queues]
    async with asyncio.TaskGroup() as group:
        for producer in producers:
            if kind == "controlled":
                await producer.control()
            group.create_task(producer.add(len(QUEUES) / float(rate)))
            group.create_task(producer.handle_dead_letters())
    for queue in queues:
        await queue.close()
    log.write(Event(time.monotonic_ns(), "exit"))


if __name__ == "__main__":
    exit_with_parent()
    asyncio.run(main(*sys.argv[1:]))
