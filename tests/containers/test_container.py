"""A queue and a worker on a server in a container that is restarted, killed and paused.

`make test-restart` runs these tests; tests/with-containers.sh provides the engine and the image.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, Lease
from leasequeue.errors import ServerBusy
from leasequeue.views import Counts
from leasequeue.worker import Worker
from tests import servers
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from testcontainers.core.container import DockerContainer

pytestmark = pytest.mark.containers

#: How long a server may take to answer again (s).
WITHIN = 20


class Container(Protocol):
    """The part of the engine's handle that the tests use; docker ships no types."""

    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def restart(self, *, timeout: int) -> None: ...
    def kill(self, signal: str) -> None: ...
    def wait(self) -> object: ...
    def start(self) -> None: ...


@pytest.fixture
def started() -> Iterator[DockerContainer]:
    """Run a server that writes each step to a file in the container before it replies."""
    with servers.container().with_command("--appendonly yes --appendfsync always --dir /tmp") as container:
        yield container


@pytest.fixture
def container(started: DockerContainer) -> Container:
    """Return the engine's handle of the container."""
    handle: Container = started.get_wrapped_container()
    return handle


@pytest.fixture
async def queue(started: DockerContainer, name: str) -> AsyncIterator[AsyncWorkQueue]:
    """Return a queue on the server in the container."""
    async with AsyncWorkQueue.from_url(servers.container_url(started), name, reply_timeout=5) as queue:
        yield queue


def restart(container: Container) -> None:
    """Stop the server with SIGTERM and start it again."""
    container.restart(timeout=5)


def kill(container: Container) -> None:
    """Stop the server with SIGKILL and start it again."""
    container.kill("SIGKILL")
    container.wait()
    container.start()


def pause(container: Container) -> None:
    """Freeze the server for longer than a client waits for a reply."""
    container.pause()
    try:
        time.sleep(6)
    finally:
        container.unpause()


OUTAGES = pytest.mark.parametrize("outage", [restart, kill, pause])


async def answered(call: Callable[[], Awaitable[object]]) -> object:
    """Repeat a call until the server answers it."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                return await call()
            except (ConnectionLost, ServerBusy):
                await asyncio.sleep(0.05)


@OUTAGES
async def test_a_queue_keeps_its_items_and_leases(
    queue: AsyncWorkQueue, container: Container, outage: Callable[[Container], None]
) -> None:
    await queue.add_items([Item(b"data", id=item_id) for item_id in "abc"])
    lease = await queue.lease(60)
    assert lease is not None
    await asyncio.to_thread(outage, container)
    assert await answered(queue.counts) == Counts(2, 1, 0, 0)
    assert await queue.add_item(Item(b"data", id="a")) is False
    assert await queue.renew(lease, 60) is True
    assert await queue.complete(lease) is True
    assert [each.id for each in await queue.lease_many(10, 60, block=False)] == ["b", "c"]


@OUTAGES
async def test_a_worker_finishes_its_run_and_takes_new_items(
    queue: AsyncWorkQueue, container: Container, outage: Callable[[Container], None]
) -> None:
    worker = Worker(lease_time=60)
    runs: list[str] = []
    proceed = asyncio.Event()

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        runs.append(lease.id)
        await proceed.wait()

    await queue.add_item(Item(b"data", id="before"))
    working = asyncio.create_task(worker.run())
    await eventually("the run has begun", lambda: bool(runs))
    await asyncio.to_thread(outage, container)
    proceed.set()
    await answered(lambda: queue.add_item(Item(b"data", id="after")))
    await eventually("both items were run", lambda: len(runs) == 2, within=WITHIN)
    async with asyncio.timeout(WITHIN):
        while (await queue.counts()).total:  # noqa: ASYNC110 - the state is the server's
            await asyncio.sleep(0.05)
    worker.stop()
    await working
    assert runs == ["before", "after"]
    assert await queue.counts() == Counts(0, 0, 0, 0)
