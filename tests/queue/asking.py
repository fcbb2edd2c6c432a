"""Calls of a server, and waits for a condition on it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from leasehold.queue.internals import twin as make_twin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue, Lease
    from leasehold.durations import Duration
    from leasehold.queue.engine import Engine


async def until(what: str, ask: Callable[[], Awaitable[bool]], *, within: float = 20.0) -> None:
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
    return await taken(queue.lease(lease_time, block=block, timeout=timeout))


async def taken(leasing: Coroutine[Any, Any, Lease | None]) -> Lease:
    """Wait for a lease that must arrive."""
    lease = await leasing
    assert lease is not None, "no item arrived"
    return lease


async def renew_elsewhere(queue: AsyncWorkQueue, lease: Lease) -> bool:
    """Renew a lease with a twin of the queue in another thread; this event loop stands still meanwhile."""

    async def renew(twin: AsyncWorkQueue) -> bool:
        async with twin:
            return await twin.renew(lease, 600)

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, renew(make_twin(queue))).result(20)


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
    connection = engine._runner._connection
    assert connection is not None
    assert connection._alarm is not None
    connection._alarm.cancel()
    connection._alarm, connection._reply_timeout = None, 0.1
