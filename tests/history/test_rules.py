"""Each rule holds for some histories and is broken by others."""

from __future__ import annotations

import functools
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.events import Event, FinalRun, FinalState, History
from tests.history.rules import RULES, check, check_limits
from tests.history.simulation import STEP, Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.history.events import Kind

QUEUE = "q"
LOST = "no item is lost"
ENDED_TWICE = "an incarnation ends once"
ADDED_TWICE = "no unfinished item is added again"
TOKENS = "tokens increase"
BEGAN_LATE = "no run begins after completion"
FORMER_HOLDER = "only the current holder is accepted"
UNCOUNTED = "every attempt is counted"
OVERCOUNTED = "a release is not an attempt"
UNRELEASED = "interrupted items are released"
ENDED_AGAIN = "a stage ends once"
RUN_LOST = "no run is lost"
UNRECORDED = "the end of a stage is recorded"
STAGE_EARLY = "no stage begins early"


class HistoryBuilder:
    """A history whose events follow each other, unless a time is given."""

    def __init__(self, begun: HistoryBuilder | None = None) -> None:
        self.events: list[Event] = [*begun.events] if begun else []
        self._clock = itertools.count(100 * (2 * len(self.events) + 1), 100)

    def now(self) -> int:
        return next(self._clock)

    def call(
        self,
        kind: Kind,
        item: str,
        token: int | None = None,
        *,
        answer: bool | None = True,
        process: str = "worker",
        called_at: int | None = None,
    ) -> HistoryBuilder:
        """Add a call and its answer; None is no answer."""
        call = Event(called_at or self.now(), kind, QUEUE, item, process, token)
        self.events.append(call)
        if answer is not None:
            self.events.append(call._replace(at=self.now(), called_at=call.at, outcome=answer))
        return self

    def add(self, item: str = "x", *, answer: bool | None = True) -> HistoryBuilder:
        return self.call("add", item, answer=answer, process="producer")

    def lease(
        self,
        token: int,
        attempt: int = 1,
        *,
        item: str = "x",
        process: str = "worker",
        called_at: int | None = None,
    ) -> HistoryBuilder:
        called_at = called_at or self.now()
        self.events.append(Event(self.now(), "lease", QUEUE, item, process, token, attempt, called_at))
        return self

    def begin(self, token: int, *, item: str = "x") -> HistoryBuilder:
        self.events.append(Event(self.now(), "begin", QUEUE, item, "worker", token))
        return self

    def end(self, token: int, outcome: str = "returned") -> HistoryBuilder:
        self.events.append(Event(self.now(), "end", QUEUE, "x", "worker", token, outcome=outcome))
        return self

    def complete(
        self, token: int, *, answer: bool | None = True, item: str = "x", called_at: int | None = None
    ) -> HistoryBuilder:
        return self.call("complete", item, token, answer=answer, called_at=called_at)

    def exit(self) -> HistoryBuilder:
        self.events.append(Event(self.now(), "exit", process="worker"))
        return self

    def violated(self, *, unfinished: str = "", dead: str = "", with_final_state: bool = True) -> set[str]:
        """Return the names of the rules that the history breaks.

        Args:
            unfinished: The ids of the unfinished items in the final state, one letter each.
            dead: The ids of the dead letters, one letter each.
            with_final_state: Whether the check is given the final state.
        """
        final = FinalState(QUEUE, frozenset(unfinished), frozenset(dead))
        found = check(History(self.events), *((final,) if with_final_state else ()))
        assert all(violation.queue == QUEUE and str(violation) for violation in found)
        return {violation.rule for violation in found}


def test_every_rule_has_a_constant_here() -> None:
    assert set(RULES) == {
        LOST, ENDED_TWICE, ADDED_TWICE, TOKENS, BEGAN_LATE, FORMER_HOLDER, UNCOUNTED, OVERCOUNTED, UNRELEASED,
        ENDED_AGAIN, RUN_LOST, UNRECORDED, STAGE_EARLY,
    }  # fmt: skip


def case(what: str, history: HistoryBuilder, *broken: str, **left: Any) -> Any:
    """Give a history, the rules that it breaks, and what is left in the queue, as for `violated`."""
    return pytest.param(history, set(broken), left, id=what)


unfinished = functools.partial(case, unfinished="x")


def added() -> HistoryBuilder:
    return HistoryBuilder().add()


def leased() -> HistoryBuilder:
    return added().lease(1)


def completed() -> HistoryBuilder:
    return leased().complete(1)


def leased_twice() -> HistoryBuilder:
    return leased().lease(2, 2)


def dead() -> HistoryBuilder:
    return leased().call("die", "x", 1)


def interrupted() -> HistoryBuilder:
    return leased().begin(1).end(1, "interrupted")


def two_leases_in_flight(first: int, second: int) -> HistoryBuilder:
    history = HistoryBuilder().add("x").add("y")
    called_at = history.now()
    return history.lease(first, called_at=called_at).lease(second, item="y", called_at=called_at)


def interrupted_while_the_server_is_away(outcome: str) -> HistoryBuilder:
    history = added().add("y").lease(1).lease(2, item="y").begin(1).end(1, "interrupted")
    call = history.call("complete", "y", 2, answer=None).events[-1]
    history.events.append(call._replace(at=history.now(), called_at=call.at, outcome=outcome))
    return history.exit()


CASES = [
    case("an added item may not disappear", added(), LOST),
    case("a leased item may not disappear", leased().begin(1), LOST),
    case(
        "an item that a repeated add has found may not disappear",
        HistoryBuilder().add(answer=None).add(answer=False),
        LOST,
    ),
    case(
        "nor if it was there and ended later",
        HistoryBuilder().add(answer=None).add(answer=False).lease(1).complete(1),
    ),
    case("an end before does not explain it", completed().add(answer=False), LOST),
    case("a rejected completion completes nothing", leased().complete(1, answer=False), LOST),
    case(
        "an earlier completion does not end the next incarnation",
        leased().complete(1, answer=None).complete(1, answer=False).add(),
        LOST,
    ),
    case("the second incarnation may not disappear", completed().add(), LOST),
    case(
        "a cancelled item may not disappear when it was added again", leased().call("cancel", "x").add(), LOST
    ),
    case("a rejected cancellation cancels nothing", added().call("cancel", "x", answer=False), LOST),
    case("a cancelled item may not be completed", leased().call("cancel", "x").complete(1), ENDED_TWICE),
    case("a completed item may not be cancelled", completed().call("cancel", "x"), ENDED_TWICE),
    unfinished("a cancelled item may not be unfinished", added().call("cancel", "x"), ENDED_TWICE),
    case("a dead letter may not disappear", dead(), LOST),
    case("a requeued item may not disappear", dead().call("requeue", "x"), LOST),
    case("two holders may not both complete an item", leased_twice().complete(1).complete(2), ENDED_TWICE),
    case("one holder may not complete an item twice", completed().complete(1), ENDED_TWICE),
    case(
        "an earlier add does not begin a later incarnation",
        completed().add().lease(2).complete(2).lease(3).complete(3),
        ENDED_TWICE,
    ),
    case(
        "a rejected add does not begin an incarnation",
        completed().add(answer=False).lease(2).complete(2),
        ENDED_TWICE,
    ),
    case(
        "tokens increase across incarnations",
        added().lease(7).complete(7).add().lease(3).complete(3),
        TOKENS,
        ENDED_TWICE,
        UNCOUNTED,
    ),
    case("no run begins after its own completion", completed().begin(1), BEGAN_LATE),
    case("no run begins after a later holder has completed", leased_twice().complete(2).begin(1), BEGAN_LATE),
    case(
        "an item completed by an earlier holder is not leased again",
        completed().lease(2, 2).begin(2),
        BEGAN_LATE,
        OVERCOUNTED,
    ),
    unfinished("a completed item may not be unfinished", completed(), ENDED_TWICE),
    unfinished("an add may not succeed while the item is unfinished", added().add(), ADDED_TWICE),
    case(
        "a former holder may not make an item a dead letter",
        leased_twice().call("die", "x", 1),
        FORMER_HOLDER,
        dead="x",
    ),
    unfinished(
        "a rejected release leaves the attempt counted",
        leased().call("release", "x", 1, answer=False).lease(2, 1),
        UNCOUNTED,
    ),
    unfinished("the first lease may not be a later attempt", added().lease(1, 2), OVERCOUNTED),
    unfinished(
        "the next incarnation does not continue the attempts",
        leased_twice().complete(2).add().lease(3, 3),
        OVERCOUNTED,
    ),
    unfinished(
        "an earlier completion does not restart the attempts",
        leased().complete(1, answer=None).add().lease(2, 1).lease(3, 1),
        UNCOUNTED,
    ),
    unfinished("an interrupted item of a killed worker may be leased", interrupted()),
    unfinished("an interrupted item is released before the worker exits", interrupted().exit(), UNRELEASED),
    case("a completed item may not die", completed().call("die", "x", 1), ENDED_TWICE, dead="x"),
    case("no token is issued twice", two_leases_in_flight(1, 1), TOKENS, unfinished="xy"),
    case(
        "a later lease may not have a lower token",
        added().add("y").lease(2).lease(1, item="y"),
        TOKENS,
        unfinished="xy",
    ),
    unfinished(
        "a release without an answer may have been applied",
        leased().call("release", "x", 1, answer=None).lease(2, 1),
    ),
    unfinished(
        "it may also not have been applied", leased().call("release", "x", 1, answer=None).lease(2, 2)
    ),
    unfinished(
        "the next incarnation begins with the first attempt", leased_twice().complete(2).add().lease(3, 1)
    ),
    unfinished("an item whose lease was lost need not be released", leased().begin(1).end(1, "lost").exit()),
    unfinished(
        "an item whose renewal was rejected need not be released",
        leased().begin(1).call("renew", "x", 1, answer=False).end(1, "interrupted").exit(),
    ),
    case(
        "an item need not be released if a call was not sent",
        interrupted_while_the_server_is_away("unsent"),
        unfinished="xy",
    ),
    case(
        "an item need not be released if a reply was lost",
        interrupted_while_the_server_is_away("unknown"),
        unfinished="xy",
    ),
]


@pytest.mark.parametrize(("history", "broken", "left"), CASES)
def test_a_history_breaks_these_rules(
    history: HistoryBuilder, broken: set[str], left: dict[str, Any]
) -> None:
    assert history.violated(**left) == broken


@pytest.mark.parametrize("kind", ["renew", "progress", "retry", "release"])
def test_a_former_holder_is_rejected(kind: Kind) -> None:
    assert not leased_twice().call(kind, "x", 1, answer=False).violated(unfinished="x")
    assert FORMER_HOLDER in leased_twice().call(kind, "x", 1).violated(unfinished="x")


FAILED = leased().begin(1).end(1, "raised").call("retry", "x", 1)
RELEASED = interrupted().call("release", "x", 1).exit()


@pytest.mark.parametrize(
    ("earlier", "token", "attempts"),
    [
        pytest.param(added(), 1, (0, 1, 2), id="the first lease is the first attempt"),
        pytest.param(leased().begin(1), 2, (1, 2, 3), id="a crash is one attempt"),
        pytest.param(FAILED, 2, (1, 2, 3), id="a failure is one attempt"),
        pytest.param(RELEASED, 2, (0, 1, 2), id="an interrupted run is no attempt"),
        pytest.param(leased(), 3, (1, 2, 4), id="an unrecorded lease may have been of this item"),
        pytest.param(leased(), 3, (1, 3, 4), id="or not"),
    ],
)
def test_attempts_are_counted(earlier: HistoryBuilder, token: int, attempts: tuple[int, int, int]) -> None:
    """The first of the three attempts is too low, the second may be, and the third is too high."""
    for attempt, broken in zip(attempts, ({UNCOUNTED}, set(), {OVERCOUNTED}), strict=True):
        history = HistoryBuilder(earlier)
        assert history.lease(token, attempt, process="other").violated(unfinished="x") == broken


# -------------------------------------------------------------------------------- flow runs

RUN, FIRST, SECOND, CHILD = "run", "run/first", "run/second", "run/first/0"


def started() -> HistoryBuilder:
    return HistoryBuilder().call("start", RUN)


def done(builder: HistoryBuilder, item: str = FIRST, token: int = 1) -> HistoryBuilder:
    return builder.lease(token, item=item).begin(token, item=item).call("stage_done", item, token)


def broken(
    builder: HistoryBuilder,
    stages: Mapping[str, str] | None = None,
    *,
    unfinished: str = "",
    read: bool = True,
    waits_for: tuple[str, ...] = ("first",),
) -> set[str]:
    """Return the names of the rules that are broken; without stages, the run is gone."""
    runs = {} if stages is None else {RUN: FinalRun("active", stages, {"second": waits_for})}
    final = FinalState(QUEUE, frozenset(filter(None, [unfinished])), runs=runs if read else None)
    return {violation.rule for violation in check(History(builder.events), final)}


BOTH = {"first": "done", "second": "done"}


def test_a_run_of_two_stages_breaks_no_rule() -> None:
    assert broken(done(done(started()), SECOND, 2), BOTH) == set()


def test_a_stage_that_two_calls_have_ended_is_found() -> None:
    twice = done(started()).lease(2, 2, item=FIRST).call("stage_failed", FIRST, 2)
    assert ENDED_AGAIN in broken(twice, {"first": "done"})
    repeated = done(started()).call("stage_done", FIRST, 1, answer=False)
    assert broken(repeated, {"first": "done"}) == set()


def test_a_stage_may_end_again_after_a_retry_of_its_run() -> None:
    failed = started().lease(1, item=FIRST).call("stage_failed", FIRST, 1)
    assert broken(done(failed.call("run_retry", RUN), token=2), {"first": "done"}) == set()


def test_a_run_that_is_gone_is_found_unless_it_was_deleted() -> None:
    assert broken(done(started())) == {RUN_LOST}
    assert broken(done(started()), read=False) == set()
    assert broken(done(started()).call("run_delete", RUN)) == set()
    assert broken(HistoryBuilder().call("start", RUN, answer=None)) == set()


def test_an_open_stage_without_an_item_is_found() -> None:
    assert broken(done(started()), {"first": "done", "second": "entered"}) == {RUN_LOST}
    assert broken(done(started()), {"first": "done", "second": "entered"}, unfinished=SECOND) == set()


@pytest.mark.parametrize("state", ["failed", "not entered", "entered"])
def test_an_accepted_end_that_the_run_does_not_say_is_found(state: str) -> None:
    assert UNRECORDED in broken(done(started()), {"first": state}, unfinished=FIRST)
    assert (
        broken(
            started().lease(1, item=FIRST).call("stage_done", FIRST, 1, answer=None),
            {"first": "entered"},
            unfinished=FIRST,
        )
        == set()
    )


def test_a_stage_that_begins_before_the_one_that_it_waits_for_is_found() -> None:
    early = done(done(started(), SECOND, 1), FIRST, 2)
    assert broken(early, BOTH) == {STAGE_EARLY}
    assert broken(early, BOTH, waits_for=()) == set()


def test_a_child_that_begins_before_its_parent_has_fanned_out_is_found() -> None:
    stages = {"first": "done", "first/0": "done"}
    right = started().lease(1, item=FIRST).begin(1, item=FIRST).call("stage_fanned", FIRST, 1)
    assert broken(done(right, CHILD, 2), stages) == set()
    wrong = done(started().lease(1, item=FIRST), CHILD, 2).call("stage_fanned", FIRST, 1)
    assert broken(wrong, stages) == {STAGE_EARLY}


def test_a_stage_does_not_run_after_its_end() -> None:
    late = done(started()).lease(2, 2, item=FIRST).begin(2, item=FIRST)
    assert "no run begins after completion" in broken(late, {"first": "done"})


def simulated(seed: int, steps: int) -> Simulation:
    simulation = Simulation(random.Random(seed))
    simulation.run(steps)
    simulation.now += 10 * STEP  # every call has been answered
    return simulation


def test_a_limit_is_exceeded_by_leases_that_were_certainly_held_at_once() -> None:
    def peak_of(history: HistoryBuilder, lease_seconds: float = 1.0) -> tuple[int, set[str]]:
        peaks, found = check_limits(History(history.events), {"all": 1}, lambda *_: ["all"], lease_seconds)
        return peaks["all"], {one.id for one in found}

    two = HistoryBuilder().lease(1, item="x").lease(2, item="y")
    both = HistoryBuilder(two).complete(1, item="x").complete(2, item="y")
    assert peak_of(both) == (2, {"y"})
    assert peak_of(both, 1e-9) == (0, set()), "they had expired"
    assert peak_of(two) == (0, set()), "nothing says for how long"
    assert peak_of(HistoryBuilder(two).call("renew", "x", 1).call("release", "y", 2)) == (2, {"y"})
    assert peak_of(HistoryBuilder(two).complete(1, item="x", answer=False).complete(2, item="y")) == (
        1,
        set(),
    )
    one_by_one = HistoryBuilder().lease(1, item="x").complete(1, item="x").lease(2, item="y")
    assert peak_of(one_by_one.complete(2, item="y")) == (1, set())


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
