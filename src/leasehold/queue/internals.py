"""What the worker, Spark and `leasehold.testing` need of a queue object beyond its public surface.

Internal to Leasehold: this module may change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.queue.bulk import Bulk
from leasehold.queue.queue import AsyncWorkQueue
from leasehold.scripting.endpoints import twin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.durations import Duration
    from leasehold.queue.engine import Engine
    from leasehold.queue.lifecycle import Lifecycle


def bulk(queue: AsyncWorkQueue) -> Bulk:
    """Return the calls that take rows which are already checked and encoded."""
    return Bulk(_lifecycle(queue).engine)


def twin(queue: AsyncWorkQueue, *, reply_timeout: Duration | None = None) -> AsyncWorkQueue:
    """Make another object of the same queue and session, for another thread or event loop.

    It has its own connections; close it there. What was leased through one can be renewed, completed and
    released through the other. Only one of the two should wait for items: an id that arrives for a session
    goes to the first that takes it.

    Args:
        queue: The queue object.
        reply_timeout: Seconds to wait for a reply; None: as long as `queue` does.
    """
    mine = _lifecycle(queue)
    client = twin_of(mine.client)
    other = AsyncWorkQueue(
        mine.name,
        client,
        return_to=mine.return_to,
        reply_timeout=mine.reply_timeout if reply_timeout is None else reply_timeout,
        clock=mine.clock,
    )
    its = _lifecycle(other)
    its.keys = mine.keys
    its.make_engine = mine.make_engine
    its.owned_client = None if client is mine.client else client
    return other


async def release_arrivals(queue: AsyncWorkQueue) -> int:
    """Return ids on their way to this session to the front of the queue, and return how many there were.

    For a twin, while the event loop that waits for items is blocked and cannot take them.

    Raises:
        QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
    """
    return int(await _lifecycle(queue).engine().run("leave", stays=1))


async def stop_listening(queue: AsyncWorkQueue) -> None:
    """Stop listening for items if no caller waits, and return when none is on its way to this object.

    Otherwise the queue object does so a moment after the last call of `lease`; if its process ends before,
    items sent to it are held up for some seconds. `close` stops listening, too.
    """
    if (engine := running_engine(queue)) is not None:
        await engine.stop_listening()


def running_engine(queue: AsyncWorkQueue) -> Engine | None:
    """Return the engine of a queue object, if it has been made and is not closed."""
    return _lifecycle(queue).running


def clock_of(queue: AsyncWorkQueue) -> Callable[[], float] | None:
    """Return the clock that a queue object was given in place of the server's."""
    return _lifecycle(queue).clock


def set_engine_factory(queue: AsyncWorkQueue, make: Callable[..., Engine]) -> None:
    """Have the engine of a queue object made by `make`, before its first call."""
    _lifecycle(queue).make_engine = make


def _lifecycle(queue: AsyncWorkQueue) -> Lifecycle:
    return queue._lifecycle  # noqa: SLF001 - this module is the one door to what is private
