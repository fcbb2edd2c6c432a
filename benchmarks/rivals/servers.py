"""The servers of the libraries: Redis, NATS and beanstalkd. Each keeps its data in memory."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from benchmarks.bench import SERVER_CORE, STEP_TIMEOUT, fresh_server, pinned
from benchmarks.measure import Sample, metered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from redis.asyncio import Redis

HOST = "127.0.0.1"
#: Debian installs servers where not every user looks for programs.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


class Server(Protocol):
    """A running server with nothing on it but jobs."""

    url: str

    async def left(self) -> int:
        """Return how many jobs the server holds, also running ones."""

    def metered(self, items: int) -> AbstractAsyncContextManager[Sample]:
        """Measure the server's CPU time during the block."""


class RedisServer:
    """A server of the kind that Leasequeue uses.

    Args:
        url: Its address.
        redis: Observes it.
        held: The commands that count its jobs.
    """

    def __init__(self, url: str, redis: Redis, held: Sequence[str]) -> None:
        self.url = url
        self._redis = redis
        self._held = held

    @classmethod
    @asynccontextmanager
    async def start(cls, held: Sequence[str]) -> AsyncIterator[Server]:
        """Run an empty one during the block."""
        async with fresh_server() as (url, redis):
            yield cls(url, redis, held)

    async def left(self) -> int:
        """Return how many jobs it holds."""
        replies = [await self._redis.execute_command(*command.rsplit(" ", 1)) for command in self._held]  # type: ignore[no-untyped-call]
        for groups in (reply for reply in replies if isinstance(reply, list)):
            replies = [group["pending"] + group["lag"] for group in groups]
        return int(sum(replies))

    def metered(self, items: int) -> AbstractAsyncContextManager[Sample]:
        """Measure it, with its statistics of commands."""
        return metered(self._redis, items)


class OtherServer:
    """A server in a process that is started here, and whose CPU time the system reports."""

    def __init__(
        self, pid: int, port: int, left: Callable[[Connection], Awaitable[int]], ask: Connection
    ) -> None:
        self.url = f"{HOST}:{port}"
        self._pid = pid
        self._left = left
        self._connection = ask

    @classmethod
    @asynccontextmanager
    async def start(cls, kind: str) -> AsyncIterator[Server]:
        """Run an empty one on the first core during the block."""
        command, left = KINDS[kind]
        program = shutil.which(command[0], path=PATH)
        if program is None:
            raise FileNotFoundError(f"{command[0]} is not installed: make bench-rivals")
        with TemporaryDirectory(prefix="leasequeue-bench-") as folder:
            port = _free_port()
            words = [word.format(port=port, folder=folder) for word in command[1:]]
            async with pinned(SERVER_CORE):
                process = await asyncio.create_subprocess_exec(
                    program, *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
                )
            try:
                connection = await _connected(port)
                yield cls(process.pid, port, left, connection)
                connection[1].close()
            finally:
                process.kill()
                await process.wait()

    async def left(self) -> int:
        """Return how many jobs it holds."""
        async with asyncio.timeout(STEP_TIMEOUT):
            return await self._left(self._connection)

    @asynccontextmanager
    async def metered(self, items: int) -> AsyncIterator[Sample]:
        """Measure the CPU time of all its threads."""
        sample = Sample(items=items)
        before = self._cpu()
        yield sample
        sample.server_cpu = self._cpu() - before

    def _cpu(self) -> float:
        threads = Path(f"/proc/{self._pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _free_port() -> int:
    with closing(socket.create_server((HOST, 0))) as free:
        port: int = free.getsockname()[1]
        return port


async def _connected(port: int) -> Connection:
    """Connect as soon as the server listens."""
    async with asyncio.timeout(STEP_TIMEOUT):
        while True:
            try:
                return await asyncio.open_connection(HOST, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)


async def _left_in_beanstalkd(connection: Connection) -> int:
    """Count the jobs that wait or are reserved."""
    reader, writer = connection
    writer.write(b"stats-tube default\r\n")
    size = int((await reader.readline()).split()[1])
    lines = (await reader.readexactly(size + len("\r\n"))).decode().splitlines()
    counts = dict(line.split(": ") for line in lines if line.startswith("current-jobs-"))
    return sum(int(counts[f"current-jobs-{state}"]) for state in ("ready", "reserved"))


async def _left_in_nats(connection: Connection) -> int:
    """Count the messages in the stream, which deletes what is acknowledged."""
    reader, writer = connection
    writer.write(b"SUB counted 1\r\nUNSUB 1 1\r\nPUB $JS.API.STREAM.INFO.jobs counted 0\r\n\r\n")
    while not (line := await reader.readline()).startswith(b"MSG "):
        assert line, "the server has closed the connection"
    return int(json.loads(await reader.readexactly(int(line.split()[-1])))["state"]["messages"])


#: A server -> its command, and what counts its jobs.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Connection], Awaitable[int]]]] = {
    "beanstalkd": (("beanstalkd", "-l", HOST, "-p", "{port}"), _left_in_beanstalkd),
    "NATS": (("nats-server", "-js", "-sd", "{folder}", "-a", HOST, "-p", "{port}"), _left_in_nats),
}
