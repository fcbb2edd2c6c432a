"""Tests of declaring a flow: what it consists of, and what is refused. Nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, RetryPolicy, TaskQueue, Worker
from leasequeue.cli.worker.target import Unusable
from leasequeue.cli.worker.target import _as_worker as as_worker
from leasequeue.errors import InvalidFlow, InvalidTask, UnknownAttribute
from leasequeue.flow import Flow
from leasequeue.queue.plans.plan import AtLeast, FlowPlan, StagePlan
from leasequeue.worker.stage_context import FanOut, Next  # noqa: TC001 - tasks read annotations

if TYPE_CHECKING:
    from leasequeue import Task
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
def check(tasks: TaskQueue) -> Task[[int], int]:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    return check


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
    flow: Flow, check: Task[[int], int]
) -> None:
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
    async def check(user_id: int) -> None: ...

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
    async def check(user_id: int) -> None: ...

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
    async def total(plan: list[int]) -> None: ...

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


def test_a_list_takes_the_results_that_there_are(
    tasks: TaskQueue, flow: Flow, check: Task[[int], int]
) -> None:
    @tasks.task
    async def total(values: list[int | str]) -> None: ...

    first = flow.stage(check)
    second = flow.stage(check, name="two")
    flow.stage(total, after=[first, second], join="settled", takes={"values": [first, "two"]})
    plan = planned(flow)
    assert data_of(plan, "total")["meta"] == {"needs": {"values": ["check", "two"]}}
    assert stage_of(plan, "total").join == "settled"


@pytest.mark.seed("GLD-O23")
def test_a_stage_on_a_queue_with_its_own_handler_has_what_it_takes_as_its_data(
    flow: Flow, check: Task[[int], int]
) -> None:
    first = flow.stage(check)
    takes: dict[str, InputSource] = {"user": "user_id", "checked": first}
    flow.stage("render", queue="{t}videos", after=first, takes=takes, args={"size": 2}, foreign=True)
    plan = planned(flow, user_id=62, guilds=[])
    stage = stage_of(plan, "render")
    assert (stage.queue, stage.foreign, stage.level) == ("{t}videos", True, 0)
    meta = {"flow": "access", "run": "r1", "stage": "render", "needs": {"checked": "check"}}
    assert data_of(plan, "render") == {"size": 2, "user": 62, "meta": meta}


def test_a_stage_on_a_queue_with_its_own_handler_takes_an_attribute_that_is_null(flow: Flow) -> None:
    flow.stage("render", queue="{t}videos", takes={"title": "note"}, foreign=True)
    assert data_of(planned(flow, user_id=62, guilds=[]), "render")["title"] is None


def test_the_result_of_a_run_is_that_of_its_only_end_or_of_the_stage_that_says_so(
    flow: Flow, check: Task[[int], int]
) -> None:
    first = flow.stage(check)
    assert planned(flow).result == "check"
    flow.stage(check, name="a", after=first)
    flow.stage(check, name="b", after=first)
    assert planned(flow).result is None
    flow.stage(check, name="c", after=first, result=True)
    assert planned(flow).result == "c"
    with pytest.raises(InvalidFlow, match="that of stage 'c', and not that of 'd', too"):
        flow.stage(check, name="d", result=True)


def test_the_result_of_a_run_has_the_type_that_the_flow_returns(
    tasks: TaskQueue, check: Task[[int], int]
) -> None:
    flow = Flow("typed", tasks, attributes={"user_id": int}, returns=int)
    first = flow.stage(check)
    flow.check()
    for name in "ab":
        flow.stage(check, name=name, after=first)
    with pytest.raises(InvalidFlow, match="none of its stages: give one result=True"):
        flow.check()
    other = Flow("other", tasks, attributes={"user_id": int}, returns=str)
    other.stage(check)
    with pytest.raises(InvalidFlow, match="stage 'check', int, and not str, as returns= says"):
        other.check()


def test_stages_may_follow_later_ones_by_name(tasks: TaskQueue, flow: Flow, check: Task[[int], int]) -> None:
    @tasks.task
    async def end(check: int) -> None: ...

    flow.stage(end, after="check")
    with pytest.raises(InvalidFlow, match=r"follows 'check': there is no stage 'check'$"):
        flow.check()
    flow.stage(check)
    assert [stage.after for stage in planned(flow).stages] == [("check",), ()]
    flow.stage(check, name="a", after="b")
    flow.stage(check, name="b", after="a")
    with pytest.raises(InvalidFlow, match="loop: "):
        flow.check()


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


def test_a_worker_takes_several_flows_and_their_task_queue(
    tasks: TaskQueue, flow: Flow, check: Task[[int], int]
) -> None:
    flow.stage(check, concurrency=1)
    other = Flow("other", tasks, attributes={"user_id": int})
    other.stage(check, queue="{t}slow")
    names = [handler.name for handler in Worker(tasks, flow, other, other.only("check")).handlers]
    assert names == ["check", "access.check", "other.check"]


def test_the_command_line_runs_a_valid_flow_and_refuses_another(flow: Flow, check: Task[[int], int]) -> None:
    first = flow.stage(check, queue="{t}slow")
    flow.stage(check, name="other")
    assert [one.name for one in as_worker(flow, "app:access").handlers] == ["check", "access.check"]
    assert [one.name for one in as_worker(flow.only(first), "app:slow").handlers] == ["access.check"]
    with pytest.raises(InvalidFlow, match="no stage 'slow' to serve"):
        flow.only("slow")
    flow.stage(check, name="last", after="?")
    with pytest.raises(Unusable, match="app:access: the flow 'access' cannot run: stage 'last' follows"):
        as_worker(flow, "app:access")


def test_types_that_do_not_fit_are_refused_when_the_stage_is_declared(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> Member:
        raise NotImplementedError

    @tasks.task
    async def greet(check: int) -> str:
        raise NotImplementedError

    @tasks.task
    async def count(user_id: str) -> str:
        raise NotImplementedError

    first = flow.stage(check)
    message = "stage 'greet': its parameter 'check' takes int, and what stage 'check' returns is Member"
    with pytest.raises(InvalidFlow, match=message):
        flow.stage(greet, after=first)
    with pytest.raises(InvalidFlow, match=r"'user_id' takes str, and the attribute 'user_id' is int"):
        flow.stage(count)
    with pytest.raises(InvalidFlow, match=r"takes int, and 'roles' of stage 'check' is list\[str\]"):
        flow.stage(greet, after=first, takes={"check": first.member("roles")})
    assert [stage.name for stage in flow.stages] == ["check"]  # nothing is half done
    flow.stage(greet, after=first, takes={"check": first.member("user")})
    # The type of a stage that comes later is compared by the check.
    later = Flow("later", tasks, attributes={"user_id": int})
    later.stage(greet, after="check")
    later.stage(check)
    with pytest.raises(InvalidFlow, match="takes int, and what stage 'check' returns is Member"):
        later.check()


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "@a", "a\0", "a" * 101, 7])
def test_names_that_cannot_be_those_of_stages_are_refused(
    flow: Flow, name: Any, check: Task[[int], int]
) -> None:
    with pytest.raises(InvalidFlow, match="its name is to be"):
        flow.stage(check, name=name)


def test_two_of_one_name_are_refused(tasks: TaskQueue, flow: Flow, check: Task[[int], int]) -> None:
    flow.stage(check, concurrency=1)
    with pytest.raises(InvalidFlow, match="two stages have the name 'check'"):
        flow.stage(check, retry=RetryPolicy(attempts=2))
    with pytest.raises(InvalidFlow, match="'user_id' has the name of an attribute"):
        flow.stage(check, name="user_id")
    other = Flow("access", tasks, attributes={"user_id": int})
    with pytest.raises(InvalidTask, match=r"access\.check"):
        other.stage(check, concurrency=1)
    assert (other.stages, len(tasks.tasks)) == ((), 2)


def test_results_that_may_be_missing_need_a_default(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> Next[int]:
        raise NotImplementedError

    @tasks.task
    async def paid(check: int) -> str:
        raise NotImplementedError

    @tasks.task
    async def strict(paid: str) -> str:
        raise NotImplementedError

    @tasks.task
    async def lenient(check: int, paid: str | None = None) -> str:
        raise NotImplementedError

    first = flow.stage(check)
    second = flow.stage(paid, after=first)
    with pytest.raises(
        InvalidFlow, match="'paid' takes what stage 'paid' returns, which may have been skipped"
    ):
        flow.stage(strict, after=[first, second])
    flow.stage(lenient, after=[first, second])
    flow.stage(strict, after=second)
    flow.check()


def test_only_results_of_stages_before_a_stage_can_be_taken(
    tasks: TaskQueue, flow: Flow, check: Task[[int], int]
) -> None:
    @tasks.task
    async def end(check: int) -> None: ...

    first = flow.stage(check)
    with pytest.raises(InvalidFlow, match="nothing gives its parameter 'check' a value"):
        flow.stage(end)
    with pytest.raises(InvalidFlow, match="does not come before it: see after="):
        flow.stage(end, takes={"check": first})
    unknown = r"nor a stage: there is no stage 'chek', did you mean 'check'\? \(there are also .*'user_id'"
    with pytest.raises(InvalidFlow, match=unknown):
        flow.stage(end, after=first, takes={"check": "chek"})
    with pytest.raises(InvalidFlow, match="which does not come before it"):
        flow.stage(end, name="alone", takes={"check": "check"})
    # What comes before this one is not known yet.
    flow.stage(end, after="later", takes={"check": "chek"})
    flow.stage(check, name="later", after=first)
    with pytest.raises(InvalidFlow, match=unknown):
        flow.check()


def test_names_among_which_a_stage_chooses_are_those_that_follow_it(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> Next[int]:
        raise NotImplementedError

    @tasks.task
    async def grant(check: int) -> None: ...

    mistakes: list[Any] = ["grant", ["grant", 7]]
    for wrong in mistakes:
        with pytest.raises(InvalidArgument, match="choose"):
            flow.stage(check, choose=wrong)
    with pytest.raises(InvalidFlow, match=r"return Next\[None\], and not None"):
        flow.stage(grant, name="silent", choose=["a"], takes={"check": "user_id"})
    flow.stage(check, choose=["grant", "refus"])
    flow.stage(grant, after="check")
    text = r"chooses 'refus': there is no stage 'refus', did you mean 'refuse'\? \(there are also 'grant'\)"
    with pytest.raises(InvalidFlow, match="there is no stage 'refus'"):
        flow.check()
    flow.stage(grant, name="refuse", after="check")
    with pytest.raises(InvalidFlow, match=text):
        flow.check()
    flow.stage(grant, name="refus", after="grant")
    with pytest.raises(InvalidFlow, match="'refus': it does not follow it"):
        flow.check()

    other = Flow("other", tasks, attributes={"user_id": int})
    first = other.stage(check, choose=["grant", "refuse"])
    assert (first.chooses, first.choices) == (True, ("grant", "refuse"))
    other.stage(grant, after=first)
    other.stage(grant, name="refuse", after=first)
    other.check()
    other.stage(grant, name="third", after=first)
    with pytest.raises(InvalidFlow, match="stage 'third' follows 'check', which never chooses it"):
        other.check()


def test_stages_of_other_flows_are_refused(tasks: TaskQueue, flow: Flow, check: Task[[int], int]) -> None:
    theirs = Flow("access", tasks, attributes={"user_id": int}).stage(check)
    with pytest.raises(InvalidFlow, match=r"of another flow: see Flow\.then_start"):
        flow.stage(check, after=theirs)
    with pytest.raises(InvalidFlow, match="of another flow"):
        flow.stage(check, takes={"user_id": theirs})


def test_settings_that_do_not_fit_the_function_are_refused(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int, count: int = 0) -> int:
        raise NotImplementedError

    @tasks.task
    async def fan(user_id: int) -> FanOut[int]:
        raise NotImplementedError

    @tasks.task
    async def select(user_id: int) -> Next[int]:
        raise NotImplementedError

    elsewhere = TaskQueue.from_url("redis://localhost:2", "{t}home").task(check.function)
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (check, {"args": {"count": "x"}}, "args= does not fit"),
        (check, {"args": {"other": 1}}, "has no such parameter"),
        (check, {"takes": {"other": "user_id"}}, "has no such parameter"),
        (check, {"takes": {"count": "user_id"}, "args": {"count": 1}}, "both in takes= and in args="),
        (check, {"choose": True}, r"return Next\[int\], and not int"),
        (select, {"choose": False}, "choose= is False"),
        (fan, {"choose": True}, "cannot fan out and choose"),
        (check, {"foreign": True}, "for a stage without a task"),
        (check, {"queue": "{other}q"}, "in one slot"),
        (elsewhere, {}, "on one server"),
        (check, {"concurrency": 1, "group": "g"}, "leave group= out"),
        (check.options(id="x"), {}, "the task has the option id"),
        ("render", {}, "neither a task nor a queue"),
        ("render", {"queue": "{t}q", "rate": "1/s"}, "for the handler of the queue"),
        ("render", {"queue": "{t}q", "foreign": True, "priority": 1}, "know no priority"),
        ("render", {"queue": "{t}q", "args": {"x": object()}}, "cannot be written as JSON"),
    ]
    for task, settings, message in refused:
        with pytest.raises(InvalidFlow, match=message):
            flow.stage(task, **settings)
    assert flow.stages == ()
    assert len(tasks.tasks) == 3


def test_invalid_settings_are_refused(tasks: TaskQueue, flow: Flow, check: Task[[int], int]) -> None:
    refused: list[tuple[Any, dict[str, Any]]] = [
        (check, {"after": 7}),
        (check, {"after": [7]}),
        (check, {"join": "most"}),
        (check, {"join": AtLeast(0)}),
        (check, {"priority": 10}),
        (check, {"delay": -1}),
        (check, {"expires_in": 0}),
        (check, {"group": ""}),
        (check, {"takes": ["user_id"]}),
        (check, {"takes": {"user_id": 7}}),
        (check, {"args": 7}),
        (check, {"concurrency": 0}),
        (check, {"queue": 7}),
        ("render", {"queue": "{t}q", "args": {"meta": 1}}),
        (7, {"queue": "{t}q"}),
    ]
    for task, settings in refused:
        with pytest.raises(InvalidArgument):
            flow.stage(task, **settings)
    with pytest.raises(TypeError, match="concurency"):
        flow.stage(check, concurency=1)  # type: ignore[call-overload] # a misspelling
    assert flow.stages == ()
    assert len(tasks.tasks) == 1


def test_members_that_results_do_not_have_are_refused(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> Member:
        raise NotImplementedError

    @tasks.task
    async def fan(user_id: int) -> FanOut[Member]:
        raise NotImplementedError

    with pytest.raises(InvalidFlow, match="Member, has no member 'email'"):
        flow.stage(check).member("email")
    with pytest.raises(InvalidFlow, match="has no member 'user'"):
        flow.stage(fan).member("user")


@pytest.mark.parametrize(
    ("attributes", "lookup"),
    [
        ({"a b": int}, []),
        ({"class": int}, []),
        ({"id": int}, []),
        ({"x": TaskQueue}, []),
        ({"x": int}, ["y"]),
        ({"x": int}, "x"),
        ({"count": int}, ["count"]),
    ],
)
def test_attributes_that_cannot_be_used_are_refused(
    tasks: TaskQueue, attributes: dict[str, Any], lookup: list[str]
) -> None:
    with pytest.raises(InvalidArgument):
        Flow("x", tasks, attributes=attributes, lookup=lookup)
    Flow("x", tasks, attributes={"count": int})


async def test_a_run_is_refused_before_anything_is_sent(flow: Flow, check: Task[[int], int]) -> None:
    with pytest.raises(InvalidFlow):
        await flow.start(user_id=1, guilds=[])
    flow.stage(check)
    with pytest.raises(UnknownAttribute, match="no attribute 'user': it has user_id, guilds, note"):
        await flow.start(user=1, guilds=[])
    with pytest.raises(
        InvalidArgument, match=r"^guilds: got nothing, expected list\[int\]: the flow 'access' needs"
    ):
        await flow.start(user_id=1)
    refused: list[dict[str, Any]] = [
        {"user_id": "x", "guilds": []},
        {"user_id": 1, "guilds": [], "priority": 10},
        {"user_id": 1, "guilds": [], "id": "a/b"},
        {"user_id": 1, "guilds": [], "correlation": 7},
    ]
    for arguments in refused:
        with pytest.raises(InvalidArgument):
            await flow.start(**arguments)
