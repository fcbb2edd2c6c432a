"""A worker whose connections are gone is failed by another one, though its leases would last for an hour."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.alive import ring
from leasequeue.alive.connections import NOT_CHECKABLE, Mark, OwnConnections
from leasequeue.alive.ring import PeerWatch, successors
from leasequeue.queue.queue import engine_of
from tests.eventually import eventually
from tests.queue.asking import session, until
from tests.queue.keyspace import calls
from tests.worker.working import Gate, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.queue.lease import Lease
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

HOUR = 3600.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and conclude soon: the times themselves are measured by the benchmark `kills`."""
    monkeypatch.setattr(ring, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ring, "GONE_SECONDS", 0.2)
    monkeypatch.setattr(ring, "STANDING_SECONDS", 0.0)
    monkeypatch.setattr(ring, "READ_SECONDS", 0.05)


class Process:
    """What another process is for the server: a queue object with its own connections, registered."""

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self.queue = queue
        self.own = OwnConnections(lambda: None)

    async def register(self, vouched: Mark | None = None) -> Mark:
        """Register, or refresh the registration."""
        if vouched is None:
            assert await self.own.check([self.queue])
            vouched = self.own.mark(self.queue)
        about = {"name": "w", "connections": vouched.connections, "server": vouched.server}
        assert (await engine_of(self.queue).registry.beat(about, alive_ms=3_600_000, first=True)).accepted
        return vouched

    async def hold(self, item_id: str) -> Lease:
        """Lease an item for an hour."""
        await self.queue.add_item(Item(b"x", id=item_id))
        lease = await self.queue.lease(HOUR)
        assert lease is not None
        return lease

    def die(self) -> None:
        """Lose all connections, and open no others."""
        for one in session(self.queue).connections:
            one.connection.transport.abort()


@pytest.fixture
async def watching(queue: AsyncWorkQueue) -> AsyncIterator[OwnConnections]:
    """Run a worker's look after others, on the queue of the test."""
    await queue.counts()
    own = OwnConnections(lambda: None)
    assert await own.check([queue])
    task = asyncio.create_task(PeerWatch(own).run([queue]))
    yield own
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    own.close()


async def held(redis: Redis, name: str) -> set[bytes]:
    """Return the ids under lease."""
    return {bytes(one) for one in await redis.zrange(f"{name}:deadlines", 0, -1)}  # type: ignore[arg-type]


@pytest.mark.usefixtures("watching")
@pytest.mark.seed("WRQ-O11")
async def test_the_items_of_a_dead_worker_run_elsewhere(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    other = Process(make_queue())
    await other.hold("x")
    await other.register()
    waiting = asyncio.create_task(queue.lease(HOUR))
    other.die()
    async with asyncio.timeout(120):
        lease = await waiting
    assert lease is not None
    assert (lease.id, lease.attempt) == ("x", 2)
    await eventually_workers(redis, name, set())
    assert await queue.complete(lease)


@pytest.mark.usefixtures("watching")
async def test_all_dead_workers_in_a_row_are_found(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    others = [Process(make_queue()) for _ in range(9)]
    living = set(successors(queue.session, [one.queue.session for one in others])[-2:])
    dead = [one for one in others if one.queue.session not in living]
    for number, other in enumerate(others):
        await other.hold(f"{number}")
        await other.register()
    for other in dead:
        other.die()
    leased: list[Lease] = []
    async with asyncio.timeout(120):
        while len(leased) < len(dead):
            lease = await queue.lease(HOUR)
            assert lease is not None
            leased.append(lease)
    assert {one.id for one in leased} == {f"{others.index(one)}" for one in dead}
    await eventually_workers(redis, name, {one.encode() for one in living})


async def eventually_workers(redis: Redis, name: str, sessions: set[bytes]) -> None:
    """Wait until exactly these are registered."""

    async def registered() -> bool:
        return set(await redis.hkeys(f"{name}:workers")) == sessions

    await until(f"{sessions} are registered", registered)


@pytest.mark.parametrize("forged", [1 << 64, -1, 0, True, "1", None])
async def test_a_forged_registration_does_not_end_the_watch(
    queue: AsyncWorkQueue,
    make_queue: MakeQueue,
    redis: Redis,
    name: str,
    watching: OwnConnections,
    forged: object,
) -> None:
    """The server would refuse to look for such a connection, and the watch end as behind a proxy."""
    forger, dead = Process(make_queue()), Process(make_queue())
    await dead.hold("x")
    before = await dead.register()
    about = {"connections": [forged], "server": before.server, "gone_after": "NaN"}
    await engine_of(forger.queue).registry.beat(about, alive_ms=3_600_000, first=True)
    await redis.zadd(f"{name}:heartbeats", {b"\xff": 4e12})
    dead.die()
    async with asyncio.timeout(120):
        lease = await queue.lease(HOUR)
    assert lease is not None
    assert lease.id == "x"
    assert watching.off is None


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("why", ["reconnected", "other server", "not checkable", "subscribed"])
async def test_a_worker_that_may_live_is_left_alone(
    queue: AsyncWorkQueue,
    make_queue: MakeQueue,
    redis: Redis,
    name: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After it, one that is dead is failed: so the worker has been looked at."""
    other, dead = Process(make_queue()), Process(make_queue())
    await other.hold("x")
    before = await other.register()
    assert before.connections
    if why == "other server":
        await other.register(before._replace(server="0" * 40))
    elif why == "not checkable":
        await other.register(NOT_CHECKABLE)
    elif why == "subscribed":
        await redis.pubsub().subscribe(f"{name}:push:{other.queue.session}")
    with monkeypatch.context() as patched:
        patched.setattr(ring, "GONE_SECONDS", HOUR)  # it reconnects in time, however slow the machine is
        other.die()
        if why == "reconnected":
            await eventually("it is cut", lambda: not session(other.queue).connections)
            await other.register()
    await dead.hold("y")
    await dead.register()
    dead.die()
    async with asyncio.timeout(120):
        lease = await queue.lease(HOUR)
    assert lease is not None
    assert lease.id == "y"
    assert b"x" in await held(redis, name)
    assert other.queue.session.encode() in await redis.hkeys(f"{name}:workers")


async def test_who_registers_other_connections_in_the_last_moment_is_not_failed(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    other = Process(make_queue())
    lease = await other.hold("x")
    seen = await other.register()
    await other.register(seen._replace(connections=(1, 2)))
    assert await engine_of(queue).registry.fail(other.queue.session, connections=seen.connections) is None
    assert await other.queue.complete(lease)


@pytest.mark.parametrize("lost", [False, True])
async def test_nothing_is_concluded_right_after_a_reconnection(
    queue: AsyncWorkQueue,
    make_queue: MakeQueue,
    redis: Redis,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """A worker that has just started, in contrast, has lost nothing."""
    monkeypatch.setattr(ring, "STANDING_SECONDS", HOUR)
    monkeypatch.setattr(ring, "GONE_SECONDS", 0.0)
    other = Process(make_queue())
    await other.hold("x")
    await other.register()
    other.die()
    await queue.counts()
    if lost:
        [connection] = session(queue).connections
        connection.connection.transport.abort()
        await eventually("it is lost", lambda: connection.connection.ended)
        await queue.counts()
    own = OwnConnections(lambda: None)
    assert await own.check([queue])
    server = own.mark(queue).server
    watch = PeerWatch(own)
    [its] = watch._rings_of([queue])
    await its.read(server)
    for _ in range(3):
        await watch._look(server, [its])
    assert await held(redis, name) == ({b"x"} if lost else set())
    own.close()


@pytest.mark.usefixtures("watching")
async def test_connections_are_listed_only_of_workers_that_do_not_receive(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """As a server may read all its connections to list some: half a core, with a thousand workers."""
    other = Process(make_queue())
    await other.hold("x")
    end = engine_of(other.queue).pushes.follow("told", lambda _: None)
    await other.register()

    listing, asking = ("client|list", "client"), ("pubsub|numsub", "pubsub")  # the latter: of Redis 6.2

    async def looks(more: int) -> int:
        """Return how often connections were listed meanwhile."""
        before = await calls(redis, *listing), await calls(redis, *asking)

        async def has_looked() -> bool:
            return await calls(redis, *asking) >= before[1] + more

        await until("it has looked", has_looked)
        return await calls(redis, *listing) - before[0]

    await looks(1)
    assert await looks(5) == 0
    end()
    await looks(1)
    assert await looks(5) >= 4, "the last one may not have listed them yet"
    assert await held(redis, name) == {b"x"}, "it lives"
    other.die()
    await eventually_workers(redis, name, set())


async def test_a_worker_fails_others_as_soon_as_it_has_announced_its_sessions(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """As a supervisor orders at once, if no process could do it before."""
    other = Process(make_queue())
    await other.hold("x")
    await other.register(NOT_CHECKABLE)
    dead = (queue.name, other.queue.session)
    other.die()
    worker = new_worker()
    gate = Gate(worker, queue)
    worker.on_sessions = lambda _: worker.fail_sessions([dead])
    async with working(worker):
        await gate.reached(1)
        gate.opened.set()
        await finished(queue)
    assert gate.done == ["x"]


def test_the_ring_begins_after_oneself() -> None:
    assert successors("c", ["d", "a", "c", "b", "e"]) == ["d", "e", "a", "b"]
    assert successors("c", ["c"]) == []
