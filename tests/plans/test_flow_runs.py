"""Flow runs are read, listed and found: in any state, with thousands of children, in bounded steps."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, JobUnknown
from leasequeue.queue.plans.flow_runs import lookup_texts
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.views import StageView
from tests.plans.conftest import either as queue
from tests.plans.flows import one_queue
from tests.plans.run_hashes import chain, children, write_run

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

__all__ = ["queue"]

ONE_QUEUE = one_queue("queue")

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("clock")]

#: When runs are created, unless a test says otherwise, and end.
CREATED = datetime(2030, 3, 17, 17, 46, 40, tzinfo=UTC)
ENDED = CREATED + timedelta(seconds=5)
T = "1900000005000"


async def test_a_run_is_read_with_its_input_its_results_and_its_plan(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    plan = chain(queue.name, "check", "member", "finish", user_id=b"62", guilds=b"[1985]")
    done = {"s:check": "d", "r:check": '{"big":12345678901234567890}', "t:check": T, "s:member": "w"}
    await write_run(redis, queue, "r", plan, done | {"correlation": "c-7"})
    run = await queue.flow_runs.get("r")
    assert (run.id, run.flow, run.state, run.created, run.ended) == ("r", "access", "active", CREATED, None)
    assert (run.correlation, run.error, run.unfinished, run.progress) == ("c-7", None, 1, (1, 3))
    assert run.attributes == {"user_id": 62, "guilds": [1985]}
    assert run.results == {"check": {"big": 12345678901234567890}}
    assert run.stages == {
        "check": StageView(state="done", result=run.results["check"], ended=ENDED),
        "member": StageView(state="entered"),
        "finish": StageView(state="not entered"),
    }
    assert run.plan is not None
    assert run.plan.stages == plan.linked().stages
    assert (run.plan.attributes, run.plan.lookup) == (plan.attributes, plan.lookup)


@pytest.mark.seed("GLD-O12")
async def test_only_what_is_asked_for_is_read(queue: AsyncWorkQueue, redis: Redis) -> None:
    plan = chain(queue.name, "check", "finish", user_id=b"62", name=b'"Ann"')
    done = {"s:check": "d", "r:check": "1", "s:finish": "d", "r:finish": "[]"}
    await write_run(redis, queue, "r", plan, done, state="completed", active=0)
    run = await queue.flow_runs.get("r", fields=["name", "finish", "unknown"])
    assert (run.attributes, run.results) == ({"name": "Ann"}, {"finish": []})
    assert (run.state, run.ended, run.progress) == ("completed", ENDED, (2, 2))
    run = await queue.flow_runs.get("r", fields=[])
    assert (run.attributes, run.results) == ({}, {})
    assert run.stages["check"].state == "done"


async def test_a_failed_stage_says_why_and_one_that_is_never_entered_too(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    plan = chain(queue.name, "check", "finish")
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: no'
    why = {"s:check": "f", "e:check": trace, "e:finish": "check: ValueError: no", "t:check": T}
    failed = why | {"error": f"check: {trace}"}
    await write_run(redis, queue, "r", plan, failed, state="failed", active=0)
    run = await queue.flow_runs.get("r")
    assert run.error == "check: ValueError: no"
    assert len(repr(run).splitlines()) == 1
    assert len(repr(run)) < 400
    assert run.stages == {
        "check": StageView(state="failed", error=trace, ended=ENDED),
        "finish": StageView(state="not entered", error="check: ValueError: no"),
    }


@pytest.mark.seed("GLD-O12", "GLD-O20")
async def test_children_are_counted_and_read_if_asked_for_also_their_children(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    stages = (
        StagePlan("plan", queue.name, b"{}"),
        StagePlan("rewards", children=children(queue.name, 4), after=("plan",), policy="settled"),
    )
    fields = {
        "s:plan": "d",
        "s:rewards": "x",
        "j:rewards": "4 4 1 1 0",
        "m:rewards": "settled",
        "s:rewards/0": "d",
        "r:rewards/0": '"a"',
        "s:rewards/1": "f",
        "e:rewards/1": "why",
        "s:rewards/2": "x",
        "j:rewards/2": "2 2 1 0 0",
        "m:rewards/2": "all",
        "s:rewards/3": "w",
        "s:rewards/2/0": "d",
        "r:rewards/2/0": "7",
        "s:rewards/2/1": "w",
    }
    await write_run(redis, queue, "r", FlowPlan(stages), fields, active=4)
    run = await queue.flow_runs.get("r")
    assert [*run.stages] == ["plan", "rewards"]
    counts = {"total": 4, "unfinished": 2, "done": 1, "failed": 1, "cancelled": 0}
    assert run.stages["rewards"] == StageView(state="fanned out", children=counts)
    assert run.progress == (3, 6)
    run = await queue.flow_runs.get("r", children=True)
    paths = ["rewards/0", "rewards/1", "rewards/2", "rewards/2/0", "rewards/2/1", "rewards/3"]
    assert [*run.stages] == ["plan", "rewards", *paths]
    assert run.results == {"rewards/0": "a", "rewards/2/0": 7}
    assert run.stages["rewards/1"] == StageView(state="failed", error="why")
    assert run.progress == (4, 8)
    run = await queue.flow_runs.get("r", children=True, fields=["plan"])
    assert (run.results, run.stages["rewards/0"].state) == ({}, "done")


async def test_ten_thousand_children_are_read_in_their_order(queue: AsyncWorkQueue, redis: Redis) -> None:
    plan = FlowPlan((StagePlan("all", queue.name, b"{}"),))
    fields = {
        f"{kind}:all/{at}": value for at in range(10_000) for kind, value in (("s", "d"), ("r", str(at)))
    }
    await write_run(redis, queue, "r", plan, fields | {"s:all": "d", "j:all": "10000 10000 10000 0 0"})
    run = await queue.flow_runs.get("r", children=True)
    assert [*run.results.values()] == [*range(10_000)]
    assert run.progress == (10_001, 10_001)


async def test_more_stages_and_larger_values_than_fit_into_one_reply_are_read(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    stages = tuple(StagePlan(f"s{at}", queue.name, b"{}") for at in range(1_200))
    large = json.dumps("x" * 600_000)
    fields = {f"s:s{at}": "w" for at in range(1_200)} | {f"r:s{at}": large for at in range(5)}
    await write_run(redis, queue, "r", FlowPlan(stages), fields)
    run = await queue.flow_runs.get("r")
    assert [*run.stages] == [stage.name for stage in stages]
    assert {view.state for view in run.stages.values()} == {"entered"}
    assert [len(value) for value in run.results.values()] == [600_000] * 5


@pytest.mark.seed("GLD-B15", "GLD-O12")
async def test_runs_that_are_gone_keep_their_places(queue: AsyncWorkQueue, redis: Redis) -> None:
    for run_id in ("a", "b"):
        await write_run(redis, queue, run_id, chain(queue.name, "check"), {"s:check": "w"})
    found = await queue.flow_runs.list(["b", "gone", "a", "b"], fields=[])
    assert [run and run.id for run in found] == ["b", None, "a", "b"]
    many = [f"none-{at}" for at in range(997)]
    found = await queue.flow_runs.list([*many, "a", *many[:2]], fields=[])
    assert [run.id for run in found if run] == ["a"]
    assert found[997] is not None
    with pytest.raises(JobUnknown, match="no flow run 'gone'"):
        await queue.flow_runs.get("gone")


@pytest.mark.seed("GLD-O20", "GLD-B19")
async def test_the_newest_runs_are_listed_by_state_and_flow(
    queue: AsyncWorkQueue, redis: Redis, clock: Clock
) -> None:
    at = int(clock.now * 1000)
    for n, (run_id, state, flow) in enumerate(
        (("a", "active", "x"), ("b", "failed", "x"), ("c", "completed", "y"), ("d", "active", "y"))
    ):
        plan = chain(queue.name, "check", flow=flow)
        active = int(state == "active")
        await write_run(redis, queue, run_id, plan, {}, state=state, active=active, at=at + 10_000 * n)
    await queue.admin.fsck()

    async def ids(**arguments: Any) -> list[str]:
        return [run.id for run in await queue.flow_runs.list(**arguments) if run]

    assert await ids() == ["d", "c", "b", "a"]
    assert await ids(count=2) == ["d", "c"]
    assert await ids(state="active") == ["d", "a"]
    assert await ids(flow="x") == ["b", "a"]
    assert await ids(flow="y", state="failed") == []
    assert await ids(flow="") == []


async def pages(queue: AsyncWorkQueue, **arguments: Any) -> list[list[str]]:
    """Return the ids of all pages."""
    found, cursor, is_last = [], "", False
    while not is_last:
        runs, cursor = await queue.flow_runs.page(after=cursor, fields=[], **arguments)
        found.append([run.id for run in runs])
        is_last = not cursor
    return found


async def test_pages_of_several_states_have_each_run_once_the_newest_first(
    queue: AsyncWorkQueue, redis: Redis, clock: Clock
) -> None:
    at = int(clock.now * 1000)
    states = ["active", "failed", "active", "completed", "active", "active", "failed"]
    for n, state in enumerate(states):
        plan = chain(queue.name, "check", flow="xy"[n % 2], user_id=b"62")
        # One that is not active enters its state 5 s later.
        when = at + 10_000 * (n // 2) - 5_000 * (state != "active")
        await write_run(redis, queue, f"{n}", plan, {}, state=state, active=int(state == "active"), at=when)
    await queue.admin.fsck()
    assert await pages(queue, count=2) == [["6", "5"], ["4", "3"], ["2", "1"], ["0"]]
    assert await pages(queue, count=1) == [[one] for one in "6543210"] + [[]]
    assert await pages(queue, count=9) == [[*"6543210"]]
    failed = await pages(queue, count=2, state="failed")
    assert [page for page in failed if page] == [["6", "1"]], "the last page may be empty"
    assert await pages(queue, count=2, flow="y") == [["5", "3"], ["1"]]
    found = await pages(queue, count=2, flow="y", attributes={"user_id": 62})
    assert sorted(one for page in found for one in page) == ["1", "3", "5"]
    assert await pages(queue, flow="y", state="failed", attributes={"user_id": 62}) == [["1"]]


@ONE_QUEUE
async def test_a_page_of_a_rare_flow_takes_few_steps_and_the_next_goes_on(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    count = 5_200  # more than one page looks at
    plan = chain(queue.name, "check", flow="often")
    row = [name for pair in plan.fields() for name in pair]
    async with redis.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.hset(f"{queue.name}:run:{n}", items=[*row, "state", "active", "created", "1", "active", "1"])
            pipe.zadd(f"{queue.name}:runs:active", {f"{n}": 1_900_000_000_000 + n})
        await pipe.execute()
    await redis.hset(f"{queue.name}:run:0", "flow", "rare")
    failed = {"state": "failed", "ended": "1900000000001"}
    await write_run(redis, queue, "old", chain(queue.name, "check", flow="rare"), failed, active=0)
    await redis.zadd(f"{queue.name}:runs:failed", {"old": 1_900_000_000_001})
    assert await pages(queue, flow="rare") == [[], ["old", "0"]]


@pytest.mark.seed("GLD-O13", "GLD-B20", "GLD-K6")
async def test_runs_are_found_by_attributes(queue: AsyncWorkQueue, redis: Redis) -> None:
    await write_run(redis, queue, "a", chain(queue.name, "c", user_id=b"62", guilds=b"[1, 2]"), {})
    await write_run(redis, queue, "b", chain(queue.name, "c", user_id=b'"62"', guilds=b"[2]"), {})
    await write_run(redis, queue, "c", chain(queue.name, "c", flow="", user_id=b"62"), {})
    await queue.admin.fsck()

    async def ids(*flow: str, **attributes: Any) -> list[str]:
        return sorted(run.id for run in await queue.flow_runs.find(*flow, **attributes))

    assert await ids("access", user_id=62) == await ids("access", user_id="62") == ["a", "b"]
    assert await ids("access", guilds=2) == ["a", "b"]
    assert await ids("access", guilds=[1, 2]) == await ids("access", guilds=1, user_id=62) == ["a"]
    assert await ids(user_id=62) == ["c"]
    assert await ids("access", user_id=63) == []
    await redis.unlink(f"{queue.shard_of('a').name}:run:a")
    assert await ids("access", user_id=62) == ["b"]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("a b", ["a b"]),
        (62, ["62"]),
        (True, ["true"]),
        (None, ["null"]),
        ({"b": 1, "a": [1]}, ['{"a":[1],"b":1}']),
        (CREATED, ["2030-03-17T17:46:40Z"]),
        ([1, "1", 2], ["1", "2"]),
        ((), []),
    ],
)
def test_the_text_of_a_value_is_that_of_its_json(value: object, texts: list[str]) -> None:
    assert lookup_texts(value) == texts


async def test_arguments_that_cannot_be_used_are_refused(queue: AsyncWorkQueue) -> None:
    runs: Any = queue.flow_runs
    for call in (
        runs.get("a/b"),
        runs.get("a", fields="name"),
        runs.list(["a", 7]),
        runs.list(state="done"),
        runs.list(count=0),
        runs.page(after="7"),
        runs.page(after=7),
        runs.page(after="1_0 a"),
        runs.page(state="done"),
        runs.page(attributes={}),
        runs.find("access"),
        runs.find("access", user_id=[]),
        runs.find(7, user_id=1),
        runs.replay("a", new_id=""),
        runs.report("a", "", 1),
        runs.report("a", "stage", object()),
        runs.delete(""),
    ):
        with pytest.raises(InvalidArgument):
            await call
