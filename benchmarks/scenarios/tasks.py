"""Tasks beside plain items, the round trip of a task, and thousands of callers that wait for results."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from typing import TYPE_CHECKING

from benchmarks.bench import SERVER_CORE, STEP_TIMEOUT, Child, pin
from benchmarks.measure import (
    COSTS,
    Row,
    Sample,
    Setting,
    metered,
    number_row,
    speed_row,
    take_turns,
    time_row,
)
from benchmarks.scenarios.many import PAYLOAD, Drained
from leasequeue import AsyncWorkQueue, Item, TaskQueue, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench
    from leasequeue import Lease

CONCURRENCY = 100
LEASE_SECONDS = 3600
#: How long results are kept, and how long callers wait for them (s).
KEEP_SECONDS, WAIT_SECONDS = 3600, 600
#: Items and calls per trip.
CHUNK = 1_000
#: Callers are woken one at a time with this pause between two (s).
PAUSE_SECONDS = 0.002
NO_OP = "jobs that do nothing"
ALONE, AT_ONCE = "one at a time, to wake-up", "all at once, to wake-up"


async def tasks(bench: Bench) -> list[Row]:
    """Measure jobs that do nothing as tasks and as plain items, with and without results, and a round trip.

    They take turns. A task has two numbers as arguments, a plain item 100 bytes. The result of a plain item
    is None as well.
    """
    jobs = bench.scaled(20_000, 1_000)
    targets = {
        (kind, keep): kind_of(bench, jobs, keep)
        for keep in (None, KEEP_SECONDS)
        for kind, kind_of in (("plain items", _PlainItems), ("tasks", Tasks))
    }
    await take_turns(bench.scaled(7, 2), [target.round for target in targets.values()])
    rows = []
    for (kind, keep), target in targets.items():
        setting: Setting = {"kind": kind, "results": "none" if keep is None else "kept"}
        setting["concurrency"] = CONCURRENCY
        rows.append(speed_row(NO_OP, target.samples, costs=(*COSTS, "trips_per_item"), setting=setting))
    return [*rows, *await _round_trips(bench)]


class _PlainItems(Drained):
    """A worker of one queue with plain items."""

    def __init__(self, bench: Bench, jobs: int, keep: int | None) -> None:
        super().__init__(bench, 1, 1, CONCURRENCY, jobs)
        self._keep = keep

    async def _open(self) -> tuple[Worker, Sequence[AsyncWorkQueue]]:
        worker, queue = Worker(concurrency=CONCURRENCY), await self._bench.queue()
        worker.handler(queue, keep_result=self._keep)(self._job)
        return worker, [queue]


class Tasks(_PlainItems):
    """A worker of one task queue."""

    async def _open(self) -> tuple[Worker, Sequence[AsyncWorkQueue]]:
        tasks = TaskQueue.from_url(self._bench.url(), self._bench.name())
        await self._bench.stack.enter_async_context(tasks)

        @tasks.task(keep_result=self._keep)
        async def job(number: int, ms: int) -> None:  # noqa: ARG001 - the arguments of the rivals' jobs
            await self._ran()

        self._tasks, self._task = tasks, job
        return Worker(tasks, concurrency=CONCURRENCY), [tasks.queue]

    async def _fill(self, queue: AsyncWorkQueue, count: int) -> None:  # noqa: ARG002 - that of the tasks
        for first in range(0, count, CHUNK):
            numbers = range(first, min(first + CHUNK, count))
            await self._tasks.add_many([self._task.call(number, 0) for number in numbers])


async def _round_trips(bench: Bench) -> list[Row]:
    """Measure from add to the result, one task at a time; the worker is another process on the other core."""
    count = bench.scaled(2_000, 100)
    tasks = await bench.stack.enter_async_context(TaskQueue.from_url(bench.url(), bench.name()))
    worker = Child(_work, bench.url(), tasks.name)
    add = tasks.task(_add)
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            await bench.blocked(1)
            for number in range(count // 10):
                await (await add.add(number, 1)).result()
            each: list[float] = []
            async with metered(bench.redis, count) as sample:
                for number in range(count):
                    started = time.perf_counter()
                    job = await add.add(number, 1)
                    assert await job.result() == number + 1
                    each.append(time.perf_counter() - started)
    finally:
        worker.kill()
    trips = number_row("trips of both processes", "1/task", [sample.trips / count])
    return [time_row("add to result", each), trips]


async def _add(one: int, other: int) -> int:
    return one + other


async def _work(_: Connection, url: str, name: str) -> None:
    pin(SERVER_CORE)
    async with TaskQueue.from_url(url, name) as tasks:
        tasks.task(_add)
        await Worker(tasks).run()


async def waiters(bench: Bench) -> list[Row]:
    """Measure 10,000 callers in one process that wait for results, which another process completes.

    First some are woken one at a time, with pauses, then all others at once. The time begins when the other
    process calls `complete`, and ends when the caller continues; both read the same clock.
    """
    count, alone = bench.scaled((10_000, 2_000), (500, 50))
    setting: Setting = {"waiters": count}
    size = await _memory_of(bench, count)
    connections, _ = await _held(bench)
    queue, ids, done = await _filled(bench, count)
    _, held = await _held(bench)
    async with metered(bench.redis, count) as began:
        waits = await _begin(queue, ids, done)
    connections_after, held_after = await _held(bench)
    async with metered(bench.redis, 1) as idle:
        await asyncio.sleep(bench.scaled(12, 1))
    rows = [
        number_row("connections", "connections", [connections_after - connections], setting=setting),
        number_row("memory of this process", "bytes/waiter", [size / count], setting=setting),
        number_row("memory of the server", "bytes/waiter", [(held_after - held) / count], setting=setting),
        number_row("trips to begin", "trips", [began.trips], setting=setting),
        number_row("trips while nothing happens", "1/s", [idle.trips / idle.seconds], setting=setting),
        number_row("CPU while nothing happens", "% of a core", [_cpu(idle)], setting=setting),
    ]
    completer = Child(_complete, bench.url(), queue.name, count)
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            assert await completer.receive() == "leased"
            for what, some in ((ALONE, waits[:alone]), (AT_ONCE, waits[alone:])):
                async with metered(bench.redis, len(some)) as sample:
                    completer.send((len(some), PAUSE_SECONDS if what == ALONE else 0))
                    late = await asyncio.gather(*some)
                rows.append(time_row(what, late, setting=setting))
                trips = [sample.trips / len(some)]
                rows.append(number_row(f"{what}: trips of both", "1/result", trips, setting=setting))
    finally:
        completer.kill()
    return rows


def _cpu(sample: Sample) -> float:
    return 100 * sample.client_cpu / sample.seconds


async def _held(bench: Bench) -> tuple[int, int]:
    """Return how many connections the server has, and its memory in bytes."""
    return len(await bench.redis.client_list()), (await bench.redis.info("memory"))["used_memory"]


async def _filled(bench: Bench, count: int) -> tuple[AsyncWorkQueue, list[str], str]:
    """Return a queue with so many items, their ids, and that of a completed item with a result."""
    queue = await bench.queue()
    await queue.add_item(Item(b"", "done"))
    done = await queue.lease(LEASE_SECONDS)
    assert done is not None
    assert await queue.complete(done, result=b"0")
    items = [Item(bytes(PAYLOAD)) for _ in range(count)]
    for first in range(0, count, CHUNK):
        await queue.add_items(items[first : first + CHUNK])
    return queue, [item.id for item in items], done.id


async def _begin(queue: AsyncWorkQueue, ids: Sequence[str], done: str) -> list[asyncio.Task[float]]:
    """Begin to wait for the items, each in a task; return when the server knows it of all of them."""
    waits = [asyncio.create_task(_wake(queue, item_id)) for item_id in ids]
    await asyncio.sleep(0)
    await queue.results.wait(done, WAIT_SECONDS)  # in the last trip
    return waits


async def _wake(queue: AsyncWorkQueue, item_id: str) -> float:
    """Wait for a result, which is a time; return the seconds since then."""
    result = await queue.results.wait(item_id, WAIT_SECONDS)
    now = time.monotonic()
    assert result is not None
    return now - float(result)


async def _memory_of(bench: Bench, count: int) -> int:
    """Return the memory that so many waiting callers take in this process, their tasks included."""
    queue, ids, done = await _filled(bench, count)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    waits = await _begin(queue, ids, done)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await bench.reset()
    return size


async def _complete(pipe: Connection, url: str, name: str, count: int) -> None:
    """Lease all items, then complete as many as each message says, with a pause between two, or at once."""
    pin(SERVER_CORE)
    async with AsyncWorkQueue.from_url(url, name) as queue:
        leases: list[Lease] = []
        while len(leases) < count:
            leases += await queue.lease_many(min(CHUNK, count - len(leases)), LEASE_SECONDS)
        pipe.send("leased")

        async def complete(lease: Lease) -> None:
            assert await queue.complete(lease, result=str(time.monotonic()).encode())

        while leases:
            size, pause = await asyncio.to_thread(pipe.recv)
            some, leases = leases[:size], leases[size:]
            if pause:
                for lease in some:
                    await asyncio.sleep(pause)
                    await complete(lease)
            else:
                await asyncio.gather(*map(complete, some))
        await asyncio.Event().wait()
