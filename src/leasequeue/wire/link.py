"""The way of calls to their server: found again when a connection breaks or a slot moves.

A call is repeated only if the server has answered that it did not execute it: it did not know the script, the
queue is on another node of the cluster, or its slot is being moved.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from redis.exceptions import AskError, ClusterDownError, MovedError, NoPermissionError, TryAgainError

from leasequeue.durations import Backoff
from leasequeue.errors import AccessDenied, ServerReadOnly
from leasequeue.wire.server_errors import is_unknown_script, translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasequeue.errors import LeasequeueError
    from leasequeue.wire.connection import Connection, OnReply
    from leasequeue.wire.rights import KnownRights
    from leasequeue.wire.scripts import Script
    from leasequeue.wire.server import Kind, Route

#: A larger call goes over a second connection, so that small ones do not wait for its upload.
LARGE_BYTES = 256 << 10


class Request:
    """One call of a script, until its reply arrives; called with the reply or the error."""

    __slots__ = ("_on_reply", "backoff", "command", "link", "reloaded", "script", "until")

    def __init__(
        self, link: Link, script: Script | None, command: tuple[bytes, ...], on_reply: OnReply
    ) -> None:
        self.link = link
        #: The script that it calls; None: it is a plain command.
        self.script = script
        #: The command: EVALSHA, the hash, the number of keys, keys and arguments.
        self.command = command
        self._on_reply = on_reply
        self.reloaded = False
        #: Set at the first answer that the queue is elsewhere: until when to repeat the call.
        self.until: float | None = None
        self.backoff: Backoff | None = None

    def __call__(self, reply: Any, error: BaseException | None) -> None:
        """Pass a reply to the caller, and an error to the link."""
        if error is None:
            self._on_reply(reply, None)
        else:
            self.link.failed(self, error)

    def fail(self, error: BaseException) -> None:
        """Pass an error to the caller."""
        self._on_reply(None, error)

    def reload(self) -> None:
        """Send the text from now on, as the server does not know the hash."""
        self.reloaded = True
        if self.script is not None:
            self.command = (b"EVAL", self.script.body, *self.command[2:])


class Link:
    """Posts calls on a connection that others share, which is opened when it is first needed.

    `check` checks the server over a new connection, and `adapt` returns what is used in its place. `replicas`
    is how many replicas the calls wait for: see `wire.replicas`.
    """

    def __init__(
        self,
        route: Route,
        *,
        kind: Kind,
        check: Callable[[Connection], Awaitable[None]],
        rights: KnownRights,
        replicas: int = 0,
        adapt: Callable[[Connection], Any] | None = None,
    ) -> None:
        self._route = route
        self._kind: Kind = kind
        self._adapt = adapt
        self.replicas = replicas
        self._reply_timeout = route.servers.reply_timeout
        self._check = check
        self._rights = rights
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._queued: list[Request] = []
        self._repeating: dict[Request, asyncio.TimerHandle] = {}
        self._moved: MovedError | None = None
        self._refusal: LeasequeueError | None = None
        route.on_move.append(self._let_go)

    def post(self, call: Request) -> None:
        """Send a call now, or once connected. Its caller gets exactly one reply or error."""
        connection = self._connection
        if self._refusal is not None:
            call.fail(copy.copy(self._refusal))
        elif connection is not None and not connection.closing:
            if self._rights.refused and call.script and (refusal := self._rights.refusal(call.script)):
                if self._rights.stale:
                    self._retire()  # the next connection asks again what the server permits
                    self._wait(call)
                else:
                    call.fail(refusal)
                return
            try:
                connection.post(call.command, call)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                call.fail(error)
        else:
            self._wait(call)

    def post_many(self, calls: Sequence[Request]) -> None:
        """Send calls, as `post` does, with one call of the system."""
        connection = self._connection
        if self._refusal is not None or connection is None or connection.closing or self._rights.refused:
            for call in calls:
                self.post(call)
            return
        try:
            connection.post_many([(call.command, call) for call in calls])
        except Exception as error:  # noqa: BLE001 - the callers get it
            for call in calls:
                call.fail(copy.copy(error))

    def _wait(self, call: Request) -> None:
        self._queued.append(call)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="leasequeue connect")
            self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        """Begin again if it was cancelled by the end of `asyncio.run`: callers still clean up."""
        if opening.cancelled() and self._refusal is None:
            self._post_queued()

    def _post_queued(self) -> None:
        self._opening = None
        queued, self._queued = self._queued, []
        for call in queued:
            self.post(call)

    async def close(self, refusal: LeasequeueError) -> None:
        """Send no more. Calls that are not sent yet, and all later ones, fail with `refusal`."""
        self._refusal = refusal
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for call, timer in self._repeating.items():
            timer.cancel()
            self._queued.append(call)
        self._repeating.clear()
        self._fail_queued(refusal)
        self._connection = None
        self._route.on_move.remove(self._let_go)

    def failed(self, call: Request, error: BaseException) -> None:
        """Repeat a call that the server did not execute; pass any other error to the caller."""
        if is_unknown_script(error) and not call.reloaded:
            call.reload()
            self.post(call)
            return
        if isinstance(error, (AskError, TryAgainError)):  # MOVED is an AskError
            if isinstance(error, MovedError):
                self._moved = error
                self._let_go()
            if self._repeat(call, at_once=isinstance(error, MovedError)):
                return
        ours = translate(error, maybe_applied=True, script=call.script)
        if isinstance(ours, AccessDenied) and call.script and call.command[0] == b"EVAL" and not ours.keys:
            is_denied = isinstance(error, NoPermissionError) and "EVAL" in ours.commands
            ours = self._rights.unknown(call.script) if is_denied else ours
        if isinstance(ours, ServerReadOnly) or isinstance(error, ClusterDownError):
            self._retire()  # after a fail-over the next connection finds the new primary
        call.fail(ours)

    def _repeat(self, call: Request, *, at_once: bool) -> bool:
        """Send a call again, the first time at once if the server has named the right node.

        Return False if it has been repeated for long enough.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if call.backoff is None or call.until is None:
            call.backoff = Backoff()
            call.until = now + self._reply_timeout
            if at_once:
                self.post(call)
                return True
        if now >= call.until or self._refusal is not None:
            return False
        due = min(call.until, now + call.backoff.next())
        self._repeating[call] = loop.call_at(due, self._post_again, call)
        return True

    def _post_again(self, call: Request) -> None:
        del self._repeating[call]
        self.post(call)

    def _retire(self) -> None:
        """Have all use another connection from now on. The replies of this one still arrive."""
        if self._connection is not None:
            self._connection.retire()
            self._let_go()

    def _let_go(self) -> None:
        """Look for the server again before the next call. The replies of this connection still arrive."""
        self._connection = None

    async def _open(self) -> None:
        try:
            moved, self._moved = self._moved, None
            connection = await self._route.connection(moved, kind=self._kind)
            try:
                await self._check(connection)
                connection.expect_open()  # it may have ended just after the reply
            except Exception:
                await connection.close()
                raise
            self._connection = self._adapt(connection) if self._adapt else connection
        except Warning as error:  # the user has turned our warning into an error
            self._fail_queued(error)
        except Exception as error:  # noqa: BLE001 - every waiting caller gets it
            self._fail_queued(translate(error, maybe_applied=False))
        self._post_queued()

    def _fail_queued(self, error: Exception) -> None:
        queued, self._queued = self._queued, []
        for call in queued:
            call.fail(copy.copy(error))
