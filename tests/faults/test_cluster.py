"""A queue on a cluster: all its keys in one slot, and found again when the slot moves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py
from redis.crc import key_slot

from leasequeue import AsyncWorkQueue, InvalidArgument, Item, Lease, Worker, lease_from, list_queues
from leasequeue.autoscale import Autoscaler, load_config
from leasequeue.errors import ConnectionLost, ServerBusy, ServerRefused
from leasequeue.queue.pushes import listener
from leasequeue.wire.connection import Connection
from tests.eventually import LIMIT_SECONDS
from tests.faults.cluster_nodes import NODES, owner, port_of
from tests.faults.flow_runs import Flows
from tests.ports import free_port
from tests.queue.asking import blocked, command, names_of, renew_elsewhere, take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from redis.asyncio import Redis, RedisCluster


def ends_of_move(nodes: list[Redis], name: str = "{moving}") -> tuple[str, Redis, Redis]:
    """Return the name of a queue, the node that has its slot at first, and the one it is to move to."""
    source = owner(nodes, name)
    return name, source, nodes[(nodes.index(source) + 1) % NODES]


async def start_moving(name: str, source: Redis, target: Redis) -> None:
    """Begin to move the slot of a queue to another node."""
    slot = key_slot(name.encode())
    source_id, target_id = [await command(node, "CLUSTER MYID") for node in (source, target)]
    await command(target, "CLUSTER SETSLOT", slot, "IMPORTING", source_id)
    await command(source, "CLUSTER SETSLOT", slot, "MIGRATING", target_id)


async def move_keys(name: str, source: Redis, target: Redis, count: int) -> int:
    """Move some keys of the slot that is being moved, and return how many there were."""
    keys = await command(source, "CLUSTER GETKEYSINSLOT", key_slot(name.encode()), count)
    if keys:
        await command(source, "MIGRATE", "127.0.0.1", port_of(target), "", 0, 5000, "KEYS", *keys)
    return len(keys)


async def finish_moving(nodes: list[Redis], name: str, source: Redis, target: Redis) -> None:
    """Move the other keys of the slot, and announce its new owner to all nodes."""
    while await move_keys(name, source, target, 100):
        pass
    target_id = await command(target, "CLUSTER MYID")
    for node in (target, source, *nodes):
        await command(node, "CLUSTER SETSLOT", key_slot(name.encode()), "NODE", target_id)


async def move_slot(nodes: list[Redis], name: str, source: Redis, target: Redis) -> None:
    """Move the slot of a queue to another node, as an operator does."""
    await start_moving(name, source, target)
    await finish_moving(nodes, name, source, target)


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
                rest += await other.lease_many(50, 30, timeout=120)
            assert await queue.renew_many(rest, 60) == [True] * 30
            assert await queue.release(first)
            assert (await queue.deep_clean()).restored == 0

            async def waits(queue: AsyncWorkQueue = queue, first: Lease = first) -> bool:
                """Return whether it waits: a session that has just ceased to wait may give it back first."""
                return [view.id for view in await queue.inspect()] == [first.id]

            await until("the released item waits", waits)
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
async def test_operations_on_whole_queues_work_on_every_node(
    nodes: list[Redis], cluster: RedisCluster
) -> None:
    names = ["shop:{one}", "{two}", "{three}:mail", "{4}", "{5}", "{6}"]
    for name in names:
        async with AsyncWorkQueue(name, cluster) as queue, AsyncWorkQueue(f"{name}:next", cluster) as other:
            await queue.add_items([Item(b"x", id=f"{n}") for n in range(300)])
            await other.add_item(Item(b"x", id="0"))
            assert len(await queue.admin.move(other)) == 299
            assert len(await other.lease_many(10, 30)) == 10
            assert len(await other.admin.recover(20, 0, 30)) == 10
            assert len(await other.admin.clear_leases()) == 10
            assert await queue.admin.purge() == 1
            assert await queue.admin.delete() == 0
            elsewhere = "{two}" if name != "{two}" else "{4}"
            with pytest.raises(InvalidArgument, match="same hash tag"):
                await other.admin.move(elsewhere)
            leases = await lease_from([queue, other], 5, 30)
            assert {lease.queue for lease in leases} == {other}
    assert await list_queues(cluster) == sorted(f"{name}:next" for name in names)
    for name in names:
        async with AsyncWorkQueue(f"{name}:next", cluster) as other:
            assert await other.admin.delete() == 300
    assert sum([len(await node.keys("*")) for node in nodes]) == len(names)  # a fence each


@pytest.mark.slow
async def test_a_queue_follows_its_slot_to_another_node(nodes: list[Redis], cluster: RedisCluster) -> None:
    """A waiting caller gets items that arrive on the new node; leases and tokens have moved with the slot."""
    name, source, target = ends_of_move(nodes)
    async with AsyncWorkQueue(name, cluster) as waiter, AsyncWorkQueue(name, cluster) as adder:
        await adder.add_items([Item(b"x", id="held"), Item(b"x", id="done")])
        held, done = await adder.lease_many(2, 60)
        waiting = asyncio.create_task(take(waiter, 60))
        await blocked(source, 1)

        await move_slot(nodes, name, source, target)
        assert await adder.complete(done)
        assert await adder.add_item(Item(b"x", id="new"))
        async with asyncio.timeout(120):
            lease = await waiting
        assert (lease.id, lease.token) == ("new", 3)
        assert await waiter.renew(held, 60)
        assert set((await audit(target, name)).leased) == {b"held", b"new"}

        # And back, while many calls are in flight.
        await move_slot(nodes, name, target, source)
        # The first answer is that the slot has moved. It fails none of the others.
        added = await asyncio.gather(*(adder.add_item(Item(b"x", id=f"{n}")) for n in range(2000)))
        assert added == [True] * 2000
        assert await adder.counts() == (2000, 2, 0, 0)
    assert len((await audit(source, name)).waiting) == 2000


@pytest.mark.slow
async def test_a_queue_follows_a_slot_that_is_moved_at_one_moment(
    nodes: list[Redis], cluster: RedisCluster
) -> None:
    """Valkey 9 moves a slot with all its keys at once; only then the old node names the new one."""
    name, source, target = ends_of_move(nodes)
    async with AsyncWorkQueue(name, cluster) as waiter, AsyncWorkQueue(name, cluster) as adder:
        await adder.add_items([Item(b"x", id="held"), Item(b"x", id="done")])
        held, done = await adder.lease_many(2, 60)
        added = 0
        for one, another in ((source, target), (target, source)):
            waiting = asyncio.create_task(take(waiter, 60))
            await blocked(one, 1)
            moving = asyncio.create_task(move_at_one_moment(nodes, name, one, another))
            calls: list[asyncio.Task[bool]] = []
            while not moving.done():
                calls += [asyncio.create_task(adder.add_item(Item(b"x", id=f"{added + len(calls)}")))]
                await asyncio.sleep(0.002)
            await moving
            async with asyncio.timeout(120):
                assert all(await asyncio.gather(*calls))
                assert await waiter.renew(held, 60)
                assert await waiter.complete(await waiting)
            added += len(calls)
            rest = await adder.lease_many(1000, 60, block=False)
            assert all(await adder.complete_many(rest))
            assert set((await audit(another, name)).leased) <= {b"held", b"done"}
        assert await adder.complete_many([held, done]) == [True] * 2
        assert await adder.counts() == (0, 0, 0, 0)


async def move_at_one_moment(nodes: list[Redis], name: str, source: Redis, target: Redis) -> None:
    """Move the slot of a queue to another node with the command of Valkey 9, and wait until all know."""
    slot, target_id = key_slot(name.encode()), await command(target, "CLUSTER MYID")
    await command(source, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target_id)

    async def is_there() -> bool:
        found = [await command(node, "CLUSTER SLOTS") for node in nodes]
        return all(
            first <= slot <= last and master[1] == port_of(target)
            for shards in found
            for first, last, master, *_ in shards
            if first <= slot <= last
        )

    await until("all nodes know the new owner", is_there)


async def names_at(node: Redis) -> Counter[str]:
    """Return how many connections of Leasequeue a node has, by their purpose."""
    return Counter(name.split(":")[1] for name in names_of(await node.client_list()))


@pytest.mark.slow
async def test_twelve_queues_share_three_connections_to_each_node(nodes: list[Redis]) -> None:
    """And one for each queue. They go with the slots, and those of a node without queues are closed."""
    url = f"redis://127.0.0.1:{port_of(nodes[0])}"
    names = [f"{{queue-{n}}}" for n in range(12)]
    _, source, target = ends_of_move(nodes, names[0])
    there = [name for name in names if owner(nodes, name) is source]
    assert len(there) < 12
    worker, ran = Worker(), list[bytes]()
    queues = [AsyncWorkQueue.from_url(url, name, cluster=True) for name in names]
    for queue in queues:
        worker.handler(queue)(partial(note, ran))
    running = asyncio.create_task(worker.run())

    async def at_rest() -> bool:
        found = sum([await names_at(node) for node in nodes], Counter[str]())
        return found == {"waits": 12, "commands": 6, "pushes": 3}

    await until("each node has its connections", at_rest)
    assert len({queue.session for queue in queues}) == 1
    before = {one["id"] for one in await target.client_list() if ":commands:" in one["name"]}
    others = [await names_at(node) for node in nodes if node is not source]

    await move_slot(nodes, there[0], source, target)

    async def follows() -> bool:
        channel = f"{there[0]}:push:{queues[0].session}"
        counts = [await node.pubsub_numsub(channel) for node in (source, target)]
        return [count for [(_, count)] in counts] == [0, 1]

    await until("its channel goes with it", follows)
    await until("it waits at the new node", at_rest)
    after = {one["id"] for one in await target.client_list() if ":commands:" in one["name"]}
    assert after == before, "it uses the connections that were there"
    assert sum(one["waits"] for one in others) + len(there) == 12

    for name in there[1:]:
        await move_slot(nodes, name, source, target)

    async def left() -> bool:
        return not await names_at(source)

    await until("nothing leads to the node that holds no queue", left)
    for name in names:
        async with AsyncWorkQueue.from_url(url, name, cluster=True) as adder:
            await adder.add_item(Item(name))
    await until("all queues are served", lambda: asyncio.sleep(0, len(ran) == 12))
    worker.stop()
    await running
    await asyncio.gather(*(queue.close() for queue in queues))
    for node in nodes:
        await until("no connection is left", partial(is_empty, node))


async def note(ran: list[bytes], data: bytes) -> None:
    """Handle an item."""
    ran.append(data)


async def is_empty(node: Redis) -> bool:
    """Return whether a node has no connection of Leasequeue."""
    return not await names_at(node)


@pytest.mark.slow
async def test_a_node_is_left_when_its_last_queue_is_closed(nodes: list[Redis]) -> None:
    url = f"redis://127.0.0.1:{port_of(nodes[0])}"
    one = AsyncWorkQueue.from_url(url, "{one}", cluster=True)
    name = next(f"{{{n}}}" for n in range(100) if owner(nodes, f"{{{n}}}") is not owner(nodes, "{one}"))
    async with AsyncWorkQueue.from_url(url, name, cluster=True) as other:
        assert await one.lease(30, timeout=0.01) is None
        await other.counts()
        assert one.session == other.session
        await one.close()
        await until("the connections are closed", partial(is_empty, owner(nodes, "{one}")))
        assert await names_at(owner(nodes, name)) == {"commands": 1}
        assert await other.add_item(Item(b"x"))


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_a_queue_waits_while_its_slot_is_being_moved(nodes: list[Redis], cluster: RedisCluster) -> None:
    """After each key that is moved, every call waits; none fails, no item is lost, each has one answer."""
    name, source, target = ends_of_move(nodes)
    async with AsyncWorkQueue(name, cluster) as queue, AsyncWorkQueue(name, cluster) as waiter:
        await queue.add_items([Item(b"x", id=f"{n}") for n in range(6)])
        await queue.add_item(Item(b"x", id="late"), delay=0.01)
        held = await queue.lease_many(3, 60)
        await queue.lease_many(1, 0.01)  # it expires while the slot is being moved
        await command(source, "LMOVE", f"{name}:queue", f"{name}:inbox:{queue.session}", "RIGHT", "LEFT")
        await start_moving(name, source, target)
        calls: list[asyncio.Task[Any]] = []
        number = 0
        while await move_keys(name, source, target, 1):
            number += 1
            calls += [
                asyncio.create_task(queue.add_item(Item(b"x", id=f"new-{number}"))),
                asyncio.create_task(queue.light_clean()),
                asyncio.create_task(queue.counts()),
                asyncio.create_task(waiter.lease(60, block=False)),
            ]
            await asyncio.sleep(0.02)
        completing = [asyncio.create_task(queue.complete(lease)) for lease in held]
        leaving = asyncio.create_task(queue._engine().run("leave", stays=1, word=b""))
        await asyncio.sleep(0.02)
        assert not [call for call in (*calls[-4:], *completing, leaving) if call.done()], "they wait"
        await finish_moving(nodes, name, source, target)
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*calls)
            assert await asyncio.gather(*completing) == [True] * 3
            await leaving
            assert not await command(target, "EXISTS", f"{name}:inbox:{queue.session}")
        assert answers[::4] == [True] * number
        await until_recovered(queue)
        found = await audit(target, name)
        leased = {lease.id.encode() for lease in answers[3::4] if lease}
        assert set(found.leased) == leased
        expected = {b"%d" % n for n in range(6)} | {b"late"} | {b"new-%d" % (n + 1) for n in range(number)}
        assert set(found.waiting) | leased == expected - {lease.id.encode() for lease in held}
        assert (await queue.counts()).total == len(expected) - 3


@pytest.mark.slow
async def test_nodes_of_the_url_that_are_dead_or_silent_hinder_nobody(nodes: list[Redis]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections, and answers nothing
        ports = [free_port(), silent.getsockname()[1], port_of(nodes[0])]
        url = f"redis://{','.join(f'127.0.0.1:{port}' for port in ports)}"
        for name in ("{one}", "{two}", "{three}", "{4}"):
            async with AsyncWorkQueue.from_url(url, name, cluster=True, reply_timeout=20) as queue:
                assert await queue.add_item(Item(b"x"))
                assert await queue.complete(await take(queue))


@pytest.mark.slow
async def test_a_client_for_a_single_server_is_refused_by_a_cluster(nodes: list[Redis]) -> None:
    elsewhere = next(node for node in nodes if node is not owner(nodes, "{one}"))
    async with AsyncWorkQueue("{one}", elsewhere) as queue:
        for call in (queue.counts, partial(queue.lease, 30)):
            with pytest.raises(ServerRefused, match=r"MOVED .*cluster=True"):
                await call()


async def until_recovered(queue: AsyncWorkQueue) -> None:
    """Lease what can be leased and release it, so that expired leases and due items are reclaimed."""
    async with asyncio.timeout(120):
        while (await queue.counts()).scheduled:
            for lease in await queue.lease_many(100, 60, block=False):
                await queue.release(lease)
        for lease in await queue.lease_many(100, 60, block=False):
            await queue.release(lease)


@pytest.mark.slow
async def test_a_slot_that_is_being_moved_for_too_long_raises_server_busy(
    nodes: list[Redis], cluster: RedisCluster
) -> None:
    """Calls are repeated until the reply timeout has passed, and nothing was applied."""
    name, source, target = ends_of_move(nodes)
    async with AsyncWorkQueue(name, cluster, reply_timeout=1) as queue:
        await queue.add_items([Item(b"x", id=f"{n}") for n in range(3)])
        lease = await take(queue)
        await start_moving(name, source, target)
        await move_keys(name, source, target, 1)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: queue.add_item(Item(b"x")),
            queue.counts,
            lambda: queue.complete(lease),
            lambda: queue.lease(30),
            queue.inspect,
        ]
        async with asyncio.timeout(120):
            for call in calls:
                with pytest.raises(ServerBusy, match="nothing was applied"):
                    await call()
        await finish_moving(nodes, name, source, target)
        assert await queue.complete(lease)
        assert await queue.counts() == (2, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_readers_of_published_events_follow_the_slot(nodes: list[Redis], cluster: RedisCluster) -> None:
    """Only the node of the queue has work: the events are published to its readers alone."""
    name, source, target = ends_of_move(nodes)
    async with AsyncWorkQueue(name, cluster) as queue, AsyncWorkQueue(name, cluster) as reader:
        await queue.events.keep(count=1000)
        await queue.events.publish()
        assert b"sharded " in (await source.hget(f"{name}:events:keep", "live") or b"")
        events = aiter(reader.events(live=True))
        ahead = asyncio.ensure_future(anext(events))

        async def subscribed(node: Redis) -> bool:
            return bool((await command(node, "PUBSUB", "SHARDNUMSUB", f"{name}:live"))[1] == 1)

        await until("the reader has subscribed", lambda: subscribed(source))
        await queue.add_item(Item(b"x", id="before"))
        async with asyncio.timeout(120):
            assert (await ahead).id == "before"
            await move_slot(nodes, name, source, target)
            await until("the reader has subscribed at the new node", lambda: subscribed(target))
            await queue.add_item(Item(b"x", id="after"))
            assert (await anext(events)).id == "after"
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_waiting_caller_leaves_a_node_that_stands_still_when_the_slot_is_elsewhere(
    nodes: list[Redis], cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node ends no connection: the others of the session have to."""
    monkeypatch.setattr(listener, "MARGIN_SECONDS", 100 * LIMIT_SECONDS)
    name, source, target = ends_of_move(nodes)
    slot, target_id = key_slot(name.encode()), await command(target, "CLUSTER MYID")
    others = [node for node in nodes if node is not source]
    pid = (await source.info("server"))["process_id"]
    async with (
        AsyncWorkQueue(name, cluster, reply_timeout=1) as waiter,
        AsyncWorkQueue(name, cluster, reply_timeout=1) as adder,
    ):
        waiting = asyncio.create_task(waiter.lease(60))
        await blocked(source, 1)
        for node in others:
            await command(node, "CONFIG SET", "cluster-require-full-coverage", "no")
        os.kill(pid, signal.SIGSTOP)
        try:
            for node in (target, *others):
                await command(node, "CLUSTER SETSLOT", slot, "NODE", target_id)

            async def is_added() -> bool:
                with contextlib.suppress(ConnectionLost, ServerBusy):
                    return await adder.add_item(Item(b"x", id="there"))
                return False

            await until("an item is added there", is_added)
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await waiting is not None
            waiting = asyncio.create_task(waiter.lease(60))
            await blocked(target, 1)
            waiting.cancel()
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
async def test_a_channel_is_subscribed_again_that_is_removed_when_it_is_confirmed(
    nodes: list[Redis], cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirmation and the removal arrive together."""
    name, source, _ = ends_of_move(nodes)
    subscribe, removed = Connection.subscribe, list[bytes]()

    def remove(connection: Connection, channel: bytes, *arguments: Any, sharded: bool) -> None:
        subscribe(connection, channel, *arguments, sharded=sharded)
        if sharded and not removed:
            with redis_py.Redis(port=port_of(source)) as other:
                while not other.execute_command("PUBSUB", "SHARDNUMSUB", channel)[1]:
                    pass
                node = other.execute_command("CLUSTER MYID")
                other.execute_command("CLUSTER SETSLOT", key_slot(name.encode()), "NODE", node)
            removed.append(channel)

    async with AsyncWorkQueue(name, cluster) as queue:
        await queue.events.keep(count=1000)
        await queue.events.publish()
        monkeypatch.setattr(Connection, "subscribe", remove)
        events = aiter(queue.events(live=True))
        ahead = asyncio.ensure_future(anext(events))

        async def subscribed() -> bool:
            counted = await command(source, "PUBSUB", "SHARDNUMSUB", f"{name}:live")
            return bool(removed and counted[1])

        await until("the reader has subscribed again", subscribed)
        await queue.add_item(Item(b"x", id="after"))
        async with asyncio.timeout(LIMIT_SECONDS):
            assert (await ahead).id == "after"
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_flow_runs_go_on_between_each_two_keys_that_are_moved(
    nodes: list[Redis], cluster: RedisCluster, tmp_path: Path
) -> None:
    flows, stop = Flows(tmp_path, "{moving}"), asyncio.Event()
    _, source, target = ends_of_move(nodes, flows.name)
    home, other = (AsyncWorkQueue(one, cluster) for one in flows.names)
    async with home, other, asyncio.timeout(120), asyncio.TaskGroup() as group:
        worker = flows.worker(home, other)
        running, starting = map(group.create_task, (worker.run(), flows.start_runs(home, stop)))
        for one, another in ((source, target), (target, source)):
            await until("runs are started", partial(flows.has_started, 10))
            await start_moving(flows.name, one, another)
            while await move_keys(flows.name, one, another, 1):  # noqa: ASYNC110 - steps of an operator
                await asyncio.sleep(0.002)  # the worker continues
            await finish_moving(nodes, flows.name, one, another)
        stop.set()
        await starting
        await until("all runs have ended", partial(flows.all_ended, home))
        worker.stop()
        await running
        problems = await flows.problems(home, other)
    assert not problems, "\n".join(problems[:20])


@pytest.mark.slow
async def test_other_workers_see_a_worker_live_whose_slot_has_moved(
    nodes: list[Redis], cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The old node keeps its connections open: those that do not fail follow the others to the new node."""
    name, source, target = ends_of_move(nodes)
    server = (await target.info("server"))["run_id"]
    async with (
        AsyncWorkQueue(name, cluster) as queue,
        asyncio.timeout(LIMIT_SECONDS),
        asyncio.TaskGroup() as group,
    ):
        worker = Worker(dead_after=3)

        @worker.handler(queue)
        async def handle(_: bytes) -> None: ...

        running = group.create_task(worker.run())
        await blocked(source, 1)
        await move_slot(nodes, name, source, target)

        async def names_connections() -> bool:
            about = [json.loads(text) for text in (await cluster.hgetall(f"{name}:workers")).values()]
            return [one["server"] for one in about if one["connections"]] == [server]

        await until("the worker names its connections to the new node", names_connections)
        worker.stop()
        await running
    assert "cannot see whether this process lives" not in caplog.text


# --------------------------------------------------------------------------------------------- the autoscaler


async def test_its_queue_and_those_of_the_jobs_are_on_any_nodes(
    nodes: list[Redis], cluster: RedisCluster, tmp_path: Path
) -> None:
    path, names = tmp_path / "autoscale.toml", [f"{{{n}}}" for n in range(8)]
    path.write_text(
        f"""name = "{{auto}}"
url = "redis://127.0.0.1:{port_of(nodes[0])}"
cluster = true
[http]
address = "127.0.0.1:0"
[deployments.all]
jobs = {names}
backend = "http"
max_units = 100
"""
        + "".join(f'[jobs."{name}"]\nservice_time = "30s"\n' for name in names)
    )
    for count, name in enumerate(names):
        async with AsyncWorkQueue(name, cluster) as queue:
            await queue.add_items([Item(b"x") for _ in range(count)])
    async with Autoscaler(load_config(path)) as autoscaler:
        for number in (1, 2):
            report = await autoscaler.once()
            assert (report.number, report.errors) == (number, ())
            assert [job.signals.waiting for job in report.jobs] == [*range(8)]
    async with Autoscaler(load_config(path)) as other:
        last = await other.last_report()
    assert last is not None
    assert last.number == 2
    assert last.tiers[0].wanted >= 14, "28 items of 30 s within a minute"
