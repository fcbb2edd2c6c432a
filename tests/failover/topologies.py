"""Servers that replace each other: under Sentinel, in a cluster, and a single one that is started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError

from leasequeue.embedded.guardian import Guarded, private_folder
from leasequeue.testing import Proxy
from tests import servers
from tests.faults.cluster_nodes import NODES, join, node_words
from tests.ports import free_port
from tests.queue.asking import command, until

if TYPE_CHECKING:
    from asyncio import StreamReader
    from pathlib import Path
    from types import TracebackType

#: All keys have this tag, so that they are on one node of a cluster.
TAG = "{failover}"
SLOT = key_slot(TAG.encode())
SENTINELS = 3
#: For how long redis-py's own client waits for a reply (s); Leasequeue waits as long in these rows.
REPLY_SECONDS = 1.0
#: How long a server may take to answer, and how long a change of roles may take (s).
TIMEOUT = 60.0
#: The users of Sentinels and replicas, which can be locked out of a server that clients still reach.
PEERS = ("sentinel", "replica-1", "replica-2")
#: The login of clients.
LOGIN = {"username": "client", "password": "secret"}
#: What makes a server keep each write that it acknowledges.
KEEPS = ("--appendonly", "yes", "--appendfsync", "always")
USERS = [
    word for name in (*PEERS, "client") for word in ("--user", name, "on", ">secret", "~*", "&*", "+@all")
]


class Node:
    """A server, or a Sentinel, that can be killed, frozen and started again.

    Args:
        port: Where it listens.
        words: Its arguments.
        host: The address that it listens at.
        login: The user and the password with which the tests look at it.
    """

    def __init__(self, port: int, *words: object, host: str = "127.0.0.1", **login: Any) -> None:
        self.port, self.host = port, host
        self._command = [str(servers.program("embedded")), *map(str, words)]
        self.redis = Redis(
            host=host, port=port, socket_timeout=REPLY_SECONDS, retry=Retry(NoBackoff(), 0), **login
        )
        self._guarded: Guarded | None = None
        self.pid = 0

    async def start(self) -> Self:
        """Run it; return when it answers, or loads what it has kept."""
        self._guarded = Guarded(private_folder(), self._command, lock=None, grace=0)

        async def answers() -> bool:
            with contextlib.suppress(OSError, RedisError):
                self.pid = (await self.redis.info("server"))["process_id"]
            return self.pid > 0

        self.pid = 0
        await until("the server answers", answers, within=TIMEOUT)
        return self

    def kill(self) -> None:
        """Kill it at once, unless it is dead."""
        guarded, self._guarded = self._guarded, None
        if guarded is not None:
            guarded.kill()

    def freeze(self) -> None:
        """Stop its process, which keeps its connections."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    async def role(self) -> str:
        """Return `master` or `slave`; nothing if it does not answer."""
        with contextlib.suppress(OSError, RedisError):
            return str((await self.redis.info("replication"))["role"])
        return ""


class Topology:
    """Servers that hold the queues of a workload, and clients that find them.

    Attributes:
        renamed: Whether a name leads to another server than before.
        nodes: All servers with data.
        cluster: Whether they are a cluster.
        replicas: How many replicas the primary has.
    """

    cluster = False
    replicas = 0
    renamed = False

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        raise NotImplementedError

    def client(self, **settings: Any) -> Any:
        """Return a client, as a program makes it."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where other processes find the servers; under Sentinel they cannot."""
        return "redis://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    async def primary(self) -> Node:
        """Return the server that has the queues now."""
        for node in self.nodes:
            if await node.role() == "master":
                return node
        raise AssertionError("no server is the primary")

    async def promoted(self, before: Node) -> Node:
        """Wait until another server than before is the primary, and return it."""
        found = before

        async def is_another() -> bool:
            nonlocal found
            with contextlib.suppress(AssertionError):
                found = await self.primary()
            return found is not before

        await until("another server is the primary", is_another, within=TIMEOUT)
        return found

    async def replicate(self) -> None:
        """Return when all replicas have what was written until now."""
        primary = await self.primary()
        if self.replicas:
            async with primary.redis.client() as one:  # WAIT counts the writes of its connection
                await one.set(f"{TAG}:confirmed", 1)

                async def have_it() -> bool:
                    return bool(await command(one, "WAIT", self.replicas, 500) >= self.replicas)

                await until("all replicas have it", have_it, within=TIMEOUT)

    async def lock(self, node: Node, *users: str) -> None:
        """Cut a server off from Sentinels or replicas, and not from clients."""
        for user in users:
            await command(node.redis, "ACL SETUSER", user, "off")
            await command(node.redis, "CLIENT KILL", "USER", user)

    async def unlock(self, node: Node, *users: str) -> None:
        """Let them in again."""
        for user in users:
            await command(node.redis, "ACL SETUSER", user, "on")

    def folder(self) -> Path:
        """Return a folder that lasts as long as the servers, also when one is started again."""
        folder = private_folder()
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    async def run(self, node: Node) -> Node:
        """Start a server, which ends with the others."""
        self._stack.push_async_callback(node.redis.aclose)
        self._stack.callback(node.kill)
        await node.start()
        return node


class Single(Topology):
    """One server, at a name that can lead to another address.

    Args:
        aof: Whether it keeps each write.
    """

    def __init__(self, *, aof: bool) -> None:
        super().__init__()
        self._aof = aof
        self._address = "127.0.0.1"
        self.port = free_port()

    async def _start(self) -> None:
        names = socket.getaddrinfo

        def resolve(host: Any, *rest: Any, **more: Any) -> Any:
            return names(self._address if host == "queue.test" else host, *rest, **more)

        self._stack.enter_context(patch.object(socket, "getaddrinfo", resolve))
        # Loading takes a while, so that clients meet it.
        keeps = (*KEEPS, "--key-load-delay", 100) if self._aof else ()
        await self.add(self._address, *keeps)

    async def add(self, address: str, *words: object) -> Node:
        """Run a server at an address of this machine, at the same port."""
        where = ("--bind", address, "--port", self.port, "--save", "", "--dir", self.folder())
        self.nodes.append(Node(self.port, *where, *words, host=address))
        return await self.run(self.nodes[-1])

    def lead_to(self, node: Node) -> None:
        """Let the name lead to another server."""
        self._address, self.renamed = node.host, True

    def client(self, **settings: Any) -> Redis:
        """Return a client of the name."""
        return Redis(host="queue.test", port=self.port, **settings)


class Watched(Topology):
    """A primary and its replicas that Sentinels watch.

    Args:
        replicas: How many replicas.
        min_replicas: Whether the primary refuses writes without a replica.
        serve_stale: Whether a replica answers reads while it has no primary.
        prefer: The replica that is promoted first; None: the one that has more.
    """

    def __init__(
        self,
        *,
        replicas: int = 2,
        min_replicas: bool = False,
        serve_stale: bool = True,
        prefer: int | None = None,
    ) -> None:
        super().__init__()
        self.replicas = replicas
        self._prefer = prefer
        self._words: list[object] = ["--replica-serve-stale-data", "yes" if serve_stale else "no"]
        if min_replicas:
            self._words += ["--min-replicas-to-write", 1, "--min-replicas-max-lag", 2]
        self.sentinels: list[Node] = []

    async def _start(self) -> None:
        first = free_port()
        for number in range(1 + self.replicas):
            port = free_port() if number else first
            words: list[object] = [
                "--bind",
                "127.0.0.1",
                "--port",
                port,
                "--save",
                "",
                "--dir",
                self.folder(),
            ]
            words += ["--repl-diskless-sync-delay", 0, "--repl-ping-replica-period", 1, *USERS, *self._words]
            words += ["--user", "default", "off"]
            words += ["--masteruser", PEERS[max(number, 1)], "--masterauth", "secret"]
            if self._prefer is not None:  # the others are never promoted, even if it answers later than they
                words += ["--replica-priority", 1 if number == self._prefer else 0]
            words += ["--replicaof", f"127.0.0.1 {first}"] if number else []
            self.nodes.append(await self.run(Node(port, *words, **LOGIN)))
        for _ in range(SENTINELS):
            folder, port = self.folder(), free_port()
            (folder / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor main 127.0.0.1 {first} 2\n"
                "sentinel auth-user main sentinel\nsentinel auth-pass main secret\n"
                "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
            )
            self.sentinels.append(await self.run(Node(port, folder / "sentinel.conf", "--sentinel")))

        async def complete() -> bool:
            views: list[Any] = [await one.redis.sentinel_master("main") for one in self.sentinels]
            others = {(view["num-slaves"], view["num-other-sentinels"]) for view in views}
            links = [(await one.redis.info("replication"))["master_link_status"] for one in self.nodes[1:]]
            return others == {(self.replicas, SENTINELS - 1)} and {*links} == {"up"}

        await until("the Sentinels know each other", complete, within=TIMEOUT)

    async def primary(self) -> Node:
        """Return the server that the Sentinels name."""
        for sentinel in self.sentinels:
            with contextlib.suppress(OSError, RedisError):
                place = await command(sentinel.redis, "SENTINEL GET-MASTER-ADDR-BY-NAME", "main")
                node = next(node for node in self.nodes if node.port == int(place[1]))
                if await node.role() == "master":
                    return node
        raise AssertionError("no server is the primary")

    def client(self, **settings: Any) -> Redis:
        """Return a client of the present primary."""
        places = [("127.0.0.1", one.port) for one in self.sentinels]
        sentinel = Sentinel(places, sentinel_kwargs=settings, **LOGIN, **settings)  # type: ignore[no-untyped-call]  # theirs has no types
        for one in sentinel.sentinels:  # which the client of the primary does not close
            self._stack.push_async_callback(one.aclose)
        found: Redis = sentinel.master_for("main")
        return found


class BusProxy(Proxy):
    """A proxy for the messages of the other nodes of a cluster to one of them.

    Attributes:
        excluded: The id of a node whose messages are not forwarded.
    """

    excluded = b""

    async def _next_chunk(self, reader: StreamReader) -> bytes:
        chunk = await super()._next_chunk(reader)
        if self.excluded and chunk[40:80] == self.excluded:  # where a message names its sender
            raise EOFError
        return chunk


class Clustered(Topology):
    """A cluster of three masters with a replica each.

    Args:
        seed: Which node the clients are given, by its place: 0 is the first master. None: the master that has
            the queues.
        proxied: Whether the nodes reach each other through proxies.
        aof: Whether they keep each write.
    """

    cluster, replicas = True, 1

    def __init__(self, *, seed: int | None = 0, proxied: bool = False, aof: bool = False) -> None:
        super().__init__()
        self._keeps: tuple[str, ...] = KEEPS if aof else ()
        self._proxied = proxied
        self._buses: dict[Node, BusProxy] = {}
        self._seed = SLOT * NODES // 16384 if seed is None else seed

    async def _start(self) -> None:
        addresses = [await self.add() for _ in range(NODES * 2)]
        await join([node.redis for node in self.nodes], addresses, replicas=1)

    async def add(self) -> tuple[str, int, int]:
        """Run one more server, which has not joined, and return its address."""
        port, bus = free_port(), free_port()
        words = [*node_words(port, bus, self.folder()), *USERS, *self._keeps]
        words += ["--masteruser", PEERS[1], "--masterauth", "secret"]
        proxy = BusProxy(f"redis://127.0.0.1:{bus}")
        if self._proxied:
            await self._stack.enter_async_context(proxy)
            bus = urlsplit(proxy.url).port or 0
            words += ["--cluster-announce-bus-port", bus]
        self.nodes.append(await self.run(Node(port, *words)))
        self._buses[self.nodes[-1]] = proxy
        return "127.0.0.1", port, bus

    async def cut_off(self, node: Node) -> None:
        """Cut a node off from the others, and not from clients."""
        await self.lock(node, PEERS[1])
        excluded = await command(node.redis, "CLUSTER MYID")
        await self._buses[node].fail()
        for proxy in self._buses.values():
            proxy.excluded = excluded

    async def heal(self, node: Node) -> None:
        """Let the nodes reach each other again."""
        for proxy in self._buses.values():
            proxy.excluded = b""
        await self._buses[node].heal()
        await self.unlock(node, PEERS[1])

    def client(self, **settings: Any) -> RedisCluster:
        """Return a client that is given one node."""
        return RedisCluster(host="127.0.0.1", port=self.nodes[self._seed].port, **settings)

    async def primary(self) -> Node:
        """Return the node that has the slot of the queues."""
        return await self.owner(SLOT)

    async def owner(self, slot: int) -> Node:
        """Return the node that has a slot, by what most nodes say."""
        votes: list[int] = []
        for node in self.nodes:
            with contextlib.suppress(OSError, RedisError):
                for first, last, master, *_ in await command(node.redis, "CLUSTER SLOTS"):
                    votes += [master[1]] if first <= slot <= last else []
        chosen = max({*votes}, key=votes.count, default=0)
        found = [node for node in self.nodes if node.port == chosen and await node.role() == "master"]
        assert found, "no node that answers has the slot"
        return found[0]

    async def replica_of(self, node: Node) -> Node:
        """Return the first replica of a master that is connected to it."""
        for one in self.nodes:
            with contextlib.suppress(OSError, RedisError):
                info = await one.redis.info("replication")
                if info["role"] == "slave" and int(info["master_port"]) == node.port:
                    return one
        raise AssertionError("the master has no replica")
