"""Deliveries: items that the server has leased for a waiting session, and sent to it as they were added."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

#: The longest head of a message, without the trace: six numbers; and the longest trace.
MAX_HEAD_BYTES, MAX_TRACE_BYTES = 92, 64
#: How many words are remembered. Those of later registrations are in place of earlier ones, whose deliveries
#: may be on their way.
MAX_WORDS = 64


class Delivery(NamedTuple):
    """An item that was leased for this session when it was added."""

    token: int
    attempt: int
    #: The lease time in ms, and when the lease began by the server's clock, in ms.
    lease_ms: int
    now_ms: int
    id: bytes
    data: bytes
    #: The `traceparent` of the caller that added the item, if that is traced; after a line feed, the stage of
    #: a flow run that the item is for, if it is for one.
    carried: bytes | None = None

    @property
    def entry(self) -> bytes:
        """What the server keeps until this session has acknowledged the delivery."""
        return b"%d %b" % (self.token, self.id)


def read_delivery(message: bytes) -> Delivery | None:
    """Read what follows the word in a message of the session's channel; None if it is no delivery."""
    try:
        *numbers, sized, rest = message.split(b" ", 5)
        sized, _, trace = sized.partition(b";")
        trace, _, referred = trace.partition(b";")
        token, attempt, lease_ms, now_ms, size, more = map(int, (*numbers, sized, referred or b"0"))
    except ValueError:
        return None
    if len(trace) > MAX_TRACE_BYTES or len(message) - len(rest) - len(trace) > MAX_HEAD_BYTES:
        return None
    if not 0 < size <= size + more <= len(rest):
        return None
    end = size + more
    carried = trace + b"\n" + rest[size:end] if more else trace or None
    return Delivery(token, attempt, lease_ms, now_ms, rest[:size], rest[end:], carried)


class Deliveries:
    """Decides, for each delivery, whether the event loop takes it or the background thread recalls it.

    While a handler blocks the event loop of a worker, the background thread recalls what was sent there, so
    that another worker gets it. What the event loop has accepted is not recalled, and what was recalled is
    not accepted later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: How many recalls are in flight.
        self._recalls = 0
        self._accepted: set[bytes] = set()
        self._recalled: set[int] = set()
        #: Whether the session is registered for the next delivery, as far as is known here.
        self.registered = False
        #: Whether it is unknown what the last recall has returned, as its reply was lost.
        self.doubtful = False
        #: With what deliveries begin, each of a registration, the last one last; only the event loop that
        #: registers changes them.
        self._words: dict[bytes, None] = {}
        #: The word of the last registration, unless it was used.
        self.last_word = b""

    def new_word(self) -> bytes:
        """Return a word for a registration, which nobody else knows before the delivery to it."""
        if len(self._words) == MAX_WORDS:
            del self._words[next(iter(self._words))]
        word = secrets.token_hex(8).encode()
        self._words[word] = None
        self.last_word = word
        return word

    def use_word(self, word: bytes) -> bool:
        """Return whether a delivery may begin with this word, and let no other begin with it."""
        if word == self.last_word:
            self.last_word = b""
        return self._words.pop(word, self) is None

    def forget_words(self) -> None:
        """Expect no delivery, as others may have heard it that this session has missed."""
        self._words.clear()

    def accept(self, delivery: Delivery) -> bool | None:
        """Return whether the item is this event loop's; None while that is being decided: ask again."""
        with self._lock:
            if self._recalls:
                return None
            if self.doubtful or delivery.token in self._recalled:
                self._recalled.discard(delivery.token)
                return False
            self._accepted.add(delivery.entry)
            return True

    def acknowledged(self, entries: Iterable[bytes]) -> None:
        """Note that the server knows of these accepted deliveries."""
        with self._lock:
            self._accepted.difference_update(entries)

    async def recall(self, leave: Callable[[list[bytes]], Awaitable[Any]]) -> int:
        """Recall what has not been accepted. Return how many ids of the inbox were returned.

        `leave` sends the script `leave` with what was accepted, and returns its reply. If it raises, it is
        unknown what was recalled: until a recall succeeds, nothing is accepted.
        """
        with self._lock:
            self._recalls += 1
            self.registered = False  # `leave` ends the registration
            accepted = sorted(self._accepted)
        tokens: list[int] = []
        doubtful = True
        try:
            returned, *tokens = await leave(accepted)
            doubtful = False
            self.acknowledged(accepted)
        finally:
            with self._lock:
                self._recalls -= 1
                self._recalled.update(tokens)
                self.doubtful = doubtful
        return int(returned)
