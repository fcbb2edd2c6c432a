"""All interleavings of two workers on one flow run, each step stopped at any write: no rule is ever broken.

With a fault put into the scripts, a rule is broken.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from leasequeue.queue.plans.stages import FinishRow
from tests.stateful.explorer.engine import Fault, Result, composed, search, texts_with
from tests.stateful.flows.cutting import stoppable_scripts
from tests.stateful.flows.explorer import Bound
from tests.stateful.flows.plans import WHEN
from tests.stateful.flows.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import MakeServer

pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]

HOME, OTHER = "{q}", "{q}:other"


def chain() -> FlowPlan:
    return FlowPlan((StagePlan("a", HOME, b"1"), StagePlan("b", OTHER, b"2", after=("a",))), result="b")


def single() -> FlowPlan:
    return FlowPlan((StagePlan("a", HOME, b"1"),), result="a")


def joined(join: str) -> FlowPlan:
    """Return a plan of two stages and one that joins them."""
    stages = (StagePlan("a", HOME, b"1"), StagePlan("b", OTHER, b"2"))
    return FlowPlan((*stages, StagePlan("c", HOME, b"3", after=("a", "b"), join=join)), result="c")


def group(policy: str) -> FlowPlan:
    """Return a plan of two children and a stage after them."""
    children = (ChildPlan(HOME, b"1"), ChildPlan(OTHER, b"2"))
    return FlowPlan(
        (StagePlan("a", children=children, policy=policy), StagePlan("b", HOME, b"3", after=("a",)))
    )


def awaited() -> FlowPlan:
    """Return a plan of a stage that waits for a signal, for a time."""
    waits = StagePlan("b", HOME, b"2", after=("a",), signal=True, delay_ms=90_000)
    stages = (StagePlan("a", HOME, b"1"), waits, StagePlan("c", OTHER, b"3", after=("b",)))
    return FlowPlan(stages, result="c")


def timed() -> FlowPlan:
    """Return a plan of stages that begin at a time: after the start, and in an attribute."""
    stages = StagePlan("a", HOME, b"1", at=90_000), StagePlan("b", OTHER, b"2", after=("a",), at="@when")
    return FlowPlan(stages, result="b", attributes={"when": WHEN})


def nested() -> FlowPlan:
    """Return a plan of a stage that is another flow, and one after it."""
    return FlowPlan(
        (StagePlan("a", HOME, b"1", flow="inner"), StagePlan("b", OTHER, b"2", after=("a",))), result="b"
    )


SMALL = {"join": Bound(joined("all"), states=8), "fan": Bound(chain(), kinds=("fan",), workers=1, states=10)}
SMALL["chain"] = Bound(single(), kinds=("chain",), workers=1, states=10)
SMALL["signal"] = Bound(awaited(), kinds=("done",), calls=("signal",), workers=1, states=8)
SMALL["times"] = Bound(timed(), kinds=("done",), workers=1, states=8)
SMALL["flow"] = Bound(nested(), inner=single(), kinds=("done",), workers=1, states=8)
LARGE = {
    **{f"join by {join}": Bound(joined(join), states=600) for join in ("all", "settled", "fail", "n:1")},
    "join by fail_fast, cancelled": Bound(joined("fail_fast"), calls=("cancel",), states=600),
    **{f"group by {policy}": Bound(group(policy), states=600) for policy in ("all", "settled", "n:1")},
    "fan": Bound(chain(), kinds=("done", "fan"), states=600),
    "chain, retried": Bound(chain(), calls=("retry", "cancel"), states=600),
    "child of a chain": Bound(single(), kinds=("done", "failed", "chain"), calls=("retry",), states=400),
    "signal": Bound(awaited(), calls=("signal", "cancel"), states=400),
    "times": Bound(timed(), calls=("retry",), states=300),
    "flow": Bound(nested(), inner=single(), calls=("cancel",), states=400),
    "flow, retried": Bound(nested(), inner=chain(), calls=("retry",), states=400),
}


#: Faults, each with a bound within which it is found, and what is said of it.
FAULTS = {
    "the fields of a step are written one by one": (
        "run: ",  # what it is depends on the order in which the server's Lua writes the fields
        Bound(chain(), states=5),
        Fault(
            "runs/lib/run_commit.lua",
            "redis.call('HSET', run.key, unpack(values))",
            "for i = 1, #values, 2 do redis.call('HSET', run.key, values[i], values[i + 1]) end",
        ),
    ),
    "a stage is not told that the run has ended for which it waits": (
        "waits for it is",
        SMALL["flow"],
        Fault(
            "runs/lib/run_commit.lua",
            "local waiting = run.ends and tell_waiting(run)",
            "local waiting = run.ends and #run.rest > 0 and tell_waiting(run)",
        ),
    ),
}
MORE_FAULTS = {
    "the item of a stage stays that has waited for another run": (
        "and has an item",
        SMALL["flow"],
        Fault("runs/lib/run_commit.lua", "pairs(awaited)", "pairs({})"),
    ),
    "a part of a chain is entered before the one before it is done": (
        "a part was entered",
        SMALL["chain"],
        Fault("runs/lib/run_step.lua", "is_chain and counts[3] + 1", "is_chain and counts[3] + 2"),
    ),
    "a signal that came before is not given": (
        "it has taken the signal b",
        Bound(awaited(), kinds=("done",), calls=("signal",), workers=1, stops=False, states=30),
        Fault(
            "runs/lib/run_step.lua",
            "found.signal and run_field(run, 'g:' .. name)",
            "found.signal and run_field(run, 'y:' .. name)",
        ),
    ),
    "a stage begins before its time": (
        "ms early",
        SMALL["times"],
        Fault("runs/lib/run.lua", "local due = found.at and begin_of(run, found.at) or", "local due ="),
    ),
    "a second signal replaces the first": (
        "has taken a second signal b",
        Bound(awaited(), kinds=("done",), calls=("signal",), workers=1, stops=False, states=30),
        Fault(
            "runs/run_report.lua",
            "elseif not state and not run_field(run, 'g:' .. path) then",
            "elseif not state then",
        ),
    ),
    "a stage that has ended may end again": (
        "the result of a was",
        Bound(joined("all"), states=60),
        Fault(
            "runs/run_finish.lua",
            "  if state == 'w' then\n    answer = step",
            "  if state ~= 'x' then\n    answer = step",
        ),
    ),
    "an item is completed before its step": (
        "nothing has failed",
        Bound(chain(), states=60),
        Fault(
            "runs/run_finish.lua",
            "local refused = commit_runs(true, decide)\nif refused then return refused end\n"
            "local done = completed[1] and complete(completed, 0) or {}\n",
            "local done = completed[1] and complete(completed, 0) or {}\n"
            "local refused = commit_runs(true, decide)\nif refused then return refused end\n",
        ),
    ),
    "what was not added is not added again": (
        "nothing has failed",
        Bound(chain(), states=5),
        Fault("runs/lib/run.lua", "if run.is_healed then", "if run then"),
    ),
    "what follows is added before the step is written": (
        "was not entered, and has an item",
        Bound(chain(), states=100),
        Fault(
            "runs/lib/run_commit.lua", "    write_run(run)\n  end\n  for _, there", "  end\n  for _, there"
        ),
        Fault(
            "runs/lib/run_commit.lua",
            "    if run.dropped[1] then",
            "    write_run(run)\n    if run.dropped[1] then",
        ),
    ),
    "an edge is counted twice": (
        "its join says",
        Bound(joined("all"), states=5),
        Fault(
            "runs/lib/run_step.lua",
            "counts[1], counts[edge] = counts[1] + 1, counts[edge] + 1",
            "counts[1], counts[edge] = counts[1] + 2, counts[edge] + 2",
        ),
    ),
    "a join enters its stage for each edge": (
        "active is 2",
        Bound(joined("n:1"), states=5),
        Fault(
            "runs/lib/run_step.lua",
            "if not decision or not is_decided or is_told or run_field(run, 's:' .. name) then",
            "if not decision then",
        ),
    ),
    "a holder whose lease was lost fails the stage": (
        "has an item",
        Bound(single(), kinds=("failed",), stops=False, states=100),
        Fault("runs/run_finish.lua", "then return is_current(", "then return true or is_current("),
    ),
    "a holder of an earlier incarnation ends the stage": (
        "has an item",
        Bound(single(), calls=("retry",), stops=False, states=300),
        Fault("runs/run_finish.lua", "return accepts_token(", "return true or accepts_token("),
    ),
    "a child is counted for a parent that has ended": (
        "active is 0",
        Bound(group("n:1"), states=5),
        Fault(
            "runs/lib/run_step.lua",
            "  if run_field(run, 's:' .. path) ~= 'x' then return end\n  if place",
            "  if place",
        ),
        Fault(
            "runs/lib/run_step.lua",
            "if not decision or (decision == before and place == 3 and are_left) then",
            "if not decision then",
        ),
    ),
    "a retried run keeps what a failed stage has said": (
        "",
        Bound(joined("all"), calls=("retry",), stops=False, workers=1, states=200),
        Fault("runs/run_reopen.lua", "      untell(path, state)\n", ""),
    ),
}


async def explore(make_server: MakeServer, bound: Bound, faults: Sequence[Fault] = ()) -> Result:
    """Explore on a separate server."""
    url = (await make_server()).url

    def work() -> Result:
        with stoppable_scripts(composed(tuple(faults))):
            return search([url], bound)

    return await asyncio.to_thread(work)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.seed("GLD-B2", "GLD-B3", "GLD-B4", "GLD-B5")
async def test_no_short_path_breaks_a_rule_of_flow_runs(make_server: MakeServer, name: str) -> None:
    result = await explore(make_server, SMALL[name])
    assert not result.what, result
    assert result.recoveries > 5


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
async def test_no_path_breaks_a_rule_of_flow_runs(make_server: MakeServer, name: str) -> None:
    result = await explore(make_server, LARGE[name])
    assert not result.what, result
    assert result.recoveries > 100


@pytest.mark.parametrize("plan", [joined("n:1"), group("n:1")], ids=["join", "group"])
async def test_a_step_that_has_only_noted_a_rest_cancels_nothing(
    make_server: MakeServer, plan: FlowPlan
) -> None:
    """It is stopped after each of its writes; in between, maintenance cancels what is to be cancelled."""
    url = (await make_server()).url

    def work() -> list[str]:
        with stoppable_scripts(composed(())):
            world = World(url, "q")
            world.start(plan, "r")
            row = FinishRow(world.lease(0)[0], "done", b"1")
            stops = itertools.takewhile(
                lambda stop: world.finish(0, row, stop=stop) is None, itertools.count()
            )
            for _ in stops:
                world.cancel_rests()
            world.recover()
            found = world.state("r")
            world.close()
            return [found.state, *sorted(found.stages.values())]

    state, *stages = await asyncio.to_thread(work)
    assert state == "completed"
    assert stages.count("c") == 1, "the other one is cancelled, once that is decided"


def test_the_text_of_each_fault_is_in_its_file() -> None:
    """Also those of the long tests, which run seldom."""
    for one in (*FAULTS.values(), *MORE_FAULTS.values()):
        assert texts_with(part for part in one if isinstance(part, Fault))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "bound", "faults"),
    [
        *(pytest.param(one[0], one[1], one[2:], id=name) for name, one in FAULTS.items()),
        *(
            pytest.param(one[0], one[1], one[2:], id=name, marks=pytest.mark.long)
            for name, one in MORE_FAULTS.items()
        ),
    ],
)
async def test_a_fault_in_flow_runs_is_found(
    make_server: MakeServer, what: str, bound: Bound, faults: tuple[Fault, ...]
) -> None:
    result = await explore(make_server, bound, faults)
    assert result.what
    assert what in result.what, result
