"""What an earlier run of the same id, or an interrupted step, has left: no run takes it as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.queue.plans.plan import KEEP_MS, FlowPlan, StagePlan
from tests.lua.runs import Row, Runs, contents
from tests.lua.space import NOW, Call, Space
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def start(runs: Runs, mark: str, *stages: StagePlan, keep_ms: int = KEEP_MS) -> None:
    """Start a run with a new mark."""
    call = runs.starting(FlowPlan(stages, keep_ms=keep_ms))
    assert await runs.space.run_all([call._replace(arguments={**call.arguments, "builder": mark})]) == [1]


async def leave_item(runs: Runs) -> Row:
    """Have a run end, and its last step be interrupted before it has completed the item."""
    await start(runs, "first", runs.stage("a"), keep_ms=0)
    [row] = await runs.lease()
    finish = Call("run_finish", [row.done()])
    writes = (await Interrupter(runs.space).run(finish)).writes
    for allowed in range(writes):
        await runs.space.redis.flushdb()
        await start(runs, "first", runs.stage("a"), keep_ms=0)
        [row] = await runs.lease()
        await Interrupter(runs.space).run(Call("run_finish", [row.done()]), allowed)
        state = await runs.space.snapshot()
        if "run:r" not in state and "item:r/a" in state:
            return row
    raise AssertionError("no interruption leaves the item")


async def settle(runs: Runs) -> list[int]:
    """Settle what is noted; return the answers."""
    answers, *_ = await runs.space.run("run_settle", cursor="0")
    return [int(answer) for answer in answers]


async def test_an_item_of_an_earlier_run_is_replaced(runs: Runs) -> None:
    row = await leave_item(runs)
    await start(runs, "second", runs.stage("a"), runs.stage("b", "a"))
    assert await runs.finish(row.done()) == [-1]
    [own] = await runs.lease()
    assert own.token > row.token
    assert own.reference == f"{runs.home}\0r\0a\0second".encode()
    assert (await runs.states()) == {"run": "active", "a": "w"}
    assert await runs.finish(own.done()) == [1]
    assert await runs.step() == ["b"]
    assert (await runs.states())["run"] == "completed"
    assert "unsettled" not in await runs.space.snapshot()


async def test_an_item_of_an_earlier_run_on_another_queue_changes_nothing(runs: Runs) -> None:
    row = await leave_item(runs)
    other = Space(runs.space.redis, f"{runs.home}-other")
    await start(runs, "second", runs.stage("a", queue=other.prefix))
    before = await runs.hash()
    assert await runs.finish(row.done()) == [1]
    assert await runs.hash() == before
    assert "item:r/a" not in await runs.space.snapshot()
    assert "item:r/a" in await other.snapshot()


@pytest.mark.parametrize("end", ["fail_many", "cancel_many", "complete_many"])
async def test_the_plain_end_of_an_item_of_an_earlier_run_settles_nothing(runs: Runs, end: str) -> None:
    row = await leave_item(runs)
    other = Space(runs.space.redis, f"{runs.home}-other")
    await start(runs, "second", runs.stage("a", queue=other.prefix))
    before = await runs.hash()
    rows = {"fail_many": (-1, "plainly"), "cancel_many": (), "complete_many": (1,)}[end]
    await runs.space.run(end, [(row.id, 0 if end == "cancel_many" else row.token, *rows)])
    assert await settle(runs) == [0]
    assert await runs.hash() == before
    assert (await runs.space.snapshot()).keys().isdisjoint({"dead", "dead:r/a", "item:r/a", "unsettled"})


async def test_a_step_of_an_earlier_run_is_not_stored(runs: Runs) -> None:
    row = await leave_item(runs)
    other = Space(runs.space.redis, f"{runs.home}-other")
    await start(runs, "second", runs.stage("a", queue=other.prefix))
    call = runs.space.run(
        "run_once", item=row.id, lease=row.token, of_stage=row.reference, step="s", outcome="1"
    )
    assert await call == [0, b""]
    assert not [name for name in await runs.fields() if name.startswith("o:")]


async def test_an_item_that_is_of_no_run_stays_and_the_stage_fails(runs: Runs) -> None:
    await runs.space.run("add_items", [("r/a", "plain", 0, 0)])
    await start(runs, "only", runs.stage("a"), runs.stage("b", "a"))
    assert await settle(runs) == [1]
    found = await runs.hash()
    assert (found["state"], found["s:a"]) == ("failed", "f")
    assert found["e:a"] == "it could not be added: the queue has another item of its id"
    after = await runs.space.snapshot()
    assert after["item:r/a"] == "plain"
    assert after.keys().isdisjoint({"unsettled", "options"})
    [item] = await runs.space.lease_all(1)
    assert (item.id, item.data) == ("r/a", "plain")


async def test_a_dead_letter_of_an_earlier_run_is_not_what_became_of_a_stage(runs: Runs) -> None:
    await start(runs, "first", runs.stage("a"), keep_ms=1)
    [row] = await runs.lease()
    assert await runs.finish(row.failed("the first")) == [1]
    await runs.space.redis.unlink(f"{runs.home}:run:r")
    await start(runs, "second", runs.stage("a"))
    [row] = await runs.lease()
    assert await runs.space.run("complete_many", [(row.id, row.token, 1)]) == [1]
    assert await settle(runs) == [1]
    assert (await runs.states()) == {"run": "completed", "a": "d"}
    assert "dead:r/a" in await runs.space.snapshot()


async def test_deleting_a_run_leaves_a_dead_letter_that_is_not_of_its_stage(runs: Runs) -> None:
    """A plain item had the id of a stage."""
    await runs.space.run("add_items", [("r/a", "plain", 0, 0)])
    [held] = await runs.space.lease_all(1)
    assert await runs.space.run("fail_many", [(held.id, held.token, -1, "no more")]) == [1]
    before = await runs.space.snapshot()
    await runs.space.redis.zadd(f"{runs.home}:dead", {"r/b": 1})  # a call was interrupted that has dropped it
    stages = [(f"={runs.home}\0r\0{one}",) for one in "ab"]
    assert await runs.space.run("run_forget", stages) == [0, 0]
    assert await runs.space.snapshot() == before
    assert await runs.space.run("run_forget", [("r/a",)]) == [1]
    assert not {"dead:r/a", "dead"} & {*await runs.space.snapshot()}


async def test_the_rest_of_an_earlier_run_is_not_cancelled(runs: Runs) -> None:
    await start(runs, "first", runs.stage("a"))
    assert await runs.space.run("run_cancel", of_run="r") == 1
    assert contents(await runs.space.snapshot(), "unsettled") == {f"!{runs.home}\0r\0": "first"}
    await runs.space.redis.unlink(
        *(f"{runs.home}:{one}" for one in ("run:r", "item:r/a", "queue", "options"))
    )
    await start(runs, "second", runs.stage("a"))
    assert await runs.space.run("run_settle", cursor="0") == [[], [], [], b"0"]
    assert "unsettled" not in await runs.space.snapshot()


async def test_a_plain_failure_after_a_step_that_was_interrupted_leaves_no_dead_letter(
    runs: Runs, redis: Redis
) -> None:
    async def begin() -> Row:
        await redis.flushdb()
        await start(runs, "only", runs.stage("a"), runs.stage("b", "a"))
        [row] = await runs.lease()
        return row

    row, found = await begin(), 0
    writes = (await Interrupter(runs.space).run(Call("run_finish", [row.done()]))).writes
    for allowed in range(writes):
        row = await begin()
        await Interrupter(runs.space).run(Call("run_finish", [row.done()]), allowed)
        is_done = (await runs.states())["a"] == "d"
        [failed] = await runs.space.run("fail_many", [(row.id, row.token, -1, "plainly")], now_ms=NOW)
        await settle(runs)
        after = await runs.space.snapshot()
        assert ("dead:r/a" in after) == (failed == 1 and not is_done), allowed
        assert "unsettled" not in after
        found += is_done and failed == 1
    assert found
