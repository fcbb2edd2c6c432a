"""Random correct histories pass the check. With a fault added, they do not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.events import Event, FinalState, History
from tests.history.rules import check
from tests.history.simulation import QUEUE, STEP, Simulation
from tests.history.test_rules import CASES

if TYPE_CHECKING:
    from tests.history.test_rules import HistoryBuilder


def simulated(seed: int, steps: int) -> Simulation:
    simulation = Simulation(random.Random(seed))
    simulation.run(steps)
    simulation.now += 10 * STEP  # every call has been answered
    return simulation


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 400))
def test_correct_histories_pass(seed: int, steps: int) -> None:
    simulation = simulated(seed, steps)
    assert not check(History(simulation.events), simulation.final)


@pytest.mark.parametrize(("history", "broken", "left"), [case for case in CASES if case.values[1]])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), steps=st.integers(30, 300))
def test_a_fault_is_found_after_a_correct_history(
    history: HistoryBuilder, broken: set[str], left: dict[str, str], seed: int, steps: int
) -> None:
    simulation = simulated(seed, steps)
    token, now = simulation.model.fence + 1, simulation.now
    known = Event(now, "lease", QUEUE, "other", "worker", token, 1, now)  # no later token is unrecorded
    later = [
        event._replace(
            at=event.at + now,
            called_at=None if event.called_at is None else event.called_at + now,
            token=None if event.token is None else event.token + token,
        )
        for event in history.events
    ]
    unfinished, dead = simulation.final.unfinished, simulation.final.dead
    final = FinalState(QUEUE, unfinished | set(left.get("unfinished", "")), dead | set(left.get("dead", "")))
    found = check(History([*simulation.events, known, *later]), final)
    assert broken <= {violation.rule for violation in found}
