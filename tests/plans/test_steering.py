"""Flow runs are cancelled, retried, replayed, deleted and checked; what they leave is nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item
from leasequeue.errors import FlowRunUnfinished, InvalidFlow, JobCancelled, JobFailed, JobUnknown
from leasequeue.queue.findings import Problem
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from leasequeue.queue.plans.stages import FinishRow, child_text, fan_all, finish_stages, stage_children
from leasequeue.queue.queue import engine_of
from tests.eventually import eventually
from tests.lua.space import Call, Space
from tests.plans.conftest import either as queue
from tests.plans.flows import one_queue
from tests.plans.run_hashes import chain, children
from tests.queue.keyspace import left_over
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis as redis_py
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

__all__ = ["queue"]

ONE_QUEUE = one_queue("queue")

pytestmark = pytest.mark.core


async def work(queue: AsyncWorkQueue, failing: Iterable[str] = (), *, count: int = 1_000_000) -> list[str]:
    """Finish the stages whose items wait, and those that follow; return their paths."""
    paths: list[str] = []
    while len(paths) < count and (leases := await queue.lease_many(min(count, 250), 60, block=False)):
        rows: dict[AsyncWorkQueue, list[FinishRow]] = {}
        for lease in leases:
            assert lease.stage is not None
            path = lease.stage.path
            paths.append(path)
            kind: Any = "failed" if path in failing else "done"
            row = FinishRow(lease, kind, b"why" if kind == "failed" else b'"%b"' % path.encode())
            rows.setdefault(queue.shard_of(lease.stage.run), []).append(row)
        for home, some in rows.items():
            await finish_stages(engine_of(home), some)
    return paths


async def states(queue: AsyncWorkQueue, run_id: str = "r") -> dict[str, str]:
    """Return the state of a run and of its stages and children."""
    run = await queue.flow_runs.get(run_id, children=True)
    return {"run": run.state} | {path: view.state for path, view in run.stages.items()}


def fan(queue: AsyncWorkQueue, count: int, policy: str = "all") -> FlowPlan:
    """Return a plan of a stage that fans out, and one that follows."""
    parent = StagePlan("parent", children=children(queue.name, count), policy=policy)
    return FlowPlan(
        (parent, StagePlan("next", queue.name, b"{}", after=("parent",))), "parent", keep_ms=600_000
    )


async def test_a_run_is_started_once_and_gives_its_result(queue: AsyncWorkQueue) -> None:
    plan = chain(queue.name, "a", "b")
    assert await queue.flow_runs.start(plan, "r") is True
    assert await queue.flow_runs.start(plan, "r") is False
    assert await work(queue) == ["a", "b"]
    assert await queue.flow_runs.result("r", timeout=120) == "b"
    await queue.flow_runs.start(fan(queue, 3), "f")
    await work(queue)
    assert await queue.flow_runs.result("f", timeout=120) == ["parent/0", "parent/1", "parent/2"]
    with pytest.raises(JobUnknown):
        await queue.flow_runs.result("gone", timeout=120)
    with pytest.raises(InvalidFlow):
        await queue.flow_runs.start(FlowPlan(()), "r")


@ONE_QUEUE
async def test_a_cancelled_run_has_no_items_any_more_and_ends_at_once(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """Also those on another queue; a holder finds nothing to complete."""
    other = make_queue(name=f"{queue.name}-other")
    stages = (
        *(StagePlan(name, queue.name, b"{}") for name in ("a", "b", "done")),
        StagePlan("elsewhere", other.name, b"{}", delay_ms=60_000),
        StagePlan("next", queue.name, b"{}", after=("a",)),
    )
    await queue.flow_runs.start(FlowPlan(stages, "a"), "r")
    leases = {lease.id: lease for lease in await queue.lease_many(3, 60)}
    await finish_stages(engine_of(queue), [FinishRow(leases["r/done"], "done", b"1")])
    assert await queue.flow_runs.cancel("r") is True
    cancelled = dict.fromkeys(("a", "b", "elsewhere"), "cancelled")
    expected = {"run": "cancelled", "done": "done", **cancelled, "next": "not entered"}
    assert await states(queue) == expected
    assert await finish_stages(engine_of(queue), [FinishRow(leases["r/a"], "done", b"1")]) == [False]
    assert await states(queue) == expected
    with pytest.raises(JobCancelled):
        await queue.flow_runs.result("r", timeout=120)
    assert (await queue.counts()).total == (await other.counts()).total == 0
    assert await queue.flow_runs.cancel("r") is False
    with pytest.raises(JobUnknown):
        await queue.flow_runs.cancel("gone")


async def test_many_children_are_cancelled_and_forgotten(queue: AsyncWorkQueue, redis: Redis) -> None:
    """Most of them are not added when the run is cancelled."""
    await queue.flow_runs.start(fan(queue, 1_200), "r")
    await work(queue, count=60)  # those that one call adds
    assert await queue.flow_runs.cancel("r") is True
    run = await queue.flow_runs.get("r")
    assert (run.state, run.unfinished) == ("cancelled", 0)
    assert (await queue.counts()).total == 0
    assert await queue.flow_runs.delete("r") is True
    await queue.admin.fsck()
    assert await left_over(redis, queue.name) == set()


@pytest.mark.seed("GLD-O18")
async def test_a_failed_run_is_retried_from_the_stage_that_failed(queue: AsyncWorkQueue) -> None:
    await queue.flow_runs.start(chain(queue.name, "a", "b", "c"), "r")
    assert await queue.flow_runs.retry("r") is False
    assert await work(queue, {"b"}) == ["a", "b"]
    with pytest.raises(JobFailed, match="failed at stage 'b': why"):
        await queue.flow_runs.result("r", timeout=120)
    assert await queue.dead_letters.count() == 1
    assert await queue.flow_runs.retry("r") is True
    assert await queue.dead_letters.count() == 0
    assert await work(queue) == ["b", "c"]
    assert await queue.flow_runs.result("r", timeout=120) == "c"
    assert await queue.flow_runs.retry("r") is False
    with pytest.raises(JobUnknown):
        await queue.flow_runs.retry("gone")


async def test_only_the_children_that_have_failed_are_retried_however_many(queue: AsyncWorkQueue) -> None:
    await queue.flow_runs.start(fan(queue, 600), "r")
    failing = [f"parent/{at}" for at in range(0, 600, 2)]
    await work(queue, failing)
    run = await queue.flow_runs.get("r")
    assert (run.state, run.progress) == ("failed", (601, 602))
    assert await queue.flow_runs.retry("r") is True
    assert sorted(await work(queue)) == sorted([*failing, "next"])
    assert [*await queue.flow_runs.result("r", timeout=120)] == [f"parent/{at}" for at in range(600)]


async def test_what_failing_fast_has_cancelled_is_retried_too(queue: AsyncWorkQueue) -> None:
    await queue.flow_runs.start(fan(queue, 6, "fail_fast"), "r")
    [path] = await work(queue, [f"parent/{at}" for at in range(6)], count=1)
    for _ in range(100):
        if not (await queue.flow_runs.get("r")).unfinished:
            break
        await queue.counts()  # the rest is cancelled soon
    found = await states(queue)
    assert [found[f"parent/{at}"] for at in range(6)] == ["failed", *["cancelled"] * 5]
    assert path == "parent/0"
    assert await queue.flow_runs.retry("r") is True
    assert len(await work(queue)) == 7
    assert (await states(queue))["run"] == "completed"


async def test_a_run_that_has_failed_at_once_is_retried_when_its_items_have_ended(
    queue: AsyncWorkQueue,
) -> None:
    await queue.flow_runs.start(fan(queue, 3, "fail"), "r")
    await work(queue, ["parent/0"], count=1)
    with pytest.raises(FlowRunUnfinished):
        await queue.flow_runs.retry("r")
    await work(queue)
    assert await queue.flow_runs.retry("r") is True
    assert await work(queue) == ["parent/0", "next"]


async def test_children_that_were_not_added_when_the_run_failed_are_retried(queue: AsyncWorkQueue) -> None:
    failing = StagePlan("failing", queue.name, b"{}")
    ending = StagePlan("ending", queue.name, b"{}", after=("failing", "parent"), join="fail")
    stages = (*fan(queue, 1_200).stages, failing, ending)
    await queue.flow_runs.start(FlowPlan(stages, "parent"), "r")
    worked = await work(queue, {"failing"}, count=251)
    assert "failing" in worked
    worked += await work(queue)
    run = await queue.flow_runs.get("r")
    assert (run.state, run.unfinished) == ("failed", 0)
    assert await queue.flow_runs.retry("r") is True
    again = await work(queue)
    # Its own path is that of the item whose holder adds the others.
    assert sorted([*worked, *again]) == sorted(
        [*["failing", "parent"] * 2, "ending", "next", *(f"parent/{at}" for at in range(1_200))]
    )
    assert [*await queue.flow_runs.result("r", timeout=120)] == [f"parent/{at}" for at in range(1_200)]


async def test_a_run_is_replayed_with_the_same_plan_and_input(queue: AsyncWorkQueue, redis: Redis) -> None:
    plan = chain(queue.name, "a", "b", user_id=b"1.10", guilds=b"[1,2]")
    await queue.flow_runs.start(plan, "r")
    await work(queue, {"a"})
    new = await queue.flow_runs.replay("r")
    assert await queue.flow_runs.replay("r", new_id=new) == new
    assert await work(queue) == ["a", "b"]
    assert await redis.hget(f"{queue.shard_of(new).name}:run:{new}", "a:user_id") == b"1.10"
    assert sorted(run.id for run in await queue.flow_runs.find("access", guilds=2)) == sorted(["r", new])
    first, second = await queue.flow_runs.get("r"), await queue.flow_runs.get(new)
    assert (first.state, second.state, second.plan) == ("failed", "completed", first.plan)
    await queue.flow_runs.start(fan(queue, 300), "many")
    again = await queue.flow_runs.replay("many", new_id="again")
    assert (await queue.flow_runs.get(again)).plan == fan(queue, 300).linked()
    with pytest.raises(JobUnknown):
        await queue.flow_runs.replay("gone")


@ONE_QUEUE
@pytest.mark.seed("GLD-O14", "GLD-B16")
async def test_a_deleted_run_leaves_no_trace(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    stages = (
        StagePlan("a", queue.name, b"{}"),
        StagePlan("b", other.name, b"{}"),
        StagePlan("c", children=children(other.name, 3), policy="settled"),
    )
    await queue.flow_runs.start(FlowPlan(stages, lookup={"user_id": ["62"]}), "r")
    with pytest.raises(FlowRunUnfinished):
        await queue.flow_runs.delete("r")
    await work(queue, {"a"})
    await work(other, {"b", "c/1"})
    assert (await states(queue))["run"] == "failed"
    assert await queue.dead_letters.count() + await other.dead_letters.count() == 3
    assert await queue.flow_runs.delete("r") is True
    assert await queue.flow_runs.delete("r") is False
    for one in (queue, other):
        assert await left_over(redis, one.name) == set()


@ONE_QUEUE
@pytest.mark.parametrize("then", ["failed", "deleted"])
async def test_a_deleted_run_leaves_nothing_of_an_interrupted_step(
    queue: AsyncWorkQueue, redis: Redis, then: str
) -> None:
    """The step has ended the run, and its item is still there; another client may fail it as a plain one."""
    found, allowed, ended = 0, 0, False
    while not ended:
        await queue.flow_runs.start(FlowPlan((StagePlan("a", queue.name, b"{}"),)), "r")
        [lease] = await queue.lease_many(1, 60, block=False)
        call = Call("run_finish", [FinishRow(lease, "done", b"1").encode()])
        ended = (await Interrupter(Space(redis, queue.name)).run(call, allowed)).ended
        allowed += 1
        if (await states(queue))["a"] == "done":
            if then == "failed":
                found += await queue.fail(lease, "plainly", retry_in=None)
            else:
                found += not ended
            assert await queue.flow_runs.delete("r") is True
            left = {key.removeprefix(f"{queue.name}:".encode()) for key in await left_over(redis, queue.name)}
            assert left <= {b"deadlines", b"processing", b"options", b"ledger"}, (
                allowed
            )  # a clean drops these
        else:
            await queue.flow_runs.cancel("r")
            assert await queue.flow_runs.delete("r") is True
    assert found


@pytest.mark.parametrize("others", ["before", "after"])
async def test_the_counts_are_right_after_a_large_run_was_cancelled(
    queue: AsyncWorkQueue, others: str
) -> None:
    """Its children wait near one end of the queue, where other items wait as well."""
    await queue.flow_runs.start(FlowPlan((StagePlan("a", queue.name, b"{}"),)), "r")
    [lease] = await queue.lease_many(1, 60, block=False)
    assert lease.stage is not None
    definition = child_text(lease.stage, ChildPlan(lease.stage.home, b"{}"))
    items = [Item(b"x") for _ in range(300)]
    if others == "before":
        await queue.add_items(items)
    await fan_all(engine_of(queue.shard_of("r")), [(lease, [definition] * 1200, b"all", None)])
    if others == "after":
        await queue.add_items(items)
    assert (await queue.counts()).waiting == 1500
    assert await queue.flow_runs.cancel("r")
    assert (await queue.counts()).waiting == 300


@ONE_QUEUE
async def test_a_stage_whose_item_exists_nowhere_is_found_and_settled(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    stages = (
        StagePlan("a", other.name, b"{}"),
        StagePlan("f", other.name, b"{}", foreign=True),
        StagePlan("b", queue.name, b"{}", after=("a", "f"), join="settled"),
    )
    await queue.flow_runs.start(FlowPlan(stages), "r")
    assert (await queue.flow_runs.check()).findings == ()
    for name in ("item:r/a", "item:r/f", "options", "queue"):
        await redis.unlink(f"{other.name}:{name}")
    before = await states(queue)
    report = await queue.flow_runs.check(repair=False)
    [found] = report.findings
    assert (found.problem, found.examples, report.examined) == (Problem.STUCK_STAGE, ("r/a", "r/f"), 1)
    assert await states(queue) == before
    report = await queue.admin.fsck()
    assert [(one.problem, one.count) for one in report.findings] == [(Problem.SETTLED_STAGE, 2)]
    assert await states(queue) == {"run": "active", "a": "failed", "f": "done", "b": "entered"}
    run = await queue.flow_runs.get("r")
    assert run.stages["a"].error == "lost: its item has vanished"
    assert await work(queue) == ["b"]
    assert (await queue.admin.fsck()).findings == ()


async def test_a_stage_is_ended_by_a_report_of_another_system(queue: AsyncWorkQueue) -> None:
    await queue.flow_runs.start(chain(queue.name, "a", "b", "c"), "r")
    assert await queue.flow_runs.report("r", "b", 1) is False
    assert await queue.flow_runs.report("gone", "a", 1) is False
    assert await queue.flow_runs.report("r", "a", {"x": [1]}) is True
    assert await queue.flow_runs.report("r", "a", {"x": [2]}) is False
    assert (await queue.flow_runs.get("r")).results == {"a": {"x": [1]}}
    assert await queue.flow_runs.report_failed("r", "b", "no") is True
    assert await states(queue) == {"run": "failed", "a": "done", "b": "failed", "c": "not entered"}
    assert (await queue.counts()).total == 0
    assert await queue.flow_runs.retry("r") is True
    assert await work(queue) == ["b", "c"]


async def test_a_retry_that_was_stopped_at_any_write_is_healed_by_a_check(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """Its caller never returns. Whatever was written, the run can be retried, and ends."""
    rows = [("parent/0",), ("parent/2",)]
    arguments = {"of_run": "r", "caller": "c", "is_last": 1, "now_ms": ""}
    interrupter, allowed = Interrupter(Space(redis, queue.name)), 99
    while allowed >= 0:
        await redis.flushdb()
        await queue.flow_runs.start(fan(queue, 3), "r")
        await work(queue, {"parent/0", "parent/2"})
        run = await interrupter.run(Call("run_reopen", rows, arguments), allowed)
        allowed = min(allowed, run.writes) - 1
        await queue.admin.fsck()
        worked = await work(queue)
        if (await states(queue))["run"] == "failed":
            assert worked == []
            assert await queue.flow_runs.retry("r") is True
            worked = await work(queue)
        assert sorted(worked) == ["next", "parent/0", "parent/2"], run.commands
        assert await queue.flow_runs.result("r", timeout=120) == ["parent/0", "parent/1", "parent/2"]
        assert (await queue.flow_runs.check()).findings == ()


@pytest.mark.seed("GLD-K5", "GLD-B20")
async def test_runs_that_are_not_kept_any_more_leave_nothing(
    queue: AsyncWorkQueue, plain: redis_py.Redis
) -> None:
    kept = {f"{one.name}:{key}".encode() for one in queue.shards for key in ("fence", "shards")}
    for keep_ms in (0, 30):
        for at in range(10):
            plan = chain(queue.name, "a", "b", user_id=b"62", guilds=b"[1, %d]" % at)
            await queue.flow_runs.start(replace(plan, keep_ms=keep_ms), f"{keep_ms}-{at}")
        assert len(await queue.flow_runs.find("access", user_id=62)) == 10
        await work(queue, {"b"} if keep_ms else ())
        await queue.dead_letters.drop_all()
        await eventually("the keep time is over", lambda: {*plain.keys()} <= kept)
        assert await queue.flow_runs.list() == await queue.flow_runs.find("access", user_id=62) == []


@ONE_QUEUE
@pytest.mark.seed("GLD-B1", "GLD-K5")
async def test_no_key_of_an_unfinished_run_expires(queue: AsyncWorkQueue, redis: Redis) -> None:
    for run_id in ("done", "r"):
        plan = replace(chain(queue.name, "a", "b", user_id=b"62"), keep_ms=1_000)
        await queue.flow_runs.start(plan, run_id)
        await work(queue, count=2 if run_id == "done" else 1)
    keys = [f"{queue.name}:run:r", f"{queue.name}:runs:by:access\0user_id\x0062", f"{queue.name}:runs:ends"]
    keys.append(f"{queue.name}:runs:completed")
    assert [await redis.pttl(key) for key in keys] == [-1] * 4


async def test_a_stale_holder_changes_nothing(queue: AsyncWorkQueue) -> None:
    """Also a holder whose work is done, if its lease was reclaimed: the current one decides."""
    await queue.flow_runs.start(chain(queue.name, "a", "b"), "r")
    [stale] = await queue.lease_many(1, 0.05, block=False)
    while not (await queue.counts()).waiting:
        await queue.light_clean()
    [lease] = await queue.lease_many(1, 60, block=False)
    before = await states(queue)
    home = queue.shard_of("r")
    definition = child_text(StageRef(home.name, "r", "a"), ChildPlan(home.name, b"{}"))
    assert await fan_all(engine_of(home), [(stale, [definition], b"all", None)]) == [False]
    assert await stage_children(engine_of(home), stale, [definition]) is False
    assert await finish_stages(engine_of(home), [FinishRow(stale, "done", b'"stale"')]) == [False]
    assert await states(queue) == before
    assert await finish_stages(engine_of(home), [FinishRow(lease, "done", b'"current"')]) == [True]
    await work(queue)
    assert (await queue.flow_runs.get("r")).results["a"] == "current"
