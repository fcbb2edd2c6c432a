"""Sessions: the identity and the connections of one event loop on one server.

A session is made when a queue object is first used in an event loop. All queue objects that were made from
one client share it there: its id, its connection for commands, and the one that receives pushes. It ends with
the last of them, or with its event loop. A forked process makes its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from leasequeue.errors import ConnectionLost
from leasequeue.keys import new_session
from leasequeue.scripting import sockets
from leasequeue.scripting.connection import Connection, open_connection
from leasequeue.scripting.endpoints import close_client, endpoint_of, separate_client, slot_of
from leasequeue.scripting.pushes import PushConnection, Subscription
from leasequeue.scripting.runner import Runner

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from leasequeue.errors import LeasequeueError
    from leasequeue.scripting.endpoints import Client, Endpoint
    from leasequeue.scripting.nodes import Address

#: How long a session may take to close when its event loop ends (s).
END_SECONDS = 1.0
#: When to look again at a connection that is to be replaced, and waits for replies (s).
BUSY_SECONDS = 0.1
#: The purposes of the connections that last as long as their session.
LASTING = ("commands", "pushes")


class Member(Protocol):
    """What uses a session: the engine of a queue."""

    async def end(self) -> None:
        """Close, because the event loop ends."""
        ...

    def abandon(self) -> None:
        """Forget everything, because the event loop is closed, or belongs to the parent process."""
        ...


class OpenedConnection:
    """An open connection of a session.

    Attributes:
        purpose: `commands`, `pushes` or `waits`.
        name: The name that the server was asked to give it.
        id: The server's number for it; None until the server has answered, or if its access rules forbid it.
        answered: Whether the server has answered to both.
        address: The host and the port that it was opened to.
        since: When it was opened, by `time.monotonic()`.
        follows: Whether it follows another one of this purpose in its session, which was lost.
    """

    __slots__ = ("address", "answered", "connection", "follows", "id", "name", "purpose", "since")

    def __init__(self, connection: Connection, purpose: str, name: str, *, follows: bool) -> None:
        self.connection = connection
        self.purpose = purpose
        self.name = name
        self.id: int | None = None
        self.answered = False
        self.address = connection.address
        self.since = time.monotonic()
        self.follows = follows

    @property
    def lasting(self) -> bool:
        """Whether it lasts as long as the session; connections that wait for items come and go."""
        return self.purpose in LASTING

    def identified(self, reply: Any, error: BaseException | None) -> None:
        """Take the reply to CLIENT ID."""
        if error is None and isinstance(reply, int):  # a proxy in between may answer as it likes
            self.id = reply


class Session:
    """One event loop's identity on one server. Made by `SESSIONS.join`.

    Attributes:
        id: The value of the lease keys: `lh:<host>/<pid>/<16 hexadecimal digits>`.
        host: The name of this machine.
        pid: The number of this process.
        workers: How many workers have started in it.
        failed: The queues on which this session was failed: there, the event loop has another one since.
        loop: The event loop.
        runner: Sends scripts, over the connection that all queues of the session share.
    """

    def __init__(
        self, client: Client, key: bytes, *, reply_timeout: float, session_id: str | None = None
    ) -> None:
        self.adopted = session_id is not None
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.id = session_id or new_session(self.host, self.pid)
        self.workers = 0
        self.failed: set[str] = set()
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.slot = slot_of(client, key)
        self.reply_timeout = reply_timeout
        self.members: dict[str, Member] = {}
        self._key = key
        self._own_client = separate_client(client)
        self._opened: list[OpenedConnection] = []
        #: The purposes for which there has been a connection.
        self._purposes: set[str] = set()
        self._watchers: list[Callable[[], None]] = []
        self._ending = False
        #: Where the last connection leads, on a cluster.
        self._leads_to: Address | None = None
        self.runner = Runner(self.endpoint("commands"), reply_timeout=reply_timeout)
        # Where this one acts for another session, that one logs it.
        self.runner.rights.warned = self.adopted
        self._pushes = PushConnection(
            self.endpoint("pushes"),
            reply_timeout=reply_timeout,
            on_forbidden=self.runner.rights.warn_of_channel,
        )
        self._keeper = self._keep()
        self._start_keeper()

    @property
    def connections(self) -> list[OpenedConnection]:
        """The open connections; callable from any thread."""
        return [one for one in (*self._opened,) if not one.connection.ended]

    @property
    def last_connections(self) -> list[OpenedConnection]:
        """The lasting connections that were opened last, also those that have ended; from any thread."""
        return [one for one in (*self._opened,) if one.lasting]

    def watch_connections(self, notify: Callable[[], None]) -> None:
        """Call a function when a lasting connection has its id and its name, and when one has ended.

        It is called in the event loop of the session.
        """
        self._watchers.append(notify)

    def unwatch_connections(self, notify: Callable[[], None]) -> None:
        """Call this function no more."""
        self._watchers.remove(notify)

    def lead_to(self, address: Address) -> None:
        """Replace the lasting connections that lead to another node of the cluster than this.

        A node that the queue has left keeps them open, and may leave the cluster: then nothing that is
        published arrives. It is called in the event loop of the session.
        """
        self._leads_to = address
        self._replace()

    def _replace(self) -> None:
        elsewhere = [one for one in self.connections if one.lasting and one.address != self._leads_to]
        for one in elsewhere:
            if one.connection.idle:
                one.connection.retire()
        if any(not one.connection.ended for one in elsewhere):
            self.loop.call_later(BUSY_SECONDS, self._replace)

    def endpoint(self, purpose: str) -> Endpoint:
        """Return where the server is; connections that are opened with it are recorded and named.

        Args:
            purpose: A word for the names of the connections.
        """
        return endpoint_of(self._own_client, self._key, partial(self._record, purpose))

    async def open(
        self,
        purpose: str,
        *,
        reply_timeout: float,
        on_end: Callable[[], None],
        pushes: bool = False,
        endpoint: Endpoint | None = None,
    ) -> Connection:
        """Open one more connection, which the caller closes. See `open_connection`.

        Raises:
            ConnectionLost, ServerRefused, ServerBusy: As in `open_connection`.
        """
        return await open_connection(
            endpoint or self.endpoint(purpose), reply_timeout=reply_timeout, on_end=on_end, pushes=pushes
        )

    async def subscribe(
        self, channel: bytes, on_message: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Subscription:
        """Receive what is published to a channel, until the subscription is closed.

        Return when the server has confirmed: from then on no message is missed while the connection lasts.
        After it has ended, the session opens another and subscribes again. Where the server's access rules
        forbid the channel, no message arrives.

        Args:
            channel: The channel.
            on_message: Called for each message.
            on_end: Called when messages may have been missed: when the connection has ended, and again when
                the channel is subscribed again.

        Raises:
            ConnectionLost, ServerRefused, ServerBusy: If the first try fails.
        """
        return await self._pushes.subscribe(channel, on_message, on_end)

    def serves(self, client: Client, key: bytes, *, reply_timeout: float, session_id: str | None) -> bool:
        """Return whether queues of this client can use this session."""
        return (
            self.client is client
            and self.reply_timeout == reply_timeout
            and (self.id == session_id if self.adopted else session_id is None)
            and self.slot == slot_of(client, key)
        )

    async def leave(self, name: str, refusal: LeasequeueError) -> None:
        """Remove a member. If it was the last, close the connections.

        Args:
            name: The name of its queue.
            refusal: What calls get that are not sent yet.
        """
        with SESSIONS.lock:
            self.members.pop(name, None)
            if self.members or self._ending:
                return
            self._ending = True
            SESSIONS.remove(self)
        await self._close(refusal)
        await self._keeper.aclose()

    def abandon(self, let_go: Callable[[asyncio.WriteTransport], None]) -> None:
        """Forget all members and connections, whose event loop cannot close them.

        Args:
            let_go: What to do with each transport.
        """
        self._ending = True
        for member in self.members.values():
            member.abandon()
        for one in self.connections:
            let_go(one.connection.transport)

    def _record(self, purpose: str, connection: Connection) -> None:
        """Note a connection that has just been opened, and name it, unless the access rules forbid that."""
        name = f"leasequeue:{purpose}:{_printable(self.host)}:{self.pid}"
        opened = OpenedConnection(connection, purpose, name, follows=purpose in self._purposes)
        self._purposes.add(purpose)
        self._opened = [*self.connections, opened]

        def named(_: Any, error: BaseException | None) -> None:
            if not isinstance(error, ConnectionLost):
                opened.answered = True
                if opened.lasting:
                    self._connections_changed()

        if self.slot is not None:
            self.loop.call_soon(self.lead_to, opened.address)
        connection.post((b"CLIENT", b"ID"), opened.identified)
        connection.post((b"CLIENT", b"SETNAME", name.encode()), named)
        if opened.lasting:
            connection.when_ended(self._connections_changed)

    def _connections_changed(self) -> None:
        for notify in (*self._watchers,):
            notify()

    # ------------------------------------------------------------------ the end of the event loop

    async def _keep(self) -> AsyncGenerator[None, None]:
        """Wait to be finalised: by `leave`, or by the event loop before it is closed.

        `asyncio.run`, `asyncio.Runner` and anyio finalise all asynchronous generators of their event loop.
        """
        try:
            yield
        finally:
            if not self._ending:
                await self._end()

    def _start_keeper(self) -> None:
        """Run the generator up to its `yield`, which makes the event loop know it."""
        try:
            self._keeper.__anext__().send(None)
        except StopIteration:
            return

    async def _end(self) -> None:
        """Close everything, as the event loop ends; the server may be away."""
        with SESSIONS.lock:
            self._ending = True
            SESSIONS.remove(self)
        try:
            # If the server is away, what it holds for this session expires.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await asyncio.gather(*(member.end() for member in [*self.members.values()]))
        finally:
            await self._close(ConnectionLost("the event loop ends", maybe_applied=False))

    async def _close(self, refusal: LeasequeueError) -> None:
        await self._pushes.close(refusal)
        await self.runner.close(refusal)
        await asyncio.gather(*(one.connection.close() for one in self.connections))
        if self._own_client is not self.client:
            await close_client(self._own_client)


class Sessions:
    """The sessions of this process.

    Attributes:
        lock: Held to change them, and what refers to them; any thread may.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._by_loop: dict[asyncio.AbstractEventLoop, list[Session]] = {}
        #: What a forked process has inherited. Its destructors must not run: they would warn.
        self._inherited: list[Session] = []
        os.register_at_fork(after_in_child=self._after_fork)

    def join(
        self, client: Client, key: bytes, name: str, *, reply_timeout: float, session_id: str | None = None
    ) -> Session:
        """Return the session of a queue in the running event loop; the caller adds itself to its members.

        A session has one member for each queue, as an inbox has one reader: a second object of the same queue
        gets another session.

        Args:
            client: The user's client.
            key: A key of the queue.
            name: The name of the queue.
            reply_timeout: Seconds to wait for a reply.
            session_id: The id of another session, if this one acts for it; None: a new id.
        """
        with self.lock:
            self.forget_closed_loops()
            ours = self._by_loop.setdefault(asyncio.get_running_loop(), [])
            for session in ours:
                is_free = name not in session.members and name not in session.failed
                if is_free and session.serves(
                    client, key, reply_timeout=reply_timeout, session_id=session_id
                ):
                    return session
            session = Session(client, key, reply_timeout=reply_timeout, session_id=session_id)
            ours.append(session)
            return session

    def remove(self, session: Session) -> None:
        """Remove a session that ends. The lock is held."""
        ours = self._by_loop.get(session.loop, [])
        if session in ours:
            ours.remove(session)
        if not ours:
            self._by_loop.pop(session.loop, None)

    def __iter__(self) -> Iterator[Session]:
        with self.lock:
            return iter([session for ours in self._by_loop.values() for session in ours])

    def forget_closed_loops(self) -> None:
        """Release the sessions of event loops that were closed without finalising asynchronous generators."""
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            for session in self._by_loop.pop(loop):
                session.abandon(sockets.release)

    def _after_fork(self) -> None:
        """Forget all sessions: they are the parent's, whose sockets must not be touched."""
        self.lock = threading.RLock()
        inherited = [session for ours in self._by_loop.values() for session in ours]
        self._by_loop = {}
        self._inherited += inherited
        for session in inherited:
            session.abandon(sockets.detach)


#: The sessions of this process.
SESSIONS = Sessions()


def _printable(host: str) -> str:
    """Return a host's name without what the server refuses in the name of a connection."""
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in host)
