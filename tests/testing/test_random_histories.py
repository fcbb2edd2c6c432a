"""Random correct histories pass the check. With one fault added, whichever it is, they do not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leasehold.testing.history import Event, History, check
from tests.testing.simulation import QUEUE, STEP, Simulation
from tests.testing.test_rules import (
    ADDED_TWICE,
    BEGAN_LATE,
    ENDED_TWICE,
    FORMER_HOLDER,
    LOST,
    OVERCOUNTED,
    TOKENS,
    UNCOUNTED,
    UNRELEASED,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.testing.history.events import Kind


def simulated(seed: int, steps: int) -> Simulation:
    simulation = Simulation(random.Random(seed))
    simulation.run(steps)
    simulation.now += 10 * STEP  # every call has been answered
    return simulation


def accept(simulation: Simulation, kind: Kind, item: str, token: int | None = None) -> None:
    """Add a call that the server accepts."""
    call = Event(simulation.now, kind, QUEUE, item, "late", token)
    simulation.events += [call, call._replace(at=simulation.now + 1, called_at=call.at, outcome=True)]
    simulation.now += STEP


def lease(simulation: Simulation, item: str, token: int, attempt: int) -> None:
    simulation.events.append(
        Event(simulation.now + 1, "lease", QUEUE, item, "late", token, attempt, simulation.now)
    )
    simulation.now += STEP


def add_new(simulation: Simulation) -> str:
    accept(simulation, "add", "new")
    simulation.attempts["new"] = 0
    return "new"


def lose_an_item(simulation: Simulation) -> None:
    absent = [item for item in "abcdef" if item not in simulation.attempts]
    assume(absent)
    accept(simulation, "add", absent[0])


def complete_twice(simulation: Simulation) -> None:
    item = add_new(simulation)
    lease(simulation, item, simulation.fence + 1, 1)
    accept(simulation, "complete", item, simulation.fence + 1)
    accept(simulation, "complete", item, simulation.fence + 1)
    simulation.attempts.pop(item)


def add_an_unfinished_item(simulation: Simulation) -> None:
    accept(simulation, "add", add_new(simulation))


def issue_a_token_again(simulation: Simulation) -> None:
    leases = [event for event in simulation.events if event.kind == "lease" and event.token]
    assume(leases)
    item = add_new(simulation)
    lease(simulation, item, leases[-1].token or 0, 1)


def begin_a_completed_item(simulation: Simulation) -> None:
    completed = [event for event in simulation.events if event.kind == "complete" and event.outcome is True]
    assume(completed)
    first = completed[0]
    simulation.events.append(Event(simulation.now, "begin", QUEUE, first.id, first.process, first.token))


def renew_as_a_former_holder(simulation: Simulation) -> None:
    item = add_new(simulation)
    lease(simulation, item, simulation.fence + 1, 1)
    lease(simulation, item, simulation.fence + 2, 2)
    accept(simulation, "renew", item, simulation.fence + 1)


def forget_an_attempt(simulation: Simulation) -> None:
    item = add_new(simulation)
    lease(simulation, item, simulation.fence + 1, 1)
    lease(simulation, item, simulation.fence + 2, 1)


def count_a_release(simulation: Simulation) -> None:
    item = add_new(simulation)
    lease(simulation, item, simulation.fence + 1, 1)
    accept(simulation, "release", item, simulation.fence + 1)
    lease(simulation, item, simulation.fence + 2, 2)


def keep_an_interrupted_item(simulation: Simulation) -> None:
    item = add_new(simulation)
    token = simulation.fence + 1
    lease(simulation, item, token, 1)
    simulation.events.append(Event(simulation.now, "end", QUEUE, item, "late", token, outcome="interrupted"))
    simulation.events.append(Event(simulation.now + 1, "exit", process="late"))


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 400))
def test_correct_histories_pass(seed: int, steps: int) -> None:
    simulation = simulated(seed, steps)
    assert not check(History(simulation.events), simulation.final)


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (lose_an_item, LOST),
        (complete_twice, ENDED_TWICE),
        (add_an_unfinished_item, ADDED_TWICE),
        (issue_a_token_again, TOKENS),
        (begin_a_completed_item, BEGAN_LATE),
        (renew_as_a_former_holder, FORMER_HOLDER),
        (forget_an_attempt, UNCOUNTED),
        (count_a_release, OVERCOUNTED),
        (keep_an_interrupted_item, UNRELEASED),
    ],
)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), steps=st.integers(30, 300))
def test_each_fault_is_found(fault: Callable[[Simulation], None], rule: str, seed: int, steps: int) -> None:
    simulation = simulated(seed, steps)
    fault(simulation)
    assert rule in {violation.rule for violation in check(History(simulation.events), simulation.final)}
