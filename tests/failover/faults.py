"""The rows of the matrix: each a fault, and the servers that have it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from tests.failover.topologies import PEERS, SLOT, TIMEOUT, Clustered, Node, Single, Topology, Watched
from tests.failover.workload import Workload
from tests.queue.asking import command, until

#: For how long a primary is frozen, and for how long clients write to one that is cut off (s).
FROZEN_SECONDS, CUT_SECONDS = 20.0, 5.0

Fault = Callable[[Any, Workload], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    """A fault, and where it happens.

    Attributes:
        name: Its name.
        topology: Makes the servers.
        fault: Does it; returns when another server has taken over.
        may_lose: Whether it may undo what no replica had.
        spark: Whether a stream of Spark runs, too; it needs Java.
    """

    name: str
    topology: Callable[[], Topology]
    fault: Fault
    may_lose: bool = True
    spark: bool = False


# ------------------------------------------------------------------------------------------------- everywhere


async def kill(topology: Watched | Clustered, _: Workload) -> None:
    """Kill the primary."""
    primary = await topology.primary()
    primary.kill()
    await topology.promoted(primary)


async def freeze(topology: Watched | Clustered, _: Workload) -> None:
    """Freeze the primary until another one has long taken over."""
    primary = await topology.primary()
    primary.freeze()
    try:
        await asyncio.sleep(FROZEN_SECONDS)
        await topology.promoted(primary)
    finally:
        primary.thaw()
    await until("it is a replica", lambda: _is_replica(primary), within=TIMEOUT)


async def _is_replica(node: Node) -> bool:
    return bool(await node.role() == "slave")


async def _is_linked(node: Node) -> bool:
    with contextlib.suppress(OSError, RedisError):  # a Sentinel that makes it a replica cuts its clients off
        return bool((await node.redis.info("replication")).get("master_link_status") == "up")
    return False


# --------------------------------------------------------------------------------------------------- Sentinel


async def kill_and_start(topology: Watched, _: Workload) -> None:
    """Kill the primary, and start it again when its replica, which refuses writes alone, is promoted."""
    primary = await topology.primary()
    primary.kill()
    await topology.promoted(primary)
    await asyncio.sleep(2)
    await primary.start()
    await until("it is a replica", lambda: _is_replica(primary), within=TIMEOUT)


async def failover(topology: Watched, _: Workload) -> None:
    """Let the primary hand over to a replica, in good order; the Sentinels notice it much later.

    Meanwhile the old one, to which they still lead, is separated from the new one for a moment.
    """
    primary = await topology.primary()

    async def has_handed_over() -> bool:  # it gives up if the replica does not have all data in time
        state = (await primary.redis.info("replication"))["master_failover_state"]
        if await primary.role() == "master" and state == "no-failover":
            await command(primary.redis, "FAILOVER", "TIMEOUT", 5000)
        return await _is_replica(primary)

    await until("it is a replica", has_handed_over, within=TIMEOUT)
    found: list[Node] = []

    async def is_followed() -> bool:
        found[:] = [node for node in topology.nodes if await node.role() == "master"]
        return len(found) == 1

    await until("a replica is the primary", is_followed, within=TIMEOUT)
    [new] = found
    await topology.lock(new, PEERS[1])
    await asyncio.sleep(2)
    await topology.unlock(new, PEERS[1])
    await topology.promoted(primary)


async def sentinel_failover(topology: Watched, _: Workload) -> None:
    """Have a Sentinel promote a replica."""
    primary = await topology.primary()
    await command(topology.sentinels[0].redis, "SENTINEL FAILOVER", "main")
    await topology.promoted(primary)
    await until("the old one is a replica", lambda: _is_replica(primary), within=TIMEOUT)


async def cut_off(topology: Watched, _: Workload) -> None:
    """Cut the primary off from Sentinels and replicas, while clients write to it."""
    primary = await topology.primary()
    await topology.lock(primary, *PEERS)
    await topology.promoted(primary)
    await asyncio.sleep(CUT_SECONDS)
    await topology.unlock(primary, *PEERS)
    await until("it is a replica", lambda: _is_replica(primary), within=TIMEOUT)


async def without_sentinels(topology: Watched, _: Workload) -> None:
    """Kill all Sentinels and the primary, and start the Sentinels again."""
    primary = await topology.primary()
    for sentinel in topology.sentinels:
        sentinel.kill()
    await asyncio.sleep(2)
    primary.kill()
    await asyncio.sleep(5)
    for sentinel in topology.sentinels:
        await sentinel.start()
    await topology.promoted(primary)


async def lagging(topology: Watched, _: Workload) -> None:
    """Promote a replica that was cut off for a second before the primary died."""
    primary = await topology.primary()
    await topology.lock(primary, "replica-1")
    await asyncio.sleep(1)
    primary.kill()
    assert await topology.promoted(primary) is topology.nodes[1]


async def twice(topology: Watched | Clustered, _: Workload) -> None:
    """Kill the primary, start it again as a replica, and kill the one that was promoted."""
    primary = await topology.primary()
    primary.kill()
    second = await topology.promoted(primary)
    await primary.start()
    await until("it has all data", lambda: _is_linked(primary), within=TIMEOUT)
    second.kill()
    await topology.promoted(second)


# ---------------------------------------------------------------------------------------------------- cluster


async def hand_over(topology: Clustered, _: Workload, *, how: str = "") -> None:
    """Have a replica ask its master to hand over, or take over without asking."""
    master = await topology.primary()
    replica = await topology.replica_of(master)
    await command(replica.redis, "CLUSTER FAILOVER", *([how] if how else []))
    await topology.promoted(master)
    await until("the old one is a replica", lambda: _is_replica(master), within=TIMEOUT)


async def isolate(topology: Clustered, _: Workload) -> None:
    """Cut a master off from the other nodes, while clients write to it."""
    master = await topology.primary()
    await topology.cut_off(master)
    await topology.promoted(master)
    await asyncio.sleep(CUT_SECONDS)
    await topology.heal(master)
    await until("it is a replica", lambda: _is_replica(master), within=TIMEOUT)


async def move_slot(topology: Clustered, _: Workload) -> None:
    """Move the slot to another master key by key, as operators do, and back."""
    source = await topology.primary()
    target = next(one for one in topology.nodes[:3] if one is not source)
    for one, another in ((source, target), (target, source)):
        await carry(topology, SLOT, one, another)
        await asyncio.sleep(2)


async def carry(topology: Clustered, slot: int, one: Node, another: Node) -> None:
    """Move a slot from one master to another key by key."""
    names = [await command(node.redis, "CLUSTER MYID") for node in (one, another)]
    await command(another.redis, "CLUSTER SETSLOT", slot, "IMPORTING", names[0])
    await command(one.redis, "CLUSTER SETSLOT", slot, "MIGRATING", names[1])
    while keys := await command(one.redis, "CLUSTER GETKEYSINSLOT", slot, 5):
        await command(one.redis, "MIGRATE", another.host, another.port, "", 0, 5000, "KEYS", *keys)
        await asyncio.sleep(0.02)
    for node in (another, one, *topology.nodes):
        if await node.role() == "master":
            await command(node.redis, "CLUSTER SETSLOT", slot, "NODE", names[1])


async def move_at_once(topology: Clustered, _: Workload) -> None:
    """Move the slot to another master in one moment, with the command of Valkey 9, and back."""
    source = await topology.primary()
    target = next(one for one in topology.nodes[:3] if one is not source)
    for one, another in ((source, target), (target, source)):
        name = await command(another.redis, "CLUSTER MYID")
        await command(one.redis, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", name)
        await topology.promoted(one)
        await asyncio.sleep(2)


async def add_and_forget(topology: Clustered, _: Workload) -> None:
    """Let a new node join and take the slot, and the others forget the one that had it."""
    old = await topology.primary()
    address = await topology.add()
    new = topology.nodes[-1]
    await command(old.redis, "CLUSTER MEET", *address)
    count = len(topology.nodes)

    async def known() -> bool:
        infos = [await command(node.redis, "CLUSTER INFO") for node in topology.nodes]
        return all(int(info["cluster_known_nodes"]) == count for info in infos)

    await until("the new node is known", known, within=TIMEOUT)
    name = await command(new.redis, "CLUSTER MYID")
    for first, last, master, *_ in await command(old.redis, "CLUSTER SLOTS"):
        if master[1] == old.port:
            await command(old.redis, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", name)
    await topology.promoted(old)
    others = [node for node in topology.nodes if node is not old]
    gone = await command(old.redis, "CLUSTER MYID")

    async def moved() -> bool:
        shards = [shard for node in others for shard in await command(node.redis, "CLUSTER SLOTS")]
        return old.port not in {shard[2][1] for shard in shards}

    await until("all know the new owner", moved, within=TIMEOUT)
    for node in others:
        await command(node.redis, "CLUSTER FORGET", gone)
    old.kill()


async def restart_all(topology: Clustered, _: Workload) -> None:
    """Kill all nodes, and start them again with what they have kept."""
    for node in topology.nodes:
        node.kill()
    await asyncio.gather(*(node.start() for node in topology.nodes))


# ------------------------------------------------------------------------------------------------- one server


async def restart(topology: Single, _: Workload) -> None:
    """Kill the server, and start it again with what it has kept."""
    [node] = topology.nodes
    for begin in range(0, 20_000, 1000):  # a call may take a second
        script = f"for n = {begin} + 1, {begin} + 1000 do redis.call('SET', 'filler:' .. n, n) end"
        await node.redis.eval(script, 0)
    node.kill()
    await node.start()


async def restart_empty(topology: Single, workload: Workload) -> None:
    """Kill the server, and start it again without its data."""
    [node] = topology.nodes
    node.kill()
    await node.start()
    await workload.declare()


async def move_name(topology: Single, _: Workload) -> None:
    """Promote a replica at another address, lead the name to it, and remove the old server a little later."""
    [old] = topology.nodes
    new = await topology.add(
        "127.0.0.2", "--replicaof", f"{old.host} {old.port}", "--repl-diskless-sync-delay", 0
    )

    await until("it has all data", lambda: _is_linked(new), within=TIMEOUT)
    await command(old.redis, "CLIENT PAUSE", 200, "WRITE")
    await asyncio.sleep(0.1)
    await command(new.redis, "REPLICAOF", "NO", "ONE")
    topology.lead_to(new)
    await command(old.redis, "REPLICAOF", new.host, new.port)
    await asyncio.sleep(3)
    old.kill()


ROWS = (
    Row("sentinel: SIGKILL", Watched, kill),
    Row("sentinel: SIGKILL, min-replicas", partial(Watched, replicas=1, min_replicas=True), kill_and_start),
    Row("sentinel: SIGSTOP", Watched, freeze),
    Row("sentinel: SIGSTOP, min-replicas", partial(Watched, min_replicas=True), freeze),
    Row("sentinel: FAILOVER", partial(Watched, serve_stale=False), failover, may_lose=False),
    Row("sentinel: SENTINEL FAILOVER", Watched, sentinel_failover),
    Row("sentinel: partition", Watched, cut_off),
    Row("sentinel: all Sentinels away", Watched, without_sentinels),
    Row("sentinel: lagging replica", partial(Watched, prefer=1), lagging),
    Row("sentinel: two in a row", Watched, twice),
    Row("cluster: SIGKILL", partial(Clustered, seed=1), kill, spark=True),
    Row("cluster: SIGKILL, and the heir", Clustered, twice),
    Row("cluster: SIGSTOP", Clustered, freeze),
    Row("cluster: FAILOVER", Clustered, hand_over, may_lose=False),
    Row("cluster: FAILOVER FORCE", Clustered, partial(hand_over, how="FORCE")),
    Row("cluster: FAILOVER TAKEOVER", Clustered, partial(hand_over, how="TAKEOVER")),
    Row("cluster: partition", partial(Clustered, proxied=True), isolate),
    Row("cluster: slot moved key by key", Clustered, move_slot, may_lose=False),
    Row("cluster: slot moved at once", Clustered, move_at_once, may_lose=False),
    Row("cluster: node added, one forgotten", Clustered, add_and_forget, may_lose=False),
    Row("cluster: all nodes restarted", partial(Clustered, aof=True), restart_all, may_lose=False),
    Row("cluster: seed gone", partial(Clustered, seed=None), kill),
    Row("one server: restart with AOF", partial(Single, aof=True), restart, may_lose=False, spark=True),
    Row("one server: restart empty", partial(Single, aof=False), restart_empty),
    Row("one server: new address", partial(Single, aof=False), move_name, may_lose=False),
)
