"""What the judge of the matrix finds in a history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.failover.topologies import Single
from tests.failover.verdict import Course, Verdict, judge
from tests.failover.workload import PARTS, PLAIN, Workload
from tests.history.events import Event

if TYPE_CHECKING:
    from tests.history.events import Kind

#: The fault begins at 10 s, and redis-py's client is without a server until 13 s. The round ends at 20 s.
BEGUN, BACK, ENDED = 10.0, 13.0, 20.0
OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"


def each(since: float, until: float) -> list[float]:
    return [since + number / 10 for number in range(round((until - since) * 10) + 1)]


def verdict_of(
    workload: Workload, *, safe: str = "", may_lose: bool = True, stopped: tuple[str, ...] = ()
) -> Verdict:
    course = Course(BEGUN, ENDED, frozenset({safe}), NEW, frozenset(), stopped)
    return judge("row", workload, course, may_lose=may_lose)


def quiet() -> Workload:
    """Return a workload of which each part was served as long as redis-py's client."""
    workload = Workload(Single(aof=False))
    for part in (*PARTS, PLAIN):
        workload.served[part] = each(5, BEGUN) + each(BACK, ENDED)
    return workload


def note(workload: Workload, at: float, kind: Kind, where: str, *, token: int | None = None) -> None:
    """Note a call that was answered."""
    event = Event(int(at * 1e9), kind, "q", "one", where, token, called_at=1, outcome=True)
    workload.events.append(event)


def test_a_round_without_a_fault_has_no_problems() -> None:
    workload = quiet()
    note(workload, 6, "add", OLD)
    note(workload, 7, "complete", OLD, token=1)
    verdict = verdict_of(workload, may_lose=False)
    assert not verdict.problems
    assert (verdict.plain, verdict.ours, verdict.lost, verdict.tokens) == (3.0, 3.0, (), 0)
    assert verdict.behind < 0.2


def test_a_part_is_behind_by_the_time_that_only_redis_py_was_served() -> None:
    workload = quiet()
    workload.served["events"] = each(5, BEGUN) + each(BACK + 2, ENDED)
    verdict = verdict_of(workload)
    assert (verdict.part, verdict.behind, verdict.ours) == ("events", 2.0, 5.0)


def test_a_part_that_stops_for_ever_is_behind_until_the_end() -> None:
    workload = quiet()
    workload.served["renew"] = each(5, BEGUN)
    assert verdict_of(workload).parts["renew"] == ENDED - BACK


def test_a_round_in_which_only_redis_py_is_not_served_again_says_so_and_judges_our_parts() -> None:
    workload = quiet()
    workload.served[PLAIN] = each(5, BEGUN)
    verdict = verdict_of(workload, stopped=(PLAIN,))
    assert not verdict.problems
    assert "redis-py's own client was not served again" in str(verdict)
    assert verdict_of(workload, stopped=(PLAIN, "renew")).problems == ("renew was not served again",)


def test_an_acknowledged_item_that_is_gone_is_lost() -> None:
    workload = quiet()
    note(workload, 9, "add", OLD)
    assert verdict_of(workload).lost == ("one",)
    assert not verdict_of(workload).problems, "no replica had it"
    assert "one was lost" in str(verdict_of(workload, may_lose=False).problems)
    assert "all replicas had it" in str(verdict_of(workload, safe="one").problems)


def test_what_the_server_that_stayed_has_acknowledged_must_not_be_lost() -> None:
    workload = quiet()
    note(workload, 15, "add", NEW)
    assert "the server that stayed had it" in str(verdict_of(workload).problems)


def test_an_item_may_be_completed_once_in_each_branch_of_history() -> None:
    workload = quiet()
    note(workload, 9, "add", OLD)
    note(workload, 9.5, "complete", OLD, token=1)
    note(workload, 15, "complete", NEW, token=1)
    assert not verdict_of(workload).doubled
    assert verdict_of(workload, may_lose=False).doubled == ("one",)
    note(workload, 16, "complete", NEW, token=2)
    assert verdict_of(workload).doubled == ("one",)


def test_tokens_that_were_issued_again_are_counted() -> None:
    workload = quiet()
    for at in (9, 15):
        lease = Event(int(at * 1e9), "lease", "q", "one", OLD, 7, 1, called_at=int(at * 1e9))
        workload.events.append(lease)
    assert verdict_of(workload).tokens == 1
