"""Large payloads over a slow network, and what a connection survives."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item
from leasequeue.errors import ProcessOutOfMemory
from leasequeue.testing import Proxy
from tests.queue.asking import take
from tests.queue.keyspace import left_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

#: More than the buffers of the kernel take at once, and longer to send than the reply timeout.
LARGE = bytes(24 << 20)


class Narrow(Proxy):
    """Takes the first 16 MiB of requests at 3 MiB/s at most on each connection.

    What follows fits into the buffers of the kernel: for the client it is sent already, so that the time in
    which it waits for the reply has begun.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._taken = Counter[asyncio.StreamReader]()

    async def _next_chunk(self, reader: asyncio.StreamReader) -> bytes:
        if reader not in self._taken:  # else the kernel may take as much as 32 MiB
            its: asyncio.Transport = reader._transport  # type: ignore[attr-defined]  # typeshed does not have it
            its.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 19)
        chunk = await super()._next_chunk(reader)
        self._taken[reader] += len(chunk)
        if self._taken[reader] < 16 << 20:
            await asyncio.sleep(len(chunk) / (3 << 20))
        return chunk


@pytest.fixture
async def narrow(redis_url: str) -> AsyncIterator[Narrow]:
    """Return a proxy through which a large item takes seconds."""
    async with Narrow(redis_url) as proxy:
        yield proxy


@pytest.mark.slow
async def test_an_upload_may_take_longer_than_the_reply_timeout(
    make_queue: MakeQueue, redis: Redis, narrow: Narrow, name: str
) -> None:
    """Small calls beside it do not wait, and none is lost."""
    queue = make_queue(url=narrow.url, reply_timeout=4)
    await queue.add_item(Item(b"x", id="held"))
    lease = await take(queue, 60)
    adding = asyncio.create_task(queue.add_item(Item(LARGE, id="large")))
    answered = 0
    while not adding.done():
        assert await queue.renew(lease, 60)
        assert await queue.add_item(Item(b"x", id=f"{answered}"))
        answered += 1
    assert await adding
    assert answered > 2
    assert await queue.complete(lease)
    while leases := await queue.lease_many(250, 60, block=False):
        assert all(await queue.complete_many(leases))
    await queue.close()
    assert not await left_over(redis, name)


async def test_the_trips_of_one_call_are_applied_in_order(queue: AsyncWorkQueue) -> None:
    """Some are large and use the second connection; the small ones of the same call follow them there."""
    items = [Item(bytes(400_000 if n in (3, 7) else 10), id=f"{n:04}") for n in range(1200)]
    assert all(await queue.add_items(items))
    ids: list[str] = []
    while leases := await queue.lease_many(250, 60, block=False):
        ids += [lease.id for lease in leases]
    assert ids == sorted(ids)


async def test_a_silent_server_is_noticed_during_an_upload(
    make_queue: MakeQueue, proxy: Proxy, redis: Redis, name: str
) -> None:
    queue = make_queue(url=proxy.url, reply_timeout=4)
    await queue.add_item(Item(b"x"))
    proxy.stall()
    async with asyncio.timeout(120):
        with pytest.raises(ConnectionLost):
            await queue.add_item(Item(LARGE, id="large"))
    await proxy.cut()
    proxy.resume()
    assert not await redis.exists(f"{name}:item:large")


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, hiredis.HiredisError])
async def test_a_queue_goes_on_after_memory_was_exhausted(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """No call was sent; each caller learns that, and no script is stuck afterwards."""
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(20)])
    lease = await take(queue, 60)

    def exhausted(_: object) -> bytes:
        raise kind

    with monkeypatch.context() as patched:
        patched.setattr("leasequeue.wire.connection.hiredis.pack_command", exhausted)
        for _ in range(6):
            calls: list[Any] = [
                queue.add_item(Item(b"x", id="new")),
                queue.lease(60, block=False),
                queue.complete(lease),
                queue.counts(),
            ]
            async with asyncio.timeout(120):
                for error in await asyncio.gather(*calls, return_exceptions=True):
                    assert isinstance(error, ProcessOutOfMemory)
                    assert type(error.__cause__) is kind
    async with asyncio.timeout(120):
        assert await queue.complete(lease)
        assert await queue.add_item(Item(b"x", id="new"))
        assert len(await queue.lease_many(30, 60)) == 20
        await queue.close()


async def test_a_reply_that_its_caller_cannot_handle_affects_no_other(
    queue: AsyncWorkQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged, and the connection stays open."""

    def broken(_reply: object, _error: object) -> None:
        raise ValueError("a broken caller")

    await queue.counts()
    runner = queue._engine().runner
    opened = runner._link._connection
    runner.send(queue._engine()._script("counts"), (), broken)
    assert await queue.counts() == (0, 0, 0, 0)
    assert runner._link._connection is opened
    assert "a reply could not be handled" in caplog.text
    assert "a broken caller" in caplog.text


@pytest.mark.slow
def test_a_process_without_memory_says_so(redis_url: str, name: str) -> None:
    program = Path(__file__).with_name("memory_program.py")
    ended = subprocess.run(
        [sys.executable, program, redis_url, name], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["ProcessOutOfMemory of 60 MiB", "True"]
