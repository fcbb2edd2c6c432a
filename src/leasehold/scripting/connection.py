"""A connection that carries many calls at once. Replies arrive in the order of the calls.

One task reads all replies, so a cancelled caller leaves none unread. Each command is written once. When the
connection breaks, every waiting call gets ConnectionLost, because it may have been applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hiredis

from leasehold.errors import ConnectionLost
from leasehold.scripting.server_errors import is_lost, translate

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from leasehold.scripting.endpoints import Endpoint

#: How long a reply may lie unread after this process was blocked (s).
UNREAD_SECONDS = 0.05

#: Called with the reply, or with an error in its place.
OnReply = Callable[[Any, BaseException | None], None]

_ending: set[asyncio.Task[None]] = set()


class Connection:
    """An open connection, and the calls that wait for its replies.

    Args:
        redis_connection: An open connection of redis-py, which nothing else uses.
        reply_timeout: Seconds to wait for a reply before the connection counts as lost.
        on_end: Called once, when the connection has ended.
    """

    def __init__(
        self, redis_connection: AbstractConnection, *, reply_timeout: float, on_end: Callable[[], None]
    ) -> None:
        self._redis_connection = redis_connection
        self._reply_timeout = reply_timeout
        self._on_end = on_end
        self._waiting: deque[tuple[float, OnReply]] = deque()
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
        #: Whether it ended with unanswered calls, which the server may still execute.
        self._interrupted = False
        self._on_message: dict[bytes, Callable[[bytes], None]] = {}
        # redis-py has no public way to write without waiting; nothing else writes to this stream.
        writer = redis_connection._writer  # noqa: SLF001
        if writer is None:
            raise ConnectionLost("the connection is not open", maybe_applied=False)
        self._transport = writer.transport
        self._reader = asyncio.create_task(self._read(), name="leasehold replies")

    def post(self, command: tuple[bytes, ...], on_reply: OnReply, reply_timeout: float | None = None) -> None:
        """Send a command, and pass its reply to `on_reply`.

        Raises:
            ConnectionLost: If the connection has ended; nothing was sent.
        """
        if self._ended:
            raise ConnectionLost("the connection has ended", maybe_applied=False)
        # Packed first: if it failed after the reply was expected, all later replies would be misassigned.
        # The stub of hiredis requires a tuple of one; it accepts any.
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        due = self._loop.time() + (self._reply_timeout if reply_timeout is None else reply_timeout)
        self._waiting.append((due, on_reply))
        self._transport.write(packed)
        if self._alarm is None:
            self._alarm = self._loop.call_at(due, self._check_reply_time)

    def subscribe(
        self,
        channel: bytes,
        on_message: Callable[[bytes], None],
        on_reply: OnReply = lambda _reply, _error: None,
    ) -> None:
        """Pass messages of a channel to `on_message`, also while a blocking command is running.

        It needs a connection with pushes. Where the server's access rules forbid it, no message arrives.

        Args:
            channel: The channel; it has one `on_message`, the last that was given.
            on_message: Called for each message.
            on_reply: Called when the server has confirmed, or has refused.

        Raises:
            ConnectionLost: If the connection has ended.
        """
        self._on_message[channel] = on_message
        # The confirmation is a push, but an error is a reply: this call expects either.
        self.post((b"SUBSCRIBE", channel), on_reply)

    def unsubscribe(self, channel: bytes) -> None:
        """Receive no more messages of a channel.

        Raises:
            ConnectionLost: If the connection has ended.
        """
        self._on_message.pop(channel, None)
        self.post((b"UNSUBSCRIBE", channel), lambda _reply, _error: None)

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport, for what must not be done through the connection: see `scripting.sockets`."""
        return self._transport

    @property
    def ended(self) -> bool:
        """Whether the connection has ended."""
        return self._ended

    @property
    def idle(self) -> bool:
        """Whether every call has its reply."""
        return not self._waiting

    def expect_open(self) -> None:
        """Raise ConnectionLost if the connection has ended, so that nothing can have been applied."""
        if self._ended:
            raise ConnectionLost("the connection has ended", maybe_applied=False)

    def forget(self) -> None:
        """Let go of the transport, after `scripting.sockets` has dealt with it."""
        self._redis_connection._writer = self._redis_connection._reader = None  # noqa: SLF001 - as in `__init__`

    async def close(self) -> None:
        """End the connection. Waiting calls get ConnectionLost."""
        self._end("the connection was closed")
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._redis_connection.disconnect(nowait=True)

    async def close_gracefully(self, *, within: float) -> bool:
        """End the connection, and wait until the server has, too: then it executes no more of its calls.

        Returns:
            False if the server did not end it within `within` seconds.
        """
        if self._ended:
            certain = not self._interrupted
        elif not (certain := self.idle):
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()  # TLS: it waits for the close message of the server
            done, _ = await asyncio.wait([self._reader], timeout=within)
            certain = bool(done)
        await self.close()
        return certain

    async def _read(self) -> None:
        reason = "reading replies has failed"
        try:
            reason = await self._dispatch_replies()
        finally:
            self._end(reason)
            await self._redis_connection.disconnect(nowait=True)

    async def _dispatch_replies(self) -> str:
        """Pass each reply to its call until the connection ends; return why it has ended."""
        read, waiting = self._redis_connection.read_response, self._waiting
        while True:
            error: BaseException | None = None
            reply = None
            try:
                reply = await read(disconnect_on_error=False, push_request=True)
            except asyncio.CancelledError:
                raise
            except Exception as raised:  # noqa: BLE001 - the caller gets it
                error = raised
                if is_lost(raised):
                    return str(raised) or type(raised).__name__
            if isinstance(reply, hiredis.PushNotification) and reply[0] == b"message":
                if (on_message := self._on_message.get(reply[1])) is not None:
                    on_message(reply[2])
                continue
            if not waiting:
                return str(error or "the server sent a reply to no call")
            _, on_reply = waiting.popleft()
            on_reply(reply, error)

    def _check_reply_time(self, overdue: tuple[float, OnReply] | None = None) -> None:
        """End the connection if the oldest call is still overdue, a moment after it was found overdue."""
        self._alarm = None
        if not self._waiting or self._ended:
            return
        oldest = self._waiting[0]
        if oldest is overdue:
            self._end(f"the server did not answer within {self._reply_timeout:g} s")
            self._transport.abort()  # the reader then gets an error and cleans up
        elif oldest[0] > self._loop.time():
            self._alarm = self._loop.call_at(oldest[0], self._check_reply_time)
        else:
            # After the event loop was blocked, timers run before the reader: let the reader run first.
            self._alarm = self._loop.call_later(UNREAD_SECONDS, self._check_reply_time, oldest)

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._interrupted = bool(self._waiting)
        # Nothing else refers to this connection any more; its reader has to live until it has cleaned up.
        _ending.add(self._reader)
        self._reader.add_done_callback(_ending.discard)
        if self._alarm is not None:
            self._alarm.cancel()
        self._on_end()
        lost = ConnectionLost(reason, maybe_applied=True)
        while self._waiting:
            self._waiting.popleft()[1](None, lost)


async def open_connection(
    endpoint: Endpoint, *, reply_timeout: float, on_end: Callable[[], None], pushes: bool = False
) -> Connection:
    """Find the server, connect, log in, and return a `Connection`.

    Raises:
        ConnectionLost: If the server cannot be reached; nothing was applied.
        ServerRefused: If it refuses the login.
        ServerBusy: If it is still loading its data.
    """
    redis_connection: AbstractConnection | None = None
    try:
        # redis-py waits without limit for the replies to its handshake.
        async with asyncio.timeout(reply_timeout):
            redis_connection = await endpoint.connection(pushes=pushes)
            await redis_connection.connect()  # type: ignore[no-untyped-call]
    except BaseException as error:
        if redis_connection is not None:
            await redis_connection.disconnect(nowait=True)
        if isinstance(error, Exception):
            raise translate(error, maybe_applied=False) from error
        raise
    connection = Connection(redis_connection, reply_timeout=reply_timeout, on_end=on_end)
    endpoint.opened(connection)
    return connection
