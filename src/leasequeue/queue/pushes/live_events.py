"""Published events: one connection for all readers of a queue in an event loop.

The scripts publish them on the channel `<queue>:live`. What is published while a reader is not connected is
missed; the numbers of the events tell. The connection is not that of the session's other pushes: many events
must not delay them, and the server ends a connection whose reader is too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue.errors import LeasequeueError, NoEventsPublished, QueueClosed
from leasequeue.queue.event import Event, event_of_json
from leasequeue.scripting.channel import open_channel
from leasequeue.scripting.pushes import joined
from leasequeue.scripting.server_errors import translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasequeue.scripting.connection import Connection
    from leasequeue.scripting.session import Session

#: How many bytes of messages may wait for a reader, before all that wait for it are dropped.
MAX_WAITING_BYTES = 16 * 2**20
#: How often the server is asked for the number of the last event (s).
CHECK_SECONDS = 5.0
#: Higher than the number of any event.
BEYOND = b"%d" % (2**63 - 1)


class LiveReader:
    """What has been published and not been read yet, for one reader."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Sequence[Event] | int, int]] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._end: LeasequeueError | None = None

    def put(self, found: Sequence[Event] | int, size: int) -> None:
        """Let the reader read events, or the number of one that it has to have read by then."""
        if self._bytes + size > MAX_WAITING_BYTES:
            self._waiting.clear()  # the reader sees by the numbers that it has missed these
            self._bytes = 0
        self._waiting.append((found, size))
        self._bytes += size
        self._arrived.set()

    @property
    def next_number(self) -> int | None:
        """The number of the event that it reads next; None: nothing waits."""
        found = next((found for found, _ in self._waiting if not isinstance(found, int)), None)
        return found[0].number if found else None

    def end(self, error: LeasequeueError) -> None:
        """Let the reader read what is there, and then get an error."""
        self._end = self._end or error
        self._arrived.set()

    async def get(self) -> Sequence[Event] | int:
        """Return what `put` was given next.

        Raises:
            LeasequeueError: What `end` was given.
        """
        while not self._waiting:
            if self._end is not None:
                raise copy.copy(self._end)
            self._arrived.clear()
            await self._arrived.wait()
        found, size = self._waiting.popleft()
        self._bytes -= size
        return found


class LiveEvents:
    """Passes on what is published to the readers of a queue in one event loop.

    It connects for the first reader, and disconnects after the last.

    Args:
        session: Opens the connection.
        channel: The channel.
        run: Runs a script.
    """

    def __init__(self, session: Session, channel: bytes, run: Callable[..., Awaitable[Any]]) -> None:
        self._session = session
        self._channel = channel
        self._run_script = run
        self._readers: set[LiveReader] = set()
        self._running: asyncio.Task[None] | None = None
        self._subscribed: asyncio.Future[None] | None = None
        #: Whether all that is published arrives.
        self.connected = False

    @property
    def reader_count(self) -> int:
        """How many readers there are."""
        return len(self._readers)

    async def join(self) -> LiveReader:
        """Return a reader that gets all that is published from now on, until `leave`.

        Raises:
            ServerRefused: If the access rules forbid the channel.
            ConnectionLost, ServerBusy: If the server does not answer.
        """
        reader = LiveReader()
        self._readers.add(reader)
        try:
            if self._running is None or self._running.done():
                self._subscribed = asyncio.get_running_loop().create_future()
                self._running = asyncio.create_task(
                    self._run(self._subscribed), name="leasequeue live events"
                )
            assert self._subscribed is not None  # noqa: S101 - made with the task
            await joined(self._subscribed)
        except BaseException:
            self.leave(reader)
            raise
        return reader

    def leave(self, reader: LiveReader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)
        if not self._readers and self._running is not None:
            self._running.cancel()
            self._running = None

    async def close(self, refusal: QueueClosed) -> None:
        """End all readers, and the connection."""
        running, self._running = self._running, None
        for reader in self._readers:
            reader.end(refusal)
        self._readers.clear()
        if self._subscribed is not None and not self._subscribed.done():
            self._subscribed.set_exception(copy.copy(refusal))  # else its readers would be cancelled
            self._subscribed.exception()  # they may have left
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    async def last(self) -> int:
        """Return the number of the last event.

        Raises:
            NoEventsPublished: If no events are published.
        """
        last, _, live, *_ = await self._run_script("events_read", after=BEYOND, count=1)
        if not live:
            raise NoEventsPublished
        return int(last)

    async def _run(self, subscribed: asyncio.Future[None]) -> None:
        """Stay connected, until an error, which all readers get."""
        try:
            while True:
                ended = asyncio.Event()
                connection = await open_channel(
                    self._session,
                    "events",
                    self._channel,
                    on_message=self._received,
                    on_end=ended.set,
                )
                try:
                    self.connected = True
                    if not subscribed.done():
                        subscribed.set_result(None)
                    await self._watch(connection, ended)
                finally:
                    self.connected = False
                    await connection.close()
        except Exception as problem:  # noqa: BLE001 - the readers get it
            error = translate(problem, maybe_applied=False)
            self._running = None
            if not subscribed.done():
                subscribed.set_exception(error)
                subscribed.exception()  # the readers may have left
            self._end(error)
        except asyncio.CancelledError:
            subscribed.cancel()
            raise

    async def _watch(self, connection: Connection, ended: asyncio.Event) -> None:
        """Return when the connection has ended. From time to time, compare the number of the last event."""
        while not ended.is_set():
            last = await self.last()
            if not ended.is_set():
                # Its reply follows what was published before. Without one in time, the connection is lost.
                connection.post((b"PING",), partial(self._checked, last))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await ended.wait()

    def _checked(self, last: int, _: object, error: BaseException | None) -> None:
        if error is None:
            for reader in self._readers:
                reader.put(last, 0)

    def _received(self, message: bytes) -> None:
        if not message:
            return  # published to find out whether it is permitted
        parsed = json.loads(message.decode(errors="surrogateescape"))
        if "off" in parsed:
            self._end(NoEventsPublished())
            return
        events = [event_of_json(parsed["first"] + at, one) for at, one in enumerate(parsed["events"])]
        for reader in self._readers:
            reader.put(events, len(message))

    def _end(self, error: LeasequeueError) -> None:
        for reader in self._readers:
            reader.end(error)
