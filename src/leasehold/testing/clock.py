"""Time that a hand moves."""

from __future__ import annotations

import math
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.errors import InvalidArgument
from leasehold.queue.internals import running_engine

if TYPE_CHECKING:
    from leasehold.queue.queue import AsyncWorkQueue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is moved, for `AsyncWorkQueue(clock=...)`.

        clock = Clock()
        async with AsyncWorkQueue.embedded("emails", clock=clock) as queue:
            lease = await queue.lease(30)
            clock.advance(31)                   # the lease has ended

    For its queues it takes the place of the server's clock: leases end, and delayed items, retries and
    schedules fall due, when it says so. It begins at the present second. It may be read in any thread.

    Args:
        start: The time it begins with: a `datetime` with a time zone; None is now.

    Raises:
        InvalidArgument: If `start` has no time zone.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._seconds = float(math.ceil(time.time())) if start is None else _since_1970("start", start)
        self._lock = threading.Lock()
        self._watching: weakref.WeakSet[AsyncWorkQueue] = weakref.WeakSet()

    def __call__(self) -> float:
        """The time, in seconds since 1970."""
        return self._seconds

    @property
    def now(self) -> datetime:
        """The time, as a `datetime` in UTC."""
        return _EPOCH + timedelta(seconds=self._seconds)

    def advance(self, duration: float | timedelta) -> None:
        """Let time pass, as much as you like.

        Args:
            duration: How much: seconds, or a `timedelta`.

        Raises:
            InvalidArgument: If it is none, or negative: time does not run backwards.
        """
        number = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
            raise InvalidArgument("duration", duration, "seconds (a number or a timedelta), 0 or more")
        with self._lock:
            self._seconds += number
        self._tell()

    def move_to(self, moment: datetime) -> None:
        """Let time pass until a moment.

        Args:
            moment: When: a `datetime` with a time zone, not before `now`.

        Raises:
            InvalidArgument: If it has no time zone, or has passed.
        """
        seconds = _since_1970("moment", moment)
        with self._lock:
            if seconds < self._seconds:
                raise InvalidArgument("moment", moment, f"a time that has not passed: it is {self.now}")
            self._seconds = seconds
        self._tell()

    def attach(self, queue: AsyncWorkQueue) -> AsyncWorkQueue:
        """From now on, let those who wait in a queue look again whenever the clock is moved.

        Otherwise they look when as much time has passed in truth. The fixtures do this for their queues.

        Args:
            queue: A queue that was given this clock.

        Returns:
            The queue.
        """
        self._watching.add(queue)
        return queue

    def _tell(self) -> None:
        for queue in list(self._watching):
            engine = running_engine(queue)
            if engine is not None and not engine.loop.is_closed():
                engine.loop.call_soon_threadsafe(engine.due_in, 0.0)


def _since_1970(argument: str, moment: datetime) -> float:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidArgument(argument, moment, "a datetime with a time zone, such as datetime.now(UTC)")
    return (moment - _EPOCH).total_seconds()
