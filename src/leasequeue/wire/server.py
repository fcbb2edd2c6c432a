"""The connections of a session to one server; on a cluster, to one node.

All queues of the session that are there share them: one for commands, one for pushes. On a cluster, queues
come and go with their slots: each has a `Route`, which leads to the node that holds its slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakSet

from leasequeue.errors import ConnectionLost, ServerRefused
from leasequeue.wire.connection import Connection, ask, open_connection
from leasequeue.wire.endpoints import close_client, new_connection, same_server, separate_client, user_of
from leasequeue.wire.nodes import ClusterNodes
from leasequeue.wire.primaries import is_primary, may_be_replaced
from leasequeue.wire.rights import KnownRights
from leasequeue.wire.server_errors import translate
from leasequeue.wire.subscriptions import Subscription, Subscriptions, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.exceptions import MovedError

    from leasequeue.errors import LeasequeueError
    from leasequeue.wire.endpoints import Client
    from leasequeue.wire.nodes import Address

#: For how long the answer that names a node of a cluster counts more than those of other nodes, which may not
#: know of the move yet (s).
NAMED_SECONDS = 1.0
#: The purposes of the connections that last as long as their server has queues of the session.
LASTING = ("commands", "pushes")

#: The shared connections: for most calls, for large ones, and for those that wait for replicas.
Kind: TypeAlias = Literal["small", "large", "replicated"]
#: All sessions of this process, and what is held to change or copy them.
_sessions: WeakSet[Servers] = WeakSet()
_sessions_lock = threading.Lock()

_MOVED = "the queues are on another node"
_NUMBER = re.compile(rb"^(used_memory|maxmemory|mem_not_counted_for_evict):(\d+)", re.MULTILINE)


class OpenedConnection:
    """An open connection of a session.

    Attributes:
        purpose: `commands`, `replicated`, `pushes`, `events` or `waits`.
        name: The name that the server was asked to give it.
        id: The server's number for it; None until the server has answered, or if its access rules forbid it.
        answered: Whether the server has answered to both.
        since: When it was opened, by `time.monotonic()`.
        follows: Whether it follows another one of this purpose in its session, which was lost, or leads to
            another node.
    """

    __slots__ = ("answered", "connection", "follows", "id", "name", "purpose", "since")

    def __init__(self, connection: Connection, purpose: str, name: str, *, follows: bool) -> None:
        self.connection = connection
        self.purpose = purpose
        self.name = name
        self.id: int | None = None
        self.answered = False
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


class Server:
    """The connections of a session to one server.

    `address` is the node of a cluster; None: no cluster, or a node that is not known yet.

    Attributes:
        pushes: Receives what is published to the session, and notices about its queues.
        events: Receives published events, over a separate connection: many of them must not delay the other
            messages, and the server ends a connection whose reader is too slow.
    """

    def __init__(self, servers: Servers, address: Address | None) -> None:
        self.servers = servers
        self.address = address
        self.routes = 0
        self._opened: list[OpenedConnection] = []
        #: The connections for commands.
        self._shared: dict[Kind, Connection] = {}
        self._opening: dict[Kind, asyncio.Task[Connection]] = {}
        self._refusal: LeasequeueError | None = None
        self.pushes = Subscriptions(
            partial(self._open_pushes, "pushes"), "pushes", on_forbidden=servers.rights.warn_of_channel
        )
        self.events = Subscriptions(partial(self._open_pushes, "events"), "events", sharded=True)

    @property
    def connections(self) -> list[OpenedConnection]:
        """The open connections; callable from any thread."""
        return [one for one in (*self._opened,) if not one.connection.ended]

    @property
    def last_connections(self) -> list[OpenedConnection]:
        """The lasting connections that were opened last, also those that have ended; from any thread."""
        return [one for one in (*self._opened,) if one.lasting]

    async def connection(self, kind: Kind = "small") -> Connection:
        """Return the connection of a kind that all queues share; open it if there is none."""
        connection = self._shared.get(kind)
        if connection is not None and not connection.closing:
            return connection
        if self._refusal is not None:
            raise ConnectionLost("the connection was closed", maybe_applied=False)
        opening = self._opening.get(kind)
        if opening is None or opening.cancelled():  # perhaps before it began, by the end of asyncio.run
            opening = asyncio.create_task(self._open_shared(kind), name="leasequeue connect")
            self._opening[kind] = opening
        try:
            return await joined(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and self._refusal is not None:
                raise ConnectionLost("the connection was closed", maybe_applied=False) from None
            raise

    async def _open_shared(self, kind: Kind) -> Connection:
        try:
            purpose = "replicated" if kind == "replicated" else "commands"
            self._shared[kind] = await self.open(purpose, reply_timeout=self.servers.reply_timeout)
            return self._shared[kind]
        finally:
            del self._opening[kind]

    async def _open_pushes(self, purpose: str) -> Connection:
        return await self.open(purpose, reply_timeout=self.servers.reply_timeout, pushes=True)

    async def open(self, purpose: str, *, reply_timeout: float, pushes: bool = False) -> Connection:
        """Open a connection, which the caller closes, record it, and name it."""
        servers = self.servers
        # The others may be silent for long, or see by WAIT that the server has been replaced.
        confirm = self._confirm if purpose == "commands" and may_be_replaced(servers.own_client) else None
        connection = await open_connection(
            new_connection(servers.own_client, self.address, pushes=pushes),
            reply_timeout=reply_timeout,
            confirm=confirm,
        )
        if self.address is None:
            self.servers.lead_to(connection.address)
        self._record(purpose, connection)
        return connection

    async def _confirm(self, connection: Connection) -> None:
        """End all connections to the server of this one if another server is the primary now."""
        if await is_primary(self.servers.own_client, self.address or connection.address):
            return
        for one in self.connections:
            if one.connection.address == connection.address:
                one.connection.fail("the server was silent, and another one is the primary now")

    async def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """Send plain commands about this server, all over one connection; return the replies and the errors.

        An error of the server takes the place of the reply.
        """
        return await ask((await self.connection()).post, commands)

    async def is_full(self) -> bool:
        """Return whether this server has reached its `maxmemory`; False if the access rules forbid to ask."""
        [reply] = await self.ask((b"INFO", b"memory"))
        if not isinstance(reply, bytes):
            return False
        numbers = {name: int(number) for name, number in _NUMBER.findall(reply)}
        # Buffers of replicas do not count.
        used = numbers.get(b"used_memory", 0) - numbers.get(b"mem_not_counted_for_evict", 0)
        return 0 < numbers.get(b"maxmemory", 0) < used

    def leave(self) -> None:
        """Note that a route leads elsewhere. After the last one, end the connections when they are idle."""
        self.routes -= 1
        if self.address is None or self.routes > 0:
            return
        for one in self.connections:
            if one.purpose in ("commands", "replicated"):
                one.connection.retire()
        self.servers.forget(self)

    async def close(self, refusal: LeasequeueError) -> None:
        """Receive no more messages, and open no more connections."""
        self._refusal = refusal
        for opening in [*self._opening.values()]:
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await self.pushes.close(refusal)
        await self.events.close(refusal)

    def _record(self, purpose: str, connection: Connection) -> None:
        """Note a connection that has just been opened, and name it, unless the access rules forbid that."""
        name, follows = self.servers.name_connection(purpose)
        opened = OpenedConnection(connection, purpose, name, follows=follows)
        self._opened = [*self.connections, opened]

        def named(_: Any, error: BaseException | None) -> None:
            if not isinstance(error, ConnectionLost):
                opened.answered = True
                if opened.lasting:
                    self.servers.changed()

        connection.post((b"CLIENT", b"ID"), opened.identified)
        connection.post((b"CLIENT", b"SETNAME", name.encode()), named)
        if opened.lasting:
            connection.when_ended(self.servers.changed)


class Servers:
    """The connections of a session to its server, or to the nodes of its cluster that hold its queues.

    The names of the connections end with `name`. If it is `adopted`, the session acts for another one, whose
    id it has.

    Attributes:
        own_client: What finds the server in this event loop.
        nodes: Finds the nodes of the cluster; None: it is not on a cluster.
    """

    def __init__(
        self, client: Client, session_id: str, name: str, *, reply_timeout: float, adopted: bool
    ) -> None:
        self.client = client
        self.session_id = session_id
        self.adopted = adopted
        self._name = name
        self.reply_timeout = reply_timeout
        self.loop = asyncio.get_running_loop()
        self.own_client = separate_client(client)
        self.nodes = self.own_client if isinstance(self.own_client, ClusterNodes) else None
        self.rights = KnownRights(user_of(self.own_client))
        # Where this session acts for another one, that one logs it.
        self.rights.warned = adopted
        self.ending = False
        self._by_address: dict[Address | None, Server] = {}
        #: Those without queues, whose last replies are waited for.
        self._left: list[Server] = []
        self._leaving: set[asyncio.Task[None]] = set()
        with _sessions_lock:
            _sessions.add(self)
        #: The purposes for which there has been a connection.
        self._purposes: set[str] = set()
        self._watchers: list[Callable[[], None]] = []

    @property
    def connections(self) -> list[OpenedConnection]:
        """The open connections; callable from any thread."""
        return [one for server in (*self._left, *self._by_address.values()) for one in server.connections]

    def server_at(self, address: Address | None) -> Server:
        """Return the connections to a node of the cluster; None: to the only server."""
        server = self._by_address.get(address)
        if server is None:
            server = self._by_address[address] = Server(self, address)
        return server

    def forget(self, server: Server) -> None:
        """Close the connections to a node of the cluster that holds no queue of this session any more."""
        if self._by_address.get(server.address) is server and not self.ending:
            del self._by_address[server.address]
            self._left = [one for one in (*self._left, server) if one.connections]
            refusal = ConnectionLost("no queue of this session is there any more", maybe_applied=False)
            task = self.loop.create_task(server.close(refusal), name="leasequeue leave node")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def watch(self, notify: Callable[[], None]) -> None:
        """Call a function when a lasting connection has its id and its name, and when one has ended.

        And when queues have moved to another node. It is called in the event loop of the session.
        """
        self._watchers.append(notify)

    def unwatch(self, notify: Callable[[], None]) -> None:
        """Call this function no more."""
        self._watchers.remove(notify)

    def changed(self) -> None:
        """Call the functions that watch the connections."""
        for notify in (*self._watchers,):
            notify()

    def lead_to(self, address: Address) -> None:
        """Have all sessions of this process leave other addresses: Sentinel has named this one now.

        While two servers are primaries, a session that has connections to both would wait at one for what it
        adds at the other; and a worker's background thread, which has a separate session, would renew there
        what is leased here.
        """
        with _sessions_lock:
            sessions = [*_sessions]
        for one in sessions:
            if one.nodes is not None or all(each.connection.address == address for each in one.connections):
                continue
            if one is self:
                one.leave_others(address)
            elif same_server(one.client, self.client):
                with contextlib.suppress(RuntimeError):  # its event loop has ended
                    one.loop.call_soon_threadsafe(one.leave_others, address)

    def leave_others(self, address: Address) -> None:
        """End the connections to other addresses; those for commands when their replies have arrived."""
        for one in self.connections:
            if one.connection.address == address:
                continue
            if one.purpose == "commands":
                one.connection.retire()
            else:
                one.connection.fail("Sentinel has named another primary")

    def name_connection(self, purpose: str) -> tuple[str, bool]:
        """Return a name for a new connection, and whether it follows another one for this purpose."""
        follows = purpose in self._purposes
        self._purposes.add(purpose)
        return f"leasequeue:{purpose}:{self._name}", follows

    async def close(self, refusal: LeasequeueError) -> None:
        """End all connections. Calls that wait for a reply get ConnectionLost."""
        self.ending = True
        servers = [*self._by_address.values()]
        await asyncio.gather(*(server.close(refusal) for server in servers), *self._leaving)
        await asyncio.gather(*(one.connection.close() for one in self.connections))
        if self.own_client is not self.client:
            await close_client(self.own_client)


class Route:
    """The way of a session to the server that holds some of its queues; on a cluster, those in one slot.

    A dead master answers no MOVED, so each connection that is opened asks again where the slot is. Without a
    slot, the session is not on a cluster.

    Attributes:
        server: Where the queues were found last; of a cluster, one without an address before that.
        found_at: When that was, by `time.monotonic()`.
        subscriptions: The channels of the queues, and whether each is for published events.
        users: How many queue objects use it.
    """

    def __init__(self, servers: Servers, slot: int | None) -> None:
        self.servers = servers
        self.slot = slot
        self.server = servers.server_at(None)
        self.found_at = 0.0
        self.subscriptions: dict[Subscription, bool] = {}
        self.users = 0
        self._opened: WeakSet[Connection] = WeakSet()
        #: The node that an answer has named last, and when.
        self._named: Address | None = None
        self._named_at = 0.0
        #: Called when the route leads to another server than before.
        self.on_move: list[Callable[[], None]] = []

    async def find(self, moved: MovedError | None = None) -> Server:
        """Return the server that holds the queues now.

        Args:
            moved: The answer of one that holds them no more: the others may not know of the move yet.

        Raises:
            ConnectionLost, ServerBusy: If no node of the cluster can be asked.
            ServerRefused: If a server has given this answer, and the session is not on a cluster.
        """
        nodes = self.servers.nodes
        if self.slot is None or nodes is None:
            if moved is not None:
                raise ServerRefused(
                    f"MOVED {moved}: this is a node of a cluster, and the queue is on another one; nothing "
                    "was applied. Make the queue with a RedisCluster, or with `from_url(…, cluster=True)`"
                )
            return self.server
        if moved is not None:
            self._named, self._named_at = nodes.named(moved.host, moved.port), time.monotonic()
        elif time.monotonic() - self._named_at > NAMED_SECONDS:
            self._named = None
        try:
            async with asyncio.timeout(self.servers.reply_timeout):
                address = self._named or await nodes.owner(self.slot)
        except Exception as error:
            raise translate(error, maybe_applied=False) from error
        self.lead_to(address)
        return self.server

    async def connection(self, moved: MovedError | None = None, *, kind: Kind = "small") -> Connection:
        """Return the connection of a kind to the server that holds the queues now. See `find`."""
        server = await self.find(moved)
        while True:
            try:
                return await server.connection(kind)
            except ConnectionLost:
                if self.server is server:
                    self._named = None
                    raise
                server = self.server  # the slot has moved, and the other connection was closed

    def lead_to(self, address: Address) -> None:
        """Lead to this node of the cluster from now on, with all subscriptions."""
        self.found_at = time.monotonic()
        before = self.server
        if before.address == address or self.servers.ending:
            return
        self.server = self.servers.server_at(address)
        self.server.routes += 1
        for function in self.on_move:
            function()
        for connection in [*self._opened]:
            connection.fail(_MOVED)  # a node that stands still, or is cut off, would not end it
        for one, events in [*self.subscriptions.items()]:
            one.go_to(self.server.events if events else self.server.pushes)
        before.leave()
        self.servers.changed()

    async def open(self, purpose: str, *, reply_timeout: float) -> Connection:
        """Open one more connection to the server, which the caller closes; it ends if the queues move."""
        server = await self.find()
        connection = await server.open(purpose, reply_timeout=reply_timeout)
        self._opened.add(connection)
        if self.server is not server:
            connection.fail(_MOVED)
        return connection

    def subscribe(
        self,
        channel: bytes,
        on_message: Callable[[bytes], None],
        on_missed: Callable[[], None],
        on_error: Callable[[LeasequeueError], None] = lambda _: None,
        *,
        events: bool = False,
    ) -> Subscription:
        """Receive what is published to a channel, until the subscription is closed.

        It begins as soon as the server can be reached: see `Subscription.confirmed`. On a cluster, the
        channel has the hash tag of the queues. Published `events` arrive over a connection of their own. See
        `Subscription` for the functions.
        """
        one = Subscription(channel, on_message, on_missed, on_error, find=self.find, on_close=self._closed)
        self.subscriptions[one] = events
        one.go_to(self.server.events if events else self.server.pushes)
        return one

    def _closed(self, one: Subscription) -> None:
        self.subscriptions.pop(one, None)

    def leave(self) -> None:
        """Lead nowhere any more, as no queue object uses it."""
        for one in [*self.subscriptions]:
            one.close()
        self.server.leave()
