"""A worker registers on its queues, carries out orders, and notices that it was failed."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Fleet, InvalidArgument, Item, Lease
from leasequeue.keys import FORMAT
from leasequeue.queue.queue import engine_of
from leasequeue.queue.registry import Beat, Registry
from leasequeue.wire.scripts import find_script
from leasequeue.worker import RetryPolicy
from tests.alive.members import no_keys, the_worker
from tests.eventually import eventually
from tests.queue.asking import take, until
from tests.worker.working import Gate, add, counted, finished, new_worker, working

if TYPE_CHECKING:
    from leasequeue.testing import Proxy
    from leasequeue.views import WorkerView
    from tests.queue.fixtures import MakeQueue

#: With this time until it is dead, a worker sends one heartbeat: an order arrives as a message.
FOR_EVER = 3600.0
HOUR = 3600.0


@pytest.mark.seed("WRQ-O9", "WRQ-O22", "WRQ-O23", "WRQ-K2", "WRQ-K6", "WRQ-E6")
async def test_a_worker_says_what_it_is_and_does_and_leaves_nothing_behind(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    worker = new_worker(concurrency=7, dead_after=0.5)
    gate = Gate(worker, queue)

    @worker.handler(other)
    def fail(_: bytes) -> None:
        raise ValueError

    began = time.time()
    await add(queue, b"x")
    async with working(worker):
        await other.add_item(Item(b"x", id="fails"))
        await gate.reached(1)
        await until("its failures are counted", lambda: has_failed(queue))
        one = await the_worker(queue, other)
        assert (one.name, one.host, one.pid) == (worker.name, socket.gethostname(), os.getpid())
        assert one.name == f"{socket.gethostname()}/{os.getpid()}"
        assert one.queues == (queue.name, other.name)
        assert one.sessions == {queue.name: queue.session, other.name: other.session}
        python = platform.python_version()
        assert one.versions == {"leasequeue": version("leasequeue"), "python": python, "format": str(FORMAT)}
        assert (one.dead, one.quiet, one.stopping) == (False, False, False)
        assert one.alive_until is not None
        [seen] = (await queue.stats()).workers
        assert (seen.id, seen.name, seen.dead, seen.concurrency) == (one.id, one.name, False, 7)
        assert (seen.runs, seen.failures, seen.running) == (one.runs, one.failures, 1)
        assert seen.run_seconds > 0
        [of_other] = (await other.stats()).workers
        assert (seen.items, seen.item_seconds, seen.item_squares) == (0, 0, 0), "none has ended on this queue"
        assert (of_other.items, of_other.item_seconds) == (3, of_other.run_seconds)
        assert 0 < of_other.item_squares <= of_other.item_seconds**2
        assert len(seen.ages) == 1
        assert (seen.ages[0] >= 0, of_other.ages, seen.quiet) == (True, (), False)
        assert (one.concurrency, one.runs, one.failures) == (7, 3, 3)
        (run,) = one.running
        assert (run.queue, run.item_id) == (queue.name, "1")
        assert run.handler.endswith("handle")
        assert one.started is not None
        assert began - 1 <= one.started <= run.since <= time.time() + 1
        gate.opened.set()
        await finished(queue)
    assert await no_keys(redis, queue)
    assert await no_keys(redis, other)


async def has_failed(queue: AsyncWorkQueue) -> bool:
    """Return whether a run has failed three times."""
    return [one.failures for one in await Fleet(queue).workers()] == [3]


async def test_a_heartbeat_names_fewer_runs_and_then_fewer_queues_if_it_would_be_too_long(
    queue: AsyncWorkQueue,
) -> None:
    registry = engine_of(queue).registry
    for queues, runs in ([queue.name], 100), (["ж" * 110] * 100, 100), (["ж" * 200] * 100, 1):
        running = [[f"{number} {'ж' * 110}", "handle", number] for number in range(runs)]
        about = {"name": "w", "queues": queues, "active": runs, "running": running}
        assert (await registry.beat(about, alive_ms=None, first=True)).accepted
        [seen] = await registry.workers()
        assert (seen.name, seen.count("active")) == ("w", runs)
        assert [*map(list, seen.running)] == running[: len(seen.running)], "the oldest runs"
        assert seen.about["queues"] == queues[: len(seen.about["queues"])]
        assert seen.running or seen.about["queues"] != queues, "no more is left out than must be"


async def test_each_start_of_a_worker_has_a_name_and_another_identity(make_queue: MakeQueue) -> None:
    seen: list[WorkerView] = []
    for _ in range(2):
        queue = make_queue()
        worker = new_worker(name="mailer")
        Gate(worker, queue)
        async with working(worker):
            seen.append(await the_worker(queue))
        await queue.close()
    assert [one.name for one in seen] == ["mailer", "mailer"]
    assert seen[0].id != seen[1].id


async def test_a_quiet_worker_fetches_nothing_until_it_resumes(queue: AsyncWorkQueue) -> None:
    """The order is a message: the next heartbeat is an hour away."""
    worker = new_worker(dead_after=FOR_EVER)
    gate = Gate(worker, queue)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        fleet, one = Fleet(queue), await the_worker(queue)
        await fleet.quiet(one)
        await until("it says that it is quiet", lambda: says_quiet(queue, quiet=True))
        await queue.add_item(Item(b"x", id="more"))
        gate.opened.set()
        await counted(queue, "the run has ended", lambda counts: counts == (1, 0, 0, 0))
        assert gate.begun == ["1"]
        assert worker.health().ok
        await fleet.resume(one.name)
        await finished(queue)
    assert gate.done == ["1", "more"]


async def says_quiet(queue: AsyncWorkQueue, *, quiet: bool, name: str = "") -> bool:
    """Return whether the only worker, or that of this name, says so."""
    return [one.quiet for one in await Fleet(queue).workers() if name in ("", one.name)] == [quiet]


async def test_a_message_that_is_lost_is_obeyed_at_the_next_heartbeat(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    worker = new_worker(dead_after=0.5)
    Gate(worker, queue)
    async with working(worker) as running:
        one = await the_worker(queue)
        for what, quiet in (("quiet 1", True), ("resume 2", False)):
            await redis.hset(f"{queue.name}:workers", f"told:{one.id}", what)
            await until(f"it was ordered to {what}", partial(says_quiet, queue, quiet=quiet))
        await redis.hset(f"{queue.name}:workers", f"told:{one.id}", "stop 3")
        async with asyncio.timeout(120):
            await running
    assert await no_keys(redis, queue)


@pytest.mark.seed("WRQ-B9", "WRQ-G9", "WRQ-B8")
async def test_a_worker_that_was_failed_stops_its_runs_and_works_on_under_another_session(
    make_queue: MakeQueue, queue: AsyncWorkQueue, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker(concurrency=2, lease_time=HOUR, dead_after=0.5)
    gate = Gate(worker, queue)
    leases: list[Lease] = []

    @worker.handler(kept := make_queue(name=f"{queue.name}-kept"))
    async def keep(lease: Lease) -> None:
        leases.append(lease)
        await gate.opened.wait()

    await add(queue, b"x")
    await kept.add_item(Item(b"x"))
    async with working(worker):
        await gate.reached(1)
        await eventually("both run", lambda: len(leases) == 1)
        before = await the_worker(queue, kept)
        assert await Fleet(queue).fail(before) == 1
        await gate.reached(2)
        assert gate.begun == ["1", "1"]
        assert gate.cancelled == ["1"], "its other run continues"
        after = await the_worker(queue, kept)
        assert after.id == before.id
        assert after.sessions == {queue.name: queue.session, kept.name: kept.session}
        assert queue.session != before.sessions[queue.name]
        assert kept.session == before.sessions[kept.name]
        view = await queue.find("1")
        assert view is not None
        assert (view.attempt, view.holder) == (2, queue.session)
        gate.opened.set()
        await finished(queue)
        await finished(kept)
    assert (gate.done, len(leases)) == (["1"], 1)
    assert "this worker has failed" in caplog.text


@pytest.mark.seed("WRQ-G9")
async def test_a_worker_that_cannot_refresh_stops_its_runs_before_its_leases_expire(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy
) -> None:
    """When the server is back, its items return to the front, and it works on."""
    worker = new_worker(lease_time=HOUR, dead_after=0.5)
    gate = Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        before = await the_worker(queue)
        await proxy.fail()
        await eventually("its run is cancelled", lambda: gate.cancelled == ["1"])
        await proxy.heal()
        await gate.reached(2)
        gate.opened.set()
        await finished(queue)
        assert its.session != before.sessions[queue.name]
    assert gate.done == ["1"]


@pytest.mark.seed("WRQ-K4")
async def test_a_permanent_worker_is_never_dead(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.alive.membership.PERMANENT_BEAT", 0.02)
    worker = new_worker(lease_time=HOUR, dead_after=None)
    gate = Gate(worker, make_queue(url=proxy.url, reply_timeout=1))
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        one = await the_worker(queue)
        assert (one.alive_until, one.dead) == (None, False)
        assert await redis.zscore(f"{queue.name}:heartbeats", one.id) == float("inf")
        await proxy.fail()
        await eventually("heartbeats fail", lambda: not worker.health().ok)
        assert gate.cancelled == []
        await proxy.heal()
        gate.opened.set()
        await finished(queue)
    assert gate.begun == ["1"]


@pytest.mark.seed("WRQ-O11", "WRQ-O16", "WRQ-G1", "WRQ-B4", "WRQ-K3", "WRQ-K5")
async def test_workers_fail_those_of_their_peers_that_are_dead(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    """Though its leases would last for an hour; and the items of others stay theirs."""
    dead, other = make_queue(), make_queue()
    await queue.add_items(Item(b"x", id=one) for one in ("a", "b", "theirs"))
    for _ in range(2):
        await take(dead, HOUR)
    await take(other, HOUR)
    assert (await engine_of(dead).registry.beat({"name": "dead"}, alive_ms=1, first=True)).accepted
    workers = [new_worker(dead_after=0.5, clean_every=HOUR) for _ in range(2)]
    gates = [Gate(worker, make_queue()) for worker in workers]
    async with working(workers[0]), working(workers[1]):
        await eventually("its items run", lambda: sum(len(gate.begun) for gate in gates) == 2)
        for gate in gates:
            gate.opened.set()
        await counted(queue, "they are done", lambda counts: counts == (0, 1, 0, 0))
        assert sorted(done for gate in gates for done in gate.done) == ["a", "b"]
        assert len(await Fleet(queue).workers()) == 2


async def test_a_worker_that_could_not_reach_the_server_fails_no_other(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage all workers seem dead: they need time to refresh."""
    monkeypatch.setattr("leasequeue.alive.membership.JITTER_SECONDS", 0.0)
    dead = make_queue()
    assert (await engine_of(dead).registry.beat({"name": "dead"}, alive_ms=1, first=True)).accepted
    worker = new_worker(dead_after=60, clean_every=HOUR)
    Gate(worker, queue)
    async with working(worker):
        await until("it is registered", lambda: has_workers(redis, queue, 2))
        for _ in range(2):  # each sends a heartbeat, and its reply names the dead worker
            worker.quiet()
            await until("it is quiet", lambda: says_quiet(queue, quiet=True, name=worker.name))
            worker.resume()
            await until("it is not", lambda: says_quiet(queue, quiet=False, name=worker.name))
        assert [one.name for one in await Fleet(queue).dead()] == ["dead"]


async def has_workers(redis: Redis, queue: AsyncWorkQueue, count: int) -> bool:
    """Return whether so many workers are registered."""
    return bool(await redis.zcard(f"{queue.name}:heartbeats") == count)


async def is_held(queue: AsyncWorkQueue) -> bool:
    """Return whether the item is leased by the session that the worker has now."""
    view = await queue.find("1")
    return view is not None and view.holder == queue.session


async def test_no_session_that_was_failed_is_used_again(redis_url: str, name: str) -> None:
    """Both queues share a client, and so a session, which lasts as long as one of them uses it."""
    async with Redis.from_url(redis_url) as client:
        queue, other = AsyncWorkQueue(name, client), AsyncWorkQueue(f"{name}-other", client)
        worker = new_worker(dead_after=5)
        gate = Gate(worker, queue, lease_time=HOUR, retry=RetryPolicy(attempts=20))
        Gate(worker, other)
        await add(queue, b"x")
        async with working(worker):
            seen = []
            await gate.reached(1)
            for _ in range(3):
                seen.append((await the_worker(queue, other)).sessions[name])
                await Fleet(queue).fail(seen[-1])
                await eventually("it has another session", lambda: queue.session != seen[-1])
                await until("it has the item again", lambda: is_held(queue))
            assert len({*seen, queue.session}) == 4
            assert other.session == seen[0]
            gate.opened.set()
            await finished(queue)
        await queue.close()
        await other.close()


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "x" * 201}, {"name": "a\nb"}, {"dead_after": 0.4}, {"gone_after": 0.4}]
)
def test_a_wrong_name_or_time_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        new_worker(**wrong)


async def test_a_worker_is_registered_before_it_leases(
    make_queue: MakeQueue, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no peer would know of it when it dies just then."""

    async def beat_late(self: Registry, *arguments: Any, **named: Any) -> Beat:
        await asyncio.sleep(0.2)
        return await beat(self, *arguments, **named)

    beat = Registry.beat
    monkeypatch.setattr(Registry, "beat", beat_late)
    worker, other = new_worker(), make_queue(name=f"{queue.name}-other")
    known: list[list[str]] = []

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        known.append([one.name for one in await Fleet(queue).workers()])

    @worker.handler(other)
    async def handle_other(_: bytes) -> None:
        known.append([one.name for one in await Fleet(other).workers()])

    await add(queue, b"x")
    await add(other, b"x")
    async with working(worker):
        await finished(queue)
        await finished(other)
        await worker.stop_queue(other.name)
        await other.add_item(Item(b"x"))
        await worker.start_queue(other.name)
        await finished(other)
    assert known == [[worker.name]] * 3


async def test_the_first_lease_waits_for_no_connection_but_its_own(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    worker, other = new_worker(), make_queue(name=f"{queue.name}-other")
    for served in (queue, other):
        worker.handler(served)(_do_nothing)
        await add(served, b"x")
    names = {find_script(name).sha.decode(): name for name in ("worker_beat", "lease_many")}
    sent: dict[str, list[tuple[str, str]]] = {queue.name: [], other.name: []}
    async with redis.monitor() as monitor, working(worker):
        async for command in monitor.listen():
            what, *words = command["command"].split()
            name = names.get(words[0]) if what == "EVALSHA" else None
            if name:
                place = next(one for one in (other.name, queue.name) if one in words)
                sent[place].append((name, f"{command['client_address']}:{command['client_port']}"))
            if all("lease_many" in dict(calls) for calls in sent.values()):
                break
        await finished(queue)
    for calls in sent.values():
        leasing = next(address for name, address in calls if name == "lease_many")
        assert calls[0] == ("worker_beat", leasing), "the worker is known before, from the same connection"


def _do_nothing(_: bytes) -> None:
    pass
