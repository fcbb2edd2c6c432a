"""A queue on a cluster: all its keys in one slot, and found again when the slot moves."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisError

from leasehold import AsyncWorkQueue, ConnectionLost, Item, Lease, LeaseholdError, ServerBusy
from leasehold.embedded.guardian import Guarded, private_folder
from tests import servers
from tests.queue.asking import blocked, command, renew_elsewhere, take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SLOTS = 16384
NODES = 3


def port_of(node: Redis) -> int:
    port: int = node.connection_pool.connection_kwargs["port"]
    return port


@asynccontextmanager
async def started(port: int, bus_port: int) -> AsyncIterator[Redis]:
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
    guarded = Guarded(folder, [str(servers.program("embedded")), *words], lock=None, grace=0)
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
async def nodes(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[list[Redis]]:
    """Run three servers that are a cluster, each with a third of the slots."""
    async with AsyncExitStack() as stack:
        nodes, addresses = [], []
        for number in range(NODES):
            port, bus_port = unused_tcp_port_factory(), unused_tcp_port_factory()
            node = await stack.enter_async_context(started(port, bus_port))
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


async def move_slot(nodes: list[Redis], name: str, source: Redis, target: Redis) -> None:
    """Move the slot of a queue to another node, as an operator does."""
    slot = key_slot(name.encode())
    source_id, target_id = [await command(node, "CLUSTER MYID") for node in (source, target)]
    await command(target, "CLUSTER SETSLOT", slot, "IMPORTING", source_id)
    await command(source, "CLUSTER SETSLOT", slot, "MIGRATING", target_id)
    while keys := await command(source, "CLUSTER GETKEYSINSLOT", slot, 100):
        await command(source, "MIGRATE", "127.0.0.1", port_of(target), "", 0, 5000, "KEYS", *keys)
    for node in (target, source, *nodes):
        await command(node, "CLUSTER SETSLOT", slot, "NODE", target_id)


@pytest.mark.slow
async def test_every_call_works_on_every_node(nodes: list[Redis], cluster: RedisCluster) -> None:
    names = ["shop:{one}", "{two}", "{three}:mail", "{4}", "{5}", "{6}"]
    assert len({id(owner(nodes, name)) for name in names}) == NODES
    for name in names:
        async with AsyncWorkQueue(name, cluster) as queue, AsyncWorkQueue(name, cluster) as other:
            waiting = asyncio.create_task(queue.lease(30))
            await blocked(owner(nodes, name), 1)
            assert await other.add_items([Item(b"x", id=f"{n}") for n in range(30)]) == [True] * 30
            await other.add_item(Item(b"x", id="late"), delay=0.01)
            first = await waiting
            assert first is not None
            rest = await other.lease_many(50, 30)
            while len(rest) < 30:
                rest += await other.lease_many(50, 30, timeout=20)
            assert await queue.renew_many(rest, 60) == [True] * 30
            assert await queue.release(first)
            assert (await queue.deep_clean()).restored == 0
            assert [view.id for view in await queue.inspect()] == [first.id]
            assert await queue.complete_many([first, *rest]) == [True] * 31
            assert await queue.lease(30, timeout=0.05) is None
            async with cluster.pipeline(transaction=False) as pipeline:
                queue.add_item_to_pipeline(pipeline, Item(b"x", id="piped"))
                queue.add_item_to_pipeline(pipeline, Item(b"x", id="piped"))
                assert await pipeline.execute() == [[1], [0]]
            assert await queue.complete(await take(queue))
            await queue.schedules.every(0.01, "often", "data")
            while not (await queue.counts()).waiting:  # noqa: ASYNC110 - it is a time that passes
                await asyncio.sleep(await other.schedules.tick())
            assert await queue.schedules.remove("often")
            assert all(await queue.complete_many(await queue.lease_many(1000, 30)))
        assert not await left_over(owner(nodes, name), name)
        assert sum([len(await node.keys("*")) for node in nodes]) == names.index(name) + 1  # a fence each


@pytest.mark.slow
async def test_a_queue_follows_its_slot_to_another_node(nodes: list[Redis], cluster: RedisCluster) -> None:
    """A waiting caller gets items that arrive on the new node; leases and tokens have moved with the slot."""
    name = "{moving}"
    source = owner(nodes, name)
    target = nodes[(nodes.index(source) + 1) % NODES]
    async with AsyncWorkQueue(name, cluster) as waiter, AsyncWorkQueue(name, cluster) as adder:
        await adder.add_items([Item(b"x", id="held"), Item(b"x", id="done")])
        held, done = await adder.lease_many(2, 60)
        waiting = asyncio.create_task(patient(waiter))
        await blocked(source, 1)

        await move_slot(nodes, name, source, target)
        assert await adder.complete(done)
        assert await adder.add_item(Item(b"x", id="new"))
        async with asyncio.timeout(30):
            lease = await waiting
        assert (lease.id, lease.token) == ("new", 3)
        assert await waiter.renew(held, 60)
        assert set((await audit(target, name)).leased) == {b"held", b"new"}

        # And back, while many calls are in flight.
        await move_slot(nodes, name, target, source)
        added = await asyncio.gather(
            *(adder.add_item(Item(b"x", id=f"{n}")) for n in range(2000)), return_exceptions=True
        )
        assert {answer for answer in added if not isinstance(answer, LeaseholdError)} <= {True}
        again = [n for n, answer in enumerate(added) if answer is not True]
        await asyncio.gather(*(adder.add_item(Item(b"x", id=f"{n}")) for n in again))
        assert await adder.counts() == (2000, 2, 0, 0)
    assert len((await audit(source, name)).waiting) == 2000


@pytest.mark.slow
async def test_each_event_loop_finds_the_node_of_a_queue(nodes: list[Redis], cluster: RedisCluster) -> None:
    names = ["{one}", "{two}", "{three}", "{4}"]
    assert len({id(owner(nodes, name)) for name in names}) == NODES
    for name in names:
        async with AsyncWorkQueue(name, cluster) as queue:
            await queue.add_item(Item(b"x"))
            lease = await take(queue)
            assert await renew_elsewhere(queue, lease)
            assert await queue.complete(lease)


async def patient(queue: AsyncWorkQueue) -> Lease:
    """Lease as a worker does, and repeat the call if the server is busy or away."""
    while True:
        try:
            lease = await queue.lease(60)
        except (ConnectionLost, ServerBusy):
            await asyncio.sleep(0.01)
        else:
            assert lease is not None
            return lease
