"""Flow runs that tests start, and what they read of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from leasequeue.queue.queue import engine_of
from leasequeue.tasks.wire import data_of
from tests.queue.asking import until

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


def one_queue(fixture: str) -> pytest.MarkDecorator:
    """Return a mark for a test of what shards do not have: other queues, one order, its keys."""
    return pytest.mark.parametrize(fixture, [None], indirect=True)


ONE_QUEUE = one_queue("tasks")


def call(task: str, needs: dict[str, Any] | None = None, **constants: Any) -> bytes:
    """Return the data of the item of a stage that calls a task."""
    return data_of(task, json.dumps(constants).encode(), None, needs=needs)


def stage(queue: AsyncWorkQueue, name: str, data: bytes | None = None, **options: Any) -> StagePlan:
    """Return a stage that calls the task of its name, unless `data` says otherwise."""
    return StagePlan(name, queue.name, call(name) if data is None else data, **options)


def child(queue: AsyncWorkQueue, task: str, **constants: Any) -> ChildPlan:
    """Return a child that calls a task."""
    return ChildPlan(queue.name, call(task, **constants))


async def start(queue: AsyncWorkQueue, *stages: StagePlan, run: str = "r", **options: Any) -> None:
    """Start a flow run, the result of which is that of its last stage."""
    options = {"result": stages[-1].name, **options}
    assert await queue.flow_runs.start(FlowPlan(stages, **options), run)


async def field(queue: AsyncWorkQueue, name: str, run: str = "r") -> str | None:
    """Return a field of a flow run."""
    queue = queue.shard_of(run)
    value = await engine_of(queue).read_at(b"HGET", f"{queue.name}:run:{run}".encode(), name.encode())
    return None if value is None else str(value.decode())


async def states(queue: AsyncWorkQueue, run: str = "r") -> dict[str, str]:
    """Return the state of the run, under an empty name, and those of its stages and children, by path."""
    queue = queue.shard_of(run)
    found = await engine_of(queue).read_at(b"HGETALL", f"{queue.name}:run:{run}".encode())
    fields = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
    paths = {name[2:]: value for name, value in fields.items() if name.startswith("s:")}
    return {"": fields.get("state", "")} | paths


async def ended(queue: AsyncWorkQueue, state: str = "completed", run: str = "r") -> None:
    """Wait until a flow run has ended in a state, and no part of it is left."""

    async def has_ended() -> bool:
        return (await field(queue, "state", run), await field(queue, "active", run)) == (state, "0")

    await until(f"the run {run} is {state}", has_ended)
