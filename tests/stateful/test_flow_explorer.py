"""All interleavings of two workers on one flow run, each step stopped at any write: no rule is ever broken.

With a fault put into the scripts, a rule is broken.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasehold.queue.plan import ChildPlan, Plan, StagePlan
from tests.stateful.explorer.server import Fault, composed
from tests.stateful.flows.cutting import stoppable_scripts
from tests.stateful.flows.explorer import Bound, Explorer, Result
from tests.stateful.flows.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import MakeServer

pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]

HOME, OTHER = "{q}", "{q}:other"


def chain() -> Plan:
    return Plan((StagePlan("a", HOME, b"1"), StagePlan("b", OTHER, b"2", after=("a",))), result="b")


def joined(join: str) -> Plan:
    """Return a plan of two stages and one that joins them."""
    stages = (StagePlan("a", HOME, b"1"), StagePlan("b", OTHER, b"2"))
    return Plan((*stages, StagePlan("c", HOME, b"3", after=("a", "b"), join=join)), result="c")


def group(policy: str) -> Plan:
    """Return a plan of two children and a stage after them."""
    children = (ChildPlan(HOME, b"1"), ChildPlan(OTHER, b"2"))
    return Plan((StagePlan("a", children=children, policy=policy), StagePlan("b", HOME, b"3", after=("a",))))


SMALL = {
    "chain": Bound(chain(), states=25),
    "join": Bound(joined("all"), states=12),
    "fan": Bound(chain(), kinds=("fan",), workers=1, states=20),
}
LARGE = {
    **{f"join by {join}": Bound(joined(join), states=600) for join in ("all", "settled", "fail", "n:1")},
    "join by fail_fast, cancelled": Bound(joined("fail_fast"), calls=("cancel",), states=600),
    **{f"group by {policy}": Bound(group(policy), states=600) for policy in ("all", "settled", "n:1")},
    "fan": Bound(chain(), kinds=("done", "fan"), states=600),
    "chain, retried": Bound(chain(), calls=("retry", "cancel"), states=600),
}


async def explore(make_server: MakeServer, bound: Bound, faults: Sequence[Fault] = ()) -> Result:
    """Explore on a server of its own."""
    url = (await make_server()).url

    def work() -> Result:
        with stoppable_scripts(composed(faults) if faults else None):
            world = World(url, "q")
            try:
                return Explorer(world, bound).explore()
            finally:
                world.close()

    return await asyncio.to_thread(work)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.seed("GLD-B2", "GLD-B3", "GLD-B4", "GLD-B5")
async def test_no_short_path_breaks_a_rule_of_flow_runs(make_server: MakeServer, name: str) -> None:
    result = await explore(make_server, SMALL[name])
    assert not result.wrong, result.wrong
    assert result.recoveries > 5


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
async def test_no_path_breaks_a_rule_of_flow_runs(make_server: MakeServer, name: str) -> None:
    result = await explore(make_server, LARGE[name])
    assert not result.wrong, result.wrong
    assert result.recoveries > 100
