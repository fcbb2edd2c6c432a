"""Passes on what is published to a session for one queue: one subscription for all that receive messages.

A message is text of the form `<kind> <rest>`. Those that say what is to be believed have a seal before it. Of
the others, a delivery has a word that the listener knows, and who gets one of another kind looks what is so;
the end of an item is said with the begin of the secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasequeue.errors import ConnectionLost
from leasequeue.queue.pushes.seals import unsealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.queue.pushes.seals import Unverified
    from leasequeue.wire.server import Route
    from leasequeue.wire.subscriptions import Subscription

#: The kinds of messages, and whether they have a seal.
SEALED = {
    **dict.fromkeys((b"item", b"look", b"due", b"cancel", b"told", b"ended", b"turn"), False),
    **dict.fromkeys((b"cancelled", b"expired", b"progress", b"emitted"), True),
}
#: How many bytes of the secret a message `ended` has.
WORD_BYTES = 6


@dataclass(slots=True, eq=False)
class Receiver:
    """A handler for the messages of a kind, until it is removed."""

    kind: bytes
    handle: Callable[[bytes], None]
    missed: Callable[[], None]


class PushRouter:
    """Receives the channel of a session, while at least one holder needs that."""

    def __init__(self, route: Route, channel: bytes, secret: bytes, unverified: Unverified) -> None:
        self._route = route
        self._channel = channel
        self._secret = secret
        self._unverified = unverified
        self._receivers: dict[bytes, list[Receiver]] = {}
        self._holds = 0
        self._subscription: Subscription | None = None
        self._closed = False

    def add(
        self, kind: str, handle: Callable[[bytes], None], missed: Callable[[], None] = lambda: None
    ) -> Receiver:
        """Pass the messages of a kind to a handler. This subscribes to nothing: see `hold`.

        Args:
            kind: The first word of the messages: see `SEALED`.
            handle: Called with the rest of each message; one without its seal is dropped.
            missed: Called when messages may have been missed: when the connection has ended, again when the
                channel is subscribed again, and when the queue object is closed.
        """
        one = Receiver(kind.encode(), handle, missed)
        self._receivers.setdefault(one.kind, []).append(one)
        return one

    def remove(self, one: Receiver) -> None:
        """Pass no further message to a handler. Removing it twice is fine."""
        others = self._receivers.get(one.kind, [])
        if one in others:
            others.remove(one)
            if not others:
                del self._receivers[one.kind]

    def follow(
        self, kind: str, handle: Callable[[bytes], None], *, missed: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """Pass the messages of a kind to a handler, and receive the channel for as long.

        If the server is away, that begins when it is back; where its access rules forbid the channel, no
        message arrives. Not for an event loop that assists another one: a session receives once, as the
        server counts who has received a delivery. `missed` is called as in `add`, and when the subscription
        has begun. Return what ends it; calling it twice is fine.
        """
        if self._route.servers.adopted:
            raise RuntimeError("an event loop that assists another one receives no pushes")
        receiver = self.add(kind, handle, missed)
        self.hold_soon(missed)
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self.remove(receiver)
                self.release()

        return end

    async def hold(self) -> None:
        """Receive the channel until `release`; return when the server has confirmed.

        If that fails, there is nothing to release.
        """
        self._holds += 1
        try:
            await self._subscribe().confirmed()
        except BaseException:
            self.release()
            raise

    def hold_soon(self, missed: Callable[[], None]) -> None:
        """Receive the channel until `release`, as soon as the server can be reached.

        `missed` is called then, as messages may have been missed before.
        """
        self._holds += 1
        self._subscribe().when_confirmed(missed)

    def release(self) -> None:
        """Receive the channel for one holder less."""
        self._holds -= 1
        if self._holds == 0:
            self._unsubscribe()

    def close(self) -> None:
        """Unsubscribe, and notify the handlers that they may have missed messages."""
        self._closed = True
        self._unsubscribe()
        self._missed()

    def _subscribe(self) -> Subscription:
        if self._closed:
            raise ConnectionLost("the queue object is closed", maybe_applied=False)
        if self._subscription is None:
            self._subscription = self._route.subscribe(self._channel, self._received, self._missed)
        return self._subscription

    def _unsubscribe(self) -> None:
        one, self._subscription = self._subscription, None
        if one is not None:
            one.close()

    def _received(self, message: bytes) -> None:
        text = unsealed(message, self._secret)
        kind, _, rest = (message if text is None else text).partition(b" ")
        word = self._secret[:WORD_BYTES]
        if kind == b"ended":
            word, _, rest = rest.partition(b" ")
        if SEALED.get(kind) is not (text is not None) or word != self._secret[:WORD_BYTES]:
            self._unverified.add()
            return
        for one in tuple(self._receivers.get(kind, ())):
            one.handle(rest)

    def _missed(self) -> None:
        for receivers in tuple(self._receivers.values()):
            for one in tuple(receivers):
                one.missed()
