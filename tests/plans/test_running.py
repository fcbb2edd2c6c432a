"""Tests of flows with workers and a server: what follows what, on which queues, and steering the runs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from leasequeue import (
    AsyncWorkQueue,
    FanOut,
    HandedOver,
    JobFailed,
    Next,
    Reject,
    RetryPolicy,
    TaskQueue,
    correlation_id,
    current_stage,
    fan_out,
)
from leasequeue.errors import JobCancelled, JobUnknown, UnknownAttribute
from leasequeue.flow import Flow
from leasequeue.queue.plans.diagram import draw_run
from tests.plans.flows import ONE_QUEUE
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue.queue.plans.reading import FlowRunView


@dataclass
class Member:
    user: int
    roles: list[str]


async def test_a_flow_runs_from_its_attributes_to_its_result(tasks: TaskQueue) -> None:
    flow = Flow(
        "access", tasks, attributes={"user_id": int, "guilds": list[int]}, lookup=["user_id", "guilds"]
    )

    @tasks.task
    async def check(user_id: int) -> Member:
        assert correlation_id.get() == "request-7"
        return Member(user_id, ["owner", "member"])

    @tasks.task
    async def reward(guild: int, role: str) -> str:
        return f"{role} of {guild}"

    @tasks.task
    async def rewards(guilds: list[int], roles: list[str]) -> FanOut[str]:
        return fan_out([reward.call(guild, role) for guild in guilds for role in roles])

    @tasks.task
    async def finish(check: Member, given: list[str], mark: str) -> list[Any]:
        return [check.user, given, mark, current_stage().flow]

    first = flow.stage(check)
    second = flow.stage(rewards, after=first, takes={"roles": first.member("roles")})
    flow.stage(finish, after=second, takes={"given": second}, args={"mark": "!"})
    run = await flow.start(user_id=62, guilds=[1, 2], correlation="request-7", id="r")
    assert run.created
    async with working(new_worker(flow)):
        given = ["owner of 1", "member of 1", "owner of 2", "member of 2"]
        assert await run.result(timeout=120) == [62, given, "!", "access"]
    assert not (await flow.start(user_id=62, guilds=[1, 2], id="r")).created
    assert await flow.flow_run("r").result() == [62, given, "!", "access"]


@pytest.mark.seed("GLD-O6")
async def test_a_stage_chooses_what_follows_and_a_later_one_joins_both_ways(tasks: TaskQueue) -> None:
    flow = Flow("access", tasks, attributes={"user_id": int})

    @tasks.task
    async def check(user_id: int) -> Next[int]:
        return Next(user_id, "member" if user_id > 0 else "guest")

    @tasks.task
    async def member(check: int) -> str:
        return f"member {check}"

    @tasks.task
    async def guest(check: int) -> str:
        return f"guest {check}"

    @tasks.task
    async def end(check: int, member: str = "", guest: str = "") -> list[Any]:
        return [check, member, guest]

    first = flow.stage(check)
    flow.stage(end, after=[flow.stage(member, after=first), flow.stage(guest, after=first)])
    runs = [await flow.start(user_id=number) for number in (1, -1)]
    async with working(new_worker(tasks)):
        assert await runs[0].result(timeout=120) == [1, "member 1", ""]
        assert await runs[1].result(timeout=120) == [-1, "", "guest -1"]


async def test_a_run_goes_on_as_it_was_planned_when_the_program_has_changed(tasks: TaskQueue) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    @tasks.task
    async def double(check: int) -> int:
        return check * 2

    @tasks.task
    async def negate(check: int) -> int:
        return -check

    before, after = (Flow("access", tasks, attributes={"user_id": int}) for _ in range(2))
    before.stage(double, after=before.stage(check))
    after.stage(negate, after=after.stage(check))
    old = await before.start(user_id=4)
    new = await after.start(user_id=4)
    async with working(new_worker(after)):
        assert [await after.flow_run(run.id).result(timeout=120) for run in (old, new)] == [8, -4]
    drawn = await after.runs.mermaid(old.id)
    assert '"double<br/>done"' in drawn
    assert "negate" not in drawn


@ONE_QUEUE
@pytest.mark.seed("GLD-O19")
async def test_stages_of_a_higher_priority_run_first_and_a_run_shifts_them(tasks: TaskQueue) -> None:
    order: list[str] = []

    @tasks.task
    async def log(name: str) -> None:
        order.append(name)

    low = Flow("low", tasks, attributes={"name": str})
    low.stage(log)
    high = Flow("high", tasks, attributes={"name": str})
    high.stage(log, priority=2)
    runs = [
        await low.start(name="low"),
        await low.start(name="shifted", priority=3),
        await high.start(name="high"),
        await high.start(name="lowest", priority=-9),
    ]
    async with working(new_worker(tasks, concurrency=1)):
        for run in runs:
            await run.result(timeout=120)
    assert order == ["shifted", "high", "low", "lowest"]


@ONE_QUEUE
@pytest.mark.seed("GLD-K1")
async def test_a_stage_is_retried_by_its_own_policy_and_has_a_limit_of_its_own(tasks: TaskQueue) -> None:
    attempts: list[int] = []
    running = 0

    @tasks.task(retry=RetryPolicy(attempts=1))
    async def flaky(number: int) -> int:
        nonlocal running
        attempts.append(number)
        running += 1
        try:
            assert running == 1
            await asyncio.sleep(0.002)
        finally:
            running -= 1
        if attempts.count(number) < 3:
            raise ValueError(number)
        return number

    flow = Flow("access", tasks, attributes={"number": int})
    flow.stage(flaky, retry=RetryPolicy(attempts=3, first=0), concurrency=1)
    plain = Flow("plain", tasks, attributes={"number": int})
    plain.stage(flaky, name="once")
    runs = [await flow.start(number=number) for number in range(3)]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [0, 1, 2]
        failed = await plain.start(number=9)
        with pytest.raises(JobFailed, match="once"):
            await failed.result(timeout=120)
    assert len(attempts) == 10


@ONE_QUEUE
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


class Plan(StrEnum):
    FREE = "free"


ID = UUID(int=7)
NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)


@pytest.fixture
def flow(tasks: TaskQueue) -> Flow:
    types = {"user": UUID, "at": datetime, "plan": Plan, "guilds": list[int], "note": str | None}
    flow = Flow("access", tasks, attributes=types, lookup=["user", "at", "plan", "guilds", "note"])

    @tasks.task
    async def check(user: UUID, plan: Plan) -> str:
        return f"{user} {plan}"

    flow.stage(check)
    return flow


def ids(views: list[FlowRunView]) -> set[str]:
    return {view.id for view in views}


@pytest.mark.seed("GLD-O13", "GLD-L4")
async def test_runs_are_found_by_values_of_any_declared_type(tasks: TaskQueue, flow: Flow) -> None:
    other = Flow("other", tasks, attributes={"user": UUID}, lookup=["user"])
    other.stage(tasks.tasks[0], args={"plan": Plan.FREE})
    await other.start(user=ID, id="o")
    await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[1985, 7], id="a")
    await flow.start(user=UUID(int=8), at=NOW, plan=Plan.FREE, guilds=[7], note="x", id="b")
    assert ids(await flow.runs.find(user=ID)) == {"a"}
    assert ids(await flow.runs.find(at=NOW)) == ids(await flow.runs.find(plan=Plan.FREE)) == {"a", "b"}
    assert ids(await flow.runs.find(guilds=1985)) == ids(await flow.runs.find(guilds=[7, 1985])) == {"a"}
    assert ids(await flow.runs.find(note="x")) == {"b"}
    assert ids(await flow.runs.find(guilds=7, note=None)) == {"a"}
    with pytest.raises(UnknownAttribute, match="no runs by 'guild': its lookup= has user, at, plan"):
        await flow.runs.find(guild=7)


@pytest.mark.seed("GLD-B15")
async def test_the_runs_of_a_flow_are_those_of_its_name(tasks: TaskQueue, flow: Flow) -> None:
    other = Flow("other", tasks, attributes={"user": UUID})
    other.stage(tasks.tasks[0], args={"plan": Plan.FREE})
    await other.start(user=ID, id="o")
    await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[], id="a")
    assert [view and view.id for view in await flow.runs.list()] == ["a"]
    assert [view and view.id for view in await flow.runs.list(["o", "a", "?"])] == [None, "a", None]
    with pytest.raises(JobUnknown):
        await flow.runs.get("o")
    assert (await flow.runs.get("a")).attributes["guilds"] == []


async def test_a_run_is_cancelled_replayed_and_deleted(tasks: TaskQueue, flow: Flow) -> None:
    run = await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[], id="a")
    assert await flow.runs.cancel("a")
    with pytest.raises(JobCancelled):
        await run.result(timeout=120)
    assert not await flow.runs.retry("a"), "it has not failed"
    again = await flow.runs.replay("a")
    async with working(new_worker(tasks)):
        assert await flow.runs.result(again, timeout=120) == f"{ID} free"
    assert await flow.runs.delete("a")
    with pytest.raises(JobUnknown):
        await flow.runs.get("a")


@ONE_QUEUE
async def test_a_replayed_run_tells_stages_without_a_task_its_own_id(
    tasks: TaskQueue, redis_url: str
) -> None:
    flow = Flow("films", tasks, attributes={"user": float, "meta_of": dict[str, str]})
    async with AsyncWorkQueue.from_url(redis_url, f"{tasks.queue.name}-videos") as videos:
        flow.stage("render", queue=videos, takes={"user": "user", "of": "meta_of"}, args={"size": 1})
        await flow.start(user=1e300, meta_of={"stage": "render", "run": "a"}, id="a")
        again = await flow.runs.replay("a")
        found = [await videos.find(f"{run}/render") for run in ("a", again)]
    data = [json.loads(one.data or b"") for one in found if one]
    assert [one.pop("meta") for one in data] == [
        {"flow": "films", "run": run, "stage": "render", "needs": {}} for run in ("a", again)
    ]
    assert data == [{"user": 1e300, "of": {"stage": "render", "run": "a"}, "size": 1}] * 2


@pytest.mark.seed("GLD-O20")
async def test_a_run_is_drawn_with_states_and_counts(tasks: TaskQueue) -> None:
    flow = Flow("access", tasks, attributes={"number": int})
    held = asyncio.Event()

    @tasks.task
    async def check(number: int) -> int:
        return number

    @tasks.task
    async def child(number: int) -> int:
        if number == 1:
            await held.wait()
        return number

    @tasks.task
    async def fan(check: int) -> FanOut[int]:
        return fan_out([child.call(number) for number in range(check)])

    @tasks.task
    async def end(fan: list[int]) -> None:
        raise Reject(f"{fan}")

    first = flow.stage(check)
    flow.stage(end, after=flow.stage(fan, after=first))
    run = await flow.start(number=3)
    async with working(new_worker(tasks)):
        async with asyncio.timeout(120):
            while (await flow.runs.get(run.id)).progress[0] < 3:  # noqa: ASYNC110 - the state of the server
                await asyncio.sleep(0.005)
        assert (await flow.runs.mermaid(run.id)).splitlines()[:6] == [
            "flowchart LR",
            '    s0["check<br/>done"]',
            '    s1[["fan<br/>fanned out<br/>3 children, 1 unfinished, 2 done"]]',
            '    s2["end<br/>not entered"]',
            "    s0 --> s1",
            "    s1 --> s2",
        ]
        held.set()
        with pytest.raises(JobFailed):
            await run.result(timeout=120)
    drawn = draw_run(await tasks.queue.flow_runs.get(run.id))
    assert '    s2["end<br/>failed<br/>' in drawn
    assert "    class s0,s1 done\n" in drawn
    assert drawn.count("classDef done ") == 1
    assert "    class s2 failed\n" in drawn
