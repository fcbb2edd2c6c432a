"""Tests of declaring a flow: what it consists of. Nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import RetryPolicy, TaskQueue, Worker
from leasequeue.cli.worker.target import Unusable
from leasequeue.cli.worker.target import _as_worker as as_worker
from leasequeue.errors import InvalidFlow
from leasequeue.flow import Flow
from leasequeue.queue.plans.plan import AtLeast, FlowPlan, StagePlan
from leasequeue.worker.stage_context import FanOut, Next  # noqa: TC001 - tasks read annotations

if TYPE_CHECKING:
    from leasequeue.flow.stage import InputSource


@dataclass
class Member:
    user: int
    roles: list[str]


IMPORTED = TaskQueue.from_url("redis://localhost:1", "{t}imported")


@IMPORTED.task(run_in="process")
def render(user_id: int) -> int:
    return user_id


@pytest.fixture
def tasks() -> TaskQueue:
    return TaskQueue.from_url("redis://localhost:1", "{t}home")


@pytest.fixture
def flow(tasks: TaskQueue) -> Flow:
    attributes = {"user_id": int, "guilds": list[int], "note": str | None}
    return Flow("access", tasks, attributes=attributes, lookup=["user_id", "guilds"], keep=60)


def planned(flow: Flow, **attributes: Any) -> FlowPlan:
    flow.check()
    written = flow._attributes.encode(attributes) if attributes else {}
    return flow._plan(written, "r1", keep_ms=flow._keep_ms)


def data_of(plan: FlowPlan, name: str) -> Any:
    return json.loads(stage_of(plan, name).data)


def stage_of(plan: FlowPlan, name: str) -> StagePlan:
    return next(stage for stage in plan.stages if stage.name == name)


@pytest.mark.seed("GLD-K6")
def test_a_plan_has_the_attributes_and_the_texts_by_which_runs_are_found(
    tasks: TaskQueue, flow: Flow
) -> None:
    @tasks.task
    async def check(user_id: int) -> None:
        raise NotImplementedError

    flow.stage(check)
    plan = planned(flow, user_id=62, guilds=[1985, 7])
    assert plan.attributes == {"user_id": b"62", "guilds": b"[1985,7]", "note": b"null"}
    assert plan.lookup == {"user_id": ["62"], "guilds": ["1985", "7"]}
    assert (plan.flow, plan.keep_ms, plan.result) == ("access", 60_000, "check")


def test_what_a_stage_takes_is_in_the_data_of_its_item(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int, *, deep: bool = True) -> Member:
        raise NotImplementedError

    @tasks.task
    async def greet(check: Member, user: float, name: str | None, roles: list[str], count: int = 1) -> str:
        raise NotImplementedError

    first = flow.stage(check)
    takes: dict[str, InputSource] = {
        "user": first.member("user"),
        "name": "note",
        "roles": first.member("roles"),
    }
    flow.stage(greet, name="hello", after=first, takes=takes, args={"count": 3})
    plan = planned(flow)
    assert data_of(plan, "check") == {"task": "check", "args": {}, "meta": {"needs": {"user_id": "@user_id"}}}
    needs = {"check": "check", "user": "check.user", "name": "@note", "roles": "check.roles"}
    assert data_of(plan, "hello") == {"task": "greet", "args": {"count": 3}, "meta": {"needs": needs}}
    assert [(stage.after, stage.then) for stage in plan.stages] == [((), ("hello",)), (("check",), ())]


@pytest.mark.seed("GLD-O24", "GLD-K1")
def test_a_stage_with_settings_of_its_own_is_a_task_of_its_own(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task(retry=RetryPolicy(attempts=2), timeout=5)
    async def check(user_id: int) -> None:
        raise NotImplementedError

    other = Flow("other", tasks, attributes={"user_id": int})
    flow.stage(check, retry=RetryPolicy(attempts=9), concurrency=5, rate="10/10s")
    flow.stage(check, name="again", queue="{t}slow", priority=2, delay=1.5, expires_in=60, group="g")
    other.stage(check)
    assert [task.name for task in tasks.tasks] == ["check", "access.check", "access.again"]
    own = tasks.tasks[1].definition
    assert (own.settings.retry, own.settings.timeout) == (RetryPolicy(attempts=9), 5)
    first, second = planned(flow).stages
    assert data_of(planned(flow), "check")["task"] == "access.check"
    assert (first.queue, first.group) == ("{t}home", "task:access.check")
    assert (second.queue, second.level, second.delay_ms) == ("{t}slow", 2, 1500)
    assert (second.expires_ms, second.group) == (60_000, "g")
    assert data_of(planned(other), "check")["task"] == "check"


def test_other_processes_find_a_task_of_its_own_as_the_task_that_it_is_made_of() -> None:
    stage = Flow("access", IMPORTED, attributes={"user_id": int}).stage(render, timeout=5)
    assert stage.task is not None
    assert stage.task.name == "access.render"
    assert stage.task.definition.picklable(stage.task) is render


def test_the_options_of_a_task_are_those_of_its_stage(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task(concurrency=3)
    async def check(user_id: int) -> None:
        raise NotImplementedError

    flow.stage(check.options(priority=4, delay=2, expires_in=3))
    stage = planned(flow).stages[0]
    assert (stage.level, stage.delay_ms, stage.expires_ms, stage.group) == (4, 2000, 3000, "task:check")


@pytest.mark.seed("GLD-O6")
def test_a_choosing_stage_and_one_that_fans_out_are_told_by_their_annotations(
    tasks: TaskQueue, flow: Flow
) -> None:
    @tasks.task
    async def check(user_id: int) -> Next[Member]:
        raise NotImplementedError

    @tasks.task
    async def plan(check: Member) -> FanOut[int]:
        raise NotImplementedError

    @tasks.task
    async def total(plan: list[int]) -> None:
        raise NotImplementedError

    first = flow.stage(check)
    second = flow.stage(plan, after=first)
    flow.stage(total, after=second)
    assert (first.chooses, first.output, second.fans, second.output) == (True, Member, True, list[int])
    made = planned(flow)
    assert [stage.choice for stage in made.stages] == [True, False, False]
    assert data_of(made, "total")["meta"] == {"needs": {"plan": "plan/*"}}


def test_a_function_without_an_annotation_may_choose_if_it_says_so(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int):  # type: ignore[no-untyped-def] # noqa: ANN202 - as users write it
        return user_id

    assert flow.stage(check, choose=True).chooses
    assert not flow.stage(check, name="again").chooses


def test_a_list_takes_the_results_that_there_are(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    @tasks.task
    async def total(values: list[int | str]) -> None:
        raise NotImplementedError

    first = flow.stage(check)
    second = flow.stage(check, name="two")
    flow.stage(total, after=[first, second], join="settled", takes={"values": [first, "two"]})
    plan = planned(flow)
    assert data_of(plan, "total")["meta"] == {"needs": {"values": ["check", "two"]}}
    assert stage_of(plan, "total").join == "settled"


@pytest.mark.seed("GLD-O23")
def test_a_stage_on_a_queue_with_its_own_handler_has_what_it_takes_as_its_data(
    tasks: TaskQueue, flow: Flow
) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    first = flow.stage(check)
    takes: dict[str, InputSource] = {"user": "user_id", "checked": first}
    flow.stage("render", queue="{t}videos", after=first, takes=takes, args={"size": 2}, foreign=True)
    plan = planned(flow, user_id=62, guilds=[])
    stage = stage_of(plan, "render")
    assert (stage.queue, stage.foreign, stage.level) == ("{t}videos", True, 0)
    meta = {"flow": "access", "run": "r1", "stage": "render", "needs": {"checked": "check"}}
    assert data_of(plan, "render") == {"size": 2, "user": 62, "meta": meta}


def test_the_result_of_a_run_is_that_of_its_only_end_or_of_the_stage_that_says_so(
    tasks: TaskQueue, flow: Flow
) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    first = flow.stage(check)
    assert planned(flow).result == "check"
    flow.stage(check, name="a", after=first)
    flow.stage(check, name="b", after=first)
    assert planned(flow).result is None
    flow.stage(check, name="c", after=first, result=True)
    assert planned(flow).result == "c"
    with pytest.raises(InvalidFlow, match="that of stage 'c', and not that of 'd', too"):
        flow.stage(check, name="d", result=True)


def test_stages_may_follow_later_ones_by_name(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    @tasks.task
    async def end(check: int) -> None:
        raise NotImplementedError

    flow.stage(end, after="check")
    with pytest.raises(InvalidFlow, match=r"follows 'check': there is no stage 'check'$"):
        flow.check()
    flow.stage(check)
    assert [stage.after for stage in planned(flow).stages] == [("check",), ()]


def test_a_flow_is_drawn(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> Next[int]:
        raise NotImplementedError

    @tasks.task
    async def fan(check: int) -> FanOut[int]:
        raise NotImplementedError

    first = flow.stage(check)
    flow.stage(fan, after=first, concurrency=2)
    flow.stage("render", queue="{t}old", after=[first, "fan"], join=AtLeast(1), foreign=True)
    assert flow.mermaid() == (
        "flowchart LR\n"
        '    s0{{"check"}}\n'
        '    s1[["fan<br/>access.fan"]]\n'
        '    s2[/"render<br/>#123;t#125;old<br/>join: at least 1"/]\n'
        "    s0 -.-> s1\n"
        "    s0 -.-> s2\n"
        "    s1 --> s2\n"
    )


def test_a_worker_takes_several_flows_and_their_task_queue(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    flow.stage(check, concurrency=1)
    other = Flow("other", tasks, attributes={"user_id": int})
    other.stage(check, queue="{t}slow")
    names = [handler.name for handler in Worker(tasks, flow, other, other.only("check")).handlers]
    assert names == ["check", "access.check", "other.check"]


def test_the_command_line_runs_a_valid_flow_and_refuses_another(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    first = flow.stage(check, queue="{t}slow")
    flow.stage(check, name="other")
    assert [one.name for one in as_worker(flow, "app:access").handlers] == ["check", "access.check"]
    assert [one.name for one in as_worker(flow.only(first), "app:slow").handlers] == ["access.check"]
    with pytest.raises(InvalidFlow, match="no stage 'slow' to serve"):
        flow.only("slow")
    flow.stage(check, name="last", after="?")
    with pytest.raises(Unusable, match="app:access: the flow 'access' cannot run: stage 'last' follows"):
        as_worker(flow, "app:access")
