"""Flow runs on a queue with shards: each is in one of them. What is as on one queue, other files test."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    AsyncWorkQueue,
    FanOut,
    InvalidArgument,
    Item,
    JobFailed,
    TaskQueue,
    current_run,
    current_stage,
    fan_out,
    group,
)
from leasequeue.autoscale.flow_children import FlowChildren
from leasequeue.errors import InvalidCall, InvalidFlow, JobUnknown, PartlyApplied
from leasequeue.flow import Flow
from leasequeue.queue.plans.flow_runs import FlowRuns
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.queue.plans.stages import FinishRow, finish_stages
from leasequeue.queue.queue import engine_of
from leasequeue.queue.shards.flow_runs import ShardedFlowRuns
from tests.plans.run_hashes import chain
from tests.worker.working import counted, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.queue.plans.reading import FlowRunState

pytestmark = pytest.mark.core

COUNT = 4
RUNS = [f"run-{n}" for n in range(24)]


@pytest.fixture
async def tasks(redis_url: str, name: str, request: pytest.FixtureRequest) -> AsyncIterator[TaskQueue]:
    """Open a task queue with shards, by id unless the test says otherwise."""
    by: Any = getattr(request, "param", "id")
    async with TaskQueue.from_url(redis_url, name, shards=COUNT, shard_by=by) as tasks:
        yield tasks


@pytest.fixture
async def plain(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Open another one without shards."""
    async with TaskQueue.from_url(redis_url, f"{name}-plain") as tasks:
        yield tasks


def numbers(tasks: TaskQueue, seen: list[Any]) -> tuple[Any, Any, Any]:
    """Register a task, one that fans out to calls of it, and one that takes their results."""

    @tasks.task
    async def number(value: int) -> int:
        stage = current_stage()
        seen.append((stage.run, stage.home, current_run().lease.queue_name))
        return value

    @tasks.task
    async def several(count: int) -> FanOut[int]:
        return fan_out([number.call(value) for value in range(count)])

    @tasks.task
    async def total(values: list[Any]) -> int:
        return sum(one if isinstance(one, int) else sum(one) for one in values)

    return number, several, total


@pytest.mark.parametrize("tasks", ["id", "group"], indirect=True)
async def test_a_run_is_in_the_shard_of_its_id_with_all_its_items(tasks: TaskQueue) -> None:
    queue, seen = tasks.queue, list[Any]()
    number, several, total = numbers(tasks, seen)
    made: Any = group([number.call(1), several.call(3)]).then(total)
    runs = [await made.add(id=one, lookup={"of": "all"}) for one in RUNS]
    assert not any([(await made.add(id=one)).created for one in RUNS]), "an id is taken, as on one queue"
    assert all([(await shard.counts()).waiting for shard in queue.shards]), "all shards have some"
    async with working(new_worker(tasks)):
        assert {await run.result(timeout=120) for run in runs} == {4}
    homes = {one: queue.shard_of(one).name for one in RUNS}
    assert Counter(seen) == {(one, home, home): 4 for one, home in homes.items()}
    assert {run.id for run in await queue.flow_runs.find(of="all")} == {*RUNS}
    assert {await made.flow_run(one).result() for one in RUNS} == {4}
    assert (await queue.admin.fsck()).findings == ()
    assert await FlowChildren().of([queue]) == {}, "it adds to no other queue"
    assert all([await queue.flow_runs.delete(one) for one in RUNS])
    assert not [shard.name for shard in queue.shards if await shard.flow_runs.list()]


async def test_items_of_runs_are_found_by_their_ids_and_those_that_look_alike_are_spread(
    tasks: TaskQueue,
) -> None:
    queue = tasks.queue
    for one in RUNS:
        await queue.flow_runs.start(FlowPlan((StagePlan("a", queue.name, b"of the run"),)), one)
    stages = [f"{one}/a" for one in RUNS]
    assert [view.data for one in stages if (view := await queue.find(one))] == [b"of the run"] * len(RUNS)

    # Ids of a user: if the shard of `run-0` had them all, they would not be spread.
    assert all(await queue.add_items([Item(b"mine", id=f"run-0/{n}") for n in range(100)]))
    assert len({queue.shard_of(f"run-0/{n}") for n in range(100)}) == COUNT
    assert all([await queue.find(f"run-0/{n}") for n in range(100)])
    assert await queue.cancel_many([f"run-0/{n}" for n in range(100)]) == [True] * 100

    assert await queue.cancel_many([stages[0], stages[0], "none/a", "none"]) == [True, False, False, False]
    assert await queue.cancel(stages[1])
    assert await queue.results.is_cancelled(stages[1])
    for lease in await queue.lease_many(100, 60, block=False):
        assert await queue.fail(lease, "broken", retry_in=None)
    letters = [one for one in stages if await queue.dead_letters.get(one)]
    assert letters == stages[2:]
    assert await queue.dead_letters.requeue(*letters, stages[0]) == [True] * len(letters) + [False]
    assert (await queue.counts()).waiting == len(letters)


async def test_a_shard_that_fails_leaves_the_answers_of_the_others(tasks: TaskQueue, redis: Redis) -> None:
    queue = tasks.queue
    ids = [f"a/{n}" for n in range(40)]
    await queue.add_items([Item(b"x", id=one) for one in ids])
    broken = next(shard for shard in queue.shards if shard is not queue.shard_of("a"))
    await redis.delete(f"{broken.name}:queue")
    await redis.set(f"{broken.name}:queue", "no list")
    with pytest.raises(PartlyApplied) as caught:
        await queue.cancel_many(ids)
    expected = [None if queue.shard_of(one) is broken else True for one in ids]
    assert [*caught.value.answers] == expected
    assert None in expected


async def test_runs_are_steered_and_listed_wherever_they_are(tasks: TaskQueue) -> None:
    runs = tasks.queue.flow_runs
    plan = chain(tasks.queue.name, "a", "b", user_id=b"62")
    for one in RUNS:
        assert await runs.start(plan, one)
    view = await runs.get(RUNS[0])
    assert view.plan is not None
    assert view.plan.stages == plan.linked().stages, "the name of the queue stands for the shard"
    for lease in await tasks.queue.lease_many(100, 60, block=False):
        assert lease.stage is not None
        row = (
            FinishRow(lease, "failed", b"why")
            if lease.stage.run in RUNS[:6]
            else FinishRow(lease, "done", b"1")
        )
        await finish_stages(engine_of(tasks.queue.shard_of(lease.stage.run)), [row])
    assert {one.id for one in await runs.list(state="failed") if one} == {*RUNS[:6]}
    assert [one and one.id for one in await runs.list([RUNS[9], "none", RUNS[3]])] == [RUNS[9], None, RUNS[3]]
    counts: list[tuple[FlowRunState | None, int]] = [(None, 24), ("failed", 6), ("active", 18)]
    for state, count in counts:
        for attributes in (None, {"user_id": 62}):
            found, cursor, pages = list[str](), "", 0
            while pages == 0 or cursor:
                page, cursor = await runs.page(
                    after=cursor,
                    state=state,
                    flow="access",
                    attributes=attributes,
                    count=5,
                )
                found += [one.id for one in page]
                pages += 1
            assert (len(found), len({*found})) == (count, count)
    assert [one.state for one in await runs.find("access", user_id=62)] == ["active"] * 18 + ["failed"] * 6
    assert len(await runs.find("access", user_id=62, count=7)) == 7
    for wrong in ("4 ", "9 inf a", "inf a", "0 -"):
        with pytest.raises(InvalidArgument, match="after: got"):
            await runs.page(after=wrong, flow="access", attributes={"user_id": 62})

    with pytest.raises(JobFailed, match="why"):
        await runs.result(RUNS[0])
    assert await runs.retry(RUNS[0])
    assert await runs.cancel(RUNS[0])
    assert not await runs.cancel(RUNS[0])
    assert await runs.report(RUNS[7], "b", 7)
    assert await runs.result(RUNS[7]) == 7
    assert await runs.report_failed(RUNS[8], "b", "no")
    assert "b: no" in str((await runs.get(RUNS[8])).error)
    again = await runs.replay(RUNS[7], new_id="again")
    assert (await runs.get(again)).state == "active"
    assert "again" in {
        lease.stage.run for lease in await tasks.queue.lease_many(100, 60, block=False) if lease.stage
    }
    assert await runs.delete(RUNS[7])
    for call in (runs.get, runs.cancel, runs.retry, runs.result, runs.replay):
        with pytest.raises(JobUnknown):
            await call(RUNS[7])


async def test_a_run_that_waits_for_an_item_that_is_gone_is_found_in_any_shard(
    tasks: TaskQueue, redis: Redis
) -> None:
    queue = tasks.queue
    for one in RUNS:
        await queue.flow_runs.start(chain(queue.name, "a"), one)
    for one in RUNS[:10]:
        await redis.delete(f"{queue.shard_of(one).name}:item:{one}/a")
    found = await queue.flow_runs.check(repair=False)
    assert [one.count for one in found.findings] == [10]
    await queue.flow_runs.check()
    assert {one.id for one in await queue.flow_runs.list(state="failed") if one} == {*RUNS[:10]}


async def test_other_queues_are_refused_by_name_before_anything_is_sent(
    tasks: TaskQueue, plain: TaskQueue
) -> None:
    @tasks.task
    async def here(value: int) -> int:
        return value

    @tasks.task(queue=plain.queue)
    async def there(value: int) -> int:
        return value

    @plain.task
    async def elsewhere(value: int) -> int:
        return value

    for made in (
        here.call(1).then(there),
        here.call(1).then(elsewhere),
        elsewhere.call(1).then(here),
        group([here.call(1), elsewhere.call(1)]),
        group([elsewhere.call(1), here.call(1)]),
    ):
        with pytest.raises(InvalidCall, match="if one has shards, it has all calls"):
            await made.add()
    flow = Flow("flow", tasks, attributes={"value": int})
    flow.stage(here)
    with pytest.raises(InvalidFlow, match="if one has shards, it has all stages"):
        flow.stage(there, after="here")
    with pytest.raises(InvalidFlow, match=r"Flow\.then_start"):
        flow.stage("render", queue="videos", after="here")
    for wanted in (tasks.queue, tasks.queue.name):
        other = Flow("other", plain, attributes={"value": int})
        plain._queue_of(tasks.queue)
        with pytest.raises(InvalidFlow, match="if one has shards, it has all stages"):
            other.stage(elsewhere, queue=wanted)
    with pytest.raises(
        InvalidFlow, match=r"stage 'a': queue: got 'videos', expected '.*', as a run is in one"
    ):
        await tasks.queue.flow_runs.start(FlowPlan((StagePlan("a", "videos"),)), "r")
    assert (await tasks.queue.counts()).total == (await plain.queue.counts()).total == 0


async def test_children_on_other_queues_fail_their_stage(tasks: TaskQueue, plain: TaskQueue) -> None:
    @tasks.task
    async def here(value: int) -> int:
        return value

    @plain.task
    async def there(value: int) -> int:
        return value

    @tasks.task(retry=None)
    async def out() -> FanOut[int]:
        return fan_out([there.call(1)])

    @plain.task(retry=None)
    async def back() -> FanOut[int]:
        return fan_out([here.call(1)])

    async with working(new_worker(tasks, plain)):
        with pytest.raises(JobFailed, match="as a run is in one of its shards"):
            await (await out.add()).result(timeout=120)
        with pytest.raises(JobFailed, match="its queue has shards, and none has the flow run"):
            await (await back.add()).result(timeout=120)


@pytest.mark.parametrize("tasks", ["group"], indirect=True)
async def test_groups_that_have_shards_are_refused_in_runs(tasks: TaskQueue) -> None:
    @tasks.task
    async def one(value: int) -> int:
        return value

    @tasks.task(retry=None)
    async def fans() -> FanOut[int]:
        return fan_out([one.options(group="a").call(1)])

    @tasks.task(concurrency=2)
    async def limited(value: int) -> int:
        return value

    for call in (one.options(group="a").call(1), limited.call(1)):
        for made in (call.chain(), group([call])):
            with pytest.raises(InvalidFlow, match=r"group: got .*, expected None, as a run is in"):
                await made.add()
    assert (await tasks.queue.counts()).total == 0
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match="expected None, as a run is in the shard of its id"):
            await (await fans.add()).result(timeout=120)
        assert await (await one.call(3).chain().add()).result(timeout=120) == 3


async def test_a_limit_of_a_group_is_divided_and_holds_for_runs(tasks: TaskQueue) -> None:
    running = Counter[str]()
    most = Counter[str]()

    @tasks.task(concurrency=2 * COUNT)
    async def limited(value: int) -> int:
        home = current_stage().home
        running[home] += 1
        most[home] = max(most[home], running[home])
        await asyncio.sleep(0)
        running[home] -= 1
        return value

    runs = [await group([limited.call(n) for n in range(5)]).add(id=one) for one in RUNS]
    async with working(new_worker(tasks, concurrency=50)):
        for run in runs:
            assert await run.result(timeout=120) == [*range(5)]
    assert max(most.values()) <= 2


async def test_a_stage_adds_jobs_and_hands_over_to_flows_on_any_queue(
    tasks: TaskQueue, plain: TaskQueue
) -> None:
    done: list[int] = []

    @tasks.task
    async def job(value: int) -> None:
        done.append(value)

    @tasks.task
    async def first(value: int) -> int:
        for n in range(20):  # each in the shard of its id
            await job.add(n)
        return value

    @plain.task
    async def other(value: int) -> int:
        return value + 1

    there = Flow("there", plain, attributes={"value": int})
    there.stage(other)
    back = Flow("back", tasks, attributes={"value": int})
    back.stage(first)
    flow = Flow("here", tasks, attributes={"value": int})
    begun = flow.stage(first)
    flow.then_start(there, after=begun, takes={"value": begun})
    flow.then_start(back, after=begun, takes={"value": begun})
    runs = [await flow.start(id=one, value=1) for one in RUNS[:4]]
    async with working(new_worker(flow, there, back)):
        for run in runs:
            await run.result(timeout=120)
            await there.flow_run(f"{run.id}.start-there").result(timeout=120)
            await back.flow_run(f"{run.id}.start-back").result(timeout=120)
        await counted(tasks.queue, "all are done", lambda counts: not counts.total)
    assert Counter(done) == dict.fromkeys(range(20), 8)
    assert len(await there.runs.list()) == len(await back.runs.list()) == 4
    assert await flow.runs.list([f"{RUNS[0]}.start-back"]) == [None], "it is a run of another flow"


async def test_another_number_of_shards_is_refused(tasks: TaskQueue, redis_url: str) -> None:
    await tasks.queue.flow_runs.start(chain(tasks.name, "a"), "r")
    async with AsyncWorkQueue.from_url(redis_url, tasks.name, shards=8) as other:
        for call in (other.flow_runs.get, other.flow_runs.cancel, other.flow_runs.result):
            with pytest.raises(InvalidArgument, match=f"shards={COUNT}, shard_by='id', as when"):
                await call("r")
        with pytest.raises(InvalidArgument, match="as when"):
            await other.flow_runs.start(chain(tasks.name, "a"), "s")
        with pytest.raises(InvalidArgument, match="as when"):
            await other.flow_runs.page(flow="access", attributes={"user_id": 62})


def test_no_call_of_flow_runs_is_forgotten() -> None:
    """What is not made for shards would ask an engine, and raise; these are built on others."""
    public = {name for name, one in vars(FlowRuns).items() if callable(one) and name[0] != "_"}
    built_on_others = {"cancel", "list", "mermaid", "of_flow", "page", "replay", "result", "with_signals"}
    assert public - {*vars(ShardedFlowRuns)} == built_on_others
