"""The events of a queue: what happened to its items, to itself and to its workers, as scripts record it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from typing import TYPE_CHECKING, Literal

from leasequeue.durations import LONGEST_KEPT_SECONDS, Duration, check_int, to_ms
from leasequeue.errors import (
    ConnectionLost,
    EventsLost,
    InvalidArgument,
    NoEventsKept,
    NoEventsPublished,
    QueueClosed,
)
from leasequeue.queue.event import event_of
from leasequeue.states import EVENTS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.event import Event
    from leasequeue.queue.pushes.live_events import LiveEvents, LiveReader
    from leasequeue.wire.subscriptions import Subscription

#: The highest count of kept events.
MAX_KEPT = 1_000_000_000
#: The events of one trip: 250 took the server 0.8 ms, and 3.5 ms where it was busy.
PAGE = 100
#: How long a follower waits for a notification before it asks again (s).
LONGEST_SLEEP = 5.0
#: What a reader can do that has missed published events.
ADVICE = (
    "they were published while this reader was not connected or too slow. Begin again, or keep events too"
)


class Events:
    """The events of a queue: `AsyncWorkQueue.events`.

        await queue.events.keep(count=1_000_000)
        async for event in queue.events():
            print(event.what, event.id)

    The scripts that make the changes record them, whichever process calls them. So they are exact: all events
    in order give the state of each item. Changes by clients of other libraries are recorded when a script
    finds them.

    Events can be kept, or published to those who listen, or both.

    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
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
        return await self._set(count=count or 0, age_ms=age_ms, publish=None)

    async def publish(self) -> int:
        """Publish events of this queue from now on, for all processes, until `stop` is called.

        Readers with `live=True` get them, with the results of completed items. Calling it again is fine.
        Return the number of the last event so far.
        """
        return await self._set(count=None, age_ms=None, publish=1)

    async def last_number(self) -> int:
        """Return the number of the last event there has been: `since` for the next ones.

        Raises:
            NoEventsKept: If no events are kept.
        """
        last, kept, *_ = await self._engine().run("events_read", after=b"%d" % 2**53, count=1)
        if not kept:
            raise NoEventsKept
        return int(last)

    async def last_cursor(self) -> str:
        """Return what `events(since=…)` continues with after the last event that there has been.

        Raises:
            NoEventsKept: If no events are kept.
        """
        return str(await self.last_number())

    async def stop(self, only: Literal["kept", "live"] | None = None) -> None:
        """Stop keeping events, and drop those that are kept; stop publishing them.

        Args:
            only: `kept` to keep publishing, `live` to keep storing.
        """
        if only not in (None, "kept", "live"):
            raise InvalidArgument("only", only, "'kept', 'live' or None")
        drop, publish = None if only == "live" else 0, None if only == "kept" else 0
        await self._set(count=drop, age_ms=drop, publish=publish)

    def __call__(
        self,
        since: int | str | None = None,
        *,
        follow: bool = True,
        live: bool = False,
        ids: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
    ) -> AsyncIterator[Event]:
        """Read the events, the oldest first.

        Args:
            since: The `cursor` of the last event that is already known, or its number. None: begin with the
                oldest; with `live`, with the next.
            follow: Whether to wait for more when all are read. A follower gets each event at once.
            live: Read what is published, with the results of completed items. What is missed, after `since`
                or while the connection was lost, is taken from the kept events, if events are kept.
            ids: Only events of these items and workers; the empty id is that of events of the queue.
            kinds: Only these events, such as `completed`.

        Raises:
            InvalidArgument: If `since` is no cursor or number of this queue, or above that of the last event,
                or another argument cannot be used.
            NoEventsKept: If no events are kept, unless `live`.
            NoEventsPublished: If no events are published, with `live`, also as soon as that is stopped.
            EventsLost: If some after `since`, or after the last that was read, are no longer kept, or were
                missed. Also if the server has lost its last writes, so that it has fewer events than were
                read.
            ServerRefused: If the access rules forbid the channel, with `live`.
        """
        if isinstance(since, str):
            if not re.fullmatch(r"[0-9]{1,19}", since):
                raise InvalidArgument("since", since, "the `cursor` of an event of this queue, or its number")
            since = int(since)
        if since is not None:
            check_int("since", since, minimum=0, maximum=2**63)
        return self._reading(since, follow=follow, live=live, ids=ids, kinds=kinds)

    def _reading(
        self,
        since: int | None,
        *,
        follow: bool,
        live: bool,
        ids: Collection[str] | None,
        kinds: Collection[str] | None,
        on_begin: Callable[[int], None] = lambda _: None,
    ) -> AsyncIterator[Event]:
        """Read the events. If `since` is None, `on_begin` gets the number after which it begins."""
        if live and not follow:
            raise InvalidArgument("follow", follow, "True with live=True")
        wanted = _Filter(ids, kinds)
        if live:
            return self._read_live(since, wanted, on_begin)
        return self._read(since, wanted, on_begin, follow=follow)

    async def _set(self, *, count: int | None, age_ms: int | None, publish: int | None) -> int:
        count_, age_, publish_ = (b"" if value is None else value for value in (count, age_ms, publish))
        secret = secrets.token_hex(16).encode()
        reply = await self._engine().run(
            "events_keep", count=count_, age_ms=age_, publish=publish_, secret=secret, rollup=b""
        )
        return int(reply)

    async def _read(
        self, since: int | None, wanted: _Filter, on_begin: Callable[[int], None], *, follow: bool
    ) -> AsyncIterator[Event]:
        # After the first page, a number above the last one means that the server has lost events.
        after, asked = since, since is not None
        follower = _Follower(self._engine) if follow else None
        try:
            while True:
                try:
                    last, page = await _page(self._engine(), after, asked=asked)
                except ConnectionLost:
                    self._engine()  # raises QueueClosed if the queue object was closed
                    raise
                if after is None:
                    on_begin(page[0].number - 1 if page else last)
                for event in page:
                    if event in wanted:
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

    async def _read_live(
        self, since: int | None, wanted: _Filter, on_begin: Callable[[int], None]
    ) -> AsyncIterator[Event]:
        async with contextlib.aclosing(self._live(since, on_begin)) as batches:
            while True:
                try:
                    batch = await anext(batches)
                except ConnectionLost:
                    self._engine()  # raises QueueClosed if the queue object was closed
                    raise
                for event in batch:
                    if event in wanted:
                        yield event

    async def _live(
        self, since: int | None, on_begin: Callable[[int], None]
    ) -> AsyncGenerator[Sequence[Event]]:
        """Yield what is published, with what was missed before it."""
        engine = self._engine()
        reader = await engine.live_events.join()
        try:
            last = await _last_number(engine.live_events, reader)
            if since is not None and since > last:
                raise InvalidArgument("since", since, f"at most {last}, the number of the last event")
            # The last event that was yielded, and the last that did not come as a message, but still may.
            after = filled = min(last, (reader.next_number or last + 1) - 1)
            begins = since is None
            if since is None:
                on_begin(after)
                filled = 0  # also an event up to `last` is a new one if its message comes only now
            else:
                async for page in self._between(since, after):
                    yield page
            while True:
                found = await reader.get()
                new = [] if isinstance(found, int) else [one for one in found if one.number > filled]
                if begins and new:
                    after = min(after, new[0].number - 1)
                begins = False
                if new and new[0].number <= after:
                    raise EventsLost(after, new[0].number)
                before = new[0].number - 1 if new else found if isinstance(found, int) else after
                if before > after:
                    async for page in self._between(after, before):
                        yield page
                    after = filled = before
                if new:
                    yield new
                    after = new[-1].number
        finally:
            engine.live_events.leave(reader)

    async def _between(self, after: int, last: int) -> AsyncIterator[Sequence[Event]]:
        """Yield the kept events after a number, up to another one; raise EventsLost if one is not kept."""
        while after < last:
            try:
                _, page = await _page(self._engine(), after, asked=False)
            except NoEventsKept:
                raise EventsLost(after, last + 1, ADVICE) from None
            yield [event for event in page if event.number <= last]
            after = page[-1].number


async def _last_number(live: LiveEvents, reader: LiveReader) -> int:
    try:
        return await live.last()
    except NoEventsPublished:
        if reader.next_number is None:
            raise
        return reader.next_number - 1  # it was stopped after these


class _Filter:
    def __init__(self, ids: Collection[str] | None, kinds: Collection[str] | None) -> None:
        for name, given in (("ids", ids), ("kinds", kinds)):
            if isinstance(given, str):
                raise InvalidArgument(name, given, "a collection of strings, or None")
        unknown = sorted({*(kinds or ())} - EVENTS.keys())
        if unknown:
            raise InvalidArgument("kinds", unknown[0], f"one of {', '.join(EVENTS)}")
        self._ids = None if ids is None else frozenset(ids)
        self._kinds = None if kinds is None else frozenset(kinds)

    def __contains__(self, event: Event) -> bool:
        return (self._ids is None or event.id in self._ids) and (
            self._kinds is None or event.what in self._kinds
        )


class _Follower:
    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._find_engine = engine
        self._woken = asyncio.Event()
        self._at: tuple[Engine, Subscription] | None = None

    async def wait(self) -> None:
        """Return when there may be new events: at once if it has just subscribed.

        It subscribes again when the event loop has another session, and so another engine.
        """
        engine = self._find_engine()
        if self._at is None or self._at[0] is not engine:
            self.close()
            with contextlib.suppress(QueueClosed):  # the session was replaced, or the next call raises it
                self._at = engine, await engine.subscribe("events", self._woken.set)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SLEEP):
                await self._woken.wait()
        self._woken.clear()

    def close(self) -> None:
        """Unsubscribe."""
        at, self._at = self._at, None
        if at is not None:
            at[0].unsubscribe(at[1])


async def _page(engine: Engine, after: int | None, *, asked: bool) -> tuple[int, list[Event]]:
    """Read the next events after a number, and the number of the last there has been.

    `asked` says that `after` comes from the caller, and may be too high.
    """
    last, kept, _, *flat = await engine.run("events_read", after=b"%d" % (after or 0), count=PAGE)
    if not kept:
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
