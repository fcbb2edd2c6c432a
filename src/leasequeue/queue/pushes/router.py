"""Passes on what is published to a session for one queue: one subscription for all that receive messages.

A message is text of the form `<kind>` or `<kind> <rest>`. One that begins with a digit is a delivery: see
`leasequeue.queue.pushes.deliveries`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError, QueueClosed
from leasequeue.log import Log
from leasequeue.retry import Backoff
from leasequeue.scripting.pushes import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.scripting.pushes import Subscription
    from leasequeue.scripting.session import Session

log = Log("leasequeue.queue")

#: The kind of deliveries, whose handler gets the whole message.
DELIVERY = ""
#: The first and the longest wait before a subscription is tried again (s).
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


class Receiver:
    """A handler for the messages of a kind, until it is closed."""

    __slots__ = ("_router", "handle", "kind", "missed")

    def __init__(
        self, router: PushRouter, kind: bytes, handle: Callable[[bytes], None], missed: Callable[[], None]
    ) -> None:
        self._router = router
        self.kind = kind
        self.handle = handle
        self.missed = missed

    def close(self) -> None:
        """Pass no further message to the handler. Closing twice is fine."""
        self._router.remove(self)


class PushRouter:
    """Receives the channel of a session, while at least one holder needs that.

    Args:
        session: Subscribes.
        channel: The channel of the session for this queue.
    """

    def __init__(self, session: Session, channel: bytes) -> None:
        self._session = session
        self._channel = channel
        self._receivers: dict[bytes, list[Receiver]] = {}
        self._holds = 0
        self._subscription: Subscription | None = None
        self._opening: asyncio.Task[None] | None = None
        self._holding: set[asyncio.Task[None]] = set()
        self._closed = False

    def add(
        self, kind: str, handle: Callable[[bytes], None], missed: Callable[[], None] = lambda: None
    ) -> Receiver:
        """Pass the messages of a kind to a handler. This subscribes to nothing: see `hold`.

        Args:
            kind: The first word of the messages, or `DELIVERY`.
            handle: Called with the rest of each message; with the whole of a delivery.
            missed: Called when messages may have been missed: when the connection has ended, again when the
                channel is subscribed again, and when the queue object is closed.
        """
        one = Receiver(self, kind.encode(), handle, missed)
        self._receivers.setdefault(one.kind, []).append(one)
        return one

    def remove(self, one: Receiver) -> None:
        """Remove a handler."""
        others = self._receivers.get(one.kind, [])
        if one in others:
            others.remove(one)
            if not others:
                del self._receivers[one.kind]

    async def hold(self) -> None:
        """Receive the channel until `release`; return when the server has confirmed.

        Raises:
            ConnectionLost, ServerRefused, ServerBusy: If that fails; then there is nothing to release.
        """
        self._holds += 1
        try:
            await self._subscribed()
        except BaseException:
            self.release()
            raise

    def hold_soon(self, missed: Callable[[], None]) -> None:
        """Receive the channel until `release`, as soon as the server can be reached.

        Args:
            missed: Called then, as messages may have been missed before.
        """
        self._holds += 1
        task = asyncio.create_task(self._subscribed_in_the_end(missed), name="leasequeue subscribe")
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)

    def release(self) -> None:
        """Receive the channel for one holder less."""
        self._holds -= 1
        if self._holds == 0:
            self._unsubscribe()

    def close(self) -> None:
        """Unsubscribe, and tell the handlers that they may have missed messages."""
        self._closed = True
        for task in self._holding:
            task.cancel()
        self._unsubscribe()
        self._missed()

    async def _subscribed(self) -> None:
        if self._subscription is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._subscribe(), name="leasequeue subscribe")
            await joined(self._opening)

    async def _subscribe(self) -> None:
        try:
            one = await self._session.subscribe(self._channel, self._received, self._missed)
        finally:
            self._opening = None
        if self._holds > 0 and not self._closed:
            self._subscription = one
        else:
            one.close()

    async def _subscribed_in_the_end(self, missed: Callable[[], None]) -> None:
        backoff = Backoff(first=FIRST_WAIT, longest=LONGEST_WAIT)
        while self._holds > 0:
            try:
                await self._subscribed()
            except QueueClosed:
                return
            except LeasequeueError:
                await backoff.wait()  # other calls report it
            except Exception:
                log.exception("the pushes of %s cannot be received; trying again", self._channel.decode())
                await backoff.wait()
            else:
                missed()
                return

    def _unsubscribe(self) -> None:
        one, self._subscription = self._subscription, None
        if one is not None:
            one.close()

    def _received(self, message: bytes) -> None:
        kind, _, rest = message.partition(b" ")
        if kind[:1].isdigit():
            kind, rest = b"", message
        for one in tuple(self._receivers.get(kind, ())):
            one.handle(rest)

    def _missed(self) -> None:
        for receivers in tuple(self._receivers.values()):
            for one in tuple(receivers):
                one.missed()
