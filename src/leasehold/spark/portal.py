"""A queue for code that is not async, as Spark's is: an event loop of its own in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import start_blocking_portal
from pyspark.sql.utils import is_remote

from leasehold.errors import InvalidArgument, LeaseholdError, ScriptFailed
from leasehold.queue import AsyncWorkQueue
from leasehold.queue.internals import bulk
from leasehold.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Future

    from anyio.from_thread import BlockingPortal
    from pyspark.sql import SparkSession

    from leasehold.queue import Counts
    from leasehold.queue.bulk import Bulk
    from leasehold.spark.options import Target

T = TypeVar("T")

#: The longest wait before the first repetition, and before any later one (s).
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


class QueuePortal:
    """A queue, and the thread whose event loop it lives in."""

    def __init__(self, queue: AsyncWorkQueue, portal: BlockingPortal) -> None:
        self.queue = queue
        self.portal = portal

    @property
    def bulk(self) -> Bulk:
        """The queue's calls for rows that are already encoded."""
        return bulk(self.queue)

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a coroutine function in the queue's event loop, and wait for what it returns."""
        return self.portal.call(work, *arguments)

    def start(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Run a coroutine function in the queue's event loop, and go on."""
        return self.portal.start_task_soon(work, *arguments)


@contextmanager
def open_queue(target: Target) -> Iterator[QueuePortal]:
    """Open a queue for the length of a block.

    Raises:
        LeaseholdError: What the calls raise.
    """
    queue = AsyncWorkQueue.from_url(target.url, target.queue, cluster=target.cluster)
    with start_blocking_portal() as portal:
        try:
            yield QueuePortal(queue, portal)
        finally:
            portal.call(queue.close)


def check_server(target: Target) -> Counts:
    """Look whether the server answers, lets us in, and can hold the queue; for the time of planning.

    Raises:
        InvalidArgument: If the queue's name does not suit a cluster, or it is a cluster and nobody said so.
        ServerError: If it cannot be reached, or refuses.
    """
    with open_queue(target) as portal:
        try:
            return portal.call(portal.queue.counts)
        except ScriptFailed as error:
            if not target.cluster and any(word in str(error) for word in ("CROSSSLOT", "MOVED")):
                raise InvalidArgument("cluster", "false", "true, as this server is part of one") from error
            raise


def check_queue(target: Target, instead: str) -> None:
    """Look whether there is such a queue; for the time of planning.

    Args:
        target: Which.
        instead: What the option `mayBeMissing` gives, for the message.

    Raises:
        InvalidArgument: If there is no trace of it; or as `check_server`.
        ServerError: If the server cannot be reached, or refuses.
    """
    if any(check_server(target)):
        return
    with open_queue(target) as portal:
        _, used = portal.call(portal.bulk.ids_of, "leased")
    if not used:
        allowed = f"a queue that has been used; with the option mayBeMissing {instead}"
        raise InvalidArgument("queue", target.queue, allowed)


async def persistently(call: Callable[[], Awaitable[T]], retry_timeout: float) -> T:
    """Repeat a call that is safe to repeat while the server is away.

    Args:
        call: Makes the call.
        retry_timeout: For how long, in seconds.

    Raises:
        LeaseholdError: What the last call raised.
    """
    until, backoff = time.monotonic() + retry_timeout, Backoff(first=FIRST_WAIT, longest=LONGEST_WAIT)
    while True:
        try:
            return await call()
        except LeaseholdError as error:
            pause = backoff.next()
            if not error.transient or time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread, for the length of a block.

    Spark looks up formats in the active session, and a thread that Spark did not see before has none.
    """
    if is_remote() or (jvm := spark._jvm) is None:  # noqa: SLF001 - nothing that is public does it
        yield
        return
    sessions = spark._get_j_spark_session_class(jvm)  # noqa: SLF001 - as above
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
