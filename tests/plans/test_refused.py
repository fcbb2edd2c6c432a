"""Tests of what is refused when a flow is declared, checked or started. Nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from leasequeue import InvalidArgument, RetryPolicy, TaskQueue
from leasequeue.errors import InvalidFlow, InvalidTask, UnknownAttribute
from leasequeue.flow import Flow
from leasequeue.queue.plans.plan import AtLeast
from leasequeue.worker.stage_context import FanOut, Next  # noqa: TC001 - tasks read annotations


@dataclass
class Member:
    user: int
    roles: list[str]


@pytest.fixture
def tasks() -> TaskQueue:
    return TaskQueue.from_url("redis://localhost:1", "{t}home")


@pytest.fixture
def flow(tasks: TaskQueue) -> Flow:
    attributes = {"user_id": int, "guilds": list[int], "note": str | None}
    return Flow("access", tasks, attributes=attributes, lookup=["user_id", "guilds"], keep=60)


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


def test_types_of_later_stages_are_compared_by_the_check(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> Member:
        raise NotImplementedError

    @tasks.task
    async def greet(check: int) -> str:
        raise NotImplementedError

    flow.stage(greet, after="check")
    flow.stage(check)
    with pytest.raises(InvalidFlow, match="takes int, and what stage 'check' returns is Member"):
        flow.check()


def test_a_loop_and_unknown_stages_are_refused(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    with pytest.raises(InvalidFlow, match="no stages"):
        flow.check()
    flow.stage(check, name="a", after="c")
    with pytest.raises(InvalidFlow, match=r"stage 'a' follows 'c': there is no stage 'c'$"):
        flow.check()
    flow.stage(check, name="b", after="a")
    flow.stage(check, name="c", after="b")
    with pytest.raises(InvalidFlow, match="loop: "):
        flow.check()


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "@a", "a\0", "a" * 101, 7])
def test_names_that_cannot_be_those_of_stages_are_refused(tasks: TaskQueue, flow: Flow, name: Any) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    with pytest.raises(InvalidFlow, match="its name is to be"):
        flow.stage(check, name=name)


def test_two_stages_of_one_name_are_refused(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    flow.stage(check)
    with pytest.raises(InvalidFlow, match="two stages have the name 'check'"):
        flow.stage(check, retry=RetryPolicy(attempts=2))
    with pytest.raises(InvalidFlow, match="'user_id' has the name of an attribute"):
        flow.stage(check, name="user_id")
    assert len(tasks.tasks) == 1


def test_two_flows_of_one_name_cannot_have_tasks_of_their_own_of_one_name(
    tasks: TaskQueue, flow: Flow
) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    flow.stage(check, concurrency=1)
    other = Flow("access", tasks, attributes={"user_id": int})
    with pytest.raises(InvalidTask, match=r"access\.check"):
        other.stage(check, concurrency=1)
    assert other.stages == ()


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


def test_only_results_of_stages_before_a_stage_can_be_taken(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

    @tasks.task
    async def end(check: int) -> None:
        raise NotImplementedError

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
    async def grant(check: int) -> None:
        raise NotImplementedError

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


def test_stages_of_other_flows_are_refused(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

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


def test_invalid_settings_are_refused(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

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


async def test_a_run_is_refused_before_anything_is_sent(tasks: TaskQueue, flow: Flow) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        raise NotImplementedError

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
