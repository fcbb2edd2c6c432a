"""The connection of a session that receives what is published to it."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import NoPermissionError

from leasequeue.errors import ConnectionLost, LeasequeueError
from leasequeue.log import Log
from leasequeue.retry import Backoff
from leasequeue.scripting.connection import Connection, open_connection
from leasequeue.scripting.server_errors import translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.scripting.endpoints import Endpoint

log = Log("leasequeue")

_T = TypeVar("_T")

#: How often the connection is checked, so that one that fell silent is noticed (s).
PING_SECONDS = 5.0
#: The first and the longest wait before the connection is opened again (s).
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0


class Subscription:
    """A channel that a subscriber receives, until it closes the subscription."""

    __slots__ = ("_pushes", "channel", "on_end", "on_message")

    def __init__(
        self,
        pushes: PushConnection,
        channel: bytes,
        on_message: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._pushes = pushes
        self.channel = channel
        self.on_message = on_message
        self.on_end = on_end

    def close(self) -> None:
        """Receive nothing more. Closing twice is fine."""
        self._pushes.unsubscribe(self)


class PushConnection:
    """One connection for all subscriptions of a session. It is opened when the first begins.

    If it ends while there are subscriptions, it is opened again, and each subscriber is notified.

    Args:
        endpoint: Where the server is.
        reply_timeout: Seconds to wait for a reply before the connection counts as lost.
        on_forbidden: Called with a channel that the access rules forbid.
    """

    def __init__(
        self, endpoint: Endpoint, *, reply_timeout: float, on_forbidden: Callable[[bytes], None]
    ) -> None:
        self._endpoint = endpoint
        self._on_forbidden = on_forbidden
        self._reply_timeout = reply_timeout
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, list[Subscription]] = {}
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._refusal: LeasequeueError | None = None

    async def subscribe(
        self, channel: bytes, on_message: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        """Receive a channel; return when the server has confirmed. See `Session.subscribe`."""
        one = Subscription(self, channel, on_message, on_end)
        try:
            connection = await self._opened()
            self._channels.setdefault(channel, []).append(one)
            await self._confirmed(connection, channel)
        except BaseException as error:
            one.close()
            if self._refusal is not None and isinstance(error, ConnectionLost):
                raise copy.copy(self._refusal) from None  # it was closed meanwhile
            raise
        return one

    def unsubscribe(self, one: Subscription) -> None:
        """Remove a subscription."""
        ones = self._channels.get(one.channel, [])
        if one not in ones:
            return
        ones.remove(one)
        if not ones:
            del self._channels[one.channel]
            if self._connection is not None and not self._connection.ended:
                self._connection.unsubscribe(one.channel)

    async def close(self, refusal: LeasequeueError) -> None:
        """End the connection. Later calls fail with `refusal`."""
        self._refusal = refusal
        self._channels.clear()
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        tasks: list[asyncio.Task[Any]] = [task for task in (self._opening, self._repairing) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _opened(self) -> Connection:
        """Return the open connection. Concurrent callers open one together."""
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        if self._connection is not None and not self._connection.ended:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="leasequeue connect pushes")
            self._opening.add_done_callback(_retrieve)
        opening = self._opening
        # A cancelled caller must not cancel it for the others, nor `close`, which cancels it, the callers.
        await asyncio.wait([opening])
        if opening.cancelled() and self._refusal is not None:
            raise copy.copy(self._refusal)
        return opening.result()

    async def _open(self) -> Connection:
        try:
            connection = await open_connection(
                self._endpoint, reply_timeout=self._reply_timeout, on_end=self._ended, pushes=True
            )
            self._connection = connection
            self._ping_later()
            return connection
        finally:
            self._opening = None

    async def _confirmed(self, connection: Connection, channel: bytes) -> None:
        """Subscribe to a channel, and return when the server has confirmed.

        Access rules may forbid it: then nothing arrives, subscribers go by their timers, and it is logged.
        """
        confirmed: asyncio.Future[None] = self._loop.create_future()

        def on_reply(_: Any, error: BaseException | None) -> None:
            if confirmed.done():
                return
            if isinstance(error, NoPermissionError):
                self._on_forbidden(channel)
            if error is None or isinstance(error, NoPermissionError):
                confirmed.set_result(None)
            else:
                confirmed.set_exception(translate(error, maybe_applied=False))

        connection.subscribe(channel, partial(self._received, channel), on_reply)
        await confirmed

    def _received(self, channel: bytes, message: bytes) -> None:
        for one in tuple(self._channels.get(channel, ())):
            one.on_message(message)

    def _ended(self) -> None:
        self._connection = None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._refusal is None and self._channels:
            self._notify()
            if self._repairing is None:
                self._repairing = asyncio.create_task(self._repair(), name="leasequeue resubscribe")

    async def _repair(self) -> None:
        """Open the connection again, and subscribe to all channels."""
        backoff = Backoff(first=FIRST_WAIT, longest=LONGEST_WAIT)
        try:
            while self._channels:
                try:
                    connection = await self._opened()
                    await asyncio.gather(*(self._confirmed(connection, one) for one in [*self._channels]))
                except LeasequeueError:
                    await backoff.wait()
                except Exception:
                    log.exception("the subscriptions could not be repaired; trying again")
                    await backoff.wait()
                else:
                    self._notify()
                    if self._connection is connection:
                        return
                    # It ended after the server had confirmed: `_ended` has left that to this task.
        finally:
            self._repairing = None

    def _notify(self) -> None:
        for ones in [*self._channels.values()]:
            for one in tuple(ones):
                try:
                    one.on_end()
                except Exception:  # it must not stop the repair, nor the others
                    log.exception("a subscriber could not be notified")

    def _ping_later(self) -> None:
        self._ping_timer = self._loop.call_later(PING_SECONDS, self._ping)

    def _ping(self) -> None:
        """Send a PING: without a reply in time, the connection counts as lost."""
        if self._connection is not None and not self._connection.ended:
            self._connection.post((b"PING",), lambda _reply, _error: None)
            self._ping_later()


async def joined(one: asyncio.Future[_T]) -> _T:
    """Wait for what others wait for, too: a cancelled caller does not cancel it, nor log its error.

    Since Python 3.14, `asyncio.shield` logs the error of what it shields after its caller was cancelled.
    """
    one.add_done_callback(_retrieve)
    await asyncio.wait([one])
    return one.result()


def _retrieve(one: asyncio.Future[Any]) -> None:
    if not one.cancelled():
        one.exception()
