"""beanstalkd with a small client of our own, which keeps many commands in flight; no published client does.

- It is at-least-once: a job is reserved for a time, and deleted after its run.
- One connection serves all coroutines. While jobs come it asks for several at once without blocking; when
  none is left it blocks for one, as the server reads nothing else from a connection that waits.
- The best number of coroutines for jobs that do nothing is below.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from benchmarks.rivals.programs import protocol

COROUTINES = 100
CHUNK = 1_000
RESERVED_SECONDS = 60

_Job = tuple[bytes, bytes]


class Client(asyncio.Protocol):
    """A connection on which commands do not wait for each other's replies."""

    def __init__(self) -> None:
        self._buffer = b""
        self._replies: deque[asyncio.Future[Any] | None] = (
            deque()
        )  #: in the order of commands; None: a reserve
        self._waiting: deque[asyncio.Future[_Job]] = deque()  #: those who wait for a job
        self._asked = 0  #: reserves in flight
        self._width = 1  #: how many may be in flight
        self._empty = False  #: whether the last one found nothing
        self._held = 0  #: jobs that are reserved
        self._output: list[bytes] = []

    @classmethod
    async def open(cls, url: str) -> Client:
        """Connect."""
        host, port = url.split(":")
        _, client = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport

    def put(self, data: bytes) -> asyncio.Future[Any]:
        """Add a job; the future ends when the server has it."""
        return self._call(b"put 0 0 %d %d\r\n%b\r\n" % (RESERVED_SECONDS, len(data), data))

    def delete(self, job: bytes) -> asyncio.Future[Any]:
        """Delete a job that has run; an error ends the program."""
        self._held -= 1
        self._empty = False  # there may be jobs again
        future = self._call(b"delete %b\r\n" % job)
        self._ask()
        return future

    def reserve(self) -> asyncio.Future[_Job]:
        """Return the next job."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._ask()
        return future

    def data_received(self, data: bytes) -> None:
        """Hand out jobs and replies."""
        data = self._buffer + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split()
            after = end + 2
            if words[0] == b"RESERVED":
                body = after + int(words[2])
                if len(data) < body + 2:
                    break
                self._reserved((words[1], data[after:body]))
                after = body + 2
            elif words[0] == b"TIMED_OUT":
                self._replies.popleft()
                self._asked -= 1
                self._empty, self._width = True, 1
            else:
                self._answered(words[0])
            at = after
        self._buffer = data[at:]
        self._ask()

    def _reserved(self, job: _Job) -> None:
        self._replies.popleft()
        self._asked -= 1
        self._held += 1
        self._empty = False
        self._width += 1
        self._waiting.popleft().set_result(job)

    def _answered(self, word: bytes) -> None:
        if word not in (b"INSERTED", b"DELETED"):
            raise RuntimeError(f"the server replied {word!r}")
        future = self._replies.popleft()
        assert future is not None
        future.set_result(None)

    def _ask(self) -> None:
        """Ask for as many jobs as are awaited, within the width."""
        wanted = min(len(self._waiting), self._width) - self._asked
        if wanted <= 0 or (self._empty and self._asked):
            return
        if not self._empty:
            command = b"reserve-with-timeout 0\r\n" * wanted
        elif self._held:
            return  # a blocked connection could not delete them: ask again when one of them has run
        else:
            command, wanted = b"reserve\r\n", 1
        self._asked += wanted
        self._replies.extend([None] * wanted)
        self._send(command)

    def _call(self, command: bytes) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._replies.append(future)
        self._send(command)
        return future

    def _send(self, command: bytes) -> None:
        """Send a command together with those of the same turn of the loop."""
        if not self._output:
            asyncio.get_running_loop().call_soon(self._flush)
        self._output.append(command)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._output))
        self._output.clear()


async def produce(url: str) -> None:
    """Put jobs with JSON data."""
    client = await Client.open(url)

    async def add(number: int, ms: int) -> None:
        await client.put(json.dumps([number, ms]).encode())

    async def add_many(numbers: range, ms: int) -> None:
        for some in protocol.chunks(numbers, CHUNK):
            await asyncio.gather(*(client.put(json.dumps([number, ms]).encode()) for number in some))

    await protocol.produce(add, add_many)


async def work(task: protocol.Task) -> None:
    """Run jobs in coroutines."""
    client = await Client.open(task.url)

    async def serve() -> None:
        while True:
            job, data = await client.reserve()
            await protocol.job(*json.loads(data))
            await client.delete(job)

    await asyncio.gather(*(serve() for _ in range(task.concurrency or COROUTINES)))
