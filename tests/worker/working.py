"""Workers that run in a test's event loop, and what tests wait for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from leasequeue import Item
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import RetryPolicy, Worker
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue.dead_letters import DeadLetter
    from leasequeue.queue.views import Counts
    from leasequeue.testing import Clock
    from leasequeue.worker.dispatch import HandlerSource

#: Retries at once, twice.
AT_ONCE = RetryPolicy(attempts=3, first=0)
#: A lease time with frequent renewals (s). With a clock that the test moves, no lease expires too early.
SHORT_LEASE = 0.3


def new_worker(*sources: HandlerSource, **options: Any) -> Worker:
    """Make a worker with settings that suit tests."""
    usual: dict[str, Any] = {"lease_time": 5.0, "grace": 5.0, "retry": AT_ONCE, "clean_every": None}
    return Worker(*sources, **usual | options)


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """Run a worker inside the block, then stop it and wait for its end."""
    running = asyncio.create_task(worker.run())
    try:
        yield running
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    worker.stop()
    async with asyncio.timeout(120):
        await running


async def add(queue: AsyncWorkQueue, *payloads: bytes | str) -> None:
    """Add items with the ids `1`, `2` and so on."""
    await queue.add_items(Item(payload, id=str(number)) for number, payload in enumerate(payloads, 1))


async def finished(queue: AsyncWorkQueue) -> None:
    """Wait until no item is waiting, leased or scheduled."""
    await counted(queue, "all items are done", lambda counts: not counts.total)


async def work(
    queue: AsyncWorkQueue,
    function: Callable[..., Any],
    *payloads: bytes | str,
    worker: Worker | None = None,
    **options: Any,
) -> None:
    """Add items, and run a worker with this handler until they are done and every slot is free."""
    worker = worker or new_worker()
    worker.handler(queue, **options)(function)
    await add(queue, *payloads)
    async with working(worker):
        await finished(queue)
        await eventually("every slot is free", lambda: not worker.health().running)


async def dead_letter_of(
    queue: AsyncWorkQueue, function: Callable[..., Any], *payloads: bytes | str, **options: Any
) -> DeadLetter:
    """Do as `work`, and return the only dead letter."""
    await work(queue, function, *payloads, **options)
    return await the_dead(queue)


async def counted(queue: AsyncWorkQueue, what: str, condition: Callable[[Counts], bool]) -> None:
    """Wait until the counts of a queue meet a condition."""

    async def met() -> bool:
        return condition(await queue.counts())

    await until(what, met)


async def the_dead(queue: AsyncWorkQueue) -> DeadLetter:
    """Wait for a dead letter, and return it; there must be only one."""
    await counted(queue, "there is a dead letter", lambda counts: counts.dead > 0)
    (letter,) = await queue.dead_letters.list()
    return letter


async def renewed(redis: Redis, queue: AsyncWorkQueue, clock: Clock, *ids: str) -> None:
    """Let most of SHORT_LEASE pass on the server, and wait until the leases of these items are renewed."""
    clock.advance(SHORT_LEASE * 2 / 3)
    ends = round((clock() + SHORT_LEASE) * 1000)

    async def are_renewed() -> bool:
        scores = await redis.zmscore(f"{queue.name}:deadlines", list(ids))
        return all(score is not None and int(score) == ends for score in scores)

    await until(f"the leases of {', '.join(ids)} are renewed", are_renewed)


class Gate:
    """A handler that waits until it is opened, and notes which runs started, finished and were cancelled."""

    def __init__(self, worker: Worker, queue: AsyncWorkQueue, **options: Any) -> None:
        self.opened = asyncio.Event()
        self.begun: list[str] = []
        self.done: list[str] = []
        self.cancelled: list[str] = []

        @worker.handler(queue, **options)
        async def handle(_: bytes, lease: Lease) -> None:
            self.begun.append(lease.id)
            try:
                await self.opened.wait()
            except asyncio.CancelledError:
                self.cancelled.append(lease.id)
                raise
            self.done.append(lease.id)

    async def reached(self, count: int) -> None:
        """Wait until so many runs have started."""
        await eventually(f"{count} runs have started", lambda: len(self.begun) == count)


async def order_of(queue: AsyncWorkQueue) -> list[tuple[str, int]]:
    """Return the waiting items, the next one first, and the number of attempts of each."""
    return [(view.id, view.attempt) for view in await queue.inspect(count=1000)]
