"""Waits for new items on a connection of its own, while somebody in this process wants one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError
from leasehold.retry import Backoff
from leasehold.scripting.connection import Connection, open_connection
from leasehold.scripting.server_errors import translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.keys import QueueKeys
    from leasehold.scripting.endpoints import Endpoint

#: How long one blocking move may last on the server, and how much later we stop believing in it (s).
#: Shorter than the idle limits of the usual balancers, so that they do not cut it silently.
BLOCK_SECONDS = 5
MARGIN_SECONDS = 5.0
#: How long the server may take to hang up after us (s).
FAREWELL_SECONDS = 2.0
#: How long the session stays on the list: longer than the move that follows (ms).
KEEP_MS = 10_000
#: The first and the longest wait after a transient error (s); then the dispatcher asks the server again.
FIRST_WAIT, LONGEST_WAIT = 0.1, 1.0


class Listener:
    """Moves waiting ids, one at a time, into the inbox of this session, and tells the dispatcher.

    The connection is replaced, never revived: after an error the next listening opens a new one.

    Args:
        endpoint: Where the server is.
        keys: The queue's keys.
        register: The command that puts the session on the list and tells what falls due next.
        expect: Called with the seconds until something falls due.
        leave: Gives back what is in the inbox and takes the session off the list.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        keys: QueueKeys,
        *,
        register: Callable[[], tuple[bytes, ...]],
        expect: Callable[[float], None],
        leave: Callable[[], Awaitable[Any]],
    ) -> None:
        self._endpoint = endpoint
        self._register = register
        self._expect = expect
        self._channel = keys["due"]
        self._move = (b"BLMOVE", keys["queue"], keys["inbox"], b"RIGHT", b"LEFT", b"%d" % BLOCK_SECONDS)
        self._leave = leave
        self._task: asyncio.Task[None] | None = None
        self._attached = False
        #: Until when the server may still be at a blocking move whose connection we have lost.
        self._unsure_until = 0.0
        self._connection: Connection | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._backoff = Backoff(first=FIRST_WAIT, longest=LONGEST_WAIT)

    @property
    def attached(self) -> bool:
        """Whether the session may have something on the server: its name, its inbox, a connection."""
        return self._attached

    def start(self, arrived: Callable[[LeaseholdError | None], None]) -> None:
        """Listen for one id, if it does not yet.

        Args:
            arrived: Called when the id is there, or the wait is over; with an error if waiting is no use.
        """
        if self._task is None:
            self._attached = True
            self._task = asyncio.create_task(self._listen(arrived), name="leasehold listen")

    def stop_soon(self) -> None:
        """Stop listening, without waiting for it."""
        task, self._task = self._task, None
        if self._attached:
            self._attached = False
            self._leaving = asyncio.create_task(self._stop(task, self._leaving), name="leasehold leave")

    async def stop(self) -> None:
        """Stop listening. What was on its way is back at the front of the queue."""
        self.stop_soon()
        if self._leaving is not None:
            await self._leaving

    async def _stop(self, task: asyncio.Task[None] | None, before: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
        await asyncio.gather(*(one for one in (task, before) if one), return_exceptions=True)
        gone = await self._drop()
        if self._task is not None:
            return  # somebody has begun to wait again meanwhile
        if not gone:
            return  # an id may still be moved here: it goes back by itself when the session expires
        try:
            await self._leave()
        except LeaseholdError:
            # The server is away. The inbox goes back by itself when the session expires.
            return

    async def _listen(self, arrived: Callable[[LeaseholdError | None], None]) -> None:
        trouble: LeaseholdError | None = None
        try:
            if self._leaving is None or self._leaving.done():
                await self._receive()
            else:
                # It closes the connection and takes the session off the list: ask again after it.
                await asyncio.wait([self._leaving])
            self._backoff.reset()
        except LeaseholdError as error:
            await self._drop()
            if error.transient:
                await self._backoff.wait()
            else:
                trouble = error
        self._task = None
        arrived(trouble)

    async def _receive(self) -> None:
        """Wait until an id has been moved into the inbox, or a while has passed."""
        if self._connection is None:
            reply_timeout = BLOCK_SECONDS + MARGIN_SECONDS
            self._connection = await open_connection(
                self._endpoint, reply_timeout=reply_timeout, on_end=lambda: None, pushes=True
            )
            # Before it registers, so that what falls due is in the answer to that or is announced.
            self._connection.subscribe(self._channel, self._announced)
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(error: BaseException) -> None:
            if not moved.done():
                moved.set_exception(translate(error, maybe_applied=True))

        def registered(wait_ms: Any, error: BaseException | None) -> None:
            if error is not None:
                failed(error)
            elif wait_ms >= 0:
                self._expect(wait_ms / 1000)

        def answered(_: Any, error: BaseException | None) -> None:
            if error is not None:
                failed(error)
            elif not moved.done():
                moved.set_result(None)

        self._connection.post(self._register(), registered)
        self._connection.post(self._move, answered)
        await moved

    def _announced(self, message: bytes) -> None:
        if message.isdigit() and len(message) < 8:  # anybody may write to a channel
            self._expect(int(message) / 1000)

    async def _drop(self) -> bool:
        """End the connection, and say whether the server is known to move nothing here any more.

        Were we to leave before it has noticed, on the other connection, an id could be moved into an inbox
        that nobody looks into.
        """
        connection, self._connection = self._connection, None
        loop = asyncio.get_running_loop()
        if connection is not None and not await connection.hang_up(within=FAREWELL_SECONDS):
            self._unsure_until = loop.time() + BLOCK_SECONDS + 1
        return loop.time() >= self._unsure_until
