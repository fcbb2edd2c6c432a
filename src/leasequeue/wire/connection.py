"""A connection that carries many calls at once. Replies arrive in the order of the calls.

The event loop passes what arrives to the parser, and each reply to its call: no task waits for replies, so a
cancelled caller leaves none unread. Each command is written once. When the connection breaks, every waiting
call gets ConnectionLost, because it may have been applied.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hiredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from leasequeue.errors import ConnectionLost, ProcessOutOfMemory
from leasequeue.errors.log import Log
from leasequeue.wire.server_errors import is_lost, translate
from leasequeue.wire.tls import address_of, connect

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

#: How long a reply may lie unread after this process was blocked (s).
UNREAD_SECONDS = 0.05

#: After how many seconds of silence a server may have been replaced without knowing it (s).
SILENT_SECONDS = 1.0

#: Seconds to wait for a connection, unless the user's client has a limit.
CONNECT_SECONDS = 5.0

# Settings for the user's connections only: resending, decoding, and RESP3 notices.
_IGNORED = (
    "retry",
    "retry_on_timeout",
    "retry_on_error",
    "event_dispatcher",
    "himport_registry",
    "response_callbacks",
)
_IGNORED_PREFIXES = ("maint", "orig_", "oss_cluster")

#: Called with the reply, or with an error in its place.
OnReply = Callable[[Any, BaseException | None], None]
#: Called with a connection whose server was silent; ends it if another server is the primary now.
Confirm = Callable[["Connection"], Awaitable[None]]

_log = Log("leasequeue")
_INCOMPLETE = object()
#: With these errors nothing was heard of the other side, which may still have the connection.
_SILENT = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN})


def _ignore(*_: object) -> None:
    """Ignore a message or a reply."""


class Connection(asyncio.Protocol):
    """An open connection, and the calls that wait for its replies.

    Args:
        redis_connection: An open connection of redis-py, which nothing else uses; its transport is taken.
        reply_timeout: Seconds for which the server may be silent while a call waits for its reply, before the
            connection counts as lost. They begin again whenever data leaves or arrives: uploads may take
            longer, as long as they advance.
        confirm: Called when replies come after a silence of SILENT_SECONDS; they are held back until it
            returns. None: no others know whether it is still the primary.
        doubtful: Whether the server was silent before.
    """

    def __init__(
        self,
        redis_connection: AbstractConnection,
        *,
        reply_timeout: float,
        confirm: Confirm | None = None,
        doubtful: bool = False,
    ) -> None:
        self._reply_timeout = reply_timeout
        self._confirm = confirm
        #: Whether replies are held back, those that are, and what asks about the server.
        self._doubtful = doubtful and confirm is not None
        self._held = b""
        self._confirming: asyncio.Task[None] | None = None
        self._on_end: list[Callable[[], None]] = []
        #: The host and the port that it was opened to; a unix socket has none.
        self.address = address_of(redis_connection)
        #: When each call was posted, and what to call with its reply.
        self._waiting: deque[tuple[float, OnReply]] = deque()
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = self.closing = False
        #: What `wire.replicas` keeps for it.
        self.rounds: object = None
        #: When the other side has closed it, by `time.monotonic()`; None: it has not, as far as known.
        self.cut_at: float | None = None
        #: Whether it ended with unanswered calls, which the server may still execute.
        self._interrupted = False
        self._on_message: dict[bytes, Callable[[bytes], None]] = {}
        #: The channels whose SUNSUBSCRIBE is in flight: its reply looks as if their slot had moved.
        self._leaving: list[bytes] = []
        #: Called with a channel that this connection receives no more, as its slot has moved.
        self.on_moved: Callable[[bytes], None] = _ignore
        #: When data last left or arrived, as far as known, while calls waited.
        self._advanced_at = 0.0
        self._bytes_posted = 0
        #: How many of them have left this process; counted only while some are held back.
        self._bytes_left = 0
        self._held_back = False
        self._lost = self._loop.create_future()
        self._reader = hiredis.Reader(
            notEnoughData=_INCOMPLETE,
            replyError=redis_connection._parser.parse_error,  # noqa: SLF001 - it makes redis-py's classes
        )
        # redis-py has no public way to hand over an open connection.
        stream, writer = redis_connection._reader, redis_connection._writer  # noqa: SLF001
        if stream is None or writer is None:
            raise ConnectionLost("the connection is not open", maybe_applied=False)
        redis_connection._reader = redis_connection._writer = None  # noqa: SLF001 - it would close them
        self._writer = writer  # which would close the transport when it is deleted
        self._transport: asyncio.Transport = writer.transport  # type: ignore[assignment]  # it is one
        if stream.at_eof() or self._transport.is_closing():
            self._transport.abort()
            raise ConnectionLost("the connection is not open", maybe_applied=False)
        # Any byte that is held back pauses writing, so `resume_writing` says when all have left.
        self._transport.set_write_buffer_limits(high=0)
        self._transport.set_protocol(self)
        if early := bytes(stream._buffer):  # type: ignore[attr-defined]  # noqa: SLF001 - as above
            self._loop.call_soon(self.data_received, early)

    def post(self, command: tuple[bytes, ...], on_reply: OnReply) -> None:
        """Send a command, and pass its reply to `on_reply`.

        Raises:
            ConnectionLost: If the connection has ended; nothing was sent.
            ProcessOutOfMemory: If the command needs more memory than there is; nothing was sent.
        """
        if self.closing:
            raise ConnectionLost("the connection has ended", maybe_applied=False)
        packed = _packed([command])  # first: if it failed later, all replies would be misassigned
        now = self._time()
        self._waiting.append((now, on_reply))
        self._write(packed, now)

    def post_many(self, posts: Sequence[tuple[tuple[bytes, ...], OnReply]]) -> None:
        """Send commands with one call of the system, each as `post` does."""
        if self.closing:
            raise ConnectionLost("the connection has ended", maybe_applied=False)
        packed = _packed([command for command, _ in posts])
        now = self._time()
        self._waiting.extend((now, on_reply) for _, on_reply in posts)
        self._write(packed, now)

    def _write(self, packed: bytes, now: float) -> None:
        """Send calls whose replies are waited for since now."""
        self._bytes_posted += len(packed)
        try:
            self._transport.write(packed)
        except Exception as error:  # noqa: BLE001 - a part of it may have been written
            self._note_cut(error)
            self._end(f"writing has failed: {error!r}")
            self._transport.abort()
            return
        if self._alarm is None:
            self._alarm = self._loop.call_at(now + self._alarm_after, self._check_reply_time)

    def subscribe(
        self,
        channel: bytes,
        on_message: Callable[[bytes], None],
        on_reply: OnReply = _ignore,
        *,
        sharded: bool = False,
    ) -> None:
        """Pass messages of a channel to `on_message`, also while a blocking command is running.

        It needs a connection with pushes. Where the server's access rules forbid it, no message arrives. A
        channel has one `on_message`, the last that was given. With `sharded`, receive what SPUBLISH
        publishes, instead of PUBLISH.
        """
        self._on_message[channel] = on_message
        # The confirmation is a push, but an error is a reply: this call expects either.
        self.post((b"SSUBSCRIBE" if sharded else b"SUBSCRIBE", channel), on_reply)

    def unsubscribe(self, channel: bytes, *, sharded: bool = False) -> None:
        """Receive no more messages of a channel."""
        self._on_message.pop(channel, None)
        if not sharded:
            self.post((b"UNSUBSCRIBE", channel), _ignore)
            return
        self._leaving.append(channel)
        self.post((b"SUNSUBSCRIBE", channel), lambda *_: self._leaving.remove(channel))

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport, for what must not be done through the connection: see `wire.session`."""
        return self._transport

    @property
    def ended(self) -> bool:
        """Whether the connection has ended."""
        return self._ended

    def when_ended(self, function: Callable[[], None]) -> None:
        """Call a function when the connection has ended; at once if it has."""
        if self._ended:
            function()
        else:
            self._on_end.append(function)

    @property
    def idle(self) -> bool:
        """Whether every call has its reply."""
        return not self._waiting

    def expect_open(self) -> None:
        """Raise ConnectionLost if the connection has ended, so that nothing can have been applied."""
        if self._ended:
            raise ConnectionLost("the connection has ended", maybe_applied=False)

    def retire(self) -> None:
        """Accept no more calls, and end the connection when those in flight have their replies."""
        self.closing = True
        if not self._waiting:
            self._end("the connection was retired")

    async def close(self) -> None:
        """End the connection. Waiting calls get ConnectionLost."""
        self._end("the connection was closed")
        self._transport.abort()
        await asyncio.wait([self._lost], timeout=1)  # the socket is closed in the next turn of the loop

    async def close_gracefully(self, *, within: float) -> bool:
        """End the connection, and wait until the server has, too: then it executes no more of its calls.

        Return False if the server did not end it within `within` seconds.
        """
        if self._ended:
            certain = not self._interrupted
        elif not (certain := self.idle):
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()  # TLS: it waits for the close message of the server
            done, _ = await asyncio.wait([self._lost], timeout=within)
            certain = bool(done)
        await self.close()
        return certain

    # ------------------------------------------- called by the event loop

    def data_received(self, data: bytes) -> None:
        """Pass each reply to its call, and each message to its subscriber."""
        if self._doubtful:
            self._hold(data)
            return
        waiting, gets = self._waiting, self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not _INCOMPLETE:
                if isinstance(reply, (Exception, hiredis.PushNotification)):
                    if not self._handle_rare(reply):
                        return
                elif waiting:
                    on_reply = waiting.popleft()[1]
                    try:
                        on_reply(reply, None)
                    except Exception:  # noqa: BLE001 - it must not stop other calls
                        _log.exception("a reply could not be handled")
                else:
                    self.fail("the server sent a reply to no call")
                    return
        except (hiredis.HiredisError, MemoryError) as error:
            self.fail(f"the server's reply could not be read: {error!r}")
            return
        if waiting:
            self._advanced_at = self._time()
        elif self.closing:
            self._end("the connection was retired")

    def _hold(self, data: bytes) -> None:
        """Keep replies back, and ask whether the server is still the primary."""
        self._held += data
        self._advanced_at = self._time()
        if self._confirming is None and self._confirm is not None:
            self._confirming = self._loop.create_task(
                self._deliver_if(self._confirm), name="leasequeue confirm primary"
            )

    async def _deliver_if(self, confirm: Confirm) -> None:
        try:
            async with asyncio.timeout(self._reply_timeout):
                await confirm(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known of the server
            self.fail(f"the server was silent, and it is unknown whether it is still the primary: {error!r}")
        self._confirming = None
        if not self._ended:
            held, self._held, self._doubtful = self._held, b"", False
            self.data_received(held)

    def pause_writing(self) -> None:
        """Note that data is held back, because the server or the network takes no more now."""
        self._held_back = True
        self._bytes_left = self._bytes_posted - self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Note that all data has left this process."""
        self._held_back = False
        self._advanced_at = self._time()

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection: it is closed on both sides."""
        self._note_cut(error)
        self._end(str(error) if error else "the server closed the connection")
        if not self._lost.done():
            self._lost.set_result(None)

    def _handle_rare(self, reply: Any) -> bool:
        """Handle an error or a push. Return whether the connection continues."""
        if isinstance(reply, hiredis.PushNotification):
            kind = bytes(reply[0])
            if kind in (b"message", b"smessage"):
                self._call(self._on_message.get(reply[1], _ignore), reply[2])
                return True
            is_ours = kind != b"sunsubscribe" or reply[1] in self._leaving
            if not is_ours and self._on_message.pop(reply[1], None) is not None:
                self._call(self.on_moved, reply[1])
                return True
            if kind not in (b"subscribe", b"ssubscribe", b"unsubscribe", b"sunsubscribe"):
                return True  # a notice that nothing here has asked for
        elif is_lost(reply):
            self.fail(str(reply) or type(reply).__name__)
            return False
        if not self._waiting:
            self.fail(f"the server sent a reply to no call: {reply}")
            return False
        on_reply = self._waiting.popleft()[1]
        self._call(on_reply, *((None, reply) if isinstance(reply, Exception) else (reply, None)))
        return True

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of a caller. If it fails, the connection continues for the others."""
        try:
            function(*arguments)
        except Exception:  # noqa: BLE001 - any function of any caller
            _log.exception("a reply could not be handled")

    def _check_reply_time(self, overdue: tuple[float, OnReply] | None = None) -> None:
        """End the connection if the server is still silent, a moment after it was found to be."""
        self._alarm = None
        if not self._waiting or self._ended:
            return
        if self._held_back:
            left = self._bytes_posted - self._transport.get_write_buffer_size()
            if left > self._bytes_left:
                self._bytes_left, self._advanced_at = left, self._time()
        oldest = self._waiting[0]
        since, now = max(oldest[0], self._advanced_at), self._time()
        if now < since + self._reply_timeout:
            if now >= since + SILENT_SECONDS:
                self._doubtful = self._confirm is not None
            due = since + self._alarm_after
            due = due if due > now else min(since + self._reply_timeout, now + self._alarm_after)
            self._alarm = self._loop.call_at(due, self._check_reply_time)
        elif oldest is overdue:
            self.fail(f"the server did not answer within {self._reply_timeout:g} s")
        else:
            # After the event loop was blocked, timers run before the reader: let the reader run first.
            self._alarm = self._loop.call_later(UNREAD_SECONDS, self._check_reply_time, oldest)

    @property
    def _alarm_after(self) -> float:
        """After how many seconds of silence something is to be done."""
        return self._reply_timeout if self._confirm is None else min(SILENT_SECONDS, self._reply_timeout)

    def _note_cut(self, error: Exception | None) -> None:
        """Note that the other side has closed the connection, unless this one has, or only hears nothing."""
        is_silent = isinstance(error, OSError) and error.errno in _SILENT
        if not self._ended and not is_silent:
            self.cut_at = time.monotonic()

    def fail(self, reason: str) -> None:
        """End the connection now. Waiting calls get ConnectionLost."""
        self._end(reason)
        self._transport.abort()

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = self.closing = True
        self._interrupted = bool(self._waiting)
        if self._alarm is not None:
            self._alarm.cancel()
        if self._confirming is not None:
            self._confirming.cancel()
        self._transport.close()
        for function in self._on_end:
            self._call(function)
        lost = ConnectionLost(reason, maybe_applied=True)
        while self._waiting:
            self._call(self._waiting.popleft()[1], None, lost)


def _packed(commands: Sequence[tuple[bytes, ...]]) -> bytes:
    """Return commands as they are sent.

    Raise ProcessOutOfMemory if there is too little memory, which hiredis tells in three ways.
    """
    try:
        # The stub of hiredis requires a tuple of one; it accepts any.
        packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
        return packed[0] if len(packed) == 1 else b"".join(packed)
    except (MemoryError, RuntimeError, hiredis.HiredisError) as error:
        raise ProcessOutOfMemory(sum(len(word) for command in commands for word in command)) from error


async def open_connection(
    redis_connection: AbstractConnection,
    *,
    reply_timeout: float,
    confirm: Confirm | None = None,
) -> Connection:
    """Connect, log in, and return a `Connection`.

    This may take as long as `reply_timeout`. See `Connection` for the other arguments.

    Raises:
        ConnectionLost: If the server cannot be reached; nothing was applied.
        ServerRefused: If it refuses the login, the database or the certificate.
        ServerBusy: If it is still loading its data.
    """
    time = asyncio.get_running_loop().time
    began_at = time()
    try:
        # redis-py waits without limit for the replies to its handshake.
        async with asyncio.timeout(reply_timeout):
            await connect(redis_connection)
        doubtful = time() - began_at >= SILENT_SECONDS
        return Connection(redis_connection, reply_timeout=reply_timeout, confirm=confirm, doubtful=doubtful)
    except BaseException as error:
        await redis_connection.disconnect(nowait=True)
        if isinstance(error, Exception):
            raise translate(error, maybe_applied=False) from error
        raise


def future_reply() -> tuple[asyncio.Future[Any], OnReply]:
    """Return a future, and the function that sets it to a reply or an error."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_reply(reply: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(reply)
        else:
            future.set_exception(error)

    return future, on_reply


async def ask(
    post: Callable[[tuple[bytes, ...], OnReply], None], commands: Sequence[tuple[bytes, ...]]
) -> list[Any]:
    """Post commands; return the replies and the errors of the server. Raise ConnectionLost if one is lost."""
    answers = [future_reply() for _ in commands]
    for command, (_, on_reply) in zip(commands, answers, strict=True):
        post(command, on_reply)
    replies = await asyncio.gather(*(future for future, _ in answers), return_exceptions=True)
    found = [translate(one, maybe_applied=True) if isinstance(one, BaseException) else one for one in replies]
    for one in found:
        if isinstance(one, ConnectionLost):
            raise one
    return found


def once_only(kwargs: Mapping[str, Any], *, pushes: bool) -> dict[str, Any]:
    """Return the user's connection settings, without resending and without time limits."""
    kept = {
        name: value
        for name, value in kwargs.items()
        if name not in _IGNORED and not name.startswith(_IGNORED_PREFIXES)
    }
    return kept | {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # each call has its deadline
        "socket_connect_timeout": kwargs.get("socket_connect_timeout") or CONNECT_SECONDS,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 3 if pushes else 2,
    }
