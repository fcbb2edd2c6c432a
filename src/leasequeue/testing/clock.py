"""A clock that the test moves."""

from __future__ import annotations

import math
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasequeue.errors import InvalidArgument
from leasequeue.queue.queue import engines_of

if TYPE_CHECKING:
    from leasequeue.queue.queue import AsyncWorkQueue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands still until the test moves it, for `AsyncWorkQueue(clock=...)`.

        clock = Clock()
        async with AsyncWorkQueue.embedded("emails", clock=clock) as queue:
            lease = await queue.lease(30)
            clock.advance(31)                   # the lease has expired

    It replaces the server's clock for its queues: leases expire, and delayed items, retries and schedules
    become due, by this clock. Any thread may read it.

    Args:
        start: The first time of the clock, a `datetime` with a time zone; None: the current time, rounded up
            to a second.

    Raises:
        InvalidArgument: If `start` has no time zone.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._seconds = float(math.ceil(time.time())) if start is None else _since_1970("start", start)
        self._lock = threading.Lock()
        self._attached: weakref.WeakSet[AsyncWorkQueue] = weakref.WeakSet()

    def __call__(self) -> float:
        """Return the time in seconds since 1970."""
        return self._seconds

    @property
    def now(self) -> datetime:
        """The time as a `datetime` in UTC."""
        return _EPOCH + timedelta(seconds=self._seconds)

    def advance(self, duration: float | timedelta) -> None:
        """Move the clock forward.

        Args:
            duration: Seconds, or a `timedelta`, of any length.

        Raises:
            InvalidArgument: If it is not a duration, or negative.
        """
        number = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
            raise InvalidArgument("duration", duration, "seconds (a number or a timedelta), 0 or more")
        with self._lock:
            self._seconds += number
        self._notify()

    def move_to(self, moment: datetime) -> None:
        """Move the clock forward to a time.

        Args:
            moment: A `datetime` with a time zone, not before `now`.

        Raises:
            InvalidArgument: If it has no time zone, or has passed.
        """
        seconds = _since_1970("moment", moment)
        with self._lock:
            if seconds < self._seconds:
                raise InvalidArgument(
                    "moment", moment, f"a time not before {self.now}, the time of the clock"
                )
            self._seconds = seconds
        self._notify()

    def attach(self, queue: AsyncWorkQueue) -> AsyncWorkQueue:
        """Wake the callers that wait in a queue each time the clock moves.

        Otherwise they look again only after as much real time has passed. The fixtures attach their queues.

        Args:
            queue: A queue that uses this clock.

        Returns:
            The same queue.
        """
        self._attached.add(queue)
        return queue

    def _notify(self) -> None:
        for queue in list(self._attached):
            for engine in engines_of(queue).all:
                if not engine.loop.is_closed():
                    engine.loop.call_soon_threadsafe(engine.leasing.due_in, 0.0)


def _since_1970(argument: str, moment: datetime) -> float:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidArgument(argument, moment, "a datetime with a time zone, such as datetime.now(UTC)")
    return (moment - _EPOCH).total_seconds()
