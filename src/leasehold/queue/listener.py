"""Listens for new items on its own connection while callers wait for some."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.errors import LeaseholdError
from leasehold.retry import Backoff
from leasehold.scripting.server_errors import translate

if TYPE_CHECKING:
    from leasehold.keys import QueueKeys
    from leasehold.scripting.connection import Connection
    from leasehold.scripting.runner import BoundScript
    from leasehold.scripting.session import Session

#: How long one blocking move may last on the server, and how much later the connection counts as lost (s).
#: Shorter than the idle limits of the usual load balancers, so that they do not cut it silently.
BLOCK_SECONDS = 5
MARGIN_SECONDS = 5.0
#: How long the server may take to close its end of the connection (s).
CLOSE_SECONDS = 2.0
#: How long the session stays registered: longer than the blocking move that follows (ms).
KEEP_MS = 10_000
#: How many ids `leave` returns to the queue in one step.
LEAVE_STEP = 1000
#: The first and the longest wait after a transient error (s); then the dispatcher asks the server again.
FIRST_WAIT, LONGEST_WAIT = 0.1, 1.0


class Waiter(Protocol):
    """What the listener notifies."""

    def arrived(self, error: LeaseholdError | None) -> None:
        """Handle the end of one wait: an id is in the inbox, none came in time, or waiting is of no use."""
        ...

    def due_in(self, seconds: float) -> None:
        """Handle the news that a lease expires or an item falls due in `seconds`."""
        ...


class Listener:
    """Moves waiting ids, one at a time, into the inbox of this session, and notifies the dispatcher.

    After an error the connection is replaced.

    Args:
        session: Opens the connection, and sends `leave`.
        keys: The queue's keys.
        register: The script that registers the session and returns when something falls due next.
        leave: The script that empties the inbox and unregisters the session.
    """

    def __init__(
        self,
        session: Session,
        keys: QueueKeys,
        *,
        register: BoundScript,
        leave: BoundScript,
    ) -> None:
        self._session = session
        self._register = register
        self._leave = leave
        self._channel = keys["due"]
        self._move = (b"BLMOVE", keys["queue"], keys["inbox"], b"RIGHT", b"LEFT", b"%d" % BLOCK_SECONDS)
        self._task: asyncio.Task[None] | None = None
        self._attached = False
        #: Until when the server may still execute a blocking move whose connection was lost.
        self._unsure_until = 0.0
        self._connection: Connection | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._backoff = Backoff(first=FIRST_WAIT, longest=LONGEST_WAIT)

    @property
    def attached(self) -> bool:
        """Whether the server may hold something for this session: its name, its inbox, a connection."""
        return self._attached

    def start(self, waiter: Waiter) -> None:
        """Listen for one id, unless already listening.

        Args:
            waiter: Notified when the id is in the inbox, when the wait has ended, and of what falls due.
        """
        if self._task is None:
            self._attached = True
            self._task = asyncio.create_task(self._listen(waiter), name="leasehold listen")

    def stop_soon(self) -> None:
        """Begin to stop listening, and return at once."""
        task, self._task = self._task, None
        if self._attached:
            self._attached = False
            self._leaving = asyncio.create_task(self._stop(task, self._leaving), name="leasehold leave")

    async def stop(self) -> None:
        """Stop listening, and return when ids on their way here are back at the front of the queue."""
        self.stop_soon()
        if self._leaving is not None:
            await self._leaving

    async def _stop(self, task: asyncio.Task[None] | None, before: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
        await asyncio.gather(*(one for one in (task, before) if one), return_exceptions=True)
        certain = await self._close_connection()
        if self._task is not None:
            return  # listening has begun again
        if not certain:
            return  # an id may still be moved here; it returns to the queue when the session expires
        try:
            while await self._session.runner.run(self._leave, stays=0) == LEAVE_STEP:
                pass
        except LeaseholdError:
            return  # the server is unavailable; the inbox returns to the queue when the session expires

    async def _listen(self, waiter: Waiter) -> None:
        failure: LeaseholdError | None = None
        try:
            if self._leaving is None or self._leaving.done():
                await self._receive(waiter)
            else:
                # It closes the connection and unregisters the session; the dispatcher asks again after it.
                await asyncio.wait([self._leaving])
            self._backoff.reset()
        except LeaseholdError as error:
            await self._close_connection()
            if error.transient:
                await self._backoff.wait()
            else:
                failure = error
        self._task = None
        waiter.arrived(failure)

    async def _receive(self, waiter: Waiter) -> None:
        """Wait until an id has been moved into the inbox, or `BLOCK_SECONDS` have passed."""
        if self._connection is None:
            self._connection = await self._connect(waiter)
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(error: BaseException) -> None:
            if not moved.done():
                moved.set_exception(translate(error, maybe_applied=True))

        def registered(wait_ms: Any, error: BaseException | None) -> None:
            if error is not None:
                failed(error)
            elif wait_ms >= 0:
                waiter.due_in(wait_ms / 1000)

        def answered(_: Any, error: BaseException | None) -> None:
            if error is not None:
                failed(error)
            elif not moved.done():
                moved.set_result(None)

        self._connection.post(self._register.command({"keep_ms": KEEP_MS}), registered)
        self._connection.post(self._move, answered)
        await moved

    async def _connect(self, waiter: Waiter) -> Connection:
        connection = await self._session.open(
            "waits", reply_timeout=BLOCK_SECONDS + MARGIN_SECONDS, on_end=lambda: None, pushes=True
        )

        def announced(message: bytes) -> None:
            if message.isdigit() and len(message) < 8:  # any client may publish to a channel
                waiter.due_in(int(message) / 1000)

        # Before the session registers: what falls due is in the reply to that, or is published later.
        connection.subscribe(self._channel, announced)
        return connection

    async def _close_connection(self) -> bool:
        """Close the connection; return whether the server is certain to move no more ids for it.

        If the session left before the server has noticed the close, an id could still be moved into the
        inbox, which no process would then read.
        """
        connection, self._connection = self._connection, None
        loop = asyncio.get_running_loop()
        if connection is not None and not await connection.close_gracefully(within=CLOSE_SECONDS):
            self._unsure_until = loop.time() + BLOCK_SECONDS + 1
        return loop.time() >= self._unsure_until
