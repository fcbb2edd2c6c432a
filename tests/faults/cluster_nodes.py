"""Servers that are the nodes of a cluster."""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisError

from leasehold.embedded.guardian import Guarded, private_folder
from tests import servers
from tests.queue.asking import command, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SLOTS = 16384
NODES = 3


def port_of(node: Redis) -> int:
    port: int = node.connection_pool.connection_kwargs["port"]
    return port


@asynccontextmanager
async def started(program: Path, port: int, bus_port: int) -> AsyncIterator[Redis]:
    """Run a server that is not connected to others yet."""
    folder = private_folder()
    options = {
        "bind": "127.0.0.1",
        "port": port,
        "cluster-enabled": "yes",
        "cluster-port": bus_port,
        "cluster-config-file": folder / "nodes.conf",
        "cluster-node-timeout": 2000,
        "dir": folder,
        "save": "",
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    guarded = Guarded(folder, [str(program), *words], lock=None, grace=0)
    try:
        async with Redis(host="127.0.0.1", port=port) as client:

            async def answers() -> bool:
                with contextlib.suppress(OSError, RedisError):
                    return bool(await client.ping())
                return False

            await until("the server answers", answers)
            yield client
    finally:
        guarded.kill()


@pytest.fixture
def kind() -> str:
    """Return which server program the nodes run; tests may set another."""
    return "embedded"


@pytest.fixture
async def nodes(unused_tcp_port_factory: Callable[[], int], kind: str) -> AsyncIterator[list[Redis]]:
    """Run three servers that are a cluster, each with a third of the slots."""
    async with AsyncExitStack() as stack:
        nodes, addresses = [], []
        for number in range(NODES):
            port, bus_port = unused_tcp_port_factory(), unused_tcp_port_factory()
            node = await stack.enter_async_context(started(servers.program(kind), port, bus_port))
            first, last = number * SLOTS // NODES, (number + 1) * SLOTS // NODES - 1
            await command(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            await command(node, "CLUSTER ADDSLOTSRANGE", first, last)
            nodes.append(node)
            addresses.append(("127.0.0.1", port, bus_port))
        for address in addresses[1:]:
            await command(nodes[0], "CLUSTER MEET", *address)

        async def ready() -> bool:
            infos = [await command(node, "CLUSTER INFO") for node in nodes]
            return all((i["cluster_state"], i["cluster_known_nodes"]) == ("ok", "3") for i in infos)

        await until("the nodes know of each other", ready)
        yield nodes


@pytest.fixture
async def cluster(nodes: list[Redis]) -> AsyncIterator[RedisCluster]:
    """Return a client of the cluster."""
    async with RedisCluster(host="127.0.0.1", port=port_of(nodes[0])) as client:
        yield client


def owner(nodes: list[Redis], name: str) -> Redis:
    """Return the node that had the slot of a queue at first."""
    return nodes[key_slot(name.encode()) * NODES // SLOTS]
