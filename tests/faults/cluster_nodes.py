"""Servers that are the nodes of a cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.crc import key_slot

from leasequeue.embedded.guardian import private_folder
from tests.ports import free_port
from tests.processes import answering
from tests.queue.asking import command, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

SLOTS = 16384
NODES = 3


def port_of(node: Redis) -> int:
    port: int = node.connection_pool.connection_kwargs["port"]
    return port


def node_words(port: int, bus_port: int, folder: Path) -> list[object]:
    """Return the arguments of a server that is a node, and keeps its files in that folder."""
    options = {
        "bind": "127.0.0.1",
        "port": port,
        "cluster-enabled": "yes",
        "cluster-port": bus_port,
        "cluster-config-file": folder / "nodes.conf",
        "cluster-node-timeout": 2000,
        "cluster-replica-validity-factor": 0,  # on a busy machine a replica may lag behind its master
        "repl-diskless-sync-delay": 0,
        "dir": folder,
        "save": "",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def started(kind: str, port: int, bus_port: int) -> AbstractAsyncContextManager[Redis]:
    """Run a server that is not connected to others yet."""
    folder = private_folder()
    return answering(kind, port, *node_words(port, bus_port, folder), folder=folder)


@pytest.fixture
def kind() -> str:
    """Return which server program the nodes run; tests may set another."""
    return "embedded"


async def joined(stack: AsyncExitStack, kind: str, *, replicas: int) -> list[Redis]:
    """Run servers that are a cluster: masters, each with a third of the slots, and then their replicas.

    Args:
        stack: Ends the servers.
        kind: Which server program they run.
        replicas: How many replicas each master has.
    """
    nodes, addresses = [], []
    for _ in range(NODES * (1 + replicas)):
        address = ("127.0.0.1", free_port(), free_port())
        nodes.append(await stack.enter_async_context(started(kind, *address[1:])))
        addresses.append(address)
    await join(nodes, addresses, replicas=replicas)
    return nodes


async def join(nodes: list[Redis], addresses: list[tuple[str, int, int]], *, replicas: int) -> None:
    """Make a cluster of running servers: of masters, and then their replicas."""
    masters = nodes[:NODES]
    for number, node in enumerate(masters):
        first, last = number * SLOTS // NODES, (number + 1) * SLOTS // NODES - 1
        await command(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        await command(node, "CLUSTER ADDSLOTSRANGE", first, last)
    for address in addresses[1:]:
        await command(nodes[0], "CLUSTER MEET", *address)

    async def ready() -> bool:
        infos = [await command(node, "CLUSTER INFO") for node in nodes]
        return all((i["cluster_state"], int(i["cluster_known_nodes"])) == ("ok", len(nodes)) for i in infos)

    await until("the nodes know of each other", ready)
    for number, node in enumerate(nodes[NODES:]):
        await command(node, "CLUSTER REPLICATE", await command(masters[number % NODES], "CLUSTER MYID"))

    async def replicated() -> bool:
        # Each node knows all replicas: only then can they elect one of them.
        shards = [shard for node in nodes for shard in await command(node, "CLUSTER SLOTS")]
        links = [(await node.info("replication"))["master_link_status"] for node in nodes[NODES:]]
        return all(len(shard) == 3 + replicas for shard in shards) and {*links} <= {"up"}

    if replicas:
        await until("the masters have their replicas", replicated)


@pytest.fixture
async def nodes(kind: str) -> AsyncIterator[list[Redis]]:
    """Run three servers that are a cluster, each with a third of the slots."""
    async with AsyncExitStack() as stack:
        yield await joined(stack, kind, replicas=0)


@pytest.fixture
async def cluster(nodes: list[Redis]) -> AsyncIterator[RedisCluster]:
    """Return a client of the cluster."""
    async with RedisCluster(host="127.0.0.1", port=port_of(nodes[0])) as client:
        yield client


def owner(nodes: list[Redis], name: str) -> Redis:
    """Return the node that had the slot of a queue at first."""
    return nodes[key_slot(name.encode()) * NODES // SLOTS]
