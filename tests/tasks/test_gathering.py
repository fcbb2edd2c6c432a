"""Calls of a task that have a field in common run together: when enough are there, or after a time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import InvalidArgument, RetryPolicy, TaskQueue, current_run
from leasequeue.errors import InvalidCall, InvalidTask
from leasequeue.queue.queue import engine_of
from leasequeue.testing import Clock
from tests.eventually import eventually
from tests.processes import printed
from tests.queue.asking import until
from tests.queue.keyspace import audit, left_over
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

#: Longer than any test: only size completes a batch.
LONG = 3600


@dataclass
class Order:
    customer: str
    number: int


def gathering(tasks: TaskQueue, batches: list[list[int]], wait: float = LONG, **options: Any) -> Any:
    """Register a task that notes its batches of three."""

    async def confirm(orders: list[Order]) -> list[str]:
        assert len({one.customer for one in orders}) == 1
        batches.append(sorted(one.number for one in orders))
        return [f"{one.customer} {one.number}" for one in orders]

    return tasks.task(batch=3, batch_wait=wait, batch_by="customer", **options)(confirm)


async def test_calls_of_a_key_run_together_when_they_are_enough(
    tasks: TaskQueue, redis: Redis, name: str
) -> None:
    batches: list[list[int]] = []
    confirm = gathering(tasks, batches)

    @tasks.task
    async def plain(number: int) -> int:
        return number

    # One call leases both batches.
    ann = [await confirm.add(Order("ann", number)) for number in range(2)]
    bob = await tasks.add_many([confirm.call(Order("bob", 10 + number)) for number in range(3)])
    ann.append(await confirm.add(Order("ann", 2)))
    assert (await tasks.queue.admin.fsck()).findings == ()
    async with working(new_worker(tasks)), working(new_worker(tasks)):
        ann += [await confirm.add(Order("ann", number)) for number in range(3, 7)]
        assert await (await plain.add(7)).result(timeout=120) == 7
        assert [await job.result(timeout=120) for job in ann[:6]] == [f"ann {number}" for number in range(6)]
        assert [await job.result(timeout=120) for job in bob] == [f"bob {number}" for number in range(10, 13)]
    assert sorted(batches) == [[0, 1, 2], [3, 4, 5], [10, 11, 12]]
    assert (await tasks.queue.counts()).waiting == 1, "the seventh gathers"
    assert (await ann[6].status()).state == "waiting"
    assert await ann[6].cancel(keep=0)
    assert (await audit(redis, name)).all == Counter()


async def test_idle_workers_run_a_batch_when_its_time_has_passed(tasks: TaskQueue) -> None:
    batches: list[list[int]] = []
    confirm = gathering(tasks, batches, wait=0.05)
    async with working(new_worker(tasks)), working(new_worker(tasks)):
        for turn in range(3):
            jobs = await tasks.add_many([confirm.call(Order("ann", turn)) for _ in range(2)])
            assert [await job.result(timeout=120) for job in jobs] == [f"ann {turn}"] * 2
    assert batches == [[0, 0], [1, 1], [2, 2]]


async def test_a_worker_is_healthy_while_all_that_waits_gathers(redis: Redis, name: str) -> None:
    clock = Clock()
    async with TaskQueue(name, redis, clock=clock) as tasks:
        confirm, queue = gathering(tasks, []), tasks.queue

        @tasks.task
        async def plain() -> None: ...

        async def check() -> tuple[int, bool]:
            """Return what waits, and whether it may."""
            waiting, may_wait = await engine_of(queue).run("check_waiting")
            return waiting, may_wait == 1

        assert await check() == (0, False)
        await confirm.add(Order("ann", 1))
        assert await check() == (1, True)
        other = await plain.options(priority=1).add()
        assert await check() == (2, False)
        await other.cancel(keep=0)
        assert await check() == (1, True)
        other = await plain.add()
        assert await check() == (2, False)
        await other.cancel(keep=0)
        async with working(worker := new_worker(tasks)):
            await worker.started()
            runtime = worker._runtime
            assert runtime is not None
            await runtime.monitor._check(queue, idle=True)
            assert not runtime.monitor._ignored
        clock.advance(LONG + 1)
        assert await check() == (1, False)


async def test_checks_and_cleans_change_nothing_of_what_gathers(redis: Redis, name: str) -> None:
    turns = f"{name}:turns:50"
    clock = Clock()
    async with TaskQueue(name, redis, clock=clock) as tasks:
        confirm, queue = gathering(tasks, []), tasks.queue
        checks = [queue.admin.fsck, queue.light_clean, queue.deep_clean]
        for number in range(2):
            await confirm.add(Order("ann", number))
            clock.advance(10)
        [group] = await redis.zrange(turns, 0, -1)
        assert isinstance(group, bytes)
        till = await redis.zscore(turns, group)
        assert till is not None
        for check in checks:
            assert (await check()).findings == ()
            assert await redis.zscore(turns, group) == till

        for late in (1e15 + till, till + 2000, till):  # in the end the batch is full
            await redis.zadd(turns, {group: late})
            [finding] = (await queue.admin.fsck()).findings
            assert finding.problem == "late_turn"
            assert await redis.zscore(turns, group) == round(clock() * 1000)
            if late == till + 2000:
                await confirm.add(Order("ann", 2))


async def test_batches_that_one_call_leases_are_separate_runs(redis: Redis, name: str) -> None:
    batches: list[list[int]] = []
    clock = Clock()
    async with TaskQueue(name, redis, clock=clock) as tasks:
        confirm = gathering(tasks, batches)
        calls = [confirm.call(Order(f"c{number % 4}", number)) for number in range(8)]
        jobs = await tasks.add_many(calls)
        clock.advance(LONG + 1)
        async with working(new_worker(tasks, concurrency=20)):
            for job in jobs:
                await job.result(timeout=120)
    assert sorted(batches) == [[0, 4], [1, 5], [2, 6], [3, 7]]


async def test_keys_that_differ_after_a_quote_gather_apart(redis: Redis, name: str) -> None:
    batches: list[list[int]] = []
    clock = Clock()
    async with TaskQueue(name, redis, clock=clock) as tasks:
        confirm = gathering(tasks, batches)  # it asserts that a batch has one customer
        for number in range(4):
            await confirm.add(Order(('Ann "A"', 'Ann "B\\')[number % 2], number))
        clock.advance(LONG + 1)
        await new_worker(tasks, concurrency=20).drain()
    assert sorted(batches) == [[0, 2], [1, 3]]


async def test_calls_that_have_no_group_are_in_no_batch_with_those_of_another_key(tasks: TaskQueue) -> None:
    """As those that waited when the task got its `batch_wait`."""
    batches: list[list[int]] = []

    @tasks.task(batch=3, batch_wait=LONG, batch_by="customer")
    async def confirm(orders: list[Order]) -> None:
        batches.append([one.number for one in orders])

    calls = [confirm.call(Order(("ann", "bob")[number % 2], number)) for number in range(4)]
    items = [call.item() for call in calls]
    await tasks.queue.add_items(items[:2])
    await tasks.queue.add_items(items[2:], group="red")
    async with working(new_worker(tasks, concurrency=20)):
        for item in items:
            await confirm.job(item.id).result(timeout=120)
    assert sorted(batches) == [[0], [1], [2], [3]]


async def test_without_a_field_all_calls_gather_and_what_fails_gathers_again(tasks: TaskQueue) -> None:
    runs: list[tuple[int, int]] = []

    @tasks.task(batch=4, batch_wait=LONG, retry=RetryPolicy(attempts=3, first=0))
    async def store(numbers: list[int]) -> None:
        runs.append((len(numbers), current_run().lease.attempt))
        raise ValueError("always")

    await tasks.add_many([store.call(number) for number in range(4)])
    async with working(new_worker(tasks)):
        await eventually("they are dead letters", lambda: len(runs) == 6)
    assert runs == [(4, 1), (4, 2), *[(1, 3)] * 4], "the last attempt is a separate run"


async def test_what_gathers_is_moved_cancelled_purged_and_deleted_as_other_items_are(
    tasks: TaskQueue, redis: Redis, name: str
) -> None:
    batches: list[list[int]] = []
    async with TaskQueue(f"{name}-other", redis) as other:
        confirm, there = gathering(tasks, []), gathering(other, batches)
        jobs = [await confirm.add(Order("ann", number)) for number in range(2)]
        assert await tasks.queue.admin.move(other.queue) == [job.id for job in jobs]
        assert (await audit(redis, name)).all == Counter()
        jobs = [there.job(job.id) for job in jobs]
        assert await jobs.pop(0).cancel(keep=0)
        jobs.append(await there.add(Order("ann", 2)))
        async with working(new_worker(other)):
            jobs.append(await there.add(Order("ann", 3)))
            assert [await job.result(timeout=120) for job in jobs] == ["ann 1", "ann 2", "ann 3"]
        assert batches == [[1, 2, 3]], "two of three gathered until the third was there"

        ids = [(await there.add(Order("ann", number))).id for number in range(2)]
        [group] = await other.queue.groups.list()
        assert await other.queue.groups.move(group, name) == ids
        assert await tasks.queue.groups.purge(group) == 2
        for number in range(2):
            await there.add(Order("ann", number))
        assert await other.queue.admin.purge() == 2
        for queue in (tasks.queue, other.queue):
            assert (await queue.admin.fsck()).findings == ()
            assert (await audit(redis, queue.name)).all == Counter()
        await there.add(Order("ann", 0))
        await other.queue.admin.delete()
    assert not await left_over(redis, f"{name}-other")


WORKER = """
import asyncio, sys
from leasequeue import TaskQueue, Worker
tasks = TaskQueue.from_url(sys.argv[1], sys.argv[2])
@tasks.task(batch=3, batch_wait=3600, batch_by="customer")
async def confirm(orders: list[dict]) -> None:
    print("runs", len(orders), flush=True)
    await asyncio.sleep(3600)
asyncio.run(Worker(tasks, lease_time=0.5).run())
"""


@pytest.mark.parametrize("step", ["gathers", "runs"])
async def test_a_batch_whose_worker_is_killed_is_a_batch_again(
    tasks: TaskQueue, redis: Redis, redis_url: str, name: str, step: str
) -> None:
    """With calls that are added later in the next one; killed before it is full, it waits for the others."""
    batches: list[list[int]] = []
    confirm = gathering(tasks, batches)

    async def is_waiting() -> bool:
        return bool(await redis.exists(f"{name}:sessions"))

    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, redis_url, name), stdout=asyncio.subprocess.PIPE
    )
    try:
        jobs = [await confirm.add(Order("ann", number)) for number in range(2)]
        await until("it waits", is_waiting)
        if step == "runs":
            jobs.append(await confirm.add(Order("ann", 2)))
            await printed(worker, b"runs 3\n")
    finally:
        worker.kill()
        await worker.wait()
    jobs += [await confirm.add(Order("ann", number)) for number in range(len(jobs), 6)]
    async with working(new_worker(tasks)):
        assert [await job.result(timeout=120) for job in jobs] == [f"ann {number}" for number in range(6)]
    assert Counter(map(tuple, batches)) == Counter([(0, 1, 2), (3, 4, 5)])


async def test_a_server_that_is_killed_while_calls_gather_keeps_the_batch(
    make_server: MakeServer, tmp_path: Path, name: str
) -> None:
    server = await make_server(dir=tmp_path)
    async with Redis.from_url(server.url) as admin:
        await admin.config_set("appendfsync", "always")
    batches: list[list[int]] = []
    async with TaskQueue.from_url(server.url, name) as tasks:
        confirm = gathering(tasks, batches)
        jobs = [await confirm.add(Order("ann", number)) for number in range(2)]
        async with working(new_worker(tasks)):
            os.kill(server.pid, signal.SIGKILL)
            await eventually("the server has gone", lambda: not server.running)
            await make_server(dir=tmp_path, port=server.port)
            jobs += [await confirm.add(Order("ann", number)) for number in range(2, 3)]
            assert [await job.result(timeout=120) for job in jobs] == ["ann 0", "ann 1", "ann 2"]
    assert batches == [[0, 1, 2]]


async def test_a_queue_with_shards_gathers_if_a_group_has_one(redis: Redis, name: str) -> None:
    batches: list[list[int]] = []
    async with TaskQueue(name, redis, shards=4, shard_by="group") as tasks:
        confirm = gathering(tasks, batches)
        async with working(new_worker(tasks)):
            calls = [confirm.call(Order(f"c{number % 5}", number)) for number in range(15)]
            for job in await tasks.add_many(calls):
                await job.result(timeout=120)
    assert sorted(batches) == [[number, number + 5, number + 10] for number in range(5)]
    async with TaskQueue(f"{name} by id", redis, shards=4) as tasks:
        with pytest.raises(InvalidTask, match="shard_by='group'"):
            gathering(tasks, batches)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"batch_wait": 5}, InvalidTask, "give it batch="),
        ({"batch": 3, "batch_by": "customer"}, InvalidTask, "batch_wait="),
        ({"batch": 251, "batch_wait": 5}, InvalidArgument, "250"),
        ({"batch": 3, "batch_wait": 0}, InvalidArgument, "batch_wait"),
        ({"batch": 3, "batch_wait": 31 * 86_400}, InvalidArgument, "30 days"),
        ({"batch": 3, "batch_wait": 5, "batch_by": 7}, InvalidArgument, "batch_by"),
        ({"batch": 3, "batch_wait": 5, "rate": "1/s"}, InvalidTask, "limit its queue"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(
    tasks: TaskQueue, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    async def store(numbers: list[int]) -> None: ...

    with pytest.raises(kind, match=text):
        tasks.task(**options)(store)


@pytest.mark.parametrize("given", [7, {"number": 7}, {"customer": "c" * 250}, {"customer": "a\0b"}], ids=repr)
async def test_a_call_whose_key_cannot_be_read_is_refused(tasks: TaskQueue, given: Any) -> None:
    @tasks.task(batch=3, batch_wait=5, batch_by="customer")
    async def store(rows: list[Any]) -> None: ...

    call = store.call(given)
    with pytest.raises(InvalidCall, match="customer"):
        await call.add()
    with pytest.raises(InvalidArgument, match="batch_wait"):
        store.options(group="mine")
    assert (await tasks.queue.counts()).total == 0
