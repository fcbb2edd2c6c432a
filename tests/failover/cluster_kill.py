"""A master of a cluster is killed under clients that were there before: all continue by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError

from leasequeue import AsyncWorkQueue, ConnectionLost, Fleet, Item, Worker, list_queues
from leasequeue.errors import EventsLost, ServerBusy, ServerReadOnly
from tests.eventually import LIMIT_SECONDS, eventually
from tests.faults.cluster_nodes import joined, owner, port_of
from tests.queue.asking import blocked, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

T = TypeVar("T")

#: All keys have this tag, so that they are on one node.
TAG, NAMES = "{failover}", ("jobs", "waits", "added")
#: How long a step may take (s). No worker may take longer than that for dead, and make another session.
TIMEOUT, DEAD_AFTER = LIMIT_SECONDS, 600.0
#: How long a client pauses between two calls (s).
PAUSE = 0.02


@dataclass(frozen=True)
class Gaps:
    """How long after the kill each client was served again (s)."""

    plain: float
    adds: float
    runs: float
    result: float
    waiting: float

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"redis-py's client {self.plain:.2f} s | add_item {self.adds:.2f} s, worker {self.runs:.2f} s, "
            f"result {self.result:.2f} s, blocked lease {self.waiting:.2f} s"
        )


@contextlib.asynccontextmanager
async def replicated(kind: str, port: Callable[[], int]) -> AsyncIterator[list[Redis]]:
    """Run a cluster of three masters with a replica each."""
    async with AsyncExitStack() as stack:
        yield await joined(stack, kind, port, replicas=1)


async def kill_master(nodes: list[Redis], *, seed: Redis) -> Gaps:
    """Kill the master of some queues under a producer, a worker, and callers that wait.

    Args:
        nodes: The masters of the cluster, and their replicas.
        seed: The one node that the clients are given.

    Raises:
        AssertionError: If one of them does not continue, or only in another session.
    """
    async with AsyncExitStack() as stack:
        clients = Clients(stack, f"redis://127.0.0.1:{port_of(seed)}")
        victim = owner(nodes, TAG)
        await clients.start(victim)
        os.kill((await victim.info("server"))["process_id"], signal.SIGKILL)
        gaps = await clients.go_on()
        await clients.check()
        return gaps


class Clients:
    """A plain client of redis-py, and queue objects in all ways to use them.

    Args:
        stack: Ends them.
        url: The node that they are given.
    """

    def __init__(self, stack: AsyncExitStack, url: str) -> None:
        self._stack, self._url = stack, url
        self._clock = asyncio.get_running_loop().time
        self._runs: list[str] = []
        self._may_end = asyncio.Event()

    async def start(self, victim: Redis) -> None:
        """Begin; return when a worker runs an item, and when this node has the blocked connections."""
        self._plain = await self._stack.enter_async_context(RedisCluster.from_url(self._url))
        await self._plain.set(f"{TAG}:plain", 0)
        self._jobs, self._waits, self._added = [await self._open(name) for name in NAMES]
        self._worker = Worker(dead_after=DEAD_AFTER)

        @self._worker.handler(await self._open("jobs"), keep_result=600)
        async def handle(data: bytes) -> bytes:
            self._runs.append(data.decode())
            if data == b"long":
                await self._may_end.wait()
            return data

        self._running = self._begin(self._worker.run())
        await self._jobs.add_item(Item(b"long", id="long"))
        await eventually("the run has begun", lambda: self._runs == ["long"])
        self._result = self._begin(self._jobs.results.wait("long"))
        self._waiting = self._begin(self._wait_for_item())
        await self._waits.events.keep(count=1000)
        await self._waits.events.publish()
        self._reading = self._begin(self._read_events())
        await self._added.add_item(Item(b"x", id="before"))
        await blocked(victim, 2)  # the worker's connection, and the one of `_waiting`
        self._sessions = [queue.session for queue in (self._jobs, self._waits, self._added)]
        [self._before] = await Fleet(self._jobs).workers()

    async def go_on(self) -> Gaps:
        """Return when each client has been served again; the node has just died."""
        self._began = self._clock()
        plain, adds, *_ = await asyncio.gather(
            self._until(lambda: self._plain.set(f"{TAG}:plain", 1)),
            self._until(lambda: self._added.add_item(Item(b"x", id="after"))),
            self._until(lambda: self._jobs.add_item(Item(b"short", id="short"))),
            self._until(lambda: self._waits.add_item(Item(b"x", id="x"))),
        )
        self._may_end.set()
        run = eventually("the worker runs the item", lambda: "short" in self._runs, within=TIMEOUT)
        return Gaps(
            plain,
            adds,
            *await asyncio.gather(*(self._served(one) for one in (run, self._result, self._waiting))),
        )

    async def check(self) -> None:
        """Check that all that queue objects do works, and that none has made another session."""

        async def is_read() -> bool:
            await self._waits.add_item(Item(b"x"))
            return self._reading.done()

        await until("published events are read", is_read, within=TIMEOUT)
        assert self._result.result() == b"long"
        assert await self._jobs.results.wait("short", TIMEOUT) == b"short"
        queue = self._added
        assert (await queue.counts()).waiting == 2
        leases = await queue.lease_many(2, 30)
        assert await queue.renew_many(leases, 60) == [True] * 2
        assert await queue.complete_many(leases) == [True] * 2
        names = sorted(f"{TAG}:{name}" for name in NAMES)
        assert await list_queues(self._plain, prefix=TAG) == names
        sessions = [queue.session for queue in (self._jobs, self._waits, self._added)]
        assert sessions == self._sessions, "they need no new session"

        async def is_registered() -> bool:
            [now] = await Fleet(self._jobs).workers()
            assert now.sessions == self._before.sessions, "the worker needs no new session"
            return not now.dead and now.server != self._before.server

        await until("the worker has registered at the new master", is_registered, within=TIMEOUT)
        # What one session has learned the next one knows, also if the one node that it was given is dead.
        other = await self._open("added")
        assert await other.add_item(Item(b"x", id="other"))
        self._worker.stop()
        await self._served(self._running)

    async def _open(self, name: str) -> AsyncWorkQueue:
        queue = AsyncWorkQueue.from_url(self._url, f"{TAG}:{name}", cluster=True)
        return await self._stack.enter_async_context(queue)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine beside, and cancel it at the end."""
        task = asyncio.create_task(work)
        self._stack.callback(task.cancel)
        return task

    async def _wait_for_item(self) -> None:
        """Wait for an item with a blocked connection; again, as a caller does, when it is lost."""
        while True:
            with contextlib.suppress(ConnectionLost, ServerBusy):
                lease = await self._waits.lease(30)
                assert lease is not None
                assert lease.id == "x"
                return

    async def _read_events(self) -> None:
        """Read published events until one comes after the fail-over; after an error, begin again."""
        while True:
            with contextlib.suppress(ConnectionLost, ServerBusy, EventsLost):
                async for _ in self._waits.events(live=True):
                    if self._may_end.is_set():
                        return
            await asyncio.sleep(PAUSE)

    async def _until(self, call: Callable[[], Awaitable[object]]) -> float:
        """Repeat a call until it succeeds; return how long that took (s)."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    await call()
                except (ConnectionLost, ServerBusy, ServerReadOnly, RedisError, OSError):
                    await asyncio.sleep(PAUSE)
                else:
                    return self._clock() - self._began

    async def _served(self, what: Awaitable[object]) -> float:
        async with asyncio.timeout(TIMEOUT):
            await what
        return self._clock() - self._began
