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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError
from tests.history.events import Event, HistoryLog
from tests.history.recording import record_calls
from tests.soak.jobs import GROUPS, QUEUES, SHARED, Job, draw, item, limits_of, open_queue
from tests.soak.parent import exit_with_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue import AsyncWorkQueue, Item
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
        log: Where it says what was acknowledged, besides the calls that make it up.
        kind: The kind of the soak.
        shared: What the ids that all producers of a round add again and again begin with.
    """

    def __init__(
        self,
        queue: AsyncWorkQueue,
        name: str,
        chance: random.Random,
        stop: asyncio.Event,
        *,
        log: HistoryLog,
        kind: str,
        shared: str,
    ) -> None:
        self._queue = queue
        self._name = name
        self._chance = chance
        self._stop = stop
        self._log = log
        self._kind = kind
        self._shared = shared
        self._numbers = itertools.count(1)

    async def control(self) -> None:
        """Set the limits of the queue."""
        for limit in limits_of(self._queue.name, self._kind):
            await self._repeat(partial(self._queue.limits.set, **limit))

    async def add(self, pause: float) -> None:
        """Add items until `stop` is set, about one in each pause."""
        while not self._stop.is_set():
            count = self._chance.choice([1, 1, 1, 2, 10])
            options = self._options()
            # With shards, an id is in the shard of its group, so it names it.
            ending = f".{options.get('group', '')}" if self._kind == "sharded" else ""
            items = [self._next(ending) for _ in range(count)]
            if self._chance.random() < BURST_CHANCE:
                # So that workers prefetch.
                items += [item(Job(), f"{self._name}-{next(self._numbers)}{ending}") for _ in range(BURST)]
            delay = self._chance.choice([0, 0, 0, 0, 0.05, 0.5])
            called_at = time.monotonic_ns()
            await self._repeat(partial(self._queue.add_items, items, delay=delay, **options))
            # However they are spread over calls and shards: all are there, or have ended since the call.
            for one in items:
                shard = self._queue.shard_of(one.id, group=options.get("group")).name
                now = time.monotonic_ns()
                self._log.write(Event(now, "add", shard, one.id, called_at=called_at, outcome=False))
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
            except LeasequeueError as error:
                await _pause_after(error)

    def _options(self) -> AddOptions:
        if self._kind == "plain" or self._chance.random() < 0.3:
            return {}
        return {"priority": self._chance.choice([-1, 0, 0, 2]), "group": self._chance.choice(GROUPS)}

    def _next(self, ending: str) -> Item:
        if self._chance.random() < 0.1:
            return item(draw(self._chance), f"{self._shared}-{self._chance.randrange(SHARED)}{ending}")
        return item(draw(self._chance), f"{self._name}-{next(self._numbers)}{ending}")

    async def _wait_for_workers(self) -> None:
        try:
            while not self._stop.is_set():
                if (await self._queue.counts()).total <= MAX_UNFINISHED:
                    return
                await asyncio.sleep(0.2)
        except LeasequeueError as error:
            await _pause_after(error)

    async def _repeat(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call until the server answers it."""
        while True:
            try:
                await call()
            except LeasequeueError as error:
                await _pause_after(error)
            else:
                return


async def _pause_after(error: LeasequeueError) -> None:
    """Wait after a transient error; raise any other one."""
    if not error.transient:
        raise error
    await asyncio.sleep(PAUSE_SECONDS)


async def main(url: str, folder: str, name: str, seed: str, rate: str, kind: str, number: str) -> None:
    """Add items until SIGTERM."""
    log = HistoryLog(Path(folder) / f"{name}.jsonl")
    chance, stop = random.Random(seed), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    queues = [record_calls(open_queue(url, queue, kind), log) for queue in QUEUES]
    producers = [
        Producer(queue, name, chance, stop, log=log, kind=kind, shared=f"shared-{number}") for queue in queues
    ]
    async with asyncio.TaskGroup() as group:
        for producer in producers:
            await producer.control()
            group.create_task(producer.add(len(QUEUES) / float(rate)))
            group.create_task(producer.handle_dead_letters())
    for queue in queues:
        await queue.close()
    log.write(Event(time.monotonic_ns(), "exit"))


if __name__ == "__main__":
    exit_with_parent()
    asyncio.run(main(*sys.argv[1:]))
