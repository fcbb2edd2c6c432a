"""Another queue that is in a newer format: what would be written there is left, and all else goes on."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from leasequeue.queue.plans.plan import FlowPlan
from tests.lua.runs import Runs, contents
from tests.lua.space import NOW, Call, Space, State
from tests.lua.test_controls import limit, pause, sharers, woken
from tests.lua.test_lanes import add, lease, leases, row
from tests.lua.test_runs_settled import settle, unsettled
from tests.lua.test_sub_runs import SUB, start_sub


class Newer:
    """A queue beside that of the test, in a format that the scripts do not know, or do again."""

    def __init__(self, space: Space) -> None:
        self.space = Space(space.redis, f"{space.prefix}-newer")
        self.said = f"FORMATTOONEW 2 0.2.0 {self.space.prefix}"

    async def raise_(self) -> None:
        await self.space.seed({"too_new_for:1": "2 0.2.0"})

    async def lower(self) -> None:
        await self.space.redis.delete(self.space.key("too_new_for:1"))


@pytest.fixture
def newer(space: Space) -> Newer:
    return Newer(space)


async def finish(runs: Runs, *rows: tuple[object, ...], of: Space | None = None) -> list[Any]:
    """Finish stages; return the answers, which may be texts."""
    answers, _, refused = await (of or runs.space).run("run_finish", rows)
    assert not refused
    return [one.decode() if isinstance(one, bytes) else one for one in answers]


async def test_a_row_that_leads_there_is_left_and_all_others_of_the_call_are_done(
    runs: Runs, newer: Newer
) -> None:
    there = newer.space.prefix
    await runs.start(runs.stage("a"), runs.stage("b", "a", queue=there), run="leads")
    await runs.start(runs.stage("a"), run="ends")
    await runs.start(
        runs.stage("x"), runs.stage("y"), runs.stage("z", "x", "y", queue=there), run="joins", result="z"
    )
    rows = {row.id: row for row in await runs.lease()}
    await newer.raise_()
    before = await runs.space.snapshot()
    given = [rows[one].done() for one in ("leads/a", "joins/x", "ends/a", "joins/y")]
    assert await finish(runs, *given) == [newer.said, 1, 1, newer.said]
    assert await newer.space.snapshot() == {"too_new_for:1": "2 0.2.0"}
    after = await runs.space.snapshot()
    assert (after["run:leads"], after["item:leads/a"]) == (before["run:leads"], before["item:leads/a"])
    assert (await runs.states("joins")) == {"run": "active", "x": "d", "y": "w"}
    assert (await runs.states("ends"))["run"] == "completed"
    assert {*contents(after, "ledger")} == {"leads/a", "joins/y"}, "they are still leased"
    assert await finish(runs, rows["leads/a"].done()) == [newer.said]
    lost = rows["leads/a"]._replace(token=99)
    assert await finish(runs, lost.done()) == [-1], "whatever it leads to"
    await newer.lower()
    assert await finish(runs, *given) == [1, 0, 0, 1]
    assert sorted(one.path for one in await runs.lease(of=newer.space)) == ["b", "z"]


async def test_a_failure_and_children_that_lead_there_are_left(runs: Runs, newer: Newer) -> None:
    there = newer.space.prefix
    await runs.start(runs.stage("a"), runs.stage("b", "a", queue=there, join="settled"), run="fails")
    await runs.start(runs.stage("a"), run="fans")
    rows = {row.id: row for row in await runs.lease()}
    await newer.raise_()
    before = await runs.space.snapshot()
    failed, fanned = rows["fails/a"].failed(), rows["fans/a"].fan([runs.child(0, queue=there)])
    assert await finish(runs, failed, fanned) == [newer.said] * 2
    assert await runs.space.snapshot() == before
    await newer.lower()
    assert await finish(runs, failed, fanned) == [1, 1]


async def test_the_end_of_a_run_that_leads_there_through_one_that_waits_for_it_is_left(
    runs: Runs, newer: Newer
) -> None:
    await runs.start(
        runs.stage("a", flow="other"), runs.stage("c"), runs.stage("b", "a", queue=newer.space.prefix)
    )
    rows = {row.path: row for row in await runs.lease()}
    await start_sub(runs, rows["a"].reference)
    [sub] = await runs.lease()
    await newer.raise_()
    assert await finish(runs, rows["c"].done(), sub.done()) == [1, newer.said]
    assert await runs.states(SUB) == {"run": "active", "s": "w"}
    assert await runs.states() == {"run": "active", "a": "w", "c": "d"}
    with pytest.raises(ResponseError, match=newer.said):
        await runs.space.run("run_report", [(sub.reference, "done", "1")])
    await newer.lower()
    assert await finish(runs, sub.done()) == [1]
    assert await runs.states() == {"run": "active", "a": "d", "b": "w", "c": "d"}


async def test_the_item_of_a_stage_that_waits_there_is_left_with_the_run_that_it_waits_for(
    runs: Runs, newer: Newer
) -> None:
    await runs.start(runs.stage("a", flow="other", queue=newer.space.prefix))
    [waits] = await runs.lease(of=newer.space)
    await start_sub(runs, waits.reference)
    [sub] = await runs.lease()
    await newer.raise_()
    before = await runs.space.snapshot(), await newer.space.snapshot()
    assert await finish(runs, sub.done()) == [newer.said]
    with pytest.raises(ResponseError, match=newer.said):
        await runs.space.run("run_cancel", of_run=SUB)
    assert (await runs.space.snapshot(), await newer.space.snapshot()) == before


async def test_an_interrupted_step_is_not_continued_there(runs: Runs, newer: Newer) -> None:
    await runs.start(runs.stage("a"), runs.stage("c"), runs.stage("b", "a", queue=newer.space.prefix))
    rows = {row.path: row for row in await runs.lease()}
    await runs.finish(rows["a"].done())
    await runs.space.redis.hset(runs.space.key("run:r"), "adding", "b\0")
    await newer.raise_()
    before = await newer.space.snapshot()
    assert await finish(runs, rows["c"].done()) == [newer.said]
    assert (await runs.hash())["adding"] == "b\0"
    assert await newer.space.snapshot() == before
    await newer.lower()
    assert await finish(runs, rows["c"].done()) == [1]
    assert "adding" not in await runs.hash()


async def test_a_run_whose_home_is_too_new_is_not_written(runs: Runs, newer: Newer) -> None:
    at_home = Runs(newer.space)
    await at_home.start(at_home.stage("a", queue=runs.home), run="r")
    await runs.start(runs.stage("a"), run="own")
    rows = {row.id: row for row in await runs.lease()}
    await newer.raise_()
    await newer.space.redis.rename(newer.space.key("run:r"), f"{runs.home}-kept")
    await newer.space.seed({"run:r": "it may be no hash there"})
    before = await newer.space.snapshot()
    reference = rows["r/a"].reference
    assert await finish(runs, rows["r/a"].done(), rows["own/a"].done()) == [newer.said, 1]
    once = {"item": "r/a", "lease": rows["r/a"].token, "of_stage": reference, "step": "s", "outcome": "1"}
    for call in (Call("run_once", [], once), Call("run_report", [(reference, "done", "1")])):
        with pytest.raises(ResponseError, match=newer.said):
            await runs.space.run_all([call])
    await runs.space.run("cancel_many", [("r/a", 60_000)])
    assert await settle(runs) == ([0], [])
    assert [*await unsettled(runs)] == ["r/a"]
    assert await newer.space.snapshot() == before
    await newer.lower()
    await newer.space.redis.rename(f"{runs.home}-kept", newer.space.key("run:r"))
    assert await settle(runs) == ([1], [])


async def test_a_run_starts_and_is_done_again_only_if_no_queue_of_it_is_too_new(
    runs: Runs, newer: Newer
) -> None:
    plan = FlowPlan((runs.stage("a"), runs.stage("b", queue=newer.space.prefix)))
    await newer.raise_()
    with pytest.raises(ResponseError, match=newer.said):
        await runs.space.run_all([runs.starting(plan)])
    assert await runs.space.snapshot() == {}
    await newer.lower()
    assert await runs.space.run_all([runs.starting(plan)]) == [1]
    [a], [b] = await runs.lease(), await runs.lease(of=newer.space)
    assert await runs.finish(a.done()) == await runs.finish(b.failed(), of=newer.space) == [1]
    await newer.raise_()
    before: State = await runs.space.snapshot()
    with pytest.raises(ResponseError, match=newer.said):
        await runs.space.run("run_reopen", [("b",)], of_run="r", caller="c", is_last=1)
    assert await runs.space.snapshot() == before


async def test_what_settles_leaves_the_run_that_leads_there(runs: Runs, newer: Newer) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a", queue=newer.space.prefix, join="settled"))
    await runs.start(runs.stage("a"), run="other")
    await runs.lease()
    await runs.space.run("cancel_many", [("r/a", 60_000), ("other/a", 60_000)])
    await newer.raise_()
    answers, _ = await settle(runs)
    assert sorted(answers) == [0, 1]
    assert [*await unsettled(runs)] == ["r/a"]
    assert (await runs.states())["a"] == "w"
    assert (await runs.states("other"))["a"] == "c"
    await newer.lower()
    assert await settle(runs) == ([1], [])
    assert (await runs.states())["b"] == "w"


async def test_a_queue_that_shares_limits_is_neither_woken_nor_checked(space: Space) -> None:
    first, second, third = await sharers(space, 3, 1)
    await add(first, row("first"))
    held = await leases(first)
    await add(second, row("a"), now_ms=NOW + 1)
    await add(third, row("b"), now_ms=NOW + 2)
    await second.seed({"too_new_for:1": "2 0.2.0"})
    before = await second.snapshot()
    await pause(first)
    await first.run("complete_many", [("first", held[0].token, 0)], now_ms=NOW + 5)
    assert await woken([first, third]) == [1]
    assert await second.snapshot() == before
    assert await space.redis.zscore("pool:queues", second.prefix) == NOW + 1, "it still waits"
    # What it has leased counts, wherever its newer workers keep that.
    await limit(third, shared__concurrency=2)
    await space.redis.zadd("pool:running", {f"{second.prefix}\0gone": NOW})
    await add(third, row("c"), now_ms=NOW + 20)
    assert await lease(third, now_ms=NOW + 30) == []
    await second.redis.delete(second.key("too_new_for:1"))
    assert await lease(third, now_ms=NOW + 40) == ["c"]
