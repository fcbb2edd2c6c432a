"""Calls of a server, waits for a condition on it, and which connections Leasequeue has."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from leasequeue.queue.cron import stamp
from leasequeue.queue.queue import engines_of
from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    import pytest
    import redis as redis_py
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.durations import Duration
    from leasequeue.queue.engine import Engine
    from leasequeue.views import Event, ScheduleView
    from leasequeue.wire.session import Session

DAY = 24 * 3600


class Held:
    """Holds the requests of an engine for the ends of items, and their replies.

    Attributes:
        sent: Set it to send the requests.
        answered: Whether a reply is held.
        taken: Set it to have the replies taken.
    """

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent, self.answered, self.taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._run = engine.run
        monkeypatch.setattr(engine.result_waits, "_run", self._held)

    async def _held(self, name: str, *arguments: Any, **named: Any) -> Any:
        await self.sent.wait()
        reply = await self._run(name, *arguments, **named)
        self.answered.set()
        await self.taken.wait()
        return reply


async def until(what: str, ask: Callable[[], Awaitable[bool]], *, within: float = LIMIT_SECONDS) -> None:
    """Repeat a question until the answer is True.

    Raises:
        AssertionError: If it is not after `within` seconds; `what` is in the message.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not await ask():
        assert loop.time() < deadline, f"after {within} s still not: {what}"
        await asyncio.sleep(0.005)


async def blocked(redis: Redis, count: int) -> None:
    """Wait until `count` connections are blocked."""

    async def are_blocked() -> bool:
        return bool((await redis.info("clients"))["blocked_clients"] == count)

    await until(f"{count} connections are blocked", are_blocked)


async def alone(redis: Redis) -> None:
    """Wait until the server has noticed that all other connections are closed."""

    async def is_alone() -> bool:
        return len(await redis.client_list()) == 1

    await until("all other connections are closed", is_alone)


async def take(
    queue: AsyncWorkQueue, lease_time: Duration = 30, *, block: bool = True, timeout: float = 20
) -> Lease:
    """Lease an item that waits or arrives soon."""
    return await taken(queue.lease(lease_time, block=block, timeout=timeout if block else None))


async def taken(leasing: Coroutine[Any, Any, Lease | None]) -> Lease:
    """Wait for a lease that must arrive."""
    lease = await leasing
    assert lease is not None, "no item arrived"
    return lease


async def renew_elsewhere(queue: AsyncWorkQueue, lease: Lease) -> bool:
    """Renew a lease in the event loop of another thread; this event loop is blocked."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, queue.renew(lease, 600)).result(20)


async def keys_like(redis: Redis, pattern: str | bytes) -> list[bytes]:
    """Return the matching keys as bytes."""
    return cast("list[bytes]", sorted(await redis.keys(pattern)))


async def command(client: Any, *words: Any) -> Any:
    """Send a command for which redis-py has no method, or none with types."""
    return await client.execute_command(*words)


def expect_no_reply(engine: Engine) -> None:
    """Shorten the reply timeout of the open connection to 0.1 s, because no reply will come on it.

    Connections that are opened later have the usual timeout, which a busy machine does not exceed.
    """
    connection = engine.runner._link._connection
    assert connection is not None
    assert connection._alarm is not None
    connection._alarm.cancel()
    connection._alarm, connection._reply_timeout = None, 0.1


async def kept(queue: AsyncWorkQueue, since: int | None = None) -> list[Event]:
    return [event async for event in queue.events(since, follow=False)]


async def what(queue: AsyncWorkQueue) -> list[str]:
    """Return the kind and the item of all kept events."""
    return [f"{event.what} {event.id}" for event in await kept(queue)]


def at(seconds: float) -> str:
    """Return the time in an item's id."""
    return stamp(round(seconds * 1000))


async def added(queue: AsyncWorkQueue) -> list[str]:
    """Lease and complete all waiting items, and return their ids."""
    ids: list[str] = []
    while leases := await queue.lease_many(1000, 30, block=False):
        ids += [lease.id for lease in leases]
        assert all(await queue.complete_many(leases))
    return ids


async def tick_all(queue: AsyncWorkQueue) -> float:
    """Tick until nothing is due."""
    while (due_in := await queue.schedules.tick()) == 0:
        pass
    return due_in


async def only(queue: AsyncWorkQueue) -> ScheduleView:
    [view] = await queue.schedules.list()
    return view


async def registered(redis: Redis, queue: AsyncWorkQueue) -> None:
    """Wait until a session of the queue has registered for a delivery."""

    async def is_registered() -> bool:
        return bool(await redis.zcard(f"{queue.name}:idle"))

    await until("the session has registered for a delivery", is_registered)


def names_of(clients: list[dict[str, str]]) -> list[str]:
    """Return the names of Leasequeue's connections."""
    return sorted(client["name"] for client in clients if client["name"].startswith("leasequeue:"))


def connections(plain: redis_py.Redis) -> list[str]:
    """Return the names of Leasequeue's connections."""
    return names_of(plain.client_list())


def until_gone(plain: redis_py.Redis, left: int = 0) -> None:
    """Wait until the server has closed all connections of Leasequeue but so many."""
    deadline = time.monotonic() + 20
    while len(names := connections(plain)) > left:
        assert time.monotonic() < deadline, names
        time.sleep(0.005)
    assert len(names) == left


def session(queue: AsyncWorkQueue) -> Session:
    """Return the session of a queue in the running event loop."""
    return engine_of(queue).session


def engine_of(queue: AsyncWorkQueue) -> Engine:
    """Return the engine of a queue in the running event loop."""
    engine = engines_of(queue).running
    assert engine is not None
    return engine


async def work_through(queue: AsyncWorkQueue) -> list[str]:
    """Lease and complete items until none is left, and return their ids."""
    ids: list[str] = []
    while leases := await queue.lease_many(3, 30, block=False):
        assert all(await queue.complete_many(leases))
        ids += [lease.id for lease in leases]
    return ids
