"""A primary was frozen: replies that come late are held back until it is known who the primary is now."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

import pytest
from redis.asyncio import Redis, RedisCluster

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, LeasequeueError
from leasequeue.wire import connection as connection_settings
from tests.eventually import LIMIT_SECONDS, eventually
from tests.faults.cluster_nodes import joined, owner, port_of
from tests.faults.sentinels import Watched, frozen, run_sentinel, watched
from tests.ports import free_port
from tests.queue.asking import blocked, command, session, until

__all__ = ["watched"]

pytestmark = pytest.mark.slow

#: How many callers add items at the same time, and how many are added after the server has woken up.
CALLERS, AFTER = 20, 500


class Load:
    """Adds items all the time, and repeats what a fail-over interrupts.

    Attributes:
        added: The ids of all items that were acknowledged, in this order.
    """

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self._queue = queue
        self._enough = asyncio.Event()
        self.added: list[str] = []

    async def __aenter__(self) -> Self:
        self._adding = [asyncio.create_task(self._add(n)) for n in range(CALLERS)]
        await self.more(AFTER)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enough.set()
        await asyncio.gather(*self._adding)

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        goal = len(self.added) + count
        await eventually("items are added", lambda: len(self.added) >= goal)

    async def _add(self, caller: int) -> None:
        number = 0
        while not self._enough.is_set():
            item = Item(b"x", id=f"{caller}-{number}")
            try:
                await self._queue.add_item(item)
            except LeasequeueError as error:
                if not error.transient:
                    raise
                await asyncio.sleep(0.05)
            else:
                self.added.append(item.id)
                number += 1
                await asyncio.sleep(0.001)


async def lost(redis: Redis, name: str, ids: list[str]) -> list[str]:
    """Return those of some acknowledged items that a server does not have."""
    return [one for one in ids if not await redis.exists(f"{name}:item:{one}")]


async def no_more(watched: Watched) -> None:
    """Let no other server be promoted: a busy machine keeps a primary from answering, too."""
    for one in watched.sentinels:
        await one.sentinel_set("main", "down-after-milliseconds", 600_000)


def command_connection(queue: AsyncWorkQueue) -> Any:
    [found] = [one.connection for one in session(queue).connections if one.purpose == "commands"]
    return found


async def test_nothing_is_acknowledged_by_a_primary_that_was_replaced_while_it_was_frozen(
    watched: Watched, name: str
) -> None:
    async with watched.client() as client, AsyncWorkQueue(name, client) as queue, Load(queue) as load:
        async with frozen(watched.primary):
            await watched.promoted(watched.sentinels)
            await no_more(watched)
            before = len(load.added)
        await load.more(AFTER)
        assert not await lost(watched.replica, name, load.added[before:])


async def test_a_client_that_connected_while_the_primary_was_frozen_is_told_nothing_by_it(
    watched: Watched, name: str
) -> None:
    async with watched.client() as client, AsyncWorkQueue(name, client, reply_timeout=LIMIT_SECONDS) as queue:
        async with frozen(watched.primary):
            adding = asyncio.create_task(queue.add_item(Item(b"x", id="late")))
            await watched.promoted(watched.sentinels)
        await asyncio.wait([adding])
        assert adding.exception() or await watched.replica.exists(f"{name}:item:late")


async def test_a_sentinel_that_knows_less_than_the_others_is_not_believed(
    watched: Watched, name: str
) -> None:
    """It was restarted with its first settings while the primary was frozen."""
    port = free_port()
    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        await run_sentinel(first, port, port_of(watched.primary))
        client = await stack.enter_async_context(watched.client(port))
        queue = await stack.enter_async_context(AsyncWorkQueue(name, client))
        async with Load(queue) as load:
            async with frozen(watched.primary):
                await watched.promoted(watched.sentinels)
                for one in watched.sentinels:  # otherwise they tell it who the primary is
                    await command(one, "SENTINEL", "DEBUG", "publish-period", 3_600_000)
                await first.aclose()
                stale = await run_sentinel(stack, port, port_of(watched.primary))
                view: Any = await stale.sentinel_master("main")
                assert view["port"] == port_of(watched.primary)
                before = len(load.added)
            await load.more(AFTER)
            assert not await lost(watched.replica, name, load.added[before:])


async def test_replies_of_a_frozen_primary_are_delivered_if_it_was_not_replaced(
    watched: Watched, name: str
) -> None:
    await no_more(watched)
    async with watched.client() as client, AsyncWorkQueue(name, client, reply_timeout=600) as queue:
        await queue.add_item(Item(b"x", id="before"))
        connection = command_connection(queue)
        for number in range(2):
            async with frozen(watched.primary):
                adding = asyncio.create_task(queue.add_item(Item(b"x", id=f"during {number}")))
                await eventually("the silence is noticed", lambda: connection._doubtful, within=60)
            assert await adding
            assert command_connection(queue) is connection
            assert not connection._doubtful


async def test_a_primary_that_is_about_to_be_replaced_is_waited_for(watched: Watched, name: str) -> None:
    """It wakes up while the fail-over is in progress."""
    async with watched.client() as client, AsyncWorkQueue(name, client) as queue:
        await queue.add_item(Item(b"x", id="before"))
        for one in watched.sentinels:
            await one.sentinel_set("main", "failover-timeout", 1000)
        async with frozen(watched.primary):
            adding = asyncio.create_task(queue.add_item(Item(b"x", id="during")))

            async def is_failing_over() -> bool:
                views: list[Any] = [await one.sentinel_master("main") for one in watched.sentinels]
                return any("failover_in_progress" in view["flags"] for view in views)

            await until("a fail-over has begun", is_failing_over)
        await asyncio.wait([adding])
        await watched.promoted(watched.sentinels)
        if adding.exception() is None:
            assert await watched.replica.exists(f"{name}:item:during")
        else:
            with pytest.raises(ConnectionLost) as found:
                await adding
            assert found.value.maybe_applied
        assert await queue.add_item(Item(b"x", id="after"))
        assert await watched.replica.exists(f"{name}:item:after")


async def test_nothing_is_acknowledged_if_nobody_says_who_the_primary_is(watched: Watched, name: str) -> None:
    async with watched.client() as client, AsyncWorkQueue(name, client, reply_timeout=5) as queue:
        await queue.add_item(Item(b"x", id="before"))
        connection = command_connection(queue)
        async with frozen(*watched.sentinels):
            async with frozen(watched.primary):
                adding = asyncio.create_task(queue.add_item(Item(b"x", id="during")))
                await eventually("the silence is noticed", lambda: connection._doubtful)
            with pytest.raises(ConnectionLost, match="unknown whether it is still the primary") as found:
                await adding
        assert found.value.maybe_applied


async def test_a_caller_that_waits_for_items_is_not_taken_for_a_silent_server(
    watched: Watched, name: str
) -> None:
    """The Sentinels are frozen, so that an answer which is held back would not come."""
    async with watched.client() as client, AsyncWorkQueue(name, client) as queue:
        leasing = asyncio.create_task(queue.lease(30))
        await blocked(watched.primary, 1)
        async with frozen(*watched.sentinels):
            until_then = asyncio.get_running_loop().time() + connection_settings.SILENT_SECONDS
            await eventually(
                "it has waited for long", lambda: asyncio.get_running_loop().time() > until_then + 0.2
            )
            assert not any(one.connection._doubtful for one in session(queue).connections)
            await queue.add_item(Item(b"x"))
            assert await asyncio.wait_for(leasing, LIMIT_SECONDS) is not None
            assert not any(one.connection._doubtful for one in session(queue).connections)


async def test_a_master_of_a_cluster_that_was_replaced_acknowledges_nothing() -> None:
    async with AsyncExitStack() as stack:
        nodes = await joined(stack, "embedded", replicas=1)
        master = owner(nodes, "{q}")
        heir = nodes[nodes.index(master) + 3]
        client = await stack.enter_async_context(RedisCluster(host="127.0.0.1", port=port_of(nodes[0])))
        queue = await stack.enter_async_context(AsyncWorkQueue("{q}", client))
        async with Load(queue) as load:
            async with frozen(master):

                async def is_replaced() -> bool:
                    replaced = (await heir.info("replication"))["role"] == "master"
                    infos = [await command(node, "CLUSTER INFO") for node in nodes if node is not master]
                    return replaced and {info["cluster_state"] for info in infos} == {"ok"}

                await until("the replica is the master", is_replaced)
                before = len(load.added)
            await load.more(AFTER)
            assert not await lost(heir, "{q}", load.added[before:])
