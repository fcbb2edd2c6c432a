"""The rules of histories with flow runs: each holds for some, and is broken by others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.testing.history import FinalRun, FinalState, History, check
from tests.testing.builder import QUEUE, HistoryBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

ENDED_AGAIN = "a stage ends once"
RUN_LOST = "no run is lost"
UNRECORDED = "the end of a stage is recorded"
STAGE_EARLY = "no stage begins early"
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
