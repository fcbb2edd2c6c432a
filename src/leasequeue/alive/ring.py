"""Find out that another process has died: its connections are gone, long before its leases expire.

The workers of a queue form a ring, sorted by their sessions. Each looks after its next successors that live,
so that the cost of a worker does not depend on how many there are, and that any number may die at once. The
copies of an autoscaler look after the one that leads.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.alive.connections import CannotAsk, Mark, OwnConnections, present
from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.queue.queue import engine_of, engines_of
from leasequeue.queue.registry import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.wire.server import Server

#: How often a worker looks after its successor (s).
LOOK_SECONDS, SHORTEST_LOOK = 0.5, 0.01
#: For how long the connections of a worker must have been gone before it is failed, unless it says otherwise
#: (s). One that lives registers others within milliseconds, or at the latest half a second after a restart of
#: the server, which may take 2 s. As it stops its runs after that time, none runs twice.
GONE_SECONDS = 2.5
#: A pause of the server, or of this process, counts no longer than this (s): in that time no worker could
#: register. So on a starved host, where each look takes seconds, three looks are enough.
LONGEST_LOOK = 1.25
#: After the own connection was lost, nothing is concluded until another one has lasted for so long (s): what
#: has cut ours may have cut those of others, too.
STANDING_SECONDS = 5.0
#: How often to read who else works on the queues (s): less often with many workers, or with many queues.
READ_SECONDS, SECONDS_PER_WORKER, SECONDS_PER_QUEUE = 1.0, 0.01, 0.02
#: How many queues are read at once.
READ_AT_ONCE = 100
#: How many workers that live each worker looks after: some of those who look may be frozen, or new.
LOOK_AFTER = 3
#: How often more of them are looked for at one look. Each time, as many again as were dead: so it meets those
#: that live behind 1,500 dead ones.
LONGEST_WALK = 10
#: How many connections are asked for at once, and how many registrations are read, or failed, at once.
ASK_AT_ONCE, PEERS_AT_ONCE = 300, 100

log = Log("leasequeue.worker")


class Peer(NamedTuple):
    """A worker, as it has registered."""

    name: str
    mark: Mark
    #: For how long its connections must have been gone (s).
    gone_after: float

    @classmethod
    def read(cls, text: object) -> Peer:
        """Return what a registration says; nothing can be checked if it is unreadable."""
        facts = read_facts(text)
        named = facts.get("connections")
        if not isinstance(named, list) or not all(map(_is_connection, named)):
            named = ()  # the server would refuse to look for these, and with them for all others
        try:
            gone_after = float(facts.get("gone_after", GONE_SECONDS))
        except (ValueError, TypeError, OverflowError):
            gone_after = -1.0
        mark = Mark(tuple(named), str(facts.get("server", "")))
        return cls(str(facts.get("name", "")), mark, gone_after if gone_after >= 0 else GONE_SECONDS)

    def can_be_checked(self, server: str) -> bool:
        """Return whether it has registered connections to this server."""
        return bool(self.mark.connections) and self.mark.server == server


class Suspicion:
    """That a process is dead, as its connections are gone.

    Attributes:
        looked_at: When they were last looked for, by `time.monotonic()`.
        seconds: For how long they have been gone, while we looked.
    """

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.looked_at = time.monotonic()
        self.seconds = 0.0

    def confirm(self) -> None:
        """Note that they are still gone."""
        now = time.monotonic()
        self.seconds += min(now - self.looked_at, LONGEST_LOOK)
        self.looked_at = now


@dataclass(eq=False)
class Ring:
    """The workers of one queue, in the order in which this worker looks after them."""

    queue: AsyncWorkQueue
    #: The engine of the background thread: another one after this worker was failed.
    engine: Engine
    others: list[str] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    suspicions: dict[str, Suspicion] = field(default_factory=dict)

    async def read(self, server: str) -> bool:
        """Read who works on the queue, which this server holds; return whether this worker is among them."""
        members = await self.engine.read("workers", "ZRANGE", "heartbeats", 0, -1)
        # One that is no text was written by another client, and has no registration under this name.
        found = [one.decode(errors="replace") for one in members]
        self.others = successors(self.engine.session.id, found)
        # One that cannot be checked may have registered connections since. The connections of others are
        # read again when they are gone.
        checkable = {name: peer for name, peer in self.peers.items() if peer.can_be_checked(server)}
        self.peers = {name: checkable[name] for name in self.others if name in checkable}
        self.suspicions = {name: one for name, one in self.suspicions.items() if name in self.peers}
        return self.engine.session.id in found

    async def peers_of(self, names: Sequence[str], *, again: bool = False) -> list[Peer]:
        """Return what workers have registered."""
        known = {} if again else {one: self.peers[one] for one in names if one in self.peers}
        missing = [one for one in names if one not in known]
        for at in range(0, len(missing), PEERS_AT_ONCE):
            part = missing[at : at + PEERS_AT_ONCE]
            found = await self.engine.read("workers", "HMGET", "workers", *(one.encode() for one in part))
            known.update(zip(part, map(Peer.read, found), strict=True))
        self.peers.update(known)
        return [known[one] for one in names]

    async def targets(self, server: str, looked: set[str]) -> list[tuple[str, Peer]]:
        """Return the next workers to look after, until enough of them live.

        `looked` are those that have been looked after just now: of them, those live that are not suspected.
        """
        living = len(looked - self.suspicions.keys())
        if living >= LOOK_AFTER:
            return []
        # As many again as were looked after in vain, so that a long row of dead ones takes few steps.
        wanted = max(LOOK_AFTER - living, len(looked))
        found: list[tuple[str, Peer]] = []
        unseen = [one for one in self.others if one not in looked]
        while unseen and len(found) < wanted:
            names, unseen = unseen[:wanted], unseen[wanted:]
            peers = zip(names, await self.peers_of(names), strict=True)
            found += [(name, peer) for name, peer in peers if peer.can_be_checked(server)]
        return found

    async def suspect(self, names: Sequence[str]) -> None:
        """Note that the connections of workers are gone, unless they have registered others."""
        new = []
        for name, peer in zip(names, await self.peers_of(names), strict=True):
            suspicion = self.suspicions.get(name)
            if suspicion is None or suspicion.mark != peer.mark:
                new.append((name, peer.mark))
            else:
                suspicion.confirm()
        current = await self.peers_of([name for name, _ in new], again=True)
        for (name, seen), peer in zip(new, current, strict=True):
            self.suspicions.pop(name, None)
            if peer.mark.connections == seen.connections:
                self.suspicions[name] = Suspicion(peer.mark)

    async def confirm(self, server: str, names: Sequence[str]) -> dict[str, Peer]:
        """Return those of the suspected workers that still have no connection, to this server.

        The others are suspected no more.
        """
        current = dict(zip(names, await self.peers_of(names, again=True), strict=True))
        seen = await present(
            self.engine.route.server,
            sorted({one for peer in current.values() for one in peer.mark.connections} or {1}),
            identify=True,
            channels=[self.channel_of(name) for name in names],
        )
        return {
            name: peer
            for name, peer in current.items()
            if (before := self.suspicions.pop(name, None))
            and before.mark == peer.mark
            and peer.mark.server == seen.server == server
            and seen.names.keys().isdisjoint(peer.mark.connections)
            and not seen.subscribers[self.channel_of(name)]
        }

    def channel_of(self, name: str) -> bytes:
        """Return the channel on which a worker receives what is sent to it."""
        return self.engine.keys.prefix + b":push:" + name.encode()


def _is_connection(one: object) -> bool:
    """Return whether a server may have a connection of this id."""
    return type(one) is int and 0 < one < 1 << 63


def successors(me: str, workers: Iterable[str]) -> list[str]:
    """Return the other workers in the order of the ring, beginning after this one."""
    others = sorted(one for one in workers if one != me)
    return [one for one in others if one > me] + [one for one in others if one < me]


class PeerWatch:
    """Looks after other workers from the background thread, and fails those that have died.

    Args:
        own: The connections of this worker. If they cannot be checked, it concludes nothing about others.
        on_read: Called with a queue, whether this worker is registered on it (if not, it was failed, or the
            server has lost data), and whether others are.
    """

    def __init__(
        self,
        own: OwnConnections,
        on_read: Callable[[AsyncWorkQueue, bool, bool], None] = lambda *_: None,
    ) -> None:
        self._own = own
        self._on_read = on_read
        self._rings: dict[AsyncWorkQueue, Ring] = {}
        #: The rings by the server that holds their queues: one question for all of them.
        self._servers: dict[str, list[Ring]] = {}

    async def run(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Look after others until cancelled.

        The queues may change meanwhile.
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
                for ring, server in zip(part, await asyncio.gather(*map(self._read, part)), strict=True):
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
            engine, ring = engines_of(queue).running, before.get(queue)
            if engine is not None:
                is_current = ring is not None and ring.engine is engine
                self._rings[queue] = ring if ring and is_current else Ring(queue, engine)
        return [*self._rings.values()]

    async def _read(self, ring: Ring) -> str:
        """Read who works on a queue; return its server, or an empty text if nothing can be concluded."""
        server = self._own.mark(ring.queue).server
        try:
            if server:
                is_registered = await ring.read(server)
                self._on_read(ring.queue, is_registered, bool(ring.others))
        except LeasequeueError:
            server = ""
        if not server:
            ring.suspicions.clear()
        return server

    async def _look_in_turn(self) -> None:
        while True:
            began = time.monotonic()
            for server, rings in [*self._servers.items()]:
                try:
                    await self._look(server, rings)
                except (LeasequeueError, CannotAsk) as error:
                    # If the connection is lost, or the server away, others may have lost theirs, too.
                    for ring in rings:
                        ring.suspicions.clear()
                    if isinstance(error, CannotAsk):
                        self._own.switch_off(str(error))
            await asyncio.sleep(max(SHORTEST_LOOK, self._next_look(began) - time.monotonic()))

    def _next_look(self, began: float) -> float:
        """Return when to look again: after the usual time, or when a worker has been gone for long enough."""
        rings = [ring for rings in self._servers.values() for ring in rings]
        due = [
            one.looked_at + ring.peers[name].gone_after - one.seconds
            for ring in rings
            for name, one in ring.suspicions.items()
        ]
        return min([began + LOOK_SECONDS, *due])

    async def _look(self, server: str, rings: list[Ring]) -> None:
        """Look after the successors in some rings, and fail those that have been gone for long enough."""
        asked = rings[0].engine.route.server
        looked: dict[Ring, set[str]] = {ring: set() for ring in rings}
        for _ in range(LONGEST_WALK):
            targets = [
                (ring, *target) for ring in rings for target in await ring.targets(server, looked[ring])
            ]
            if not targets:
                break
            heard = await _subscribed(asked, [ring.channel_of(name) for ring, name, _ in targets])
            silent = [peer for ring, name, peer in targets if not heard[ring.channel_of(name)]]
            there = await _listed(asked, {one for peer in silent for one in peer.mark.connections})
            gone: defaultdict[Ring, list[str]] = defaultdict(list)
            for ring, name, peer in targets:
                looked[ring].add(name)
                if not heard[ring.channel_of(name)] and there.isdisjoint(peer.mark.connections):
                    gone[ring].append(name)
                else:
                    ring.suspicions.pop(name, None)
            for ring, names in gone.items():
                await ring.suspect(names)
        if standing(asked) >= STANDING_SECONDS:
            for ring in rings:
                await self._bury(server, ring)

    async def _bury(self, server: str, ring: Ring) -> None:
        """Fail the workers that have been gone for long enough."""
        due = [name for name, one in ring.suspicions.items() if one.seconds >= ring.peers[name].gone_after]
        for at in range(0, len(due), PEERS_AT_ONCE):
            dead = await ring.confirm(server, due[at : at + PEERS_AT_ONCE])
            connections = {name: peer.mark.connections for name, peer in dead.items()}
            counts = await engine_of(ring.queue).registry.fail_many(connections)
            ring.others = [one for one in ring.others if one not in dead]
            for name, count in counts.items():
                log.warning(
                    "worker %s has died: its connections are gone. %d of its items returned to %s",
                    dead[name].name or name,
                    count,
                    ring.queue.name,
                )


async def _subscribed(server: Server, channels: Sequence[bytes]) -> dict[bytes, int]:
    """Return how many subscribers channels have.

    A worker that receives is not dead. This costs the server the same however many connections it has, in
    contrast to listing some of them: with Valkey 9.1, 50 µs of 400 and 250 µs of 4,000.
    """
    found: dict[bytes, int] = {}
    for at in range(0, len(channels), ASK_AT_ONCE):
        found.update((await present(server, (), channels=channels[at : at + ASK_AT_ONCE])).subscribers)
    return found


async def _listed(server: Server, ids: set[int]) -> set[int]:
    found: set[int] = set()
    ordered = sorted(ids)
    for at in range(0, len(ordered), ASK_AT_ONCE):
        found.update((await present(server, ordered[at : at + ASK_AT_ONCE])).names)
    return found


def standing(server: Server) -> float:
    """Return for how long nothing has been lost of the connection over which others are looked after (s)."""
    ours = [one for one in server.connections if one.purpose == "commands"]
    return min((time.monotonic() - one.since if one.follows else math.inf for one in ours), default=0.0)


class LeaderWatch:
    """Looks after the copy of an autoscaler that leads, from another one.

    A copy that takes the lead notes its mark in the state. Where connections cannot be asked for, or a proxy
    stands in between, the lease decides alone.

    Attributes:
        changed: Set when this copy has another mark than before.
    """

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self._queue = queue
        self.changed = asyncio.Event()
        self._own = OwnConnections(self.changed.set)
        self._suspicion: Suspicion | None = None

    @property
    def suspects(self) -> bool:
        """Whether another copy seems to be dead, so that it is to be looked at again soon."""
        return self._suspicion is not None

    async def run(self) -> None:
        """Set `changed` when this copy has other connections, until cancelled."""
        await self._own.run([self._queue])

    async def mark(self) -> Mark:
        """Return how this copy can be seen."""
        await self._own.check([self._queue])
        return self._own.mark(self._queue)

    async def is_dead(self, other: Mark) -> bool:
        """Return whether the connections of a copy have been gone for some time, at several looks.

        A copy that lives and has lost them notes others within milliseconds. What is dead is suspected no
        more. If the server cannot be asked, raise its error, and conclude nothing.
        """
        if not await self._is_gone(other):
            self._suspicion = None
        elif self._suspicion is None or self._suspicion.mark != other:
            self._suspicion = Suspicion(other)
        else:
            self._suspicion.confirm()
        if self._suspicion is None or self._suspicion.seconds < GONE_SECONDS:
            return False
        self._suspicion = None
        return True

    async def _is_gone(self, other: Mark) -> bool:
        if not other.connections:
            return False
        own, engine = await self.mark(), engines_of(self._queue).running
        if engine is None or own.server != other.server or own.session == other.session:
            return False
        # What has cut our connection may have cut those of others, too.
        if standing(engine.route.server) < STANDING_SECONDS:
            return False
        try:
            seen = await present(engine.route.server, other.connections, identify=True)
        except CannotAsk as error:
            self._own.switch_off(str(error))
            return False
        return not seen.names and seen.server == other.server
