"""Sessions: the identity and the connections of one event loop on one server, or on one cluster.

A session is made when a queue object is first used in an event loop. All queue objects for one server share
it there, whether they were made from one client or from equal URLs: its id, its connection for commands, and
the one that receives pushes. On a cluster, it has both for each node. It ends with the last of them, or with
its event loop. A forked process makes its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.errors import ConnectionLost
from leasequeue.keys import new_session
from leasequeue.wire.endpoints import same_server, slot_of
from leasequeue.wire.runner import Runner
from leasequeue.wire.server import Route, Servers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from leasequeue.errors import LeasequeueError
    from leasequeue.keys import QueueKeys
    from leasequeue.wire.endpoints import Client
    from leasequeue.wire.server import OpenedConnection

#: How long a session may take to close when its event loop ends (s).
END_SECONDS = 1.0


class SessionUser(NamedTuple):
    """What uses a session: the engine of a queue, by what it does when the event loop ends."""

    #: Closes it; and has it forget everything, as the event loop is closed, or that of the parent process.
    end: Callable[[], Awaitable[None]]
    abandon: Callable[[], None]


class Session:
    """One event loop's identity on one server, or on one cluster. Made by `SESSIONS.join`.

    Attributes:
        id: The value of the lease keys: `lh:<host>/<pid>/<16 hexadecimal digits>`.
        workers: How many workers have started in it.
        failed: The queues on which this session was failed: there, the event loop has another one since.
        ending: Whether it closes, or has closed.
    """

    def __init__(self, client: Client, *, reply_timeout: float, session_id: str | None = None) -> None:
        self.adopted = session_id is not None
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.id = session_id or new_session(self.host, self.pid)
        self.workers = 0
        self.failed: set[str] = set()
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.reply_timeout = reply_timeout
        self.members: dict[str, SessionUser] = {}
        # Without what the server refuses in the name of a connection.
        host = "".join(letter if "!" <= letter <= "~" else "?" for letter in self.host)
        name = f"{host}:{self.pid}"
        self.servers = Servers(client, self.id, name, reply_timeout=reply_timeout, adopted=self.adopted)
        self.ending = False
        self._runners: dict[int | None, Runner] = {}
        self._keeper = self._keep()
        self._start_keeper()

    @property
    def connections(self) -> list[OpenedConnection]:
        """The open connections; callable from any thread."""
        return self.servers.connections

    def runner_for(self, keys: QueueKeys) -> Runner:
        """Return what sends the scripts of a queue, for one more queue object, until that leaves.

        On a cluster, queues in one slot share a runner.
        """
        slot = slot_of(self.client, keys["queue"])
        runner = self._runners.get(slot)
        if runner is None:
            runner = self._runners[slot] = Runner(Route(self.servers, slot))
        runner.route.users += 1
        runner.probe_with(keys)
        return runner

    def serves(self, client: Client, *, reply_timeout: float, session_id: str | None) -> bool:
        """Return whether queues of this client can use this session."""
        return (
            self.reply_timeout == reply_timeout
            and (self.id == session_id if self.adopted else session_id is None)
            and same_server(self.client, client)
        )

    async def leave(self, name: str, runner: Runner, refusal: LeasequeueError) -> None:
        """Remove a member. If it was the last, close the connections; if it was the last on a node, those.

        Calls that are not sent yet get `refusal`.
        """
        with SESSIONS.lock:
            self.members.pop(name, None)
            route = runner.route
            route.users -= 1
            if self.ending:
                return
            self.ending = not self.members
            if self.ending:
                SESSIONS.remove(self)
            elif not route.users:
                del self._runners[route.slot]
        if self.ending:
            await self._close(refusal)
            await self._keeper.aclose()
        elif not route.users:
            await runner.close(refusal)
            route.leave()

    def abandon(self, let_go: Callable[[asyncio.WriteTransport], None]) -> None:
        """Forget all members and connections, whose event loop cannot close them.

        `let_go` is called with each transport.
        """
        self.ending = True
        for member in self.members.values():
            member.abandon()
        for one in self.connections:
            let_go(one.connection.transport)

    # ------------------------------------------------------------------ the end of the event loop

    async def _keep(self) -> AsyncGenerator[None, None]:
        """Wait to be finalised: by `leave`, or by the event loop before it is closed.

        `asyncio.run`, `asyncio.Runner` and anyio finalise all asynchronous generators of their event loop.
        """
        try:
            yield
        finally:
            if not self.ending:
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
            self.ending = True
            SESSIONS.remove(self)
        try:
            # If the server is away, what it holds for this session expires.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await asyncio.gather(*(member.end() for member in [*self.members.values()]))
        finally:
            await self._close(ConnectionLost("the event loop ends", maybe_applied=False))

    async def _close(self, refusal: LeasequeueError) -> None:
        await asyncio.gather(*(runner.close(refusal) for runner in self._runners.values()))
        await self.servers.close(refusal)


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
        self, client: Client, name: str, *, reply_timeout: float, session_id: str | None = None
    ) -> Session:
        """Return the session of a queue in the running event loop; the caller adds itself to its members.

        A session has one member for each queue, as an inbox has one reader: a second object of the same queue
        gets another session. `session_id` is that of another session, if this one acts for it; None: a new
        id.
        """
        with self.lock:
            self.forget_closed_loops()
            ours = self._by_loop.setdefault(asyncio.get_running_loop(), [])
            for session in ours:
                is_free = name not in session.members and name not in session.failed
                if is_free and session.serves(client, reply_timeout=reply_timeout, session_id=session_id):
                    return session
            session = Session(client, reply_timeout=reply_timeout, session_id=session_id)
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
                session.abandon(_release)

    def _after_fork(self) -> None:
        """Forget all sessions: they are the parent's, whose sockets must not be touched."""
        self.lock = threading.RLock()
        inherited = [session for ours in self._by_loop.values() for session in ours]
        self._by_loop = {}
        self._inherited += inherited
        for session in inherited:
            session.abandon(_detach)


SESSIONS = Sessions()


def _release(transport: asyncio.WriteTransport) -> None:
    """Close the socket of a transport whose event loop is closed, without a ResourceWarning.

    Every method of the transport raises there. uvloop has closed its sockets with the event loop.
    """
    plain: Any = transport
    if hasattr(plain, "_ssl_protocol"):
        encrypted = plain._ssl_protocol  # noqa: SLF001 - there is no public way
        plain._closed = True  # noqa: SLF001 - as above
        plain = None if encrypted is None else encrypted._transport  # noqa: SLF001 - as above
    if getattr(plain, "_sock", None) is not None:
        plain._closing, plain._protocol_connected = True, False  # noqa: SLF001 - as above
        plain._call_connection_lost(None)  # noqa: SLF001 - as above


def _detach(transport: asyncio.WriteTransport) -> None:
    """Detach an inherited transport from the socket of the parent process, and send nothing.

    The socket would stay open on the server until both processes have ended, and an event loop that the child
    continues would read what the server sends to the parent. So the child's descriptor leads nowhere.
    """
    socket = transport.get_extra_info("socket")
    if socket is not None and (descriptor := socket.fileno()) >= 0:
        os.dup2(_nowhere(), descriptor, inheritable=False)


@cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
