"""What every scenario of the queue, the worker and Spark is given: a server, names and connections."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis

from benchmarks.processes import CLIENT_CORE, STEP_TIMEOUT, fresh_server, pin
from leasehold import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Amount = TypeVar("Amount", int, float)


class NotEmpty(Exception):
    """The named server holds data, which a benchmark would delete."""


@dataclass
class Bench:
    """The server that is measured, and what a scenario has opened on it.

    Attributes:
        server_url: The server's address.
        redis: A client that observes the server; it is never measured.
        quick: Whether to do only as much as shows that everything works.
        scenario: The scenario that runs.
        stack: What the scenario has opened; `reset` closes it.
    """

    server_url: str
    redis: Redis
    quick: bool = False
    scenario: str = ""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, database: int = 0) -> str:
        """Return the address of one of the server's databases."""
        return urlunsplit(urlsplit(self.server_url)._replace(path=f"/{database}"))

    def name(self) -> str:
        """Return a new name for a queue."""
        return f"bench-{self.scenario}-{next(self._numbers)}"

    async def queue(self, name: str = "", database: int = 0) -> AsyncWorkQueue:
        """Open a queue as users do; `reset` closes it."""
        queue = AsyncWorkQueue.from_url(self.url(database), name or self.name())
        return await self.stack.enter_async_context(queue)

    async def client(self, database: int = 0) -> Redis:
        """Open a client of redis-py with its defaults; `reset` closes it."""
        return await self.stack.enter_async_context(Redis.from_url(self.url(database)))

    def scaled(self, full: Amount, quick: Amount) -> Amount:
        """Return the number for a full run or for a quick one."""
        return quick if self.quick else full

    async def info(self, section: str) -> dict[str, Any]:
        """Return a section of the server's INFO."""
        info: dict[str, Any] = await self.redis.info(section)
        return info

    async def blocked(self, count: int) -> None:
        """Wait until exactly so many connections wait in a blocking command.

        Raises:
            TimeoutError: If that takes a minute.
        """
        async with asyncio.timeout(STEP_TIMEOUT):
            while (await self.info("clients"))["blocked_clients"] != count:  # noqa: ASYNC110 - no event exists
                await asyncio.sleep(0.002)

    async def reset(self) -> None:
        """Close what the scenario has opened, empty the server and wait until its memory is free."""
        await self.stack.aclose()
        # Newer servers free memory in the background unless they are asked not to.
        await self.redis.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]


@asynccontextmanager
async def open_bench(url: str | None, *, quick: bool, cores: bool = True) -> AsyncIterator[Bench]:
    """Start a server on the first core and move this process to the second.

    Args:
        url: A running server to use instead; it must be empty, and is emptied again.
        quick: See `Bench`.
        cores: Whether to pin the processes to cores at all.

    Raises:
        NotEmpty: If the server of the URL holds data.
    """
    if url is not None:
        async with Redis.from_url(url) as redis:
            if (await redis.info("keyspace")) != {}:
                raise NotEmpty(f"{url} holds data; a benchmark deletes everything, so name an empty server")
            bench = Bench(url, redis, quick=quick)
            async with bench.stack:
                yield bench
            await redis.flushall()
        return
    async with fresh_server(cores=cores) as (server_url, redis):
        if cores:
            pin(CLIENT_CORE)
        bench = Bench(server_url, redis, quick=quick)
        async with bench.stack:
            yield bench
