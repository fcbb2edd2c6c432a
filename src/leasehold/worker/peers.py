"""Find out that another worker has died: its connections are gone, long before its leases expire.

The workers of a queue form a ring, sorted by their sessions. Each looks after its next successors that live,
so that the cost of a worker does not depend on how many there are, and that any number may die at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError
from leasehold.log import Log
from leasehold.queue.internals import registry, running_engine
from leasehold.scripting.presence import CannotAsk, present

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from leasehold.queue.engine import Engine
    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.scripting.session import Session
    from leasehold.worker.connections import OwnConnections

#: How often a worker looks after its successor (s).
LOOK_SECONDS, SHORTEST_LOOK = 0.5, 0.01
#: For how long the connections of a worker must have been gone before it is failed (s). A worker that lives
#: registers others within milliseconds.
GONE_SECONDS = 2.0
#: A pause of the server, or of this process, counts no longer than this (s): in that time no worker could
#: register.
LONGEST_LOOK = 0.6
#: After the own connection was lost, nothing is concluded until another one has lasted for so long (s): what
#: has cut ours may have cut those of others, too.
STANDING_SECONDS = 5.0
#: How often to read who else works on the queues (s): less often with many workers, or with many queues.
READ_SECONDS, SECONDS_PER_WORKER, SECONDS_PER_QUEUE = 1.0, 0.01, 0.02
#: How many queues are read at once.
READ_AT_ONCE = 100
#: How many workers that live each worker looks after: some of those who look may be frozen, or new.
LOOK_AFTER = 3
#: How often more of them are looked for at one look, and how many connections are asked for at once.
LONGEST_WALK, ASK_AT_ONCE = 10, 300

log = Log("leasehold.worker")


@dataclass(frozen=True)
class Peer:
    """A worker, as it has registered."""

    name: str
    connections: tuple[int, ...]
    server: str

    @classmethod
    def read(cls, text: object) -> Peer:
        """Return what a registration says; nothing can be checked if it is unreadable."""
        try:
            facts: Any = json.loads(text) if isinstance(text, bytes) else {}
            connections = tuple(int(one) for one in facts.get("connections") or ())
            return cls(str(facts.get("name", "")), connections, str(facts.get("server", "")))
        except (ValueError, TypeError, AttributeError):
            return cls("", (), "")

    def can_be_checked(self, server: str) -> bool:
        """Return whether it has registered connections to this server."""
        return bool(self.connections) and self.server == server


@dataclass
class Suspicion:
    """A worker whose connections are gone."""

    peer: Peer
    looked_at: float
    #: How long they have been gone, while we looked (s).
    seconds: float = 0.0


@dataclass(eq=False)
class Ring:
    """The workers of one queue, in the order in which this worker looks after them."""

    queue: AsyncWorkQueue
    #: The engine of the background thread: another one after this worker was failed.
    engine: Engine
    others: list[str] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    suspicions: dict[str, Suspicion] = field(default_factory=dict)

    async def read(self, server: str) -> None:
        """Read who works on the queue, which this server holds."""
        found = await self.engine.read("workers", "ZRANGE", "heartbeats", 0, -1)
        self.others = successors(self.engine.session.id, (one.decode() for one in found))
        known = set(self.others)
        # One that cannot be checked may have registered connections since. The connections of others are
        # read again when they are gone.
        checkable = {name: peer for name, peer in self.peers.items() if peer.can_be_checked(server)}
        self.peers = {name: peer for name, peer in checkable.items() if name in known}
        self.suspicions = {name: one for name, one in self.suspicions.items() if name in known}

    async def peer(self, name: str, *, again: bool = False) -> Peer:
        """Return what a worker has registered."""
        if again or name not in self.peers:
            about = await self.engine.read("workers", "HGET", "workers", name.encode())
            self.peers[name] = Peer.read(about)
        return self.peers[name]

    async def targets(self, server: str, looked: set[str]) -> list[tuple[str, Peer]]:
        """Return the next workers to look after, until enough of them live.

        Args:
            server: The server that holds the queue.
            looked: Those that have been looked after just now; those of them that are not suspected live.
        """
        wanted = LOOK_AFTER - len(looked - self.suspicions.keys())
        found: list[tuple[str, Peer]] = []
        for name in self.others:
            if len(found) >= wanted:
                break
            if name not in looked:
                peer = await self.peer(name)
                if peer.can_be_checked(server):
                    found.append((name, peer))
        return found


def successors(me: str, workers: Iterable[str]) -> list[str]:
    """Return the other workers in the order of the ring, beginning after this one."""
    others = sorted(one for one in workers if one != me)
    return [one for one in others if one > me] + [one for one in others if one < me]


class PeerWatch:
    """Looks after other workers from the background thread, and fails those that have died.

    Args:
        own: The connections of this worker. If they cannot be checked, it concludes nothing about others.
    """

    def __init__(self, own: OwnConnections) -> None:
        self._own = own
        self._rings: dict[AsyncWorkQueue, Ring] = {}
        #: The rings by the server that holds their queues: one question for all of them.
        self._servers: dict[str, list[Ring]] = {}

    async def run(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Look after others until cancelled.

        Args:
            queues: The queues of this worker; they may change meanwhile.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_in_turn(queues))
            tasks.create_task(self._look_in_turn())

    async def _read_in_turn(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Read again and again who works on each queue, and which server holds it."""
        while True:
            rings = self._rings_of(queues)
            servers: defaultdict[str, list[Ring]] = defaultdict(list)
            for at in range(0, len(rings), READ_AT_ONCE):
                part = rings[at : at + READ_AT_ONCE]
                for ring, server in await asyncio.gather(*map(self._read, part)):
                    if server and ring.others:
                        servers[server].append(ring)
            self._servers = dict(servers)
            workers = max((len(ring.others) for ring in rings), default=0)
            costs = (workers * SECONDS_PER_WORKER, len(rings) * SECONDS_PER_QUEUE)
            await asyncio.sleep(max(READ_SECONDS, *costs) * random.uniform(0.8, 1.0))  # noqa: S311 - no secret

    def _rings_of(self, queues: Collection[AsyncWorkQueue]) -> list[Ring]:
        """Return the rings of the queues, each with the current engine."""
        before, self._rings = self._rings, {}
        for queue in [*queues]:
            engine, ring = running_engine(queue), before.get(queue)
            if engine is not None:
                is_current = ring is not None and ring.engine is engine
                self._rings[queue] = ring if ring and is_current else Ring(queue, engine)
        return [*self._rings.values()]

    async def _read(self, ring: Ring) -> tuple[Ring, str]:
        """Read who works on a queue; return its server, or an empty text if nothing can be concluded."""
        server = self._own.vouched(ring.queue).server
        try:
            if server:
                await ring.read(server)
        except LeaseholdError:
            server = ""
        if not server:
            ring.suspicions.clear()
        return ring, server

    async def _look_in_turn(self) -> None:
        while True:
            began = time.monotonic()
            for server, rings in [*self._servers.items()]:
                try:
                    await self._look(server, rings)
                except LeaseholdError:  # the connection is lost, or the server away: others may be, too
                    _forget(rings)
                except CannotAsk as error:
                    _forget(rings)
                    self._own.switch_off(str(error))
            await asyncio.sleep(max(SHORTEST_LOOK, self._next_look(began) - time.monotonic()))

    def _next_look(self, began: float) -> float:
        """Return when to look again: after the usual time, or when a worker has been gone for long enough."""
        rings = [ring for rings in self._servers.values() for ring in rings]
        suspicions = [one for ring in rings for one in ring.suspicions.values()]
        due = [one.looked_at + GONE_SECONDS - one.seconds for one in suspicions]
        return min([began + LOOK_SECONDS, *due])

    async def _look(self, server: str, rings: list[Ring]) -> None:
        """Look after the successors in some rings, and fail those that have been gone for long enough."""
        session = rings[0].engine.session
        looked: dict[Ring, set[str]] = {ring: set() for ring in rings}
        for _ in range(LONGEST_WALK):
            targets = [
                (ring, *target) for ring in rings for target in await ring.targets(server, looked[ring])
            ]
            if not targets:
                break
            there = await _listed(session, {one for _, _, peer in targets for one in peer.connections})
            for ring, name, peer in targets:
                looked[ring].add(name)
                if there.isdisjoint(peer.connections):
                    await self._gone(ring, name, peer)
                else:
                    ring.suspicions.pop(name, None)
        if standing(session) < STANDING_SECONDS:
            return
        for ring in rings:
            for name, suspicion in [*ring.suspicions.items()]:
                if suspicion.seconds >= GONE_SECONDS and await _is_dead(server, ring, name, suspicion):
                    await self._bury(ring, name, suspicion.peer)

    async def _gone(self, ring: Ring, name: str, peer: Peer) -> None:
        """Note that the connections of a worker are gone, unless it has registered others."""
        now, suspicion = time.monotonic(), ring.suspicions.get(name)
        if suspicion is None or suspicion.peer.connections != peer.connections:
            current = await ring.peer(name, again=True)
            ring.suspicions[name] = Suspicion(current, now)
            if current.connections != peer.connections:
                del ring.suspicions[name]
            return
        suspicion.seconds += min(now - suspicion.looked_at, LONGEST_LOOK)
        suspicion.looked_at = now

    async def _bury(self, ring: Ring, name: str, peer: Peer) -> None:
        """Fail a worker that is dead."""
        count = await registry(ring.queue).fail(name, connections=peer.connections)
        del ring.suspicions[name]
        ring.others = [one for one in ring.others if one != name]
        if count is not None:
            log.warning(
                "worker %s has died: its connections are gone. %d of its items returned to %s",
                peer.name or name,
                count,
                ring.queue.name,
            )


async def _is_dead(server: str, ring: Ring, name: str, suspicion: Suspicion) -> bool:
    """Return whether a worker still has no connection, to the server where it has registered them."""
    peer = await ring.peer(name, again=True)
    if peer.connections != suspicion.peer.connections:
        del ring.suspicions[name]
        return False
    channel = ring.engine.keys.prefix + b":push:" + name.encode()
    seen = await present(ring.engine.session, peer.connections, identify=True, channel=channel)
    if seen.names or seen.server != server or peer.server != server or seen.subscribers:
        del ring.suspicions[name]
        return False
    return True


async def _listed(session: Session, ids: set[int]) -> set[int]:
    """Return those of the connections that the server has."""
    found: set[int] = set()
    ordered = sorted(ids)
    for at in range(0, len(ordered), ASK_AT_ONCE):
        found.update((await present(session, ordered[at : at + ASK_AT_ONCE])).names)
    return found


def standing(session: Session) -> float:
    """Return for how long nothing has been lost of the connection over which others are looked after (s)."""
    ours = [one for one in session.connections if one.purpose == "commands"]
    return min((time.monotonic() - one.since if one.follows else math.inf for one in ours), default=0.0)


def _forget(rings: Sequence[Ring]) -> None:
    for ring in rings:
        ring.suspicions.clear()


async def fail_sessions(queues: Iterable[AsyncWorkQueue], sessions: Sequence[tuple[str, str]]) -> None:
    """Fail the sessions of a process that is known to be dead.

    An error is logged, and the rest is not tried again here: peers fail the session when its registration
    has expired or its connections are gone, and at the latest its leases expire.

    Args:
        queues: The queues of this worker.
        sessions: The pairs of a queue and a session of the dead process.
    """
    of_queue: defaultdict[str, list[str]] = defaultdict(list)
    for name, session in sessions:
        of_queue[name].append(session)
    for queue in queues:
        for session in of_queue[queue.name]:
            try:
                count = await registry(queue).fail(session)
            except LeaseholdError as error:
                log.warning("the leases of a dead process on %s could not be ended: %s", queue.name, error)
                continue
            if count is not None:
                log.info("%d items of a dead process returned to %s", count, queue.name)
