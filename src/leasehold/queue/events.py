"""Kept events: what happened to each item, the queue and its workers, recorded by the scripts that did it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.durations import LONGEST_KEPT_SECONDS, Duration, check_int, to_ms
from leasehold.errors import ConnectionLost, EventsLost, InvalidArgument, NoEventsKept
from leasehold.states import DETAILS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from leasehold.queue.engine import Engine
    from leasehold.scripting.pushes import Subscription

#: The highest count of kept events.
MAX_KEPT = 1_000_000_000
#: The events of one trip.
PAGE = 250
#: How long a follower waits for a notification before it asks again (s).
LONGEST_SLEEP = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of an item, of the queue or of a worker. Fields that do not apply are None."""

    #: The event's number. Numbers increase without a gap while events are kept.
    number: int
    #: What happened; see the reference.
    what: str
    #: The item's id; of an event of a worker the worker's, of one of the queue empty.
    id: str
    #: When, in seconds since 1970, server's clock.
    at: float
    #: The session that leased or renewed the item.
    holder: str | None
    #: The token of the lease.
    token: int | None
    #: The number of the attempt.
    attempt: int | None
    #: Bytes of data.
    size: int | None
    #: When the lease ends, or the item falls due, in seconds since 1970.
    due: float | None
    #: Whether it went to the front of the queue.
    front: bool
    #: The last 1,000 bytes of the error.
    error: str | None
    #: The group that is meant; None: the queue.
    group: str | None = None
    #: The limits that are in force now.
    limits: dict[str, Any] | None = None
    #: How many items were removed.
    count: int | None = None
    #: What the holder has reported.
    progress: str | None = None
    #: The queue that has the item now.
    queue: str | None = None
    #: Why.
    reason: str | None = None
    #: When it ends by itself, in seconds since 1970.
    until: float | None = None
    #: The name of the worker.
    worker: str | None = None


class Events:
    """The kept events of a queue: `AsyncWorkQueue.events`.

        await queue.events.keep(count=1_000_000)
        async for event in queue.events():
            print(event.what, event.id)

    The scripts that make the changes record them, whichever process calls them. So they are exact: all events
    in order give the state of each item. Changes by clients of other libraries are recorded when a script
    finds them.

    Every call raises QueueClosed and ServerError as `AsyncWorkQueue.counts` does.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def keep(self, *, count: int | None = None, age: Duration | None = None) -> int:
        """Keep events of this queue from now on, for all processes, until `stop` is called.

        Calling it again changes the bounds. An event takes about 100 bytes of the server's memory.

        Args:
            count: About how many to keep; older ones are dropped. None: no limit.
            age: How long to keep them, in seconds. None: no limit.

        Returns:
            The number of the last event so far; `events(since=…)` continues after it.

        Raises:
            InvalidArgument: If neither is given, or one cannot be used.
        """
        if count is None and age is None:
            raise InvalidArgument(
                "count", count, "count, age or both; without a bound the events would fill the memory"
            )
        if count is not None:
            check_int("count", count, minimum=1, maximum=MAX_KEPT)
        age_ms = 0 if age is None else to_ms("age", age, longest=LONGEST_KEPT_SECONDS)
        return int(await self._engine().run("events_keep", count=count or 0, age_ms=age_ms))

    async def stop(self) -> None:
        """Stop keeping events, and drop those that are kept."""
        await self._engine().run("events_keep", count=0, age_ms=0)

    def __call__(self, since: int | None = None, *, follow: bool = True) -> AsyncIterator[Event]:
        """Read the events, the oldest first.

        Args:
            since: The number of the last event that is already known. None: begin with the oldest.
            follow: Whether to wait for more when all are read. A follower gets each event at once.

        Raises:
            InvalidArgument: If `since` is not a number, or above that of the last event.
            NoEventsKept: If no events are kept.
            EventsLost: If some after `since`, or after the last that was read, are no longer kept. Also if
                the server has lost its last writes, so that it has fewer events than were read.
        """
        if since is not None:
            check_int("since", since, minimum=0, maximum=2**63)
        return self._read(since, follow=follow)

    async def _read(self, since: int | None, *, follow: bool) -> AsyncIterator[Event]:
        # After the first page, a number above the last one means that the server has lost events.
        after, asked = since, since is not None
        follower = _Follower(self._engine()) if follow else None
        try:
            while True:
                try:
                    last, page = await _page(self._engine(), after, asked=asked)
                except ConnectionLost:
                    self._engine()  # raises QueueClosed if the queue object was closed
                    raise
                for event in page:
                    yield event
                    after = event.number
                after, asked = last if after is None else after, False
                if after >= last:
                    if follower is None:
                        return
                    await follower.wait()
        finally:
            if follower is not None:
                follower.close()


class _Follower:
    """Waits for notifications of new events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._woken = asyncio.Event()
        self._subscription: Subscription | None = None

    async def wait(self) -> None:
        """Return when there may be new events: at once if it has just subscribed."""
        if self._subscription is None:
            self._subscription = await self._engine.subscribe("events", self._woken.set)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SLEEP):
                await self._woken.wait()
        self._woken.clear()

    def close(self) -> None:
        """Unsubscribe."""
        if self._subscription is not None:
            self._engine.unsubscribe(self._subscription)


async def _page(engine: Engine, after: int | None, *, asked: bool) -> tuple[int, list[Event]]:
    """Read the next events after a number, and the number of the last there has been.

    Args:
        engine: Reads them.
        after: The last known number; None: begin with the oldest.
        asked: Whether `after` comes from the caller, and may be too high.
    """
    last, *flat = await engine.run("events_read", after=b"%d" % (after or 0), count=PAGE)
    if last is None:
        raise NoEventsKept
    newest = int(last)
    events = [event_of(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]
    if after is None:
        return newest, events
    if after > newest and asked:
        raise InvalidArgument("since", after, f"at most {newest}, the number of the last event")
    next_kept = events[0].number if events else newest + 1
    if next_kept != after + 1:
        raise EventsLost(after, next_kept)
    return newest, events


def event_of(number: bytes, flat: Sequence[Any]) -> Event:
    """Return the event with a number and the fields of the reply of `events_read`."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str | None:
        return fields[name].decode(errors="surrogateescape") or None

    def integer(name: bytes) -> int | None:
        return int(fields[name]) if fields[name] else None

    due = integer(b"due")
    encoded = fields.get(b"details", b"{}").decode(errors="surrogateescape")
    details = {name: value for name, value in json.loads(encoded).items() if name in DETAILS}
    if "until" in details:
        details["until"] /= 1000
    return Event(
        number=int(number.partition(b"-")[0]),
        what=fields[b"what"].decode(),
        id=fields[b"id"].decode(errors="surrogateescape"),
        at=int(fields[b"time"]) / 1000,
        holder=text(b"holder"),
        token=integer(b"token"),
        attempt=integer(b"attempt"),
        size=integer(b"size"),
        due=None if due is None else due / 1000,
        front=bool(fields[b"front"]),
        error=fields[b"error"].decode(errors="replace") or None,
        **details,
    )
