"""run_cancel, run_reopen: a flow run is cancelled, or done again from the stages that have failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import NOW, Call, Expiring
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.queue.plans.plan import StagePlan
    from tests.lua.runs import Runs


async def cancel(runs: Runs) -> int:
    return int(await runs.space.run("run_cancel", of_run="r"))


async def reopen(runs: Runs, *paths: str, caller: str = "c", is_last: int = 1) -> list[int]:
    """Reopen stages of the run."""
    rows = [(path,) for path in paths]
    return list(await runs.space.run("run_reopen", rows, of_run="r", caller=caller, is_last=is_last))


async def finish_all(runs: Runs, failing: Iterable[str] = (), fans: dict[str, str] | None = None) -> None:
    """Finish all stages in the order in which they come; some fail, and some fan out to two children."""
    failing, fans = {*failing}, fans or {}
    while rows := await runs.lease():
        for row in rows:
            if row.path in fans:
                ending = row.fan([runs.child(0), runs.child(1)], fans[row.path])
            else:
                ending = row.failed() if row.path in failing else row.done(f'"{row.path}"')
            assert await runs.finish(ending) == [1]


def without_leftovers(keys: dict[str, Any]) -> dict[str, Any]:
    """Return keys without what a stopped call may leave: ids that wait twice, and empty fields."""
    fields = keys["run:r"]
    meaning = {name: value for name, value in fields.items() if value and name[:2] != "t:"}
    for name in ("reopening", "ended"):
        meaning.pop(name, None)
    return keys | {"run:r": meaning, "queue": [*dict.fromkeys(keys["queue"])]}


async def test_a_run_is_cancelled_at_once_and_its_items_are_noted(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b"), runs.stage("c", "a"))
    assert await cancel(runs) == 1
    keys = await runs.space.snapshot()
    assert keys["unsettled"] == {f"!{runs.home}\0r\0": "cancel"}
    assert keys["runs:cancelled"] == {"r": float(NOW)}
    assert keys["runs:ends"] == {"r": float("inf")}
    assert "runs:active" not in keys
    assert not isinstance(keys["run:r"], Expiring)
    assert await runs.result() == {"error": {"type": "FlowCancelled", "message": ""}}
    assert await cancel(runs) == 2
    assert await runs.space.snapshot() == keys
    await finish_all(runs)
    assert await runs.states() == {"run": "cancelled", "a": "d", "b": "d"}
    assert isinstance((await runs.space.snapshot())["run:r"], Expiring)
    assert await cancel(runs) == 0


async def test_a_run_that_has_ended_or_is_gone_is_not_cancelled(runs: Runs) -> None:
    assert await cancel(runs) == -1
    await runs.start(runs.stage("a"))
    await finish_all(runs)
    before = await runs.space.snapshot()
    assert await cancel(runs) == 0
    assert await runs.space.snapshot() == before


def diamond(runs: Runs, join: str) -> list[StagePlan]:
    """Return stages: a and b are followed by c, that by d, b also by e, and d and e by f."""
    stage = runs.stage
    return [
        stage("a"),
        stage("b"),
        stage("c", "a", "b", join=join),
        stage("d", "c"),
        stage("e", "b", join=join),
        stage("f", "d", "e"),
    ]


#: Which stages fail at first, which of them fan out, and how; and the paths that are reopened.
CASES: list[tuple[str, list[str], dict[str, str], list[str]]] = [
    ("all", ["a"], {}, ["a"]),
    ("all", ["a", "b"], {}, ["a", "b"]),
    ("all", ["c"], {}, ["c"]),
    ("all", ["d", "e"], {}, ["d", "e"]),
    ("n:1", ["a", "b"], {}, ["a", "b"]),
    ("all", ["a/0"], {"a": "all"}, ["a/0"]),
    ("all", ["a/0", "a/1", "c"], {"a": "all"}, ["a/0", "a/1"]),
    ("all", ["c/1"], {"c": "all"}, ["c/1"]),
    ("all", ["a/0", "a/1"], {"a": "n:1"}, ["a/0", "a/1"]),
    ("all", ["b/1"], {"b": "fail"}, ["b/1", "a"]),
    ("all", ["a/0/1"], {"a": "all", "a/0": "all"}, ["a/0/1"]),
    ("all", ["a/0/1", "a/1"], {"a": "all", "a/0": "all"}, ["a/1", "a/0/1"]),
    ("settled", ["d"], {"a": "settled"}, ["d"]),
    ("fail", ["a"], {}, ["a", "b"]),
    ("fail", ["b"], {}, ["b", "a"]),
]


@pytest.mark.parametrize(("join", "failing", "fans", "paths"), CASES)
async def test_a_run_that_is_retried_ends_as_if_nothing_had_failed(
    runs: Runs, redis: Any, join: str, failing: list[str], fans: dict[str, str], paths: list[str]
) -> None:
    await runs.start(*diamond(runs, join), result="d")
    await finish_all(runs, fans=fans)
    expected = await runs.space.snapshot() | {"fence": ""}
    await redis.flushdb()
    await runs.start(*diamond(runs, join), result="d")
    await finish_all(runs, failing, fans)
    before = await runs.states()
    assert before["run"] == "failed"
    code, reopened = await reopen(runs, *paths)
    assert code == 1
    assert reopened >= len({*failing} & {*paths})
    keys = await runs.space.snapshot()
    assert keys["runs:active"] == {"r": float(NOW)}
    assert not isinstance(keys["run:r"], Expiring)
    assert not {key for key in keys if key.startswith(("dead", "result"))} - {"dead:r/c", "dead"}
    # A failure that was no reason to fail, of a stage that would be entered again, is not repeated.
    await finish_all(runs, fans=fans)
    assert await runs.space.snapshot() | {"fence": ""} == expected


async def test_what_is_tolerated_stays(runs: Runs) -> None:
    stage = runs.stage
    await runs.start(stage("a"), stage("b"), stage("c", "a", "b", join="settled"), stage("d", "c"))
    await finish_all(runs, ["a", "d"])
    before = await runs.space.snapshot()
    assert await reopen(runs, "a", "b", "c") == [1, 0]
    assert await runs.space.snapshot() == before
    assert await reopen(runs, "a", "d") == [1, 1]
    await finish_all(runs)
    assert await runs.states() == {"run": "completed", "a": "f", "b": "d", "c": "d", "d": "d"}


async def test_only_a_run_that_has_failed_and_ended_is_reopened(runs: Runs) -> None:
    assert await reopen(runs, "a") == [-1, 0]
    await runs.start(runs.stage("a"), runs.stage("b"), runs.stage("c", "a", "b", join="fail"))
    assert await reopen(runs, "a") == [0, 0]
    a, b = await runs.lease()
    await runs.finish(a.failed())
    assert (await runs.states())["run"] == "failed"
    before = await runs.space.snapshot()
    assert await reopen(runs, "a") == [-2, 0]
    assert await runs.space.snapshot() == before
    await runs.finish(b.done())
    await runs.space.run("run_delete", of_run="r", run="r", is_last=0)
    assert await reopen(runs, "a") == [0, 0]


async def test_many_stages_are_reopened_in_several_calls(runs: Runs) -> None:
    await runs.start(*(runs.stage(f"s{at}") for at in range(6)))
    await finish_all(runs, [f"s{at}" for at in range(6)])
    assert await reopen(runs, "s0", "s1", is_last=0) == [1, 2]
    assert await reopen(runs, "s2", caller="another") == [0, 0]
    # The first ones fail again, or are done, before the last call.
    await finish_all(runs, ["s0"])
    assert (await runs.states())["run"] == "failed"
    assert await reopen(runs, "s2", "s3", "s4", "s5") == [1, 4]
    await finish_all(runs)
    assert await runs.states() == {"run": "completed"} | {f"s{at}": "d" for at in range(1, 6)} | {"s0": "f"}


@pytest.mark.parametrize("script", ["run_cancel", "run_reopen"])
async def test_a_call_that_was_stopped_at_any_write_is_repeated(runs: Runs, redis: Any, script: str) -> None:
    lookup = {"user_id": ["62", "63"]}
    rows = [("a/0",), ("a/1",), ("b",)] if script == "run_reopen" else []
    call = Call(script, rows, {"of_run": "r", "caller": "c", "is_last": 1})
    interrupter, writes, expected = Interrupter(runs.space), 99, None
    while writes >= 0:
        await redis.flushdb()
        await runs.start(*diamond(runs, "all"), result="d", lookup=lookup)
        if rows:
            await finish_all(runs, ["a/0", "a/1", "b"], {"a": "all"})
        run = await interrupter.run(call, writes)
        if not run.ended:
            assert (await runs.space.run_all([call]))[0] in (1, 2, [1, 0], [1, 3])
        found = without_leftovers(await runs.space.snapshot())
        if expected is None:
            assert run.ended
            expected, writes = found, run.writes
        assert found == expected, run.commands
        writes -= 1


@pytest.mark.parametrize("policy", ["fail", "fail_fast", "n:3"])
@pytest.mark.parametrize("in_a_fan", [True, False])
async def test_what_fails_again_before_a_retry_has_reopened_all_fails_the_run_again(
    runs: Runs, policy: str, *, in_a_fan: bool
) -> None:
    """A retry takes several calls, between which workers continue: no run stays open, or completes."""
    if in_a_fan:
        parts = ["a/0", "a/1", "a/2"]
        children = tuple(runs.child(number) for number in range(3))
        first = [runs.stage("a", children=children, policy=policy)]
        await runs.start(*first, runs.stage("end", "a"), runs.stage("last", "end"))
    else:
        parts = ["a", "b", "c"]
        first = [runs.stage(name) for name in parts]
        await runs.start(*first, runs.stage("end", *parts, join=policy), runs.stage("last", "end"))
    await finish_all(runs, parts)
    assert (await runs.states())["run"] == "failed"
    assert await reopen(runs, parts[0], is_last=0) == [1, 1]
    await finish_all(runs, parts)
    await reopen(runs, *parts[1:])
    await finish_all(runs)
    assert (await runs.states())["run"] == "failed"
    assert await reopen(runs, *parts, caller="d") == [1, 1]
    await finish_all(runs)
    assert (await runs.states())["run"] == "completed"
    assert (await runs.fields())["s:last"] == "d"
