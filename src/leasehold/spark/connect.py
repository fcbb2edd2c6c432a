"""A queue for code that is not async, as Spark's is: an event loop of its own in a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import start_blocking_portal

from leasehold.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.from_thread import BlockingPortal

    from leasehold.spark.options import Target

T = TypeVar("T")


class Connected:
    """A queue, and the thread whose event loop it lives in."""

    def __init__(self, queue: AsyncWorkQueue, portal: BlockingPortal) -> None:
        self.queue = queue
        self.portal = portal

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a coroutine function in the queue's event loop, and wait for what it returns."""
        return self.portal.call(work, *arguments)


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
