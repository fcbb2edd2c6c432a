"""The cluster of a soak of queues with shards: masters that are killed and replaced, and slots that move."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.crc import key_slot
from redis.exceptions import RedisError

from tests.failover.faults import carry
from tests.failover.topologies import TIMEOUT, Clustered, Node
from tests.queue.asking import command, until
from tests.soak.processes import cut_off

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from tests.history.events import Event

#: The calls that return when a replica has what they have written.
REPLICATED = ("add", "complete")


@dataclass(frozen=True)
class Undone:
    """What a fail-over may have undone.

    Attributes:
        queues: The shards that were on the master that was killed.
        since: When the replica had all, by `time.monotonic_ns()`.
        until: When the master was dead.
    """

    queues: frozenset[str]
    since: int
    until: int

    def may_have(self, event: Event) -> bool:
        """Return whether a call that was answered, or a lease, was in that time."""
        called_at = event.at if event.called_at is None else event.called_at
        return event.queue in self.queues and called_at <= self.until and event.at >= self.since


def as_kept(events: Iterable[Event], undone: Iterable[Undone]) -> Iterator[Event]:
    """Yield the events as the servers may remember them.

    What an `Undone` holds may not have been applied, but for what was replicated. A lease in it is left out,
    as if it was never recorded, with its run: its holder cannot know that it does not hold it any more.
    """
    windows, events = [*undone], [*events]
    lost = [any(one.may_have(event) for one in windows) for event in events]
    gone = {
        _lease_of(event)
        for event, is_lost in zip(events, lost, strict=True)
        if is_lost and event.kind == "lease"
    }
    for event, is_lost in zip(events, lost, strict=True):
        if event.kind in ("lease", "begin", "end"):
            if _lease_of(event) not in gone:
                yield event
        elif is_lost and event.outcome is True and event.kind not in REPLICATED:
            yield event._replace(outcome="unknown")
        else:
            yield event


def _lease_of(event: Event) -> tuple[object, ...]:
    return event.process, event.queue, event.id, event.token


class Nodes(Clustered):
    """Three masters with a replica each, of which one server at a time is away.

    Args:
        shards: The names of the shards.

    Attributes:
        undone: What the fail-overs may have undone.
    """

    def __init__(self, shards: Iterable[str]) -> None:
        super().__init__()
        self._keeps = ("--cluster-require-full-coverage", "no")  # else all wait for the node that is away
        self.undone: list[Undone] = []
        self._slots = {name: key_slot(name.encode()) for name in shards}

    async def start(self) -> None:
        """Start all nodes."""
        await self.__aenter__()

    async def stop(self) -> None:
        """Stop all nodes."""
        await self.__aexit__(None, None, None)

    async def at(self, shard: str) -> Node:
        """Return the master of a shard, when it answers."""
        found: list[Node] = []

        async def is_found() -> bool:
            with contextlib.suppress(AssertionError):
                found.append(await self.owner(self._slots[shard]))
            return bool(found)

        await until("a node that answers has the shard", is_found, within=TIMEOUT)
        return found[0]

    async def masters(self) -> dict[Node, list[str]]:
        """Return the nodes that have shards, and which, while no server is away."""
        ranges = await command(self.nodes[0].redis, "CLUSTER SLOTS")
        found: dict[Node, list[str]] = {}
        for node in self.nodes:
            slots = [range(first, last + 1) for first, last, master, *_ in ranges if master[1] == node.port]
            if names := [name for name, slot in self._slots.items() if any(slot in one for one in slots)]:
                found[node] = names
        return found

    async def _draw(self, drawn: float) -> tuple[Node, list[str]]:
        masters = [*(await self.masters()).items()]
        return masters[int(drawn * len(masters))]

    async def replace(self, drawn: float, pause: float) -> None:
        """Kill a master, wait until its replica has taken over, and start it again as a replica.

        Its replica has all that was written until a moment before: what came later may be undone.
        """
        master, on_it = await self._draw(drawn)
        since = 0
        async with master.redis.client() as one:  # WAIT counts the writes of its connection

            async def has_all() -> bool:
                nonlocal since
                since = time.monotonic_ns()
                await one.set(f"{on_it[0]}:confirmed", 1, px=1)
                return bool(await command(one, "WAIT", 1, 500) == 1)

            await until("the replica has all", has_all, within=TIMEOUT)
        master.kill()
        self.undone.append(Undone(frozenset(on_it), since, time.monotonic_ns()))
        await self._followed(master, on_it[0])
        await asyncio.sleep(pause)
        await master.start()
        await self._settled()

    async def hand_over(self, drawn: float) -> None:
        """Let the replica of a master take over in good order."""
        await self._settled()  # a fail-over by hand is given up after 5 s
        master, [shard, *_] = await self._draw(drawn)
        await command((await self.replica_of(master)).redis, "CLUSTER FAILOVER")
        await self._followed(master, shard)
        await self._settled()

    async def move(self, shard: str, chance: random.Random) -> None:
        """Move the slot of a shard to another master: at once, or key by key."""
        slot, one = self._slots[shard], await self.at(shard)
        others = [node for node in await self.masters() if node is not one]
        another = others[int(chance.random() * len(others))]
        if chance.random() < 0.5:
            await carry(self, slot, one, another)
        else:
            name = await command(another.redis, "CLUSTER MYID")
            await command(one.redis, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", name)
        await self._followed(one, shard)
        await self._settled()

    async def _followed(self, before: Node, shard: str) -> None:
        async def is_another() -> bool:
            return await self.at(shard) is not before

        await until("another master has the shard", is_another, within=TIMEOUT)

    async def _settled(self) -> None:
        """Return when each master has a replica that follows it, and all nodes know the same owners."""

        async def are_paired() -> bool:
            views, links = set(), []
            for node in self.nodes:
                try:
                    slots = await command(node.redis, "CLUSTER SLOTS")
                    info = await node.redis.info("replication")
                except (OSError, RedisError):
                    return False
                views.add(
                    repr(
                        [(first, last, *(one[1] for one in owners)) for first, last, *owners in sorted(slots)]
                    )
                )
                if info.get("master_link_status") == "up":
                    links.append(info["master_port"])
            return len(views) == 1 and len(set(links)) == len(links) == 3

        await until("each master has a replica", are_paired, within=TIMEOUT)

    async def cut(self, share: float, drawn: list[float]) -> int:
        """Cut connections to all masters; see `Server.cut`."""
        return sum([await cut_off(node.redis, share, drawn) for node in await self.masters()])

    async def memory(self) -> int:
        """Return the memory that the masters use, in bytes."""
        return sum([(await node.redis.info("memory"))["used_memory"] for node in await self.masters()])
