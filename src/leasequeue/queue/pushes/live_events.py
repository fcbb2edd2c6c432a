"""Published events: one subscription for all readers of a queue in an event loop.

The scripts publish them on the channel `<queue>:live`, with a seal. What is published while a reader is not
connected is missed; the numbers of the events show it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue.errors import ConnectionLost, LeasequeueError, NoEventsPublished, QueueClosed
from leasequeue.queue.event import Event, event_of_json
from leasequeue.queue.pushes.seals import unsealed
from leasequeue.wire.server_errors import translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasequeue.codecs import Payloads
    from leasequeue.queue.pushes.seals import Unverified
    from leasequeue.wire.server import Route
    from leasequeue.wire.subscriptions import Subscription

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
        """Return what `put` was given next; at the end, raise what `end` was given."""
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

    It subscribes for the first reader, until the last has left. If the connection is lost, and cannot be
    replaced at once, the readers get the error.
    """

    def __init__(
        self,
        route: Route,
        channel: bytes,
        run: Callable[..., Awaitable[Any]],
        unverified: Unverified,
        payloads: Payloads,
    ) -> None:
        self._payloads = payloads
        #: With what the messages are sealed, as the server said last.
        self._secret = b""
        self._unverified = unverified
        self._route = route
        self._channel = channel
        self._run_script = run
        self._readers: set[LiveReader] = set()
        self._subscription: Subscription | None = None
        #: Compares the number of the last event.
        self._checking: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    @property
    def in_use(self) -> bool:
        """Whether there is a reader."""
        return bool(self._readers)

    async def join(self) -> LiveReader:
        """Return a reader that gets all that is published from now on, until `leave`.

        Raise NoEventsPublished if none are.
        """
        await self.last()  # which says the secret
        reader = LiveReader()
        self._readers.add(reader)
        try:
            if self._subscription is None:
                self._subscription = self._route.subscribe(
                    self._channel, self._received, self._lost.set, self._end, events=True
                )
            await self._subscription.confirmed()
        except BaseException:
            self.leave(reader)
            raise
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="leasequeue live events")
        return reader

    def leave(self, reader: LiveReader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)
        if not self._readers:
            self._stop()

    def _stop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()

    async def close(self, refusal: QueueClosed) -> None:
        """End all readers, and the subscription."""
        for reader in self._readers:
            reader.end(refusal)
        self._readers.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close(refusal)
        self._stop()

    async def last(self) -> int:
        """Return the number of the last event; raise NoEventsPublished if none are published."""
        last, _, secret, *_ = await self._run_script("events_read", after=BEYOND, count=1)
        if not secret:
            raise NoEventsPublished
        self._secret = secret
        return int(last)

    async def _check(self) -> None:
        """Compare the number of the last event now and then, and when the channel is subscribed again."""
        again = False
        try:
            while True:
                if self._lost.is_set():
                    self._lost.clear()
                    again = False  # the connection was cut, or is there again, since the lost call
                if self._subscription is not None and self._subscription.ready:
                    try:
                        last = await self.last()
                    except ConnectionLost:
                        if again:
                            raise
                        again = True  # what cut the channel may have cut this call, too
                        continue
                    again = False
                    # Its reply follows what was published before.
                    self._subscription.ping(partial(self._checked, last))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._lost.wait()
        except Exception as problem:  # noqa: BLE001 - the readers get it
            self._checking = None
            self._end(translate(problem, maybe_applied=False))

    def _checked(self, last: int, _: object, error: BaseException | None) -> None:
        if error is None:
            for reader in self._readers:
                reader.put(last, 0)

    def _received(self, message: bytes) -> None:
        if not message:
            return  # published to find out whether it is permitted
        text = unsealed(message, self._secret)
        if text is None:
            self._unverified.add()
            return
        try:
            parsed = json.loads(text.decode(errors="surrogateescape"))
            if "off" in parsed:
                self._end(NoEventsPublished())
                return
            events = [
                event_of_json(parsed["first"] + at, one, self._payloads)
                for at, one in enumerate(parsed["events"])
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._unverified.add()  # who may read the secret has made it
            return
        for reader in self._readers:
            reader.put(events, len(message))

    def _end(self, error: LeasequeueError) -> None:
        for reader in self._readers:
            reader.end(error)
