"""Runs that wait for a process: what passes them, who else may run them, and how queues share the places."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item, TaskQueue
from leasequeue.worker import RetryPolicy, Worker
from leasequeue.worker.parking import Parking, beyond_share
from tests.eventually import eventually
from tests.worker.models import hold, tasks_of, twice
from tests.worker.test_handler_processes import begun
from tests.worker.working import Gate, add, counted, finished, new_worker, working

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue, Lease
    from tests.queue.fixtures import MakeQueue

ONCE = RetryPolicy(attempts=1)


async def test_async_runs_pass_runs_of_their_queue_that_wait_for_a_process(
    redis_url: str, name: str, tmp_path: Path
) -> None:
    """However many there are; and each of those runs once, when a process is free."""
    async with TaskQueue.from_url(redis_url, name) as tasks:
        slow, quick = tasks_of(tasks)
        worker = Worker(tasks, handler_processes=2, retry=ONCE, clean_every=None)
        jobs = await tasks.add_many([slow.call(str(tmp_path)) for _ in range(300)])
        later = await tasks.add_many([quick.call(number) for number in range(20)])
        async with working(worker):
            await asyncio.gather(*(job.result(timeout=120) for job in later))
            assert len(begun(tmp_path)) <= 2
            runtime = worker._runtime
            assert runtime is not None
            served = runtime.queues.consumers[0].queue
            await counted(served, "most are delayed", lambda counts: counts.scheduled > 200)
            (tmp_path / "open").touch()
            await asyncio.gather(*(job.result(timeout=120) for job in jobs))
        assert len(begun(tmp_path)) == 300


async def test_runs_that_wait_for_a_process_are_run_by_another_worker(
    redis_url: str, name: str, tmp_path: Path
) -> None:
    async with TaskQueue.from_url(redis_url, name) as one, TaskQueue.from_url(redis_url, name) as other:
        slow, _ = tasks_of(one)
        tasks_of(other)
        first, second = (
            Worker(tasks, handler_processes=1, retry=ONCE, clean_every=None) for tasks in (one, other)
        )
        jobs = await one.add_many([slow.call(str(tmp_path)) for _ in range(4)])
        async with working(first):
            await eventually("the first runs", lambda: len(begun(tmp_path)) == 1)
            async with working(second):
                await eventually("so does the second", lambda: len(begun(tmp_path)) == 2)
                (tmp_path / "open").touch()
                await asyncio.gather(*(job.result(timeout=120) for job in jobs))


async def test_runs_that_wait_for_a_process_return_to_the_queue_when_the_worker_or_its_queue_stops(
    make_queue: MakeQueue, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    worker = new_worker(handler_processes=1)
    gate = Gate(worker, others := make_queue(name=f"{queue.name}-other"))
    gate.opened.set()
    worker.handler(queue, run_in="process")(hold)
    await add(queue, *[str(tmp_path)] * 2)
    async with working(worker):
        await worker.started()
        runtime = worker._runtime
        assert runtime is not None
        await eventually("one waits", lambda: len(runtime.renewer.parked) == 1)
        await worker.stop_queue(queue.name, grace=0)
        await all_are_back(queue)
        await others.add_item(Item(b"x"))
        await finished(others)
        await worker.start_queue(queue.name)
        await eventually("one waits", lambda: len(runtime.renewer.parked) == 1)
        worker.stop(now=True)
    await all_are_back(queue)


async def all_are_back(queue: AsyncWorkQueue) -> None:
    """Check that both items are in the queue; one may just be delayed."""
    views = [*await queue.inspect(), *await queue.inspect("scheduled")]
    assert [view.attempt for view in views] == [0, 0]


async def test_a_run_does_not_wait_behind_all_those_of_another_queue(
    make_queue: MakeQueue, queue: AsyncWorkQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept, while theirs are delayed, again and again."""
    monkeypatch.setattr("leasequeue.worker.parking.OFFER_SECONDS", 3600)
    looks: list[Parking] = []
    look = Parking._look

    def count(self: Parking) -> None:
        looks.append(self)
        look(self)

    monkeypatch.setattr(Parking, "_look", count)
    worker = new_worker(handler_processes=1)
    other = make_queue(name=f"{queue.name}-other")
    for one in (queue, other):
        worker.handler(one, run_in="process")(hold)
    await add(queue, *[str(tmp_path)] * 100)
    async with working(worker):
        await worker.started()
        runtime = worker._runtime
        assert runtime is not None
        parked = runtime.renewer.parked
        await counted(queue, "most are delayed", lambda counts: counts.scheduled > 90)
        await other.add_item(Item(str(tmp_path), id="mine"))
        await eventually("it waits", lambda: "mine" in {run.lease.id for run in parked})
        [mine] = [run for run in parked if run.lease.id == "mine"]
        before = len(looks)
        await eventually("it could have been delayed", lambda: len(looks) > before + 10)
        assert mine in parked
        (tmp_path / "open").touch()
        await finished(other)
        await finished(queue)


@pytest.mark.parametrize(
    ("runs", "keeps", "beyond"),
    [("aaaa", 2, "aa"), ("aaaab", 3, "aa"), ("aaabbb", 4, "ab"), ("aab", 1, "a"), ("aab", 9, "")],
)
@pytest.mark.parametrize("of", ["queues", "groups"])
def test_queues_and_groups_share_what_is_kept_of_the_runs_that_wait(
    of: str, runs: str, keeps: int, beyond: str
) -> None:
    waiting: list[Any] = [
        SimpleNamespace(
            handler=SimpleNamespace(consumer=one if of == "queues" else "the queue"),
            lease=SimpleNamespace(_group=one if of == "groups" else None),
            arrived=at,
        )
        for at, one in enumerate(runs)
    ]
    if of == "groups" and keeps == 1:
        beyond = "ab"  # one of each queue is kept in any case, and not one of each group
    found = beyond_share(waiting, keeps)
    assert "".join(runs[int(one.arrived)] for one in found) == beyond
    assert found == [one for one in waiting if one in found]


@dataclass(eq=False)
class Waiting:
    """What parking knows of a run that waits."""

    handler: Any
    lease: Any
    arrived: float


def runs_of(groups: str, processes: Any) -> tuple[Parking, list[Any]]:
    """Return runs of one queue that wait, by the letters of their groups, and where they do."""
    now = time.monotonic()
    runs: list[Any] = [
        Waiting(
            handler=SimpleNamespace(consumer="the queue"),
            lease=SimpleNamespace(_group=group.encode()),
            arrived=now,
        )
        for group in groups
    ]
    return Parking(processes, SimpleNamespace(parked=deque(runs))), runs  # type: ignore[arg-type]


async def test_the_groups_of_runs_that_are_kept_begin_in_turn() -> None:
    parking, _ = runs_of("aaaab", SimpleNamespace(keeps=9, taken_at=0.0, pause=1.0))
    parking._look()
    parking.stop()
    assert b"".join(run.lease._group or b"" for run in parking._renewer.parked) == b"abaaa"


async def test_a_run_that_is_put_aside_comes_back_behind_its_group_and_not_behind_another() -> None:
    now = time.monotonic()
    parking, runs = runs_of("a" * 100 + "b", SimpleNamespace(taken_at=now, pause=1.0))
    *before, last = parking._delays(now, runs[:-1])
    [other] = parking._delays(now, runs[-1:])
    assert other < before[2] < last


async def test_drain_ends_when_runs_that_were_put_aside_are_done(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.worker.parking.MAX_KEPT", 1)
    worker = new_worker(handler_processes=1)
    worker.handler(queue, run_in="process", keep_result=60)(twice)
    await add(queue, *["[1]"] * 20)
    await worker.drain()
    assert [await queue.results.get(str(number)) for number in range(1, 21)] == [b"2"] * 20


async def test_drain_waits_for_a_run_whose_delay_began_when_the_server_got_it(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.worker.parking.MAX_KEPT", 1)
    monkeypatch.setattr("leasequeue.worker.parking.SHORTEST_DELAY", 0.5)
    release = queue.release

    async def late(lease: Lease, *, delay: float) -> bool:
        await asyncio.sleep(1)
        return await release(lease, delay=delay)

    monkeypatch.setattr(queue, "release", late)
    worker = new_worker(handler_processes=1)
    worker.handler(queue, run_in="process")(twice)
    await add(queue, *["[1]"] * 2)
    await worker.drain()
    assert (await queue.counts()).total == 0


async def test_the_lease_of_a_run_that_waits_for_a_process_is_renewed(
    queue: AsyncWorkQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.worker.parking.OFFER_SECONDS", 3600)
    worker = new_worker(handler_processes=1, lease_time=1)
    worker.handler(queue, run_in="process")(hold)
    await add(queue, *[str(tmp_path)] * 2)
    async with working(worker):
        await worker.started()
        runtime = worker._runtime
        assert runtime is not None
        await eventually("one waits", lambda: len(runtime.renewer.parked) == 1)
        (parked,) = runtime.renewer.parked
        lease = parked.lease
        first = lease.deadline
        await eventually("its lease is renewed twice", lambda: lease.deadline > first + 1)
        assert parked.deadline is None
        (tmp_path / "open").touch()
        await finished(queue)
    assert len(begun(tmp_path)) == 2
