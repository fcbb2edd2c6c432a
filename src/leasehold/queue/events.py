"""Kept events: what became of each item, written down by the step that did it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.durations import LONGEST_KEPT_SECONDS, Duration, check_int, to_ms
from leasehold.errors import ConnectionLost, EventsLost, InvalidArgument, NoEventsKept

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from leasehold.queue.engine import Engine
    from leasehold.scripting.connection import Connection

#: The most events that can be kept.
MAX_KEPT = 1_000_000_000
#: How many come in one trip.
PAGE = 1000
#: A follower asks again after so many seconds even if nobody woke it.
LONGEST_SLEEP = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One arrow of the picture of states: what became of one item.

    What does not apply is None.
    """

    #: Which one: each has a number above that of the one before, without a gap while events are kept.
    number: int
    #: What happened: see the reference for each.
    what: str
    #: The item's id.
    id: str
    #: When, in seconds since 1970, server's clock.
    at: float
    #: Who leased or renewed: the session's name.
    holder: str | None
    #: The token, of what a holder did.
    token: int | None
    #: How often the item has been delivered.
    attempt: int | None
    #: Bytes of data.
    size: int | None
    #: When the lease ends, or the item falls due, in seconds since 1970.
    due: float | None
    #: Whether it went to the front of the queue.
    front: bool
    #: The end of what it failed with: 1,000 bytes at most.
    error: str | None


class Events:
    """The kept events of a queue. `AsyncWorkQueue.events` gives it.

        await queue.events.keep(count=1_000_000)
        async for event in queue.events():
            print(event.what, event.id)

    They are written by the scripts that make the changes, whichever process calls them, so they are
    exact: whoever reads all of them, in order, knows the state of each item. What a client of another
    library does is written when we meet it.

    Every call raises QueueClosed and ServerError as `AsyncWorkQueue.counts` does.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def keep(self, *, count: int | None = None, age: Duration | None = None) -> int:
        """Keep events of this queue from now on, for all processes, until `stop` is called.

        Calling it again changes the bounds. An event takes some 100 bytes of the server's memory.

        Args:
            count: About how many are kept: the oldest beyond that are dropped. None: any number.
            age: For how long, in seconds. None: for ever.

        Returns:
            The number of the last event so far; `events(since=…)` goes on after it.

        Raises:
            InvalidArgument: If neither is given, or one is not as said.
        """
        if count is None and age is None:
            raise InvalidArgument("count", count, "count, age or both: else they would be kept for ever")
        if count is not None:
            check_int("count", count, minimum=1, maximum=MAX_KEPT)
        age_ms = 0 if age is None else to_ms("age", age, longest=LONGEST_KEPT_SECONDS)
        return int(await self._engine().run("events_keep", count=count or 0, age_ms=age_ms))

    async def stop(self) -> None:
        """Keep no more events, and drop those that were kept."""
        await self._engine().run("events_keep", count=0, age_ms=0)

    def __call__(self, since: int | None = None, *, follow: bool = True) -> AsyncIterator[Event]:
        """Read the events, the oldest first.

        Args:
            since: The number of the last event that is known already. None: begin with the oldest.
            follow: Whether to wait for more when all are read. A follower is told of each event at once.

        Raises:
            InvalidArgument: If `since` is no number, or above that of the last event.
            NoEventsKept: If no events are kept.
            EventsLost: If some after `since`, or after the last that was read, are kept no more. Also if the
                server has lost its last writes, so that it knows of fewer events than were read.
        """
        if since is not None:
            check_int("since", since, minimum=0, maximum=2**63)
        return self._read(since, follow=follow)

    async def _read(self, since: int | None, *, follow: bool) -> AsyncIterator[Event]:
        # Once an event has been seen, or how many there were, there is no way back: what is missing is lost.
        after, asked, ear = since, since is not None, _Ear(self._engine()) if follow else None
        try:
            while True:
                try:
                    last, page = await _page(self._engine(), after, asked=asked)
                except ConnectionLost:
                    self._engine()  # says so if the queue object was closed meanwhile
                    raise
                for event in page:
                    yield event
                    after = event.number
                after, asked = last if after is None else after, False
                if after >= last:
                    if ear is None:
                        return
                    await ear.wait()
        finally:
            if ear is not None:
                await ear.close()


class _Ear:
    """Wakes a follower. Its connection is replaced, never revived."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._woken = asyncio.Event()
        self._connection: Connection | None = None

    async def wait(self) -> None:
        """Return when there may be something new: at once if it has only now begun to listen."""
        if self._connection is None or self._connection.ended:
            await self.close()
            self._connection = await self._engine.subscribe("events", self._woken.set)
            # A reply after that to SUBSCRIBE: what is read from now on and what is heard leave no gap.
            self._connection.post((b"PING",), lambda _reply, _error: self._woken.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SLEEP):
                await self._woken.wait()
        self._woken.clear()

    async def close(self) -> None:
        """Listen no more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._engine.unsubscribe(connection)


async def _page(engine: Engine, after: int | None, *, asked: bool) -> tuple[int, list[Event]]:
    """Read the next events after a number, and the number of the last there has been.

    Args:
        engine: Reads them.
        after: The last that is known; None: begin with the oldest.
        asked: Whether `after` is what the caller has asked for, and no more is known of it.
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
    """Make an event of its number and its fields, as `events_read` gives them."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str | None:
        return fields[name].decode(errors="surrogateescape") or None

    def integer(name: bytes) -> int | None:
        return int(fields[name]) if fields[name] else None

    due = integer(b"due")
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
    )
