"""Workers in separate processes: one is frozen, failed by the other, and works on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasequeue import Fleet, Item
from tests.queue.asking import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.slow


@asynccontextmanager
async def process_on(url: str, name: str, worker: str) -> AsyncIterator[Process]:
    """Start a worker; it is killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.alive.program", url, name, worker),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def says(process: Process) -> list[str]:
    """Return the words of the next line of a process."""
    assert process.stdout is not None
    async with asyncio.timeout(120):
        return (await process.stdout.readline()).decode().split()


async def names(queue: AsyncWorkQueue) -> list[str]:
    """Return the names of the registered workers."""
    return sorted(one.name for one in await Fleet(queue).workers())


async def has_names(queue: AsyncWorkQueue, *expected: str) -> bool:
    """Return whether these workers are registered, and no other."""
    return await names(queue) == [*expected]


@pytest.mark.seed("WRQ-O16", "WRQ-B9", "WRQ-B8", "WRQ-T4")
async def test_a_frozen_worker_is_failed_by_its_peer_and_stops_its_run_when_it_thaws(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis_url: str, name: str
) -> None:
    """Its leases would last for an hour. What it sends then is rejected, and it works on."""
    await queue.add_item(Item(b"x", id="a"))
    async with process_on(redis_url, name, "frozen") as frozen:
        assert await says(frozen) == ["begun", "a"]
        frozen.send_signal(signal.SIGSTOP)
        async with process_on(redis_url, name, "peer") as peer:
            assert await says(peer) == ["begun", "a"]
            assert await names(queue) == ["peer"]
            frozen.send_signal(signal.SIGCONT)
            assert await says(frozen) == ["cancelled", "a", "False"]
            await until("both are registered", lambda: has_names(queue, "frozen", "peer"))
            await Fleet(queue).quiet("peer")
            await until("the peer is quiet", lambda: is_quiet(queue))
            await queue.add_item(Item(b"x", id="b"))
            assert await says(frozen) == ["begun", "b"]
            await make_queue(name=f"{name}-go").add_item(Item(b"x"))
            assert await says(frozen) == ["done", "b"]
            assert await says(peer) == ["done", "a"]
            for one in ("frozen", "peer"):
                await Fleet(queue).stop(one)
            assert (await frozen.wait(), await peer.wait()) == (0, 0)
    assert await names(queue) == []
    assert (await queue.counts()).total == 0


async def is_quiet(queue: AsyncWorkQueue) -> bool:
    """Return whether the peer says that it is quiet."""
    return [one.name for one in await Fleet(queue).workers() if one.quiet] == ["peer"]
