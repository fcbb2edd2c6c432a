"""A queue whose shards are on several nodes of a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.errors import ConnectionLost, PartlyApplied, ServerBusy
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.pushes import listener
from tests.eventually import LIMIT_SECONDS, eventually
from tests.faults.cluster_nodes import cluster, kind, nodes, owner, port_of  # noqa: F401 - fixtures
from tests.faults.stage_program import CHILDREN, plan_of, worker_for
from tests.faults.test_cluster import finish_moving, start_moving
from tests.processes import program
from tests.queue.asking import command, names_of, until
from tests.worker.working import counted, working

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

pytestmark = pytest.mark.cluster

SHARDS, ITEMS = 6, 600


def items(count: int, begin: str = "i") -> list[Item]:
    return [Item(b"x", id=f"{begin}{n}") for n in range(count)]


async def test_a_worker_drains_all_nodes_while_a_shard_moves(
    nodes: list[Redis],  # noqa: F811
    cluster: RedisCluster,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each node has its part of the shards, and three connections of the process, whatever their number."""
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 3600)
    async with AsyncWorkQueue("spread", cluster, shards=SHARDS) as queue:
        on = Counter(owner(nodes, one.name) for one in queue.shards)
        assert {*on.values()} == {SHARDS // 3}
        done = Counter[str]()
        worker = Worker(concurrency=20)

        @worker.handler(queue)
        async def handle(_: bytes, lease: Lease) -> None:
            done[lease.id] += 1

        running = asyncio.create_task(worker.run())
        await worker.started()

        async def waits() -> bool:
            return all([await owner(nodes, one.name).zcard(f"{one.name}:idle") for one in queue.shards])

        await until("the worker waits on each shard", waits)
        for node in nodes:
            names = names_of(await node.client_list())
            assert len(names) <= 3, names
            assert not [one for one in names if one.startswith("leasequeue:waits")]
        await queue.add_items(items(ITEMS))
        moving = queue.shards[1].name
        source = owner(nodes, moving)
        target = next(node for node in nodes if node is not source)
        await start_moving(moving, source, target)
        adding = asyncio.create_task(queue.add_items(items(ITEMS, "j")))
        await finish_moving(nodes, moving, source, target)
        async with asyncio.timeout(LIMIT_SECONDS):
            assert await adding == [True] * ITEMS
        await eventually("all are done", lambda: len(done) == 2 * ITEMS)
        assert {*done.values()} == {1}
        worker.stop()
        await running


@pytest.mark.parametrize("step", ["before:more", "after:fan", "before:finish"])
async def test_runs_go_on_on_each_node_when_a_worker_is_killed_at_a_step_of_one(
    nodes: list[Redis],  # noqa: F811
    cluster: RedisCluster,  # noqa: F811
    step: str,
) -> None:
    """Each run is whole in one shard, and so on one node, with the items of all its stages."""
    url = ",".join(f"127.0.0.1:{port_of(node)}" for node in nodes)
    async with AsyncWorkQueue("spread", cluster, shards=SHARDS) as queue:
        await queue.events.keep(count=100_000)
        ids = [f"r{n}" for n in range(12)]
        for one in ids:
            assert await queue.flow_runs.start(plan_of(queue), one)
        homes = {one: queue.shard_of(one).name for one in ids}
        assert {owner(nodes, home) for home in homes.values()} == {*nodes}
        async with program(
            "tests.faults.stage_program", f"redis://{url}", "spread", step, f"{SHARDS}"
        ) as died:
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await died.wait() == -signal.SIGKILL
        for shard in queue.shards:
            for key in (f"{shard.name}:sessions", f"{shard.name}:deadlines"):
                for member in await owner(nodes, key).zrange(key, 0, -1):
                    await command(owner(nodes, key), "ZADD", key, 1, member)
        async with working(worker_for(f"redis://{url}", "spread", shards=SHARDS)):
            for one in ids:
                assert await queue.flow_runs.result(one, timeout=LIMIT_SECONDS) == CHILDREN
        await counted(queue, "nothing is left", lambda counts: not counts.total)
        views = await queue.flow_runs.list(ids, children=True)
        assert [view and (view.state, view.progress) for view in views] == [
            ("completed", (CHILDREN + 2,) * 2)
        ] * 12
        done = Counter[str]()
        for shard in queue.shards:
            found = [event.id async for event in shard.events(follow=False) if event.what == "completed"]
            assert {one.partition("/")[0] for one in found} <= {
                one for one in ids if homes[one] == shard.name
            }
            done.update(found)
        assert (len(done), {*done.values()}) == (12 * (CHILDREN + 2), {1})


async def test_the_other_shards_go_on_when_a_node_dies(
    nodes: list[Redis],  # noqa: F811
    cluster: RedisCluster,  # noqa: F811
) -> None:
    for node in nodes:
        await node.config_set("cluster-require-full-coverage", "no")
    async with AsyncWorkQueue("spread", cluster, shards=SHARDS, reply_timeout=2) as queue:
        done: set[str] = set()
        worker = Worker(concurrency=20)

        @worker.handler(queue)
        async def handle(_: bytes, lease: Lease) -> None:
            done.add(lease.id)

        running = asyncio.create_task(worker.run())
        await worker.started()
        await queue.add_items(items(60))
        await eventually("all are done", lambda: len(done) == 60)
        victim = nodes[2]
        os.kill((await victim.info("server"))["process_id"], signal.SIGKILL)
        new = items(60, "n")
        living = [one.id for one in new if owner(nodes, queue.shard_of(one.id).name) is not victim]
        assert 0 < len(living) < 60

        async def is_partly_added() -> bool:
            with pytest.raises(PartlyApplied) as caught:
                await queue.add_items(new)
            assert isinstance(caught.value.__cause__, (ConnectionLost, ServerBusy))
            answers = zip(new, caught.value.answers, strict=True)
            return [one.id for one, added in answers if added is not None] == living

        await until("those of the living nodes are added", is_partly_added)
        await eventually("and done", lambda: done >= {*living})
        assert not [reason for reason in worker.health().reasons if "event loop" in reason]
        worker.stop(now=True)
        await running
