"""What streams, logs, groups, holds, batches, signals, flows in flows, tags cost; plain items pay nothing."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.measure import STEP_COSTS, Row, Sample, metered, number_row, speed_row, take_turns
from leasequeue import Flow, Item, Lease, TaskQueue, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from benchmarks.bench import Bench
    from leasequeue import AsyncWorkQueue, FlowRun
    from leasequeue.tasks import AsyncTask

#: Calls that are awaited at once: they share trips.
COROUTINES = 1_000
LEASE_SECONDS = 3600
ADD, JOB, STAGE = "plain: add", "plain: job", "plain: stage"
#: What the server's time of a step is compared with, by the first word of the step; else with `ADD`.
BESIDE = {"job": JOB, "stage": STAGE}

log = logging.getLogger("benchmarks.extras")


class _Costs:
    """What was measured of each step, by round."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench, self.count = bench, count
        self.found: dict[str, list[Sample]] = {}

    @asynccontextmanager
    async def of(self, what: str, items: int = 0) -> AsyncIterator[None]:
        """Measure the block as a step on so many items."""
        async with metered(self.bench.redis, items or self.count) as sample:
            yield
        self.found.setdefault(what, []).append(sample)

    async def each(self, what: str, call: Callable[..., Awaitable[Any]], values: Sequence[Any]) -> None:
        """Measure a call for each value, many at once, which must succeed."""
        async with self.of(what, len(values)):
            for first in range(0, len(values), COROUTINES):
                assert all(await asyncio.gather(*map(call, values[first : first + COROUTINES])))

    def items(self) -> list[Item]:
        """Return new items."""
        return [Item(bytes(100)) for _ in range(self.count)]

    async def leases(self, queue: AsyncWorkQueue) -> list[Lease]:
        """Lease as many items."""
        leases: list[Lease] = []
        while len(leases) < self.count:
            leases += await queue.lease_many(COROUTINES, LEASE_SECONDS)
        return leases

    async def tasks(self) -> TaskQueue:
        """Open a queue of tasks."""
        tasks = TaskQueue.from_url(self.bench.url(), self.bench.name())
        return await self.bench.stack.enter_async_context(tasks)


async def extras(bench: Bench) -> list[Row]:
    """Measure each by the item. The first rows are those to compare between two commits.

    `x plain` is the server's time in scripts beside that of adding a plain item, of a plain job or stage.
    """
    kinds = (_plain, _tags, _streams, _groups, _holds, _jobs, _batches, _signals, _sub_flows)
    for kind in kinds:
        await kind(_Costs(bench, 100))  # so that the server has all scripts
    costs = _Costs(bench, bench.scaled(5_000, 100))
    await take_turns(bench.scaled(5, 1), [partial(kind, costs) for kind in kinds])
    found = sorted(costs.found.items(), key=lambda one: not one[0].startswith("plain"))
    rows = [speed_row(what, samples, costs=STEP_COSTS) for what, samples in found]
    for what, samples in found:
        beside = costs.found[BESIDE.get(what.split()[0], ADD)]
        ratios = [
            (one.script_us / one.items) / (plain.script_us / plain.items)
            for one, plain in zip(samples, beside, strict=True)
        ]
        rows.append(number_row(what, "x plain", ratios))
    return rows


async def _cycle(costs: _Costs, kind: str, **options: Any) -> AsyncWorkQueue:
    queue = await costs.bench.queue()
    await costs.each(f"{kind}: add", partial(queue.add_item, **options), costs.items())
    for what, finish in (("release", queue.release), ("complete", queue.complete)):
        async with costs.of(f"{kind}: lease, then {what}"):
            leases = await costs.leases(queue)
        await costs.each(f"{kind}: {what}", finish, leases)
    return queue


async def _plain(costs: _Costs) -> None:
    await _cycle(costs, "plain")


async def _tags(costs: _Costs) -> None:
    queue = await _cycle(costs, "1 tag", tags=["import-7"])
    await queue.add_items(costs.items(), tags=["import-7"])
    async with costs.of("cancel by tag"):
        assert await queue.tags.cancel("import-7") == costs.count


async def _streams(costs: _Costs) -> None:
    queue, chunk, alone = await costs.bench.queue(), bytes(50), costs.count // 10
    await queue.add_items(costs.items())
    first, *others = await costs.leases(queue)
    async with costs.of("emit, one after the other", alone):
        for _ in range(alone):
            assert await queue.emit(first, chunk)
    for what in ("emit the first chunk of each item, many at once", "emit, many at once"):
        await costs.each(what, lambda one: queue.emit(one, chunk), others)
    await costs.each("emit, many of one item", lambda _: queue.emit(first, chunk), others)
    assert await queue.complete(first)
    async with costs.of("read a stream late, by the chunk", alone + len(others)):
        assert len([one async for one in queue.results.stream(first.id)]) == alone + len(others)


async def _groups(costs: _Costs) -> None:
    queue, other = await costs.bench.queue(), await costs.bench.queue()
    items = costs.items()
    await queue.add_items(items, delay=LEASE_SECONDS)
    ids = [item.id for item in items]
    await costs.each("run a delayed item now", queue.promote, ids)
    await costs.each("change a priority", lambda one: queue.set_priority(one, 5), ids)
    assert await queue.admin.purge() == costs.count
    for what, call in (
        ("move a group", lambda: queue.groups.move("a", other.name)),
        ("cancel a group", lambda: queue.groups.cancel("a")),
        ("purge a group", lambda: queue.groups.purge("a")),
    ):
        for group in ("a", "b"):
            await queue.add_items(costs.items(), group=group)
        if what.startswith("move"):
            async with costs.of("list the groups, by the item", 2 * costs.count):
                assert len(await queue.groups.list()) == 2
            async with costs.of("count a group, by the item"):
                assert (await queue.groups.count("a")).waiting == costs.count
            async with costs.of("peek a group", 10):
                assert len(await queue.groups.peek("a", 10)) == 10
        async with costs.of(what):
            assert await call()
        assert await queue.groups.purge("b") == costs.count


async def _holds(costs: _Costs) -> None:
    queue = await costs.bench.queue()
    await queue.limits.set(hold="api", concurrency=costs.count)

    async def hold(_: int) -> bool:
        async with queue.limits.hold("api"):
            return True

    await costs.each("hold a place, many at once", hold, range(costs.count))
    async with costs.of("hold a place, one after the other", costs.count // 10):
        for number in range(costs.count // 10):
            await hold(number)


async def _jobs(costs: _Costs) -> None:
    log.propagate, level = False, log.level
    log.setLevel(logging.INFO)
    for what, kept in ((JOB, None), ("job that logs 1 record", "64KiB")):
        tasks = await costs.tasks()

        @tasks.task(keep_result=None, keep_logs=kept)
        async def work() -> None:
            log.info("one record")

        await tasks.add_many([work.call() for _ in range(costs.count)])
        async with costs.of(what):
            await Worker(tasks).drain()
    log.propagate = True
    log.setLevel(level)


@dataclass
class Part:
    """An argument by which calls are gathered."""

    key: int


async def _batches(costs: _Costs) -> None:
    tasks = await costs.tasks()

    @tasks.task(keep_result=None, batch=10, batch_wait=1, batch_by="key")
    async def together(parts: list[Part]) -> None: ...

    async with costs.of("add to batches by key"):
        await tasks.add_many([together.call(Part(number // 10)) for number in range(costs.count)])
    async with costs.of("job in a batch of 10 of a key"):
        await Worker(tasks).drain()


def _stage(tasks: TaskQueue, name: str) -> AsyncTask[[], None]:
    async def work() -> None: ...

    return tasks.task(name=name)(work)


async def _runs(costs: _Costs, flow: Flow[Any]) -> list[FlowRun[Any]]:
    return [await flow.start() for _ in range(costs.count // 10)]


async def _signals(costs: _Costs) -> None:
    tasks = await costs.tasks()
    flow = Flow("signals", tasks)
    flow.stage(_stage(tasks, "pay"), after=flow.signal("approved", within=LEASE_SECONDS))
    runs = await _runs(costs, flow)
    await Worker(flow).drain()
    await costs.each("signal to a stage that waits", lambda run: run.signal("approved"), runs)
    await Worker(flow).drain()


async def _sub_flows(costs: _Costs) -> None:
    tasks = await costs.tasks()
    plain, inner, outer = (Flow(name, tasks) for name in ("plain", "inner", "outer"))
    plain.stage(_stage(tasks, "a"))
    inner.stage(_stage(tasks, "b"))
    outer.stage(inner)
    for what, flow in ((STAGE, plain), ("stage that is a flow of one stage", outer)):
        await _runs(costs, flow)
        async with costs.of(what, costs.count // 10):
            await Worker(flow).drain()
