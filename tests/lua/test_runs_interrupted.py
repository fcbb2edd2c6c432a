"""Steps of flow runs that are interrupted after any of their writes: repeated, or continued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from tests.lua.runs import Row, Runs
from tests.lua.space import NOW, Call, Space, State, listed
from tests.lua.test_runs_settled import settle
from tests.queue.keyspace import glob
from tests.stateful.interruption import Interrupter
from tests.stateful.leftovers import Drawn, dumped, restore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    Step = Callable[[Runs, dict[str, Row]], Call]


def ending(runs: Runs, row: Row, how: str) -> tuple[object, ...]:
    """Return a row that finishes a stage."""
    children = [runs.child(i) for i in range(2)]
    rows = {
        "done": row.done(f'"{row.path}"'),
        "failed": row.failed(),
        "fan": row.fan(children),
        "fan n:1": row.fan(children, "n:1"),
        "fan chain": row.fan([ChildPlan("", b"", parts=tuple(children), policy="chain"), children[0]]),
        "yes": row.done("1", '["yes"]'),
        "drop": row.ending("drop"),
    }
    return rows[how]


def finish(*endings: tuple[str, str]) -> Step:
    """Return a step that finishes stages: their paths, and how."""

    def call(runs: Runs, leased: dict[str, Row]) -> Call:
        return Call("run_finish", [ending(runs, leased[path], how) for path, how in endings])

    return call


def signal(path: str) -> Step:
    """Return a step that gives a run the signal for a stage."""
    return lambda runs, _: Call("run_report", [(f"{runs.home}\0r\0{path}", "signal", "1")])


def plan(*stages: StagePlan, **options: Any) -> FlowPlan:
    return FlowPlan(stages, lookup={"user": ["1", "2"]}, **options)


#: Scenarios: the plan, and steps until the run has ended.
SCENARIOS: dict[str, tuple[Callable[[Runs], FlowPlan], list[Step]]] = {
    "chain": (
        lambda runs: plan(runs.stage("a"), runs.stage("b", "a", level=3), result="b"),
        [finish(("a", "done")), finish(("b", "done"))],
    ),
    "not kept": (lambda runs: plan(runs.stage("a"), keep_ms=0), [finish(("a", "done"))]),
    "joins": (
        lambda runs: plan(
            runs.stage("a"),
            runs.stage("b"),
            runs.stage("c", "a", "b", join="settled"),
            runs.stage("d", "b"),
            StagePlan("gate", after=("a", "c")),
            runs.stage("end", "gate"),
            result="end",
        ),
        [finish(("a", "done"), ("b", "failed")), finish(("c", "done")), finish(("end", "done"))],
    ),
    "fan": (
        lambda runs: plan(runs.stage("a"), runs.stage("b", "a")),
        [finish(("a", "fan")), finish(("a/0", "done")), finish(("a/1", "done")), finish(("b", "done"))],
    ),
    "a chain in a fan": (
        lambda runs: plan(runs.stage("a"), runs.stage("b", "a")),
        [
            finish(("a", "fan chain")),
            finish(("a/0/0", "done"), ("a/1", "done")),
            finish(("a/0/1", "done")),
            finish(("b", "done")),
        ],
    ),
    "the rest of a fan": (
        lambda runs: plan(runs.stage("a"), runs.stage("b", "a")),
        [finish(("a", "fan n:1")), finish(("a/1", "done")), finish(("a/0", "drop"), ("b", "done"))],
    ),
    "choice and group": (
        lambda runs: plan(
            runs.stage("a", choice=True),
            runs.stage("no", "a"),
            StagePlan("yes", after=("a",), children=tuple(runs.child(i) for i in range(2))),
            runs.stage("end", "yes", "no"),
        ),
        [finish(("a", "yes")), finish(("yes/0", "done"), ("yes/1", "done")), finish(("end", "done"))],
    ),
    "signals and a time": (
        lambda runs: plan(
            runs.stage("a"),
            runs.stage("early", "a", signal=True, delay_ms=60_000),
            runs.stage("late", "a", signal=True, delay_ms=60_000),
            runs.stage("b", "early", "late"),
            runs.stage("timer", "a", at=60_000),
        ),
        [signal("early"), finish(("a", "done")), signal("late"), finish(("b", "done"))],
    ),
    "failure": (
        lambda runs: plan(runs.stage("a"), runs.stage("b"), runs.stage("c", "a", "b", join="fail")),
        [finish(("a", "failed")), finish(("b", "done"))],
    ),
}


def comparable(state: State) -> dict[str, Any]:
    """Return the runs, results, items and dead letters, and the ids that wait.

    What an interruption leaves of an item without data, and an id that is listed twice, the other tests of
    interruptions cover: leasing and reclaiming drop it.
    """
    items = {key.removeprefix("item:") for key in state if key.startswith("item:")}
    compared = {"run", "result", "item", "dead", "runs", "unsettled"}
    found: dict[str, Any] = {key: value for key, value in state.items() if key.partition(":")[0] in compared}
    found["waiting"] = {one for one in listed(state.get("queue", [])) if one in items}
    due = state.get("scheduled", {})
    assert isinstance(due, dict)
    found["scheduled"] = {one: at for one, at in due.items() if one in items}
    lanes = state.get("lanes", {})
    assert isinstance(lanes, dict)
    found["lanes"] = {member.partition("\0")[2][16:] for member in lanes}
    return found


class Scenario:
    """Plays a scenario up to one of its calls, again and again.

    Args:
        redis: The server.
        name: The queue's name.
        which: The name of the scenario.
    """

    def __init__(self, redis: Redis, name: str, which: str) -> None:
        self.runs = Runs(Space(redis, name))
        self.space = self.runs.space
        self.plan, self.steps = SCENARIOS[which]
        self.interrupter = Interrupter(self.space)
        self._pattern = glob(self.space.prefix) + b":*"
        #: The keys before each call, and the call.
        self._begun: dict[int, tuple[Drawn, Call]] = {}

    async def begin(self, before: int) -> Call:
        """Have all calls before one of them be made; return that call. The first starts the run."""
        if before not in self._begun:
            await restore(self.space, self._pattern, Drawn(NOW, False, {}, []))
            call = await self._play(before)
            self._begun[before] = Drawn(NOW, False, await dumped(self.space, self._pattern), []), call
        keys, call = self._begun[before]
        await restore(self.space, self._pattern, keys)
        return call

    async def _play(self, before: int) -> Call:
        call, leased = self.runs.starting(self.plan(self.runs)), dict[str, Row]()
        for step in self.steps[:before]:
            await self.space.run_all([call])
            leased |= {row.path: row for row in await self.runs.lease()}
            call = step(self.runs, leased)
        return call

    async def each_interruption(self, check: Callable[[str], Awaitable[None]]) -> None:
        """Interrupt each call after each of its writes, and check what follows."""
        for before in range(len(self.steps) + 1):
            writes = (await self.interrupter.run(await self.begin(before))).writes
            for allowed in range(1, writes):
                call = await self.begin(before)
                run = await self.interrupter.run(call, allowed)
                assert not run.ended
                self.call, self.before = call, before
                await check(f"call {before}, {allowed} writes: {run.commands}")


@pytest.mark.parametrize("which", SCENARIOS)
@pytest.mark.seed("GLD-B2", "GLD-B3", "GLD-T3")
async def test_an_interrupted_call_that_is_repeated_does_what_it_would_have_done(
    redis: Redis, name: str, which: str
) -> None:
    scenario = Scenario(redis, name, which)
    expected: dict[int, dict[str, Any]] = {}

    async def check(shown: str) -> None:
        await scenario.space.run_all([scenario.call])
        found = comparable(await scenario.space.snapshot())
        if scenario.before not in expected:
            await scenario.space.run_all([await scenario.begin(scenario.before)])
            expected[scenario.before] = comparable(await scenario.space.snapshot())
        assert found == expected[scenario.before], shown

    await scenario.each_interruption(check)


@pytest.mark.parametrize("which", SCENARIOS)
async def test_an_interrupted_call_whose_holder_has_died_is_continued_by_another(
    redis: Redis, name: str, which: str
) -> None:
    """The items are leased again; a stage that has ended keeps what it has ended with."""
    scenario = Scenario(redis, name, which)
    runs, space = scenario.runs, scenario.space

    async def check(shown: str) -> None:
        if scenario.before == 0:
            await space.run_all([scenario.call])
        at = NOW
        for _ in range(9):
            if (await runs.fields()).get("active", "0") == "0" and at > NOW + 60_001:
                break  # one round more than it takes
            at += 60_001
            await space.run("light_clean", now_ms=at)
            await settle(runs, at=at)
            rows = await runs.lease(at=at)
            if rows:
                assert await runs.finish(*(row.done("2") for row in rows), at=at) == [1] * len(rows), shown
        fields = await runs.fields()
        states = await runs.states()
        assert states["run"] in {"completed", "failed", "gone"}, shown
        assert not {*states.values()} & {"w", "x"}, shown
        assert fields.get("active", "0") == "0", shown
        after = await space.snapshot()
        left = {"fence", "run:r", "result:r", "unsettled", "runs:ends", f"runs:{states['run']}", "dead"}
        # The lease key of a dead letter expires.
        families = ("dead:", "runs:by:", "lease:", "leased_by_session:")
        assert {key for key in after if not key.startswith(families)} <= left, shown

    await scenario.each_interruption(check)
