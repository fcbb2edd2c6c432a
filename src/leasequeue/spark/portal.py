"""A queue for synchronous code such as Spark's: its event loop runs in a thread."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import start_blocking_portal

from leasequeue.durations import Backoff
from leasequeue.errors import InvalidArgument, LeasequeueError, ScriptFailed
from leasequeue.queue import AsyncWorkQueue
from leasequeue.queue.queue import engine_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Future

    from anyio.from_thread import BlockingPortal

    from leasequeue.queue import Counts
    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.options import QueueTarget

T = TypeVar("T")


class QueuePortal:
    """A queue, and the portal to the thread that runs its event loop.

    Attributes:
        queue: The queue.
        bulk: Its calls for rows that are already encoded.
    """

    def __init__(self, queue: AsyncWorkQueue, portal: BlockingPortal) -> None:
        self.queue = queue
        self._portal = portal
        # The queue has an engine for each event loop: this is that of the portal's.
        self.bulk: Bulk = portal.call(lambda: engine_of(queue).bulk)

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a coroutine function in the queue's event loop and return its result."""
        return self._portal.call(function, *arguments)

    def start(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Start a coroutine function in the queue's event loop and return a future."""
        return self._portal.start_task_soon(function, *arguments)


@contextmanager
def open_queue(target: QueueTarget) -> Iterator[QueuePortal]:
    """Open a queue for the length of a block."""
    queue = AsyncWorkQueue.from_url(target.url, target.queue, cluster=target.cluster)
    with start_blocking_portal() as portal:
        try:
            yield QueuePortal(queue, portal)
        finally:
            portal.call(queue.close)


def check_server(target: QueueTarget) -> Counts:
    """Check at plan time that the server answers, accepts the login and can hold the queue.

    Raises:
        InvalidArgument: If the queue's name does not suit a cluster, or the option `cluster` is missing.
        ServerError: If the server cannot be reached or refuses.
    """
    with open_queue(target) as portal:
        try:
            return portal.call(portal.queue.counts)
        except ScriptFailed as error:
            if not target.cluster and any(word in str(error) for word in ("CROSSSLOT", "MOVED")):
                raise InvalidArgument("cluster", "false", "true, as this server is part of one") from error
            raise


def check_queue(target: QueueTarget, instead: str) -> Counts:
    """Check at plan time that the queue exists.

    Args:
        target: The queue.
        instead: What the option `mayBeMissing` would return, for the message.
    """
    counts = check_server(target)
    if any(counts):
        return counts
    with open_queue(target) as portal:
        was_used = portal.call(portal.bulk.was_used)
    if not was_used:
        allowed = f"a queue that has been used; with the option mayBeMissing {instead}"
        raise InvalidArgument("queue", target.queue, allowed)
    return counts


async def call_with_retries(call: Callable[[], Awaitable[T]], retry_timeout: float) -> T:
    """Repeat a call that is safe to repeat while the server is unavailable."""
    until, backoff = time.monotonic() + retry_timeout, Backoff()
    while True:
        try:
            return await call()
        except LeasequeueError as error:
            pause = backoff.next()
            if not error.transient or time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)
