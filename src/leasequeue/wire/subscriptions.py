"""What a session receives from a server without asking: all its channels, on one connection.

There is one loop that connects, subscribes, and does both again after the connection was lost. On a cluster,
each channel goes with the slot of its queue from node to node.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import MovedError, NoPermissionError

from leasequeue.durations import Backoff
from leasequeue.errors import ConnectionLost, LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.wire.server_errors import translate, unknown_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from leasequeue.wire.connection import Connection

log = Log("leasequeue")

_T = TypeVar("_T")

#: How often the connection is checked, so that one that fell silent is noticed (s).
PING_SECONDS = 5.0
#: How often a channel may move to another node before it is subscribed there.
MAX_MOVES = 5


class Subscription:
    """A channel that a caller receives, until it closes the subscription.

    Args:
        channel: The channel.
        on_message: Called for each message.
        on_missed: Called when messages may have been missed: when the connection has ended, and again when
            the channel is subscribed again.
        on_error: Called with the error if a try to subscribe again has failed; there are more tries.
        find: Finds the server that holds the channel's queue now, given the answer of one that holds it no
            more, and lets the subscription go there: see `go_to`.
        on_close: Called when it is closed.
    """

    __slots__ = (
        *("_begun", "_on_close", "_waits", "at", "channel", "find", "moves", "on_error", "on_message"),
        *("on_missed", "ready"),
    )

    def __init__(
        self,
        channel: bytes,
        on_message: Callable[[bytes], None],
        on_missed: Callable[[], None],
        on_error: Callable[[LeasequeueError], None],
        *,
        find: Callable[[MovedError | None], Awaitable[object]],
        on_close: Callable[[Subscription], None],
    ) -> None:
        self.find = find
        self._on_close = on_close
        self.channel = channel
        self.on_message = on_message
        self.on_missed = on_missed
        self.on_error = on_error
        #: Where it is; None: it is closed.
        self.at: Subscriptions | None = None
        #: Whether the server has confirmed it, and the connection lasts.
        self.ready = False
        #: How often the slot has moved since it was confirmed.
        self.moves = 0
        self._begun = False
        self._waits: list[asyncio.Future[None]] = []

    async def confirmed(self) -> None:
        """Return when the server has confirmed: no message is missed from then on while the connection lasts.

        Where the server's access rules forbid the channel, no message arrives. If this try fails, raise its
        error; there are more until it is closed.
        """
        if self.ready:
            return
        if self.at is None:
            raise ConnectionLost("the subscription is closed", maybe_applied=False)
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append(wait)
        self.at.wake()
        await wait

    def when_confirmed(self, notify: Callable[[], None]) -> None:
        """Call a function when the server has confirmed; now, if it has."""
        if self.ready:
            notify()
            return
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append(wait)

        def done(one: asyncio.Future[None]) -> None:
            if one.cancelled():
                return
            if one.exception() is None:
                notify()
            elif self.at is not None:
                self.when_confirmed(notify)  # at the next try

        wait.add_done_callback(done)

    def ping(self, on_reply: Callable[[Any, BaseException | None], None]) -> None:
        """Send a PING: its reply follows what was published before. Without one, the connection is lost."""
        if self.at is not None:
            self.at.ping(on_reply)

    def close(self, refusal: LeasequeueError | None = None) -> None:
        """Receive nothing more; those who wait for its begin get an error. Closing twice is fine."""
        self.go_to(None)
        self._on_close(self)
        self._settle(refusal or ConnectionLost("the subscription is closed", maybe_applied=False))

    def go_to(self, at: Subscriptions | None) -> None:
        """Leave a server for another one, to which the slot has moved."""
        before, self.at = self.at, at
        self.ready = False
        if before is not None:
            before.discard(self)
        if at is not None:
            at.add(self)

    def begin(self) -> None:
        """Note that the server has confirmed."""
        begun, self._begun = self._begun, True
        self.ready, self.moves = True, 0
        if begun:
            _notify(self.on_missed)
        self._settle(None)

    def lose(self) -> None:
        """Note that the connection is lost."""
        if self.ready:
            self.ready = False
            _notify(self.on_missed)

    def fail(self, error: LeasequeueError) -> None:
        """Note that a try has failed."""
        if self._begun:
            _notify(partial(self.on_error, error))
        self._settle(error)

    def _settle(self, error: LeasequeueError | None) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.done():
                continue
            if error is None:
                wait.set_result(None)
            else:
                wait.set_exception(copy.copy(error))
                wait.exception()  # who waits may have been cancelled


class Subscriptions:
    """The channels that a session receives from one server, on one connection for each purpose.

    Args:
        open_connection: Opens the connection, when the first channel is subscribed.
        purpose: A word for the connection.
        sharded: Whether to receive what SPUBLISH publishes, besides PUBLISH: which is used depends on the
            server, and on the rights of the client that publishes.
        on_forbidden: Called with a channel that the access rules forbid, of which nothing arrives then; None:
            that is an error.
    """

    def __init__(
        self,
        open_connection: Callable[[], Awaitable[Connection]],
        purpose: str,
        *,
        sharded: bool = False,
        on_forbidden: Callable[[bytes], None] | None = None,
    ) -> None:
        self._open_connection = open_connection
        self._purpose = purpose
        self._ways = (True, False) if sharded else (False,)
        #: Whether the connection stays when the last channel is closed, as others will follow.
        self._lasts = not sharded
        self._on_forbidden = on_forbidden
        self._loop = asyncio.get_running_loop()
        self._channels: dict[bytes, list[Subscription]] = {}
        self._confirmed: set[bytes] = set()
        #: Those that the server has removed since this has asked for them.
        self._gone: set[bytes] = set()
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._ping_timer: asyncio.TimerHandle | None = None
        self._refusal: LeasequeueError | None = None

    def add(self, one: Subscription) -> None:
        """Subscribe to a channel as soon as the server can be reached."""
        if self._refusal is not None:
            one.close(self._refusal)
            return
        self._channels.setdefault(one.channel, []).append(one)
        if one.channel in self._confirmed:
            one.begin()
        else:
            self.wake()

    def discard(self, one: Subscription) -> None:
        """Remove a subscription."""
        ones = self._channels.get(one.channel, [])
        if one in ones:
            ones.remove(one)
            if not ones:
                self._drop(one.channel)

    def wake(self) -> None:
        """Try now, if a channel is not confirmed."""
        self._woken.set()
        if not keeps_running(self._connecting) and self._refusal is None:
            self._connecting = self._loop.create_task(self._connect(), name=f"leasequeue {self._purpose}")

    def ping(self, on_reply: Callable[[Any, BaseException | None], None]) -> None:
        """See `Subscription.ping`."""
        if self._connection is not None and not self._connection.closing:
            self._connection.post((b"PING",), on_reply)

    async def close(self, refusal: LeasequeueError) -> None:
        """End the connection. Those who wait get `refusal`, and so do later calls."""
        self._refusal = refusal
        channels, self._channels = self._channels, {}
        for one in [one for ones in channels.values() for one in ones]:
            one.close(refusal)
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> None:
        """Connect and subscribe until each channel is confirmed, or another task does it."""
        backoff, me = Backoff(), asyncio.current_task()
        try:
            while self._connecting is me and self._missing():
                self._woken.clear()
                if await self._try():
                    backoff.reset()
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await self._woken.wait()
        finally:
            if self._connecting is me:
                self._connecting = None

    def _missing(self) -> list[bytes]:
        return [channel for channel in self._channels if channel not in self._confirmed]

    async def _try(self) -> bool:
        """Connect, and subscribe to what is missing; return whether all was confirmed."""
        try:
            if self._connection is None:
                await self._look_again()
            if not (missing := self._missing()):
                return True
            connection = self._connection or await self._opened()
            return all(await asyncio.gather(*(self._subscribe(connection, one) for one in missing)))
        except Exception as problem:
            if not isinstance(problem, LeasequeueError):
                log.exception("the channels of a session cannot be subscribed; trying again")
            self._fail(self._missing(), problem)
            return False

    async def _look_again(self) -> None:
        """Let the subscriptions whose slot is on another node now go there."""
        for find in {one.find: None for ones in self._channels.values() for one in ones}:
            await find(None)

    async def _opened(self) -> Connection:
        connection = await self._open_connection()
        # It is subscribed again: the answer names the node.
        connection.on_moved = self._removed
        self._connection = connection
        self._ping_later()
        connection.when_ended(partial(self._ended, connection))
        return connection

    async def _subscribe(self, connection: Connection, channel: bytes) -> bool:
        """Subscribe to a channel; return whether the server has confirmed."""
        self._gone.discard(channel)
        wanting = self._channels.get(channel)
        for sharded in self._ways:
            answered: asyncio.Future[BaseException | None] = self._loop.create_future()

            def on_reply(_: Any, error: BaseException | None, done: asyncio.Future[Any] = answered) -> None:
                if not done.done():
                    done.set_result(error)

            connection.subscribe(channel, partial(self._received, channel), on_reply, sharded=sharded)
            error = await answered
            if isinstance(error, MovedError):
                await self._follow(channel, error)
                return False
            is_unknown = unknown_command(error) is not None  # as SSUBSCRIBE before Redis 7
            if (isinstance(error, NoPermissionError) or is_unknown) and self._on_forbidden is not None:
                self._on_forbidden(channel)
            elif error is not None and not (sharded and is_unknown):
                self._fail([channel], error)
                return False
        wants = self._channels.get(channel)
        if wants is None:
            return True  # no handler wants it any more
        if self._connection is not connection or wants is not wanting or channel in self._gone:
            return False  # it was lost, or dropped and added again: then the server has removed it
        self._confirmed.add(channel)
        for one in tuple(wants):
            one.begin()
        return True

    def _removed(self, channel: bytes) -> None:
        """Subscribe again to a channel that the server has removed, also if it has only just confirmed it."""
        self._gone.add(channel)
        self._lose([channel])

    async def _follow(self, channel: bytes, moved: MovedError) -> None:
        """Let the subscriptions of a channel go to the node that an answer has named."""
        for one in tuple(self._channels.get(channel, ())):
            one.moves += 1
            if one.moves > MAX_MOVES:
                one.moves = 0
                one.fail(ConnectionLost("the channel has moved again and again", maybe_applied=False))
            await one.find(moved)

    def _fail(self, channels: Iterable[bytes], problem: BaseException) -> None:
        error = translate(problem, maybe_applied=False)
        for one in [one for channel in channels for one in self._channels.get(channel, ())]:
            one.fail(error)

    def _received(self, channel: bytes, message: bytes) -> None:
        for one in tuple(self._channels.get(channel, ())):
            one.on_message(message)

    def _ended(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            self._lose([*self._confirmed])

    def _lose(self, channels: Iterable[bytes]) -> None:
        self._confirmed.difference_update(channels)
        for one in [one for channel in channels for one in self._channels.get(channel, ())]:
            one.lose()
        if self._missing():
            self.wake()

    def _drop(self, channel: bytes) -> None:
        """Receive a channel no more, as no handler wants it."""
        del self._channels[channel]
        self._confirmed.discard(channel)
        self._gone.discard(channel)
        connection = self._connection
        if connection is None or connection.closing:
            return
        for sharded in self._ways:
            connection.unsubscribe(channel, sharded=sharded)
        if not (self._channels or self._lasts):
            self._connection = None
            connection.retire()

    def _ping_later(self) -> None:
        self._ping_timer = self._loop.call_later(PING_SECONDS, self._ping)

    def _ping(self) -> None:
        """Send a PING: without a reply in time, the connection counts as lost."""
        if self._connection is not None and not self._connection.closing:
            self._connection.post((b"PING",), lambda _reply, _error: None)
            self._ping_later()


async def joined(one: asyncio.Future[_T]) -> _T:
    """Wait for what others wait for, too: a cancelled caller does not cancel it, nor log its error.

    Since Python 3.14, `asyncio.shield` logs the error of what it shields after its caller was cancelled.
    """
    one.add_done_callback(_retrieve)
    await asyncio.wait([one])
    return one.result()


def keeps_running(task: asyncio.Task[Any] | None) -> bool:
    """Return whether there is a task that nothing has cancelled; otherwise its work needs another one.

    At its end, `asyncio.run` cancels all tasks, some before they have begun; then callers still clean up.
    """
    return task is not None and not task.cancelling()


def _retrieve(one: asyncio.Future[Any]) -> None:
    if not one.cancelled():
        one.exception()


def _notify(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception:  # it must not stop the loop, nor the others
        log.exception("a subscriber could not be notified")
