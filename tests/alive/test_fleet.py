"""Fleet: the workers of some queues are listed, failed and given orders."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Fleet, InvalidArgument, Item, Lease
from leasequeue.errors import WorkerUnknown
from leasequeue.queue.queue import engine_of
from tests.queue.asking import blocked, take
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

HOUR = 3600.0


async def register(
    queue: AsyncWorkQueue, name: str, *, alive_ms: int | None = 600_000, started: int = 0
) -> str:
    """Register the session of a queue object as a worker."""
    facts = {"name": name, "started": started}
    assert (await engine_of(queue).registry.beat(facts, alive_ms=alive_ms, first=True)).accepted
    return queue.session


async def test_of_some_sessions_only_their_workers_are_read(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    sessions = [await register(make_queue(), f"w{number}", alive_ms=60_000) for number in range(30)]
    late = await register(make_queue(), "late", alive_ms=1)
    await Fleet(queue).stop(sessions[3])
    asked = [*sessions[:28], "not registered", late, "\udcff"]
    fleet = Fleet(queue, AsyncWorkQueue("other", redis))
    found = {one.id: one for one in await fleet.workers({queue.name: asked, "not in the fleet": asked})}
    assert {*found} == {*asked} - {"not registered", "\udcff"}
    assert [one.id for one in found.values() if one.stopping] == [sessions[3]]
    assert [one.id for one in found.values() if one.dead] == [late]
    every = {one.id: one for one in await Fleet(queue).workers()}
    assert found == {one: every[one] for one in found}
    assert not await fleet.workers({})


@pytest.mark.seed("WRQ-O15", "WRQ-B1", "WRQ-B2", "WRQ-G3", "WRQ-B4")
async def test_two_clients_fail_the_same_worker_at_once(make_queue: MakeQueue, queue: AsyncWorkQueue) -> None:
    """Each item returns once, in the order of its lease, and those of others stay where they are.

    There are more than one step returns.
    """
    dead, other, peers = make_queue(), make_queue(), [make_queue() for _ in range(3)]
    await queue.add_items(Item(b"x", id=f"i{n}") for n in range(700))
    await dead.lease_many(400, HOUR)
    theirs = await other.lease_many(100, HOUR)
    late = await dead.lease_many(200, HOUR)
    await register(dead, "dead", alive_ms=1)
    counts = await asyncio.gather(*(Fleet(peer).fail_dead() for peer in peers))
    assert sum(counts) == 600
    waiting = [view.id for view in await queue.inspect(count=1000)]
    assert waiting == [f"i{n}" for n in (*range(400), *range(500, 700))]
    assert await Fleet(queue).workers() == []
    assert not any(await dead.complete_many(late))
    assert all(await other.complete_many(theirs))


async def test_items_that_are_returned_wake_a_waiter(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    dead, waiter = make_queue(), make_queue()
    await queue.add_item(Item(b"x", id="a"))
    await take(dead, HOUR)
    session = await register(dead, "dead", alive_ms=None)
    waiting = asyncio.create_task(waiter.lease(HOUR, timeout=20))
    await blocked(redis, 1)
    assert await Fleet(queue).fail(session) == 1
    lease = await waiting
    assert isinstance(lease, Lease)
    assert (lease.id, lease.attempt) == ("a", 2)


@pytest.mark.seed("WRQ-B15")
async def test_a_permanent_worker_is_failed_by_hand_only(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    worker = make_queue()
    await queue.add_item(Item(b"x"))
    await take(worker, HOUR)
    await register(worker, "permanent", alive_ms=None)
    fleet = Fleet(queue)
    assert (await fleet.dead(), await fleet.fail_dead()) == ([], 0)
    assert await fleet.fail("permanent") == 1
    assert await fleet.workers() == []


async def test_a_worker_is_found_by_its_name_its_session_and_its_view(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    ours = [make_queue() for _ in range(4)]
    for number, one in enumerate(ours):
        await register(one, f"w{min(number, 2)}", started=number + 1)
    fleet = Fleet(queue)
    views = await fleet.workers()
    assert [view.name for view in views] == ["w0", "w1", "w2", "w2"]
    for worker in ("w0", ours[1].session, views[3]):
        assert await fleet.fail(worker) == 0
    assert [view.id for view in await fleet.workers()] == [ours[2].session]
    for worker in ("w0", ours[1].session, views[3]):
        for call in (fleet.fail, fleet.quiet, fleet.resume, fleet.stop):
            with pytest.raises(WorkerUnknown, match="no worker") as caught:
                await call(worker)
            assert caught.value.worker in {"w0", "w2", ours[1].session}


async def test_a_name_that_several_workers_have_is_refused(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    for one in (make_queue(), make_queue()):
        await register(one, "twins")
    with pytest.raises(InvalidArgument, match="an id, as 2 workers have this name"):
        await Fleet(queue).fail("twins")
    assert len(await Fleet(queue).workers()) == 2


async def test_a_fleet_needs_queues_with_different_names(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    for queues in ((), (queue, make_queue()), ("emails",)):
        with pytest.raises(InvalidArgument, match="queues"):
            Fleet(*queues)
    with pytest.raises(InvalidArgument, match="worker"):
        await Fleet(queue).fail(7)  # type: ignore[arg-type]


async def test_a_registration_that_cannot_be_read_is_listed(queue: AsyncWorkQueue, redis: Redis) -> None:
    """Any client may write there."""
    about = {
        "a": "no JSON",
        "b": "[]",
        "c": '{"name":7,"pid":true,"running":[1,["x"],[1,2,"3"]]}',
    }
    for worker, text in about.items():
        await redis.hset(f"{queue.name}:workers", worker, text)
    await redis.zadd(f"{queue.name}:heartbeats", dict.fromkeys(about, 1))
    fleet = Fleet(queue)
    views = await fleet.dead()
    assert [(view.id, view.name, view.pid) for view in views] == [(one, one, 0) for one in "abc"]
    assert [(run.item_id, run.handler, run.since) for run in views[2].running] == [("", "", 0.0)]
    assert await fleet.fail_dead() == 0
    assert await fleet.workers() == []


@pytest.mark.seed("WRQ-O15")
async def test_failing_a_worker_with_many_leases_takes_small_steps(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, other = make_queue(), make_queue()
    await queue.add_items(Item(b"x", id=f"i{n}") for n in range(3_000))
    for one in (dead, other, dead):
        assert len(await one.lease_many(1000, HOUR)) == 1000
    session = await register(dead, "dead")
    steps: list[int] = []
    engine = engine_of(queue)

    async def noting(name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        steps.append(max(len(rest), int(arguments.get("count", 0)) // 5))
        return await engine.run(name, rest, **arguments)

    monkeypatch.setattr(engine.registry, "_run", noting)
    assert await Fleet(queue).fail(session) == 2_000
    assert max(steps) == 100
    assert (await queue.counts())[:2] == (2_000, 1_000)
    await audit(redis, queue.name)
