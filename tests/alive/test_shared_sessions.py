"""Workers in one event loop that share a client, and so a session, or even a queue object."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Fleet, Item
from leasequeue.queue.registry import Beat, Registry
from tests.alive.members import no_keys, the_worker
from tests.eventually import eventually
from tests.queue.asking import kept, until
from tests.worker.working import Gate, add, finished, new_worker, working

if TYPE_CHECKING:
    from leasequeue import Worker

HOUR = 3600.0


async def refreshed(redis: Redis, queue: AsyncWorkQueue, times: int = 2) -> None:
    """Wait until a worker of the session that the queue has now has sent so many more heartbeats."""
    for _ in range(times):
        before = await redis.zscore(f"{queue.name}:heartbeats", queue.session)

        async def is_later(before: float | None = before) -> bool:
            after = await redis.zscore(f"{queue.name}:heartbeats", queue.session)
            return after is not None and after > (before or 0)

        await until("the registration is refreshed", is_later)


@pytest.fixture
def two(queue: AsyncWorkQueue) -> list[tuple[Worker, Gate]]:
    """Two workers on one queue object, with a slot each."""
    workers = [new_worker(name=name, concurrency=1, lease_time=HOUR, dead_after=0.5) for name in "ab"]
    return [(worker, Gate(worker, queue)) for worker in workers]


async def test_a_worker_that_leaves_does_not_end_the_registration_of_another(
    queue: AsyncWorkQueue, redis: Redis, two: list[tuple[Worker, Gate]], caplog: pytest.LogCaptureFixture
) -> None:
    (leaving, its), (staying, other) = two
    await queue.events.keep(count=100)
    await add(queue, b"x", b"x")
    async with working(staying):
        await other.reached(1)
        async with working(leaving):
            await its.reached(1)
            await until("both runs are named", lambda: has_runs(queue, 2))
            one = await the_worker(queue)
            assert (one.id, one.concurrency) == (queue.session, 2)
            await until("the figures name both, too", lambda: are_running(queue, 2))
            its.opened.set()
        await refreshed(redis, queue)
        await until("its run is named alone", lambda: has_runs(queue, 1))
        (one,) = await Fleet(queue).workers()
        assert (one.name, one.concurrency) == ("b", 1)
        other.opened.set()
        await finished(queue)
    assert sorted([*its.done, *other.done]) == ["1", "2"]
    assert "failed" not in caplog.text
    assert await no_keys(redis, queue)
    assert [event.what for event in await kept(queue) if event.what.startswith("worker")] == [
        "worker_up",
        "worker_down",
    ]


async def are_running(queue: AsyncWorkQueue, count: int) -> bool:
    """Return whether the figures of the queue have one worker with so many runs."""
    return [each.running for each in (await queue.stats()).workers] == [count]


async def has_runs(queue: AsyncWorkQueue, count: int) -> bool:
    """Return whether the only worker names so many runs."""
    return [len(one.running) for one in await Fleet(queue).workers()] == [count]


async def test_the_name_of_a_worker_that_has_left_is_not_kept(
    queue: AsyncWorkQueue, two: list[tuple[Worker, Gate]]
) -> None:
    (first, _), (second, _) = two
    async with working(first):
        await the_worker(queue)
        running = asyncio.create_task(second.run())
        await eventually("it runs", lambda: second.health().ok)
    await until("it is known by the other's name", lambda: is_called(queue, "b"))
    second.stop()
    await running


async def is_called(queue: AsyncWorkQueue, name: str) -> bool:
    """Return whether the only worker has this name."""
    return [one.name for one in await Fleet(queue).workers()] == [name]


async def are_held(queue: AsyncWorkQueue) -> bool:
    """Return whether both items are leased by the session that the queue has now."""
    views = [await queue.find(one) for one in ("1", "2")]
    return [view and view.holder for view in views] == [queue.session] * 2


async def test_a_session_fails_for_all_of_its_workers(
    queue: AsyncWorkQueue, redis: Redis, two: list[tuple[Worker, Gate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runs stop, and both work on under one new session."""
    gates = [gate for _, gate in two]
    notices = True

    async def beat(self: Registry, *args: Any, **options: Any) -> Beat:
        # A worker that notices before the call has ended returns its items itself, and the call the others.
        reply = await send(self, *args, **options)
        return reply if notices else reply._replace(accepted=True, failed=False)

    send = Registry.beat
    monkeypatch.setattr(Registry, "beat", beat)
    await add(queue, b"x", b"x")
    async with working(two[0][0]), working(two[1][0]):
        for gate in gates:
            await gate.reached(1)
        failed = queue.session
        worker = await the_worker(queue)
        notices = False
        assert await Fleet(queue).fail(worker) == 2
        notices = True
        await eventually("it has another session", lambda: queue.session != failed)
        await until("both items run in it", lambda: are_held(queue))
        assert {one for gate in gates for one in gate.cancelled} == {"1", "2"}
        await refreshed(redis, queue)
        assert (await the_worker(queue)).sessions == {queue.name: queue.session}
        for gate in gates:
            gate.opened.set()
        await finished(queue)
    assert sorted(one for gate in gates for one in gate.done) == ["1", "2"]
    assert await no_keys(redis, queue)


async def test_a_worker_that_starts_while_another_leaves_is_registered(
    queue: AsyncWorkQueue,
    redis: Redis,
    two: list[tuple[Worker, Gate]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (leaving, its), (starting, gate) = two
    left: list[float] = []

    async def leave_late(self: Registry) -> bool:
        left.append(time.monotonic())
        await asyncio.sleep(0.3)  # two heartbeats
        return await leave(self)

    leave = Registry.leave
    monkeypatch.setattr(Registry, "leave", leave_late)
    await queue.add_item(Item(b"x", id="1"))
    running = asyncio.create_task(leaving.run())
    await its.reached(1)
    its.opened.set()
    leaving.stop()
    await eventually("it leaves", lambda: bool(left))
    await queue.add_item(Item(b"x", id="2"))
    async with working(starting):
        await gate.reached(1)
        await running
        await refreshed(redis, queue)
        gate.opened.set()
        await finished(queue)
    assert gate.done == ["2"]
    assert "failed" not in caplog.text


async def test_workers_of_one_client_are_told_apart(redis_url: str, name: str) -> None:
    """Each of them serves another queue."""
    async with Redis.from_url(redis_url) as client:
        queue, other = AsyncWorkQueue(name, client), AsyncWorkQueue(f"{name}-other", client)
        workers = [new_worker(name=one) for one in "ab"]
        Gate(workers[0], queue)
        Gate(workers[1], other)
        async with working(workers[0]) as first, working(workers[1]):
            await the_worker(queue)
            await the_worker(other)
            fleet = Fleet(queue, other)
            assert {one.name: one.queues for one in await fleet.workers()} == {
                "a": (queue.name,),
                "b": (other.name,),
            }
            await fleet.stop("a")
            async with asyncio.timeout(120):
                await first
            assert [one.name for one in await fleet.workers()] == ["b"]
        await queue.close()
        await other.close()
