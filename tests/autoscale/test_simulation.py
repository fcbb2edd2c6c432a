"""The autoscaler on simulated loads: the target is kept, with few workers and few requests.

`python -m tests.autoscale.simulation` prints the same for any load and rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.autoscale.simulation.fewest import FEWEST
from tests.autoscale.simulation.judge import OURS, RULES, fewest
from tests.autoscale.simulation.loads import LOADS
from tests.autoscale.simulation.simulate import simulate

if TYPE_CHECKING:
    from tests.autoscale.simulation.simulate import Outcome

#: What is wished: the share of items within the target, the multiple of the fewest worker-seconds, and how
#: often the requested units change per hour.
SHARE, RATIO, REQUESTS = 0.99, 1.2, 60
#: Where that is missed: what is reached instead. The docs explain why.
MISSED: dict[str, tuple[float, float, float]] = {}


def check(name: str, outcome: Outcome, least: float, missed: dict[str, tuple[float, float, float]]) -> None:
    share, ratio, requests = missed.get(name, (SHARE, RATIO, REQUESTS))
    assert outcome.within() >= share
    assert outcome.worker_seconds <= ratio * least
    assert outcome.requests_per_hour() <= requests


@pytest.mark.parametrize("name", LOADS)
def test_the_target_is_kept_with_few_workers_and_few_requests(name: str) -> None:
    load = LOADS[name](short=True)
    check(name, simulate(load, RULES[OURS](load)), FEWEST[name], MISSED)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LOADS)
def test_the_fewest_workers_of_short_loads_are_those_that_hindsight_finds(name: str) -> None:
    _, least = fewest(LOADS[name](short=True))
    assert FEWEST[name] == pytest.approx(least, rel=0.001)
