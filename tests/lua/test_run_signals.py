"""Stages of flow runs that wait for a signal, until a deadline, or for a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.lua.space import NOW, Call, listed
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.queue.plans.plan import StagePlan
    from tests.lua.runs import Row, Runs

pytestmark = pytest.mark.core

#: How long the stages of these tests wait, and when their time is over.
WITHIN = 5_000
OVER = NOW + WITHIN


def plan(runs: Runs, **waits: object) -> tuple[StagePlan, ...]:
    """Return a stage, one that waits after it, and one that follows."""
    waits = waits or {"signal": True, "delay_ms": WITHIN}
    return runs.stage("a"), runs.stage("s", "a", **waits), runs.stage("b", "s")


async def waiting(runs: Runs, **waits: object) -> None:
    """Start a run, and let it come to the stage that waits."""
    await runs.start(*plan(runs, **waits), result="b")
    assert await runs.step() == ["a"]


async def send(runs: Runs, value: str = '"yes"', *, at: int = NOW) -> int:
    """Send the signal; return the answer."""
    reference = f"{runs.home}\0r\0s"
    [[answer], rest] = await runs.space.run("run_report", [(reference, "signal", value)], now_ms=at)
    assert rest == []
    return int(answer)


async def due(runs: Runs) -> dict[str, float]:
    """Return the ids that are scheduled, and when they are due."""
    found = (await runs.space.snapshot()).get("scheduled", {})
    assert isinstance(found, dict)
    return {one: float(str(at)) for one, at in found.items()}


async def at_deadline(runs: Runs) -> Row:
    """Lease the item of the stage when its time is over."""
    [row] = await runs.lease(at=OVER)
    assert row.path == "s"
    return row


async def test_a_signal_that_comes_before_the_stage_waits_ends_it_when_it_is_entered(runs: Runs) -> None:
    await runs.start(*plan(runs), result="b")
    assert (await send(runs, "1"), await send(runs, "2")) == (1, 0)
    assert await runs.step() == ["a"]
    assert await runs.states() == {"run": "active", "a": "d", "s": "d", "b": "w"}
    assert ((await runs.hash())["r:s"], await due(runs)) == ("1", {})
    assert await runs.step() == ["b"]
    assert (await runs.states())["run"] == "completed"


async def test_a_signal_ends_the_stage_that_waits_for_it_once(runs: Runs) -> None:
    await waiting(runs)
    assert (await due(runs), (await runs.fields())["t:s"]) == ({"r/s": OVER}, str(OVER))
    assert (await send(runs, "1"), await send(runs, "2")) == (1, 0)
    assert ((await runs.hash())["r:s"], await due(runs)) == ("1", {})
    assert {"item:r/s", "unsettled"}.isdisjoint(await runs.space.snapshot())
    assert await runs.step() == ["b"]
    assert await send(runs) == -3


@pytest.mark.parametrize(("at", "answer"), [(OVER - 1, 1), (OVER, 0)], ids=["in time", "too late"])
async def test_the_servers_clock_decides_whether_a_signal_comes_in_time(
    runs: Runs, at: int, answer: int
) -> None:
    await waiting(runs)
    assert await send(runs, at=at) == answer
    assert (await runs.states())["s"] == ("d" if answer else "w")


@pytest.mark.parametrize("ends", ["done", "failed"])
async def test_without_a_signal_the_item_is_due_at_the_deadline(runs: Runs, ends: str) -> None:
    await waiting(runs)
    assert await runs.lease(at=OVER - 1) == []
    row = await at_deadline(runs)
    assert await send(runs, at=OVER) == 0
    assert await runs.finish(row.done("null") if ends == "done" else row.failed(), at=OVER) == [1]
    states = {"done": {"run": "active", "a": "d", "s": "d", "b": "w"}}
    assert await runs.states() == states.get(ends, {"run": "failed", "a": "d", "s": "f"})


async def test_of_a_signal_and_the_end_of_the_time_one_decides(runs: Runs) -> None:
    """The item was promoted, so a worker has it while a signal still comes in time."""
    await waiting(runs)
    await runs.space.run("promote", item="r/s")
    [row] = await runs.lease()
    assert await send(runs) == 1
    assert await runs.finish(row.done("null")) == [0]
    assert (await runs.hash())["r:s"] == '"yes"'
    assert await runs.step() == ["b"]


async def test_a_signal_that_is_interrupted_decides_or_leaves_it_to_the_deadline(
    runs: Runs, redis: Redis
) -> None:
    """A worker has the item, and ends the stage, however far the call of the signal has come."""
    call = Call("run_report", [(f"{runs.home}\0r\0s", "signal", '"yes"')])
    allowed, is_done = 0, False
    while not is_done:
        await redis.flushdb()
        await waiting(runs)
        await runs.space.run("promote", item="r/s")
        [row] = await runs.lease()
        is_done = (await Interrupter(runs.space).run(call, allowed)).ended
        decided = (await runs.states())["s"] == "d"
        await runs.finish(row.done("null"))
        assert (await runs.hash())["r:s"] == ('"yes"' if decided else "null"), allowed
        assert await send(runs) == 0
        assert await runs.step() == ["b"]
        allowed += 1
    assert allowed > 5


async def test_a_step_that_continues_an_interrupted_one_does_not_begin_the_time_anew(runs: Runs) -> None:
    await runs.start(*plan(runs))
    [row] = await runs.lease()
    finish = Call("run_finish", [row.done()])
    assert not (await Interrupter(runs.space).run(finish, 2)).ended
    assert ((await runs.states())["s"], await due(runs)) == ("w", {})
    assert await runs.finish(row.done(), at=NOW + 1_000) == [1]
    assert await due(runs) == {"r/s": OVER}


async def test_a_signal_without_a_deadline_is_waited_for_a_hundred_years(runs: Runs) -> None:
    await waiting(runs, signal=True)
    assert await due(runs) == {"r/s": NOW + 3_153_600_000_000}
    assert "t:s" not in await runs.fields()
    assert await send(runs, at=NOW + 3_000_000_000_000) == 1


async def test_a_run_that_is_retried_waits_again_for_the_whole_time(runs: Runs) -> None:
    await waiting(runs)
    row = await at_deadline(runs)
    await runs.finish(row.failed(), at=OVER)
    again = {"of_run": "r", "caller": "c", "is_last": 1}
    assert await runs.space.run("run_reopen", [("s",)], now_ms=OVER, **again) == [1, 1]
    assert await due(runs) == {"r/s": OVER + WITHIN}
    assert await send(runs, at=OVER + WITHIN) == 0
    assert await send(runs, at=OVER + 1) == 1


def texts() -> list[tuple[str, int]]:
    """Return times as JSON has them, and the same in ms since 1970."""
    soon = datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(days=40, microseconds=1)
    days = [datetime(2096, 2, 29, 23, 59, 59, tzinfo=UTC), datetime(2100, 3, 1, tzinfo=UTC), soon]
    found = [(one.isoformat(), -round(-one.timestamp() * 1000 // 1)) for one in days]
    zones = ("2096-12-31T23:30:00-05:30", "2097-01-01t00:00:00.5Z")
    return [*found, *((one, round(datetime.fromisoformat(one).timestamp() * 1000)) for one in zones)]


@pytest.mark.parametrize(("text", "wanted"), texts())
async def test_a_stage_begins_at_the_time_in_an_attribute(runs: Runs, text: str, wanted: int) -> None:
    [_, *stages] = plan(runs, at="@due")
    await runs.start(runs.stage("a"), *stages, attributes={"due": f'"{text}"'.encode()})
    await runs.step()
    assert (await due(runs), (await runs.fields())["t:s"]) == ({"r/s": wanted}, str(wanted))


@pytest.mark.parametrize(
    ("at", "result", "wanted"),
    [
        ("a", '"2100-03-01T00:00:00Z"', 4_107_542_400_000),
        ("a.on", '{"on":"2100-03-01T00:00:00Z"}', 4_107_542_400_000),
    ],
)
async def test_a_stage_begins_at_a_time_in_a_result(runs: Runs, at: str, result: str, wanted: int) -> None:
    await runs.start(*plan(runs, at=at))
    [row] = await runs.lease()
    await runs.finish(row.done(result))
    assert await due(runs) == {"r/s": wanted}


async def test_a_stage_begins_some_time_after_the_start_of_the_run(runs: Runs) -> None:
    await runs.start(*plan(runs, at=WITHIN))
    [row] = await runs.lease(at=NOW + 1_000)
    await runs.finish(row.done(), at=NOW + 1_000)
    assert await due(runs) == {"r/s": OVER}


@pytest.mark.parametrize(
    "result", ['"1970-01-01T00:00:00Z"', "null", "[]"], ids=["past", "none", "no member"]
)
async def test_a_stage_whose_time_is_past_or_none_begins_at_once(runs: Runs, result: str) -> None:
    await runs.start(*plan(runs, at="a.on" if result == "[]" else "a"))
    [row] = await runs.lease()
    await runs.finish(row.done(result))
    assert listed((await runs.space.snapshot())["queue"]) == ["r/s"]


@pytest.mark.parametrize("result", ['"2100-03-01T00:00:00"', '"soon"', "7", '"' + "x" * 70_000 + '"'])
async def test_a_stage_whose_time_cannot_be_read_fails(runs: Runs, result: str) -> None:
    await runs.start(*plan(runs, at="a"))
    [row] = await runs.lease()
    await runs.finish(row.done(result))
    assert await runs.states() == {"run": "failed", "a": "d", "s": "f"}
    assert "no date and time with a zone" in (await runs.hash())["e:s"]


@pytest.mark.parametrize("calls", [[["s", "b"]], [["a", "s"], ["b"]]], ids=["at once", "in two calls"])
async def test_a_retry_leaves_a_stage_failed_whose_time_cannot_be_read(
    runs: Runs, calls: list[list[str]]
) -> None:
    stages = runs.stage("s", "a", at="a"), runs.stage("b", "a")
    await runs.start(runs.stage("a"), *stages)
    [row] = await runs.lease()
    await runs.finish(row.done('"soon"'))
    [row] = await runs.lease()
    await runs.finish(row.failed())
    again = {"of_run": "r", "caller": "c", "is_last": 1}
    assert await runs.space.run("run_reopen", [("s",)], **again) == [1, 0]
    await runs.space.send("HSET", runs.space.key("watchers"), "r", "secret@lh:another")
    for paths in calls:
        again["is_last"] = int(paths is calls[-1])
        assert await runs.space.run("run_reopen", [(one,) for one in paths], **again) == [
            1,
            int("b" in paths),
        ]
    assert "watchers" in await runs.space.snapshot(), "its end is not published yet"
    assert await runs.step() == ["b"]
    assert await runs.states() == {"run": "failed", "a": "d", "b": "d", "s": "f"}
    found = await runs.hash()
    assert found["error"] == f"s: {found['e:s']}"
    assert "no date and time with a zone" in found["error"]
    assert "reopening" not in found
