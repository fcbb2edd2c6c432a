"""Random right histories pass; with one thing wrong in them they do not, whatever that thing is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leasehold.testing.history import Event, History, check
from tests.testing.simulation import QUEUE, STEP, Simulation
from tests.testing.test_rules import (
    BEGINS,
    COUNTED,
    GIVEN_BACK,
    HOLDERS,
    LOST,
    NOT_COUNTED,
    NUMBERS,
    READDED,
    TWICE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.testing.history.events import Kind


def simulated(seed: int, steps: int) -> Simulation:
    simulation = Simulation(random.Random(seed))
    simulation.play(steps)
    simulation.now += 10 * STEP  # every answer is in
    return simulation


def told(one: Simulation, kind: Kind, item: str, token: int | None = None) -> None:
    """Add a call that is told True."""
    ask = Event(one.now, kind, QUEUE, item, "late", token)
    one.events += [ask, ask._replace(at=one.now + 1, asked=ask.at, outcome=True)]
    one.now += STEP


def leased(one: Simulation, item: str, token: int, attempt: int) -> None:
    one.events.append(Event(one.now + 1, "lease", QUEUE, item, "late", token, attempt, one.now))
    one.now += STEP


def any_of(items: list[str]) -> str:
    assume(items)
    return items[0]


def lose_an_item(one: Simulation) -> None:
    told(one, "add", any_of([item for item in "abcdef" if item not in one.items]))


def complete_twice(one: Simulation) -> None:
    item = fresh(one)
    leased(one, item, one.fence + 1, 1)
    told(one, "complete", item, one.fence + 1)
    told(one, "complete", item, one.fence + 1)
    one.items.pop(item)


def add_what_is_there(one: Simulation) -> None:
    told(one, "add", fresh(one))


def give_an_old_number(one: Simulation) -> None:
    known = [event for event in one.events if event.kind == "lease" and event.token]
    assume(known)
    item = fresh(one)
    leased(one, item, known[-1].token or 0, 1)


def begin_what_is_done(one: Simulation) -> None:
    done = [event for event in one.events if event.kind == "complete" and event.outcome is True]
    assume(done)
    one.events.append(Event(one.now, "begin", QUEUE, done[0].id, done[0].by, done[0].token))


def renew_another_s(one: Simulation) -> None:
    item = fresh(one)
    leased(one, item, one.fence + 1, 1)
    leased(one, item, one.fence + 2, 2)
    told(one, "renew", item, one.fence + 1)


def forget_an_attempt(one: Simulation) -> None:
    item = fresh(one)
    leased(one, item, one.fence + 1, 1)
    leased(one, item, one.fence + 2, 1)


def count_what_was_given_back(one: Simulation) -> None:
    item = fresh(one)
    leased(one, item, one.fence + 1, 1)
    told(one, "release", item, one.fence + 1)
    leased(one, item, one.fence + 2, 2)


def keep_an_interrupted_one(one: Simulation) -> None:
    item = fresh(one)
    leased(one, item, one.fence + 1, 1)
    one.events.append(Event(one.now, "end", QUEUE, item, "late", one.fence + 1, outcome="interrupted"))
    one.events.append(Event(one.now + 1, "exit", by="late"))


def fresh(one: Simulation) -> str:
    told(one, "add", "fresh")
    one.items["fresh"] = 0
    return "fresh"


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 400))
def test_right_histories_pass(seed: int, steps: int) -> None:
    one = simulated(seed, steps)
    assert not check(History(one.events), one.final)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (lose_an_item, LOST),
        (complete_twice, TWICE),
        (add_what_is_there, READDED),
        (give_an_old_number, NUMBERS),
        (begin_what_is_done, BEGINS),
        (renew_another_s, HOLDERS),
        (forget_an_attempt, COUNTED),
        (count_what_was_given_back, NOT_COUNTED),
        (keep_an_interrupted_one, GIVEN_BACK),
    ],
)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), steps=st.integers(30, 300))
def test_wrong_histories_are_found_out(
    wrong: Callable[[Simulation], None], rule: str, seed: int, steps: int
) -> None:
    one = simulated(seed, steps)
    wrong(one)
    assert rule in {violation.rule for violation in check(History(one.events), one.final)}
