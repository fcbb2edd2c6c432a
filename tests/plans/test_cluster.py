"""A flow on a cluster: its queues are in one slot, and it hands over to a flow on another node."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from leasequeue import FanOut, TaskQueue, fan_out
from leasequeue.errors import InvalidFlow
from leasequeue.flow import Flow
from tests.faults.cluster_nodes import cluster, kind, nodes, owner
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["cluster", "kind", "nodes"]


@pytest.mark.slow
async def test_flows_hand_over_between_the_nodes_of_a_cluster(
    nodes: list[Redis], cluster: RedisCluster
) -> None:
    async with AsyncExitStack() as stack:
        orders = await stack.enter_async_context(TaskQueue("{one}:orders", cluster))
        shipping = await stack.enter_async_context(TaskQueue("{two}:shipping", cluster))
        assert owner(nodes, orders.name) is not owner(nodes, shipping.name)

        @shipping.task
        async def deliver(amount: int) -> int:
            return amount * 10

        @orders.task
        async def part(number: int) -> int:
            return number

        @orders.task
        async def parts(count: int) -> FanOut[int]:
            return fan_out([part.call(number) for number in range(count)])

        @orders.task
        async def add_up(parts: list[int]) -> int:
            return sum(parts)

        other = Flow("shipping", shipping, attributes={"amount": int})
        other.stage(deliver)
        flow = Flow("orders", orders, attributes={"count": int})
        added = flow.stage(add_up, after=flow.stage(parts, queue="{one}:slow"))
        flow.then_start(other, after=added, takes={"amount": added})
        with pytest.raises(InvalidFlow, match="in one slot by the same"):
            flow.stage(part, queue="{two}:slow", takes={"number": "count"})
        run = await flow.start(count=4)
        async with working(new_worker(flow, other)):
            handed = await run.result(timeout=120)
            assert handed == f"{run.id}.start-shipping"
            assert await other.flow_run(handed).result(timeout=120) == 60
