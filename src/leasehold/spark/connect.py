"""A queue for code that is not async, as Spark's is: an event loop of its own in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import start_blocking_portal

from leasehold.errors import ConnectionLost, InvalidArgument, ScriptFailed, ServerBusy, ServerReadOnly
from leasehold.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Future

    from anyio.from_thread import BlockingPortal

    from leasehold.queue import Counts
    from leasehold.spark.options import Target

T = TypeVar("T")

#: What passes when the server comes back.
PASSING = (ConnectionLost, ServerBusy, ServerReadOnly)
#: How long to wait before the first repetition, and before any later one at most (s).
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class Connected:
    """A queue, and the thread whose event loop it lives in."""

    def __init__(self, queue: AsyncWorkQueue, portal: BlockingPortal) -> None:
        self.queue = queue
        self.portal = portal

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a coroutine function in the queue's event loop, and wait for what it returns."""
        return self.portal.call(work, *arguments)

    def start(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Run a coroutine function in the queue's event loop, and go on."""
        return self.portal.start_task_soon(work, *arguments)


@contextmanager
def connected(target: Target) -> Iterator[Connected]:
    """Open a queue for the length of a block.

    Raises:
        LeaseholdError: What the calls raise.
    """
    queue = AsyncWorkQueue.from_url(target.url, target.queue, cluster=target.cluster)
    with start_blocking_portal() as portal:
        try:
            yield Connected(queue, portal)
        finally:
            portal.call(queue.close)


def check_server(target: Target) -> Counts:
    """Look whether the server answers, lets us in, and can hold the queue; for the time of planning.

    Raises:
        InvalidArgument: If the queue's name does not suit a cluster, or it is a cluster and nobody said so.
        ServerError: If it cannot be reached, or refuses.
    """
    with connected(target) as there:
        try:
            return there.call(there.queue.counts)
        except ScriptFailed as error:
            if not target.cluster and any(word in str(error) for word in ("CROSSSLOT", "MOVED")):
                raise InvalidArgument("cluster", "false", "true, as this server is part of one") from error
            raise


async def persistently(call: Callable[[], Awaitable[T]], patience: float) -> T:
    """Repeat a call that is safe to repeat while the server is away.

    Args:
        call: Makes the call.
        patience: For how long, in seconds.

    Raises:
        LeaseholdError: What the last call raised.
    """
    until, pause = time.monotonic() + patience, FIRST_PAUSE
    while True:
        try:
            return await call()
        except PASSING:
            if time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
