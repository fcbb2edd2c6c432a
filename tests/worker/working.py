"""Workers that run in a test's own event loop, and what tests look at."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from leasehold import Item
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasehold.worker import RetryPolicy, Worker
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from leasehold import AsyncWorkQueue
    from leasehold.queue.dead_letters import DeadLetter
    from leasehold.queue.views import Counts

#: Tries again at once, a few times.
AT_ONCE = RetryPolicy(attempts=3, first=0)


def new_worker(**options: Any) -> Worker:
    """Make a worker whose usual settings suit tests."""
    usual: dict[str, Any] = {"lease_time": 5.0, "grace": 5.0, "retry": AT_ONCE, "clean_every": None}
    return Worker(**usual | options)


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """Run a worker inside of the block; it is stopped at its end, and has to end well."""
    running = asyncio.create_task(worker.run())
    try:
        yield running
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    worker.stop()
    async with asyncio.timeout(20):
        await running


async def add(queue: AsyncWorkQueue, *payloads: bytes | str) -> None:
    """Add items whose ids are `1`, `2` and so on."""
    await queue.add_items(Item(payload, id=str(number)) for number, payload in enumerate(payloads, 1))


async def finished(queue: AsyncWorkQueue) -> None:
    """Wait until no item is waiting, leased or scheduled."""
    await counted(queue, "all items are done", lambda counts: not counts.total)


async def counted(queue: AsyncWorkQueue, what: str, condition: Callable[[Counts], bool]) -> None:
    """Wait until the counts of a queue are as they have to become."""

    async def are_so() -> bool:
        return condition(await queue.counts())

    await until(what, are_so)


async def the_dead(queue: AsyncWorkQueue) -> DeadLetter:
    """Wait for the one dead letter that comes, and return it."""
    await counted(queue, "there is a dead letter", lambda counts: counts.dead > 0)
    (letter,) = await queue.dead_letters.list()
    return letter


class Gate:
    """A handler that waits in front of a gate, and notes what happened to it."""

    def __init__(self, worker: Worker, queue: AsyncWorkQueue, **options: Any) -> None:
        self.opened = asyncio.Event()
        self.begun: list[str] = []
        self.done: list[str] = []
        self.cut: list[str] = []

        @worker.handler(queue, **options)
        async def handle(_: bytes, lease: Lease) -> None:
            self.begun.append(lease.id)
            try:
                await self.opened.wait()
            except asyncio.CancelledError:
                self.cut.append(lease.id)
                raise
            self.done.append(lease.id)

    async def reached(self, count: int) -> None:
        """Wait until so many have begun."""
        await eventually(f"{count} have begun", lambda: len(self.begun) == count)


async def order_of(queue: AsyncWorkQueue) -> list[tuple[str, int]]:
    """Which items wait, the next in line first, and how often each was delivered."""
    return [(view.id, view.attempt) for view in await queue.inspect(count=1000)]
