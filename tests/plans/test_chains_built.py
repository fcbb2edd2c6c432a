"""Chains and groups as they are built, and what is refused, without a server."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Union

import pytest

from leasequeue import AtLeast, Call, FanOut, InvalidArgument, Next, TaskQueue, call_sync, fan_out, group
from leasequeue.errors import InvalidCall, InvalidFanOut, InvalidFlow, InvalidTask

if TYPE_CHECKING:
    from leasequeue.queue.plans.plan import FlowPlan

tasks = TaskQueue.from_url("redis://localhost:1", "home", clock=lambda: 1000.0)


def union_of(kind: Any) -> str:
    """Return how Python writes a type or text: as `Union[int, str]` before 3.14."""
    return repr(Union[kind, str]).replace("typing.", "")  # noqa: UP007 - as the source makes it


@tasks.task
async def one(number: int) -> int:
    return number + 1


@tasks.task(queue="other")
async def two(number: int, *, times: int = 2) -> str:
    return "x" * number * times


@tasks.task(name="sum/all")
async def total(numbers: list[Any]) -> int:
    return sum(numbers)


@tasks.task(concurrency=3)
async def limited(number: int) -> int:
    return number


@tasks.task
async def by_name(*, number: int) -> int:
    return number


@tasks.task(batch=10)
async def halves(numbers: list[int]) -> list[float]:
    return [number / 2 for number in numbers]


@tasks.task
async def choose(number: int) -> Next[int]:
    return Next(number, "one")


@tasks.task
async def add_up(numbers: list[int]) -> int:
    return sum(numbers)


@tasks.task
async def split(number: int) -> FanOut[int]:
    return fan_out([one.call(number)])


@tasks.task
async def untyped(number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as users write it
    return number


@tasks.task
async def nothing() -> None: ...


NOTHING: list[Call[int]] = []


def stages_of(plan: FlowPlan) -> dict[str, Any]:
    """Return the name of each stage, what it follows, and its data."""
    return {
        stage.name: (stage.after, json.loads(stage.data) if stage.data else [*map(data_of, stage.children)])
        for stage in plan.linked().stages
    }


def data_of(child: Any) -> Any:
    return json.loads(child.data)


def call_of(task: str, args: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"task": task, "args": args, "meta": meta}


AT = 1_000_000


def test_each_call_of_a_chain_takes_the_result_before_it() -> None:
    plan = one.call(1).then(one).then(two, times=3).then(one.call(5)).plan()
    plan.check()
    assert stages_of(plan) == {
        "one": ((), call_of("one", {"number": 1}, at=AT)),
        "one-2": (("one",), call_of("one", {}, needs={"number": "one"})),
        "two": (("one-2",), call_of("two", {"times": 3}, needs={"number": "one-2"})),
        "one-3": (("two",), call_of("one", {"number": 5})),
    }
    assert [stage.queue for stage in plan.stages] == ["home", "home", "other", "home"]
    assert plan.result == "one-3"


def test_the_calls_of_a_group_are_children_of_a_stage_without_an_item() -> None:
    plan = group([one.call(1), two.call(2)], join="settled").then(total).plan()
    plan.check()
    assert stages_of(plan) == {
        "group": (
            (),
            [call_of("one", {"number": 1}, at=AT), call_of("two", {"number": 2}, at=AT)],
        ),
        "sum_all": (("group",), call_of("sum/all", {}, needs={"numbers": "group/*"})),
    }
    assert (plan.stages[0].queue, plan.stages[0].policy, plan.result) == ("", "settled", "sum_all")


def test_a_group_may_follow_a_call_if_its_result_is_dropped_openly() -> None:
    calls = group([one.call(1), one.call(2)])
    for before in (two.call(1), split.call(1), two.call(1).then(one.call(2)), untyped.call(1)):
        with pytest.raises(InvalidCall, match=r"would be dropped\. To pass it to one .* task\.partial"):
            before.then(calls)  # type: ignore[call-overload]
        with pytest.raises(InvalidCall, match="would be dropped"):
            before.then(calls, drop_result=False)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="further arguments"):
        two.call(1).then(calls, 5, drop_result=True)  # type: ignore[call-overload]
    assert len(nothing.call().then(calls).plan().stages) == 2
    plan = two.call(1).then(calls, drop_result=True).then(total).plan()
    assert stages_of(plan) == {
        "two": ((), call_of("two", {"number": 1}, at=AT)),
        "group": (("two",), [call_of("one", {"number": 1}), call_of("one", {"number": 2})]),
        "sum_all": (("group",), call_of("sum/all", {}, needs={"numbers": "group/*"})),
    }


def test_a_result_is_passed_to_the_parts_of_a_group_that_take_it() -> None:
    calls = [one.partial(), two.partial(times=3), one.call(5)]
    plan = one.call(1).then(group(calls, join="settled")).then(total).plan()
    assert stages_of(plan) == {
        "one": ((), call_of("one", {"number": 1}, at=AT)),
        "group": (
            ("one",),
            [
                call_of("one", {}, needs={"number": "one"}),
                call_of("two", {"times": 3}, needs={"number": "one"}),
                call_of("one", {"number": 5}),
            ],
        ),
        "sum_all": (("group",), call_of("sum/all", {}, needs={"numbers": "group/*"})),
    }
    parts: list[Any] = [one.partial().then(one), group([add_up.partial()])]
    chains = group(parts)
    with pytest.raises(InvalidCall, match=r"add_up: its parameter 'numbers' takes .*, and the result before"):
        one.call(1).then(chains)
    with pytest.raises(InvalidCall, match=r"one: its parameter 'number' takes int, and .* is list"):
        split.call(1).then(chains)
    assert stages_of(split.call(1).then(group([add_up.partial().then(one)])).plan())["add_up"] == (
        ("split",),
        call_of("add_up", {}, needs={"numbers": "split"}),
    )
    with pytest.raises(InvalidCall, match="result before it is None"):
        nothing.call().then(group([one.partial()]))
    with pytest.raises(InvalidCall, match="no positional argument"):
        by_name.partial()  # type: ignore[misc]
    with pytest.raises(InvalidArgument, match="further arguments"):
        one.call(1).then(one.partial(), 5)  # type: ignore[call-overload]


def test_a_group_of_chains_is_joined_by_what_follows() -> None:
    plan = group([one.call(1).then(one), limited.call(2)], join=AtLeast(1)).then(total).plan()
    plan.check()
    assert stages_of(plan) == {
        "one": ((), call_of("one", {"number": 1}, at=AT)),
        "one-2": (("one",), call_of("one", {}, needs={"number": "one"})),
        "limited": ((), call_of("limited", {"number": 2}, at=AT)),
        "sum_all": (
            ("one-2", "limited"),
            call_of("sum/all", {}, needs={"numbers": ["one-2", "limited"]}),
        ),
    }
    assert [stage.join for stage in plan.stages] == ["all", "all", "all", "n:1"]
    assert [stage.group for stage in plan.stages] == [None, None, "task:limited", None]


def test_groups_in_a_group_keep_their_policies() -> None:
    inner = group([one.call(1).then(one), one.call(2)], join="settled")
    plan = (
        group([inner, group([one.call(3)], join="fail"), group([one.call(4).then(one)])]).then(total).plan()
    )
    plan.check()
    by_name = {stage.name: stage for stage in plan.stages}
    assert by_name["join"].after == ("one-2", "one-3")
    assert (by_name["join"].join, by_name["join"].queue) == ("settled", "")
    assert by_name["group"].policy == "fail"
    assert (by_name["sum_all"].after, by_name["sum_all"].join) == (("join", "group", "one-5"), "all")
    needs = json.loads(by_name["sum_all"].data)["meta"]["needs"]
    assert needs == {"numbers": [["?join", "one-2", "one-3"], "group/*", ["one-5"]]}
    single = group([group([one.call(1).then(one)]), one.call(2)], join="settled").then(total).plan()
    assert [(stage.name, stage.after) for stage in single.stages[2:]] == [
        ("join", ("one-2",)),
        ("one-3", ()),
        ("sum_all", ("join", "one-3")),
    ]


def test_a_group_at_the_end_is_joined_by_a_stage_of_its_own() -> None:
    plan = group([one.call(1).then(one), one.call(2)], join="settled").plan()
    plan.check()
    assert (plan.stages[-1].name, plan.stages[-1].join, plan.result) == ("join", "settled", None)
    assert group([one.call(1)]).plan().result == "group"


def test_the_result_of_an_empty_group_is_known() -> None:
    plan = group(NOTHING).then(total).plan()
    plan.check()
    assert stages_of(plan) == {"sum_all": ((), call_of("sum/all", {"numbers": []}, at=AT))}
    with pytest.raises(InvalidArgument, match="at least one call"):
        group(NOTHING).plan()


def test_the_options_of_calls_are_those_of_their_stages() -> None:
    later = one.options(priority=2, group="g", delay=1.5, expires_in=9)
    plan = later.call(1).then(later).plan()
    for stage in plan.stages:
        assert (stage.level, stage.group, stage.delay_ms, stage.expires_ms) == (2, "g", 1500, 9000)
    timed = one.options(at=datetime.fromtimestamp(1002, UTC))
    assert timed.call(1).chain().plan().stages[0].delay_ms == 2000
    (child,) = group([one.options(priority=1, delay=2).call(1)]).plan().stages[0].children
    assert (child.level, child.delay_ms) == (1, 2000)
    # A child cannot expire: such a group has stages.
    assert group([later.call(1), one.call(2)]).plan().stages[0].expires_ms == 9000


def test_a_batch_task_may_be_in_a_chain() -> None:
    plan = one.call(1).then(halves).plan()
    assert stages_of(plan)["halves"] == (("one",), call_of("halves", {}, needs={"numbers": "one"}))


def test_a_chain_is_a_value() -> None:
    begin = one.call(1).then(one)
    assert len(begin.then(two).plan().stages) == 3
    assert len(begin.then(one).then(one).plan().stages) == 4
    assert len(begin.plan().stages) == 2
    assert len(begin.then(begin).plan().stages) == 4


def test_names_of_stages_differ() -> None:
    odd = TaskQueue.from_url("redis://localhost:1", "home")

    async def function(number: int) -> int:
        return number

    a, b, c = (odd.task(name=name)(function) for name in ("a", "a-2", "é" * 80))
    plan = a.call(1).then(b).then(a).then(a).then(c).then(c).plan()
    plan.check()
    assert [stage.name for stage in plan.stages][:4] == ["a", "a-2", "a-3", "a-4"]


def test_a_large_group_is_one_stage() -> None:
    plan = group(one.call(number) for number in range(10_000)).then(total).plan()
    plan.check()
    assert [len(stage.children) for stage in plan.stages] == [10_000, 0]
    too_many = group(one.call(number).then(one) for number in range(1_001))
    with pytest.raises(InvalidFlow, match="2,002 stages"):
        too_many.plan().check()


def test_what_does_not_fit_is_refused_when_the_chain_is_built() -> None:
    begin = one.call(1)
    with pytest.raises(InvalidCall, match="number takes the result before it"):
        begin.then(one, number=2)  # type: ignore[call-overload]
    with pytest.raises(InvalidCall, match="by_name: it has no positional argument"):
        begin.then(by_name)  # type: ignore[call-overload]
    with pytest.raises(InvalidCall, match=r"two: .*times"):
        begin.then(two, times="many")  # type: ignore[call-overload]
    with pytest.raises(InvalidCall, match="0 positional arguments beside number, and not 1"):
        begin.then(one, 2)  # type: ignore[call-overload]
    with pytest.raises(InvalidCall, match="no argument 'speed'"):
        begin.then(two, speed=2)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="a task, or a call, a chain or a group"):
        begin.then(len)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="further arguments"):
        begin.then(one.call(2), 3)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="join"):
        group([begin], join="some")  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="calls"):
        group([begin, one])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="at most the number of the calls, 1"):
        group([begin], join=AtLeast(2))
    with pytest.raises(InvalidArgument, match="at most the number of the calls, 0"):
        group(NOTHING, join=AtLeast(1))
    assert group([begin, begin], join=AtLeast(2)).plan().stages[-1].policy == "n:2"


@pytest.mark.parametrize(
    ("before", "task", "taken", "given"),
    [
        (one.call(1), add_up, "'numbers' takes list[int]", "int"),
        (one.call(1).then(two), one, "'number' takes int", "str"),
        (group([one.call(1)]), one, "'number' takes int", "list[int]"),
        (group([two.call(1).then(two.call(2))]), add_up, "'numbers' takes list[int]", "list[str]"),
        (group([one.call(1), two.call(2)]), add_up, "'numbers' takes list[int]", f"list[{union_of(int)}]"),
        (group([group([one.call(1)])]), add_up, "'numbers' takes list[int]", "list[list[int]]"),
        (group(NOTHING), one, "'number' takes int", "list[Any]"),
        (
            one.call(1).then(group([two.call(1)]), drop_result=True),
            add_up,
            "'numbers' takes list[int]",
            "list[str]",
        ),
        (split.call(1), one, "'number' takes int", "list[int]"),
        (halves.call(1), halves, "'numbers' takes int", "float"),
    ],
)
def test_a_result_of_another_type_is_refused_when_the_chain_is_built(
    before: Any, task: Any, taken: str, given: str
) -> None:
    with pytest.raises(InvalidCall) as refused:
        before.then(task)
    assert refused.value.task == task.name
    assert refused.value.problem == f"its parameter {taken}, and the result before it is {given}"


def test_what_is_not_annotated_fits_everything() -> None:
    chains: list[Any] = [
        one.call(1).then(untyped).then(add_up),
        group([untyped.call(1), one.call(1)]).then(add_up),
        split.call(1).then(total),
        split.call(1).then(add_up),
        group(NOTHING).then(add_up),
        two.call(1).then(untyped),
        two.call(1).then(one.call(1)),  # takes no result
    ]
    for chain in chains:
        chain.plan().check()
    with pytest.raises(InvalidCall, match=re.escape(f"list[{union_of(Any)}]")):
        group([untyped.call(1), two.call(1)]).then(add_up)


@pytest.mark.parametrize(
    "options",
    [{"id": "7"}, {"content_id": True}, {"dedupe_for": 5}, {"replace": True}, {"weight": 2}],
    ids=str,
)
def test_options_of_an_id_are_refused(options: dict[str, Any]) -> None:
    odd = one.options(**options)
    for build in (lambda: odd.call(1).then(one), lambda: one.call(1).then(odd), lambda: group([odd.call(1)])):
        with pytest.raises(InvalidCall, match="stage"):
            build()


def test_what_cannot_be_a_stage_is_refused() -> None:
    timed = one.options(at=datetime.now(UTC))
    with pytest.raises(InvalidCall, match="use `delay`"):
        one.call(1).then(timed).plan()
    with pytest.raises(InvalidCall, match="use a Flow"):
        choose.call(1).chain()
    elsewhere = TaskQueue.from_url("redis://localhost:2", "home")
    far = elsewhere.task(one.function)
    with pytest.raises(InvalidCall, match="its queue is on"):
        one.call(1).then(far).plan()
    tagged = TaskQueue.from_url("redis://localhost:1", "{app}:home")
    near, off = (tagged.task(name=name, queue=name)(one.function) for name in ("{app}:other", "other"))
    assert near.call(1).then(near).plan().stages[1].queue == "{app}:other"
    with pytest.raises(InvalidCall, match="not in the slot"):
        near.call(1).then(off).plan()


def test_a_function_fans_out_to_calls_of_any_tasks() -> None:
    fanned = fan_out([one.call(1), two.options(priority=2, delay=1).call(2)], join=AtLeast(1))
    assert [(child.queue, child.level, child.delay_ms) for child in fanned.children] == [
        ("home", 0, 0),
        ("other", 2, 1000),
    ]
    assert data_of(fanned.children[0]) == call_of("one", {"number": 1}, at=AT)
    assert fanned.join == "n:1"
    assert replace(fanned, join="all").join == "all"
    assert [*fan_out(NOTHING).children] == []


def test_a_part_of_a_child_takes_the_result_of_the_one_before() -> None:
    middle = group([add_up.partial(), add_up.partial().then(one), one.call(5)], join="settled")
    [child] = fan_out([two.call(1).then(two.call(3)), split.call(2).then(middle).then(add_up)]).children[1:]
    assert (child.policy, child.queue, len(child.parts)) == ("chain", "", 3)
    first, between, last = child.parts
    assert data_of(first) == call_of("split", {"number": 2}, at=AT)
    assert (between.policy, len(between.parts)) == ("settled", 3)
    assert data_of(between.parts[0]) == call_of("add_up", {}, needs={"numbers": "<1"})
    assert [data_of(part) for part in between.parts[1].parts] == [
        call_of("add_up", {}, needs={"numbers": "<2"}),
        call_of("one", {}, needs={"number": "<0"}),
    ]
    assert data_of(between.parts[2]) == call_of("one", {"number": 5})
    assert data_of(last) == call_of("add_up", {}, needs={"numbers": "<0"})
    assert json.loads(child.json())["parts"][1]["children"] == 3


def test_children_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidFanOut, match="at least one call"):
        fan_out([one.call(1), group(NOTHING)])
    with pytest.raises(InvalidFanOut, match="251 calls, more than 250"):
        fan_out([group([one.call(1)] * 251)])
    with pytest.raises(InvalidFanOut, match="begins after another call"):
        fan_out([one.call(1).then(one.options(at=datetime(2100, 1, 1, tzinfo=UTC)))])
    deep: Any = one.call(1)
    for _ in range(11):
        deep = group([deep])
    with pytest.raises(InvalidFanOut, match="10 deep"):
        fan_out([deep])
    with pytest.raises(InvalidFanOut, match="a child does not expire"):
        fan_out([one.options(expires_in=5).call(1)])
    with pytest.raises(InvalidFanOut, match="the id of its run"):
        fan_out([one.options(id="x").call(1)])
    with pytest.raises(InvalidFanOut, match="returns a Next"):
        fan_out([choose.call(1)])
    with pytest.raises(InvalidFanOut, match="at most the number"):
        fan_out([one.call(1)], join=AtLeast(2))
    with pytest.raises(InvalidFanOut, match="another iterable, of calls"):
        fan_out(one.call(1))  # type: ignore[call-overload]
    with pytest.raises(InvalidCall, match="the argument 'number' is missing"):
        fan_out(one.call() for _ in range(1))  # type: ignore[call-arg, arg-type]


def test_children_are_written_when_they_are_read() -> None:
    fanned = fan_out([one.call(number) for number in range(3)])
    assert [data_of(child)["args"]["number"] for child in fanned.children[1:]] == [1, 2]
    there = pickle.loads(pickle.dumps(fanned))  # noqa: S301 - its own text
    assert [*there.children] == [*fanned.children]


def test_what_only_stages_return_is_not_added_as_a_plain_item() -> None:
    for task, text in ((split, "it fans out"), (choose, "it returns a Next")):
        with pytest.raises(InvalidCall, match=text):
            task.call(1).item()
        with pytest.raises(InvalidCall, match=text):
            call_sync(tasks.add_many, [one.call(1), task.call(1)])
        with pytest.raises(InvalidTask, match="let a task with this schedule start a flow run"):
            tasks.task(name="scheduled", every=60)(task.function)
    with pytest.raises(InvalidCall, match="it returns a Next"):
        call_sync(choose.add, 1)
    with pytest.raises(InvalidCall, match="the id of its run"):
        call_sync(split.options(id="x").add, 1)
