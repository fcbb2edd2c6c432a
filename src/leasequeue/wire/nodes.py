"""Finds the node of a cluster that holds a slot, also after a fail-over.

A dead master answers no MOVED, so each connection that is opened asks again where its slot is. redis-py's own
client reads the slots again only after errors of commands that it sends, and ours do not pass through it; it
asks node after node, waits for each that is silent, and fills a table of all 16,384 slots for each answer.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, NamedTuple

from redis.asyncio.cluster import ClusterNode

from leasequeue.wire.connection import once_only
from leasequeue.wire.server_errors import is_lost
from leasequeue.wire.tls import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import RedisCluster

#: For how long an answer is used for other connections (s).
FRESH_SECONDS = 0.2
#: After how many seconds of silence the next node is asked as well (s).
SILENT_SECONDS = 0.25
#: For how many clusters a process remembers the nodes.
MAX_CLUSTERS = 100

Address = tuple[str, int]

#: The nodes that the last answer has named, by those that the user has named: new sessions begin with both.
_learned: dict[frozenset[Address], tuple[Address, ...]] = {}
#: Held to change them, and not to read them.
_learning = threading.Lock()


class Shard(NamedTuple):
    """Slots that are on the same nodes: the master, then its replicas."""

    first: int
    last: int
    nodes: tuple[Address, ...]


class ClusterNodes:
    """The nodes of a cluster, as one session knows them.

    Of the user's client, only the settings and the addresses are used.
    """

    def __init__(self, client: RedisCluster) -> None:
        self.connection_kwargs = client.connection_kwargs
        self._remap = client.nodes_manager.remap_host_port
        self._seeds = frozenset(
            (node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values()
        )
        self._shards: tuple[Shard, ...] = ()
        self._asked_at = float("-inf")
        #: Why no node could be asked at that time; None: one has answered.
        self._error: Exception | None = None
        self._asking = asyncio.Lock()
        #: The node that answered last, and the one that was connected to last: they may have just died, or be
        #: separated from the others.
        self._doubtful: set[Address] = set()

    def node(self, address: Address) -> ClusterNode:
        """Return a node with the settings of its connections."""
        return ClusterNode(*address, **self.connection_kwargs)

    async def owner(self, slot: int) -> Address:
        """Return the address of the node that holds a slot."""
        for shard in await self._current():
            if shard.first <= slot <= shard.last:
                self._doubtful.add(shard.nodes[0])
                return shard.nodes[0]
        raise ConnectionError("no node of the cluster owns the slot of this queue")

    async def masters(self) -> list[ClusterNode]:
        """Return the nodes that hold slots."""
        return [self.node(one) for one in dict.fromkeys(shard.nodes[0] for shard in await self._current())]

    async def serves(self, address: Address) -> bool:
        """Return whether this node holds slots, as the others say. It may not know yet that it does not.

        Only the names are asked that the nodes give each other: this one may have another one for the user.
        """
        others = {node for shard in self._shards for node in shard.nodes} - {address}
        if not others:
            return True  # none could have taken its place
        answered, self._shards = await self._ask([*others])
        self._asked_at, self._error = asyncio.get_running_loop().time(), None
        self._doubtful = {answered, address}
        return any(shard.nodes[0] == address for shard in self._shards)

    def named(self, host: str, port: int) -> Address | None:
        """Return the node that an answer has named; None if it has not: then it is the one that answered."""
        found: Address | None = self._remap(host, port) if host else None
        return found

    async def _current(self) -> tuple[Shard, ...]:
        """Return the shards; ask for them, unless they were asked for just now."""
        time = asyncio.get_running_loop().time
        async with self._asking:
            if time() - self._asked_at >= FRESH_SECONDS:
                self._error = None
                try:
                    answered, self._shards = await self._ask(self._candidates())
                except Exception as error:
                    self._error = error
                    raise
                finally:
                    self._asked_at = time()
                self._doubtful = {answered}
                _learn(self._seeds, (node for shard in self._shards for node in shard.nodes))
            if self._error is not None:
                raise self._error
            return self._shards

    def _candidates(self) -> list[Address]:
        """Return the nodes in the order in which to ask them: not all clients the same one first."""
        known = [*{*self._seeds, *_learned.get(self._seeds, ())}]
        random.shuffle(known)
        return sorted(known, key=self._doubtful.__contains__)

    async def _ask(self, candidates: list[Address]) -> tuple[Address, tuple[Shard, ...]]:
        """Return the first node that answers, and its answer. If one is silent, ask the next as well."""
        asking: dict[asyncio.Task[tuple[Shard, ...]], Address] = {}
        errors: list[BaseException] = []
        try:
            while candidates or asking:
                if candidates:
                    address = candidates.pop(0)
                    asking[asyncio.create_task(self._shards_of(address))] = address
                done, _ = await asyncio.wait(
                    asking,
                    timeout=SILENT_SECONDS if candidates else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for one in done:
                    address, error = asking.pop(one), one.exception()
                    if error is None:
                        return address, one.result()
                    errors.append(error)
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        # A node that has refused says more than others that are away.
        raise min(errors, key=is_lost)

    async def _shards_of(self, address: Address) -> tuple[Shard, ...]:
        node = self.node(address)
        connection = node.connection_class(**once_only(node.connection_kwargs, pushes=False))
        try:
            await connect(connection)
            await connection.send_command("CLUSTER", "SLOTS")
            reply = await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)
        shards = tuple(
            Shard(first, last, tuple(self._address(one, address) for one in nodes))
            for first, last, *nodes in reply
        )
        if not shards:
            raise ConnectionError(f"the node {node.name} knows no slots: it has left the cluster")
        return shards

    def _address(self, named: list[bytes | int | None], answered: Address) -> Address:
        """Return the address of a node. Without a host it is that of the node which has answered."""
        host, port = named[0], int(named[1] or 0)
        name = host.decode() if isinstance(host, bytes) else ""
        found: Address = self._remap(answered[0] if name in ("", "?") else name, port)
        return found


def _learn(seeds: frozenset[Address], nodes: Iterable[Address]) -> None:
    with _learning:
        _learned.pop(seeds, None)
        _learned[seeds] = tuple(dict.fromkeys(nodes))
        if len(_learned) > MAX_CLUSTERS:
            del _learned[next(iter(_learned))]  # what was learned longest ago
