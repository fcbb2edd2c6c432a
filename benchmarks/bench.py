"""The server that is measured, who talks to it, and on which core each of them runs."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis

from leasehold import AsyncWorkQueue
from leasehold.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Amount = TypeVar("Amount", int, float)

#: How long a waiting step of a benchmark may take before something is wrong (s).
PATIENCE_SECONDS = 60.0


class NotEmpty(Exception):
    """The server that was named holds data, and a benchmark would delete them."""


@dataclass
class Bench:
    """What every scenario is given.

    Attributes:
        server_url: Where the server is.
        redis: A client that looks at the server, and is never measured.
        server_pid: The server's process, if it is ours.
        quick: Whether to do as little as shows that everything works.
    """

    server_url: str
    redis: Redis
    server_pid: int | None = None
    quick: bool = False
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, database: int = 0) -> str:
        """The address of one of the server's databases."""
        return urlunsplit(urlsplit(self.server_url)._replace(path=f"/{database}"))

    def name(self, what: str) -> str:
        """A queue's name that nobody has used."""
        return f"bench-{what}-{next(self._names)}"

    @asynccontextmanager
    async def queue(self, name: str, database: int = 0) -> AsyncIterator[AsyncWorkQueue]:
        """A queue as a user has it."""
        async with AsyncWorkQueue.from_url(self.url(database), name) as queue:
            yield queue

    @asynccontextmanager
    async def client(self, database: int = 0) -> AsyncIterator[Redis]:
        """A client of redis-py with its defaults, as the bare references use it."""
        async with Redis.from_url(self.url(database)) as client:
            yield client

    def some(self, full: Amount, quick: Amount) -> Amount:
        """A number for a full run, or for a quick one."""
        return quick if self.quick else full

    async def info(self, section: str) -> dict[str, Any]:
        """What the server tells about itself."""
        told: dict[str, Any] = await self.redis.info(section)
        return told

    async def blocked(self, count: int) -> None:
        """Wait until exactly so many connections wait in a blocking command.

        Raises:
            TimeoutError: If that takes a minute.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            # The server has nobody whom it could tell.
            while (await self.info("clients"))["blocked_clients"] != count:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def clear(self) -> None:
        """Empty the server, and return when the memory is free again."""
        # Newer servers free in the background unless told otherwise, and the client cannot tell them.
        await self.redis.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]


@asynccontextmanager
async def open_bench(url: str | None, *, quick: bool) -> AsyncIterator[Bench]:
    """Start a server on core 0 and move this process to core 1, where there are two cores.

    Args:
        url: A server that runs already; it must be empty, and is emptied again. None starts one.
        quick: See `Bench`.

    Raises:
        NotEmpty: If the server that was named holds data.
    """
    if url is not None:
        async with Redis.from_url(url) as redis:
            if (await redis.info("keyspace")) != {}:
                raise NotEmpty(f"{url} holds data; a benchmark deletes everything, so name an empty server")
            yield Bench(url, redis, quick=quick)
            await redis.flushall()
        return
    async with await EmbeddedServer.start() as server:
        pin(server.pid)
        async with Redis.from_url(server.url) as redis:
            yield Bench(server.url, redis, server_pid=server.pid, quick=quick)


def pin(server_pid: int) -> None:
    """Give the server the first core and ourselves the second, if there are two.

    Otherwise the kernel moves both about, and figures swing by a factor of two.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    for thread in Path(f"/proc/{server_pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores[:1])
    os.sched_setaffinity(0, cores[1:2])
