"""A primary, its replica, and the Sentinels that watch them."""

from __future__ import annotations

import contextlib
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio.sentinel import Sentinel

from leasequeue.embedded.guardian import private_folder
from tests.eventually import LIMIT_SECONDS
from tests.ports import free_port
from tests.processes import answering
from tests.queue.asking import command, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

SENTINELS = 3


async def run_server(stack: AsyncExitStack, port: int, *options: str) -> Redis:
    """Run a server until the stack is closed, and return a client."""
    folder = private_folder()  # a replica writes what it receives of its primary there
    words: tuple[str, ...] = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder))
    words += ("--repl-diskless-sync-delay", "0", "--repl-diskless-load", "on-empty-db", *options)
    return await stack.enter_async_context(answering("embedded", port, *words, folder=folder))


async def run_replica(stack: AsyncExitStack, port: int, of: int) -> Redis:
    """Run a replica of the server at the port `of`, and return a client."""
    replica = await run_server(stack, port)
    await replica.replicaof("127.0.0.1", of)  # it connects at once, and after a start only once a second
    return replica


async def run_sentinel(stack: AsyncExitStack, port: int, of: int) -> Redis:
    """Run a Sentinel that watches the primary at the port `of`, and return a client."""
    folder = private_folder()
    (folder / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {of} 2\n"
        "sentinel down-after-milliseconds main 800\nsentinel failover-timeout main 5000\n"
    )
    words = (str(folder / "sentinel.conf"), "--sentinel")
    sentinel = await stack.enter_async_context(answering("embedded", port, *words, folder=folder))
    await command(sentinel, "SENTINEL", "DEBUG", "publish-period", 100)  # otherwise they meet every 2 s
    return sentinel


@contextlib.asynccontextmanager
async def frozen(*servers: Redis) -> AsyncIterator[None]:
    """Have servers, or Sentinels, stand still during the block."""
    pids = [(await one.info("server"))["process_id"] for one in servers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Watched:
    """A primary, its replica, and the Sentinels that watch them.

    Attributes:
        primary: A client of the server that is the primary at first.
        replica: A client of the other.
        ports: The ports of the Sentinels.
        sentinels: Clients of them.
    """

    def __init__(self, primary: Redis, replica: Redis, ports: list[int], sentinels: list[Redis]) -> None:
        self.primary, self.replica, self.ports, self.sentinels = primary, replica, ports, sentinels

    async def promoted(self, sentinels: list[Redis]) -> None:
        """Wait until the replica is the primary, and these Sentinels say so."""
        port = self.replica.connection_pool.connection_kwargs["port"]

        async def is_promoted() -> bool:
            views: list[Any] = [await one.sentinel_master("main") for one in sentinels]
            role: str = (await self.replica.info("replication"))["role"]
            return role == "master" and all(view["port"] == port for view in views)

        await until("the replica is the primary", is_promoted)

    @contextlib.asynccontextmanager
    async def client(self, *others: int) -> AsyncIterator[Redis]:
        """Give a client of the present primary, as a program makes it.

        `others` are the ports of more Sentinels, which it asks first.
        """
        sentinel = Sentinel([("127.0.0.1", port) for port in (*others, *self.ports)])  # type: ignore[no-untyped-call]  # theirs has no types
        client: Redis = sentinel.master_for("main")
        try:
            yield client
        finally:
            await client.aclose()
            await sentinel.aclose()


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """Run them, and return when each Sentinel knows the replica and the others."""
    async with AsyncExitStack() as stack:
        primary_port = free_port()
        primary = await run_server(stack, primary_port)
        replica = await run_replica(stack, free_port(), primary_port)
        ports = [free_port() for _ in range(SENTINELS)]
        sentinels = [await run_sentinel(stack, port, primary_port) for port in ports]

        async def are_complete() -> bool:
            views: list[Any] = [await one.sentinel_master("main") for one in sentinels]
            return all(
                (view["num-slaves"], view["num-other-sentinels"]) == (1, SENTINELS - 1) for view in views
            )

        await until("the Sentinels know each other", are_complete, within=LIMIT_SECONDS)
        yield Watched(primary, replica, ports, sentinels)
