"""Tests of stages on other queues, with separate handlers, and of what is handed over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    FanOut,
    HandedOver,
    TaskQueue,
    current_stage,
    fan_out,
)
from leasequeue.flow import Flow
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from tests.queue.fixtures import MakeQueue


@dataclass
class Member:
    user: int
    roles: list[str]


async def test_stages_on_queues_of_their_own_are_served_by_any_worker_of_these(
    tasks: TaskQueue, name: str
) -> None:
    places: list[str] = []

    @tasks.task
    async def check(user_id: int) -> int:
        places.append(current_stage().lease.queue_name)
        return user_id

    flow = Flow("access", tasks, attributes={"user_id": int})
    first = flow.stage(check)
    second = flow.stage(check, name="slow", queue=f"{name}-slow", after=first, takes={"user_id": first})
    flow.stage(check, name="end", after=second, takes={"user_id": second})
    run = await flow.start(user_id=3)
    only = new_worker(flow.only("slow"))
    assert [handler.name for handler in only.handlers] == ["access.slow"]
    async with working(new_worker(flow.only(first, "end"))), working(only):
        assert await run.result(timeout=120) == 3
    assert places == [name, f"{name}-slow", name]


async def test_a_queue_with_a_handler_of_its_own_is_a_stage(
    tasks: TaskQueue, name: str, make_queue: MakeQueue
) -> None:
    videos = make_queue(name=f"{name}-videos")
    flow = Flow("access", tasks, attributes={"user_id": int})

    @tasks.task
    async def check(user_id: int) -> Member:
        return Member(user_id, ["a"])

    @tasks.task
    async def end(render: list[str]) -> str:
        return "-".join(render)

    first = flow.stage(check)
    takes: dict[str, Any] = {"user": "user_id", "roles": first.member("roles")}
    flow.stage(end, after=flow.stage("render", queue=videos, after=first, takes=takes, args={"size": 2}))
    worker = new_worker(tasks)

    @worker.handler(videos)
    async def render(payload: dict[str, Any]) -> list[str]:
        stage = current_stage()
        assert payload["meta"]["run"] == stage.run
        return [str(payload["user"]), str(payload["size"]), stage.inputs["roles"].decode()]

    run = await flow.start(user_id=3)
    async with working(worker):
        assert await run.result(timeout=120) == '3-2-["a"]'


@pytest.mark.seed("GLD-O23", "GLD-B18")
async def test_the_join_waits_for_a_child_that_was_handed_over(tasks: TaskQueue) -> None:
    flow = Flow("access", tasks, attributes={"user_id": int})
    handed_over = asyncio.Event()

    @tasks.task
    async def reward(user_id: int) -> str:
        return f"reward {user_id}"

    @tasks.task
    async def by_hand(user_id: int) -> str:
        assert user_id == 3
        handed_over.set()
        raise HandedOver

    @tasks.task
    async def rewards(user_id: int) -> FanOut[str]:
        return fan_out([reward.call(user_id), by_hand.call(user_id)])

    flow.stage(rewards)
    run = await flow.start(user_id=3)
    async with working(new_worker(tasks)):
        await asyncio.wait_for(handed_over.wait(), 120)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.2)
        assert await flow.runs.report(run.id, "rewards/1", "done")
        assert await run.result(timeout=120) == ["reward 3", "done"]
