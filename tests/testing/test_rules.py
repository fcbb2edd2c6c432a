"""Each rule holds for some histories and is broken by others."""

from __future__ import annotations

import pytest

from leasehold.testing.history import RULES
from tests.testing.builder import HistoryBuilder

LOST = "no item is lost"
ENDED_TWICE = "an incarnation ends once"
ADDED_TWICE = "no unfinished item is added again"
TOKENS = "tokens increase"
BEGAN_LATE = "no run begins after completion"
FORMER_HOLDER = "only the current holder is accepted"
UNCOUNTED = "every attempt is counted"
OVERCOUNTED = "a release is not an attempt"
UNRELEASED = "interrupted items are released"


def test_every_rule_has_a_constant_here() -> None:
    assert set(RULES) == {
        LOST, ENDED_TWICE, ADDED_TWICE, TOKENS, BEGAN_LATE, FORMER_HOLDER, UNCOUNTED, OVERCOUNTED, UNRELEASED
    }  # fmt: skip


def test_an_empty_history_is_correct() -> None:
    assert not HistoryBuilder().violated()


def test_an_item_may_be_added_run_and_completed() -> None:
    history = HistoryBuilder().add().lease(1).begin(1).end(1).complete(1).exit()
    assert not history.violated()


class TestNoItemIsLost:
    def test_an_added_item_may_be_unfinished(self) -> None:
        assert not HistoryBuilder().add().violated(unfinished="x")

    def test_an_added_item_may_not_disappear(self) -> None:
        assert HistoryBuilder().add().violated() == {LOST}

    def test_lost_items_are_not_found_without_a_final_state(self) -> None:
        assert not HistoryBuilder().add().violated(with_final_state=False)

    def test_an_add_without_an_answer_may_not_have_been_applied(self) -> None:
        assert not HistoryBuilder().add(answer=None).violated()

    def test_a_leased_item_may_not_disappear(self) -> None:
        assert HistoryBuilder().add().lease(1).begin(1).violated() == {LOST}

    def test_a_rejected_completion_completes_nothing(self) -> None:
        assert HistoryBuilder().add().lease(1).complete(1, answer=False).violated() == {LOST}

    def test_a_completion_without_an_answer_may_have_been_applied(self) -> None:
        assert not HistoryBuilder().add().lease(1).complete(1, answer=None).violated()

    def test_an_earlier_completion_does_not_end_the_next_incarnation(self) -> None:
        history = HistoryBuilder().add().lease(1).complete(1, answer=None).complete(1, answer=False).add()
        assert history.violated() == {LOST}

    def test_the_second_incarnation_may_not_disappear(self) -> None:
        assert HistoryBuilder().add().lease(1).complete(1).add().violated() == {LOST}

    def test_a_dead_letter_may_not_disappear(self) -> None:
        history = HistoryBuilder().add().lease(1).call("die", "x", 1)
        assert not history.violated(dead="x")
        assert history.violated() == {LOST}

    @pytest.mark.parametrize("answer", [True, None])
    def test_a_dead_letter_may_be_dropped(self, answer: bool | None) -> None:  # noqa: FBT001 - a parameter
        assert (
            not HistoryBuilder()
            .add()
            .lease(1)
            .call("die", "x", 1)
            .call("drop", "x", answer=answer)
            .violated()
        )

    def test_a_requeued_item_may_not_disappear(self) -> None:
        history = HistoryBuilder().add().lease(1).call("die", "x", 1).call("requeue", "x")
        assert not history.violated(unfinished="x")
        assert history.violated() == {LOST}


class TestAnIncarnationEndsOnce:
    def test_the_second_of_two_holders_is_rejected(self) -> None:
        history = HistoryBuilder().add().lease(1).lease(2, 2)
        assert not history.complete(1).complete(2, answer=False).violated()

    def test_two_holders_may_not_both_complete_an_item(self) -> None:
        assert HistoryBuilder().add().lease(1).lease(2, 2).complete(1).complete(2).violated() == {ENDED_TWICE}

    def test_one_holder_may_not_complete_an_item_twice(self) -> None:
        assert HistoryBuilder().add().lease(1).complete(1).complete(1).violated() == {ENDED_TWICE}

    @pytest.mark.parametrize("answer", [True, None])
    def test_each_incarnation_is_completed(self, answer: bool | None) -> None:  # noqa: FBT001 - a parameter
        history = HistoryBuilder().add().lease(1).complete(1).add(answer=answer).lease(2).complete(2)
        assert not history.violated()

    def test_an_earlier_add_does_not_begin_a_later_incarnation(self) -> None:
        history = HistoryBuilder().add().lease(1).complete(1).add().lease(2).complete(2)
        assert history.lease(3).complete(3).violated() == {ENDED_TWICE}

    def test_a_rejected_add_does_not_begin_an_incarnation(self) -> None:
        history = HistoryBuilder().add().lease(1).complete(1).add(answer=False).lease(2).complete(2)
        assert history.violated() == {ENDED_TWICE}

    def test_a_dead_letter_may_be_requeued_and_completed(self) -> None:
        history = HistoryBuilder().add().lease(1).call("die", "x", 1)
        assert not HistoryBuilder.complete(history.call("requeue", "x").lease(2), 2).violated()

    def test_a_completed_item_may_not_die(self) -> None:
        assert HistoryBuilder().add().lease(1).complete(1).call("die", "x", 1).violated(dead="x") == {
            ENDED_TWICE
        }

    def test_a_completed_item_may_not_be_unfinished(self) -> None:
        assert HistoryBuilder().add().lease(1).complete(1).violated(unfinished="x") == {ENDED_TWICE}


class TestNoUnfinishedItemIsAddedAgain:
    def test_an_add_is_rejected_while_the_item_is_unfinished(self) -> None:
        assert not HistoryBuilder().add().add(answer=False).violated(unfinished="x")

    def test_an_add_may_not_succeed_while_the_item_is_unfinished(self) -> None:
        assert HistoryBuilder().add().add().violated(unfinished="x") == {ADDED_TWICE}

    def test_an_add_may_succeed_while_the_completion_is_in_flight(self) -> None:
        history = HistoryBuilder().add().lease(1)
        called_at = history.now()
        history.add().complete(1, called_at=called_at)
        assert not history.violated(unfinished="x")

    def test_an_add_may_follow_a_completion_without_an_answer(self) -> None:
        assert not HistoryBuilder().add().lease(1).complete(1, answer=None).add().violated(unfinished="x")


class TestTokensIncrease:
    def test_a_later_lease_may_not_have_a_lower_token(self) -> None:
        history = HistoryBuilder().add("x").add("y").lease(2)
        assert history.lease(1, item="y").violated(unfinished="xy") == {TOKENS}

    def test_two_leases_in_flight_may_be_answered_in_any_order(self) -> None:
        history = HistoryBuilder().add("x").add("y")
        called_at = history.now()
        history.lease(2, called_at=called_at).lease(1, item="y", called_at=called_at)
        assert not history.violated(unfinished="xy")

    def test_no_token_is_issued_twice(self) -> None:
        history = HistoryBuilder().add("x").add("y")
        called_at = history.now()
        history.lease(1, called_at=called_at).lease(1, item="y", called_at=called_at)
        assert history.violated(unfinished="xy") == {TOKENS}

    def test_tokens_increase_across_incarnations(self) -> None:
        history = HistoryBuilder().add().lease(7).complete(7).add().lease(3).complete(3)
        assert TOKENS in history.violated()


class TestNoRunBeginsAfterCompletion:
    def test_no_run_begins_after_its_own_completion(self) -> None:
        assert HistoryBuilder().add().lease(1).complete(1).begin(1).violated() == {BEGAN_LATE}

    def test_no_run_begins_after_a_later_holder_has_completed(self) -> None:
        history = HistoryBuilder().add().lease(1).lease(2, 2).complete(2)
        assert history.begin(1).violated() == {BEGAN_LATE}

    def test_a_run_may_begin_before_the_completion(self) -> None:
        history = HistoryBuilder().add().lease(1).begin(1).lease(2, 2).begin(2).complete(2)
        assert not history.complete(1, answer=False).violated()

    def test_a_run_may_begin_after_an_earlier_holder_completes_its_leased_item(self) -> None:
        assert not HistoryBuilder().add().lease(1).lease(2, 2).complete(1).begin(2).violated()

    def test_an_item_completed_by_an_earlier_holder_is_not_leased_again(self) -> None:
        history = HistoryBuilder().add().lease(1).complete(1).lease(2, 2).begin(2)
        assert BEGAN_LATE in history.violated()

    def test_a_run_of_the_next_incarnation_may_begin(self) -> None:
        assert not HistoryBuilder().add().lease(1).complete(1).add().lease(2).begin(2).complete(2).violated()


class TestOnlyTheCurrentHolderIsAccepted:
    @pytest.mark.parametrize("kind", ["renew", "retry", "release"])
    def test_a_former_holder_is_rejected(self, kind: str) -> None:
        def history(answer: bool) -> HistoryBuilder:  # noqa: FBT001 - the only difference
            return HistoryBuilder().add().lease(1).lease(2, 2).call(kind, "x", 1, answer=answer)  # type: ignore[arg-type]  # one of the kinds

        assert not history(answer=False).violated(unfinished="x")
        assert FORMER_HOLDER in history(answer=True).violated(unfinished="x")

    def test_a_former_holder_may_not_make_an_item_a_dead_letter(self) -> None:
        assert HistoryBuilder().add().lease(1).lease(2, 2).call("die", "x", 1).violated(dead="x") == {
            FORMER_HOLDER
        }

    def test_a_call_made_before_the_next_lease_may_be_answered_after_it(self) -> None:
        history = HistoryBuilder().add().lease(1)
        called_at = history.now()
        history.lease(2).call("release", "x", 1, called_at=called_at)
        assert not history.violated(unfinished="x")


class TestAttemptsAreCounted:
    @pytest.mark.parametrize(("second", "violated"), [(1, {UNCOUNTED}), (2, set()), (3, {OVERCOUNTED})])
    def test_a_crash_is_one_attempt(self, second: int, violated: set[str]) -> None:
        assert HistoryBuilder().add().lease(1).begin(1).lease(2, second).violated(unfinished="x") == violated

    @pytest.mark.parametrize(("second", "violated"), [(1, {UNCOUNTED}), (2, set()), (3, {OVERCOUNTED})])
    def test_a_failure_is_one_attempt(self, second: int, violated: set[str]) -> None:
        history = HistoryBuilder().add().lease(1).begin(1).end(1, "raised").call("retry", "x", 1)
        assert history.lease(2, second).violated(unfinished="x") == violated

    @pytest.mark.parametrize(("second", "violated"), [(0, {UNCOUNTED}), (1, set()), (2, {OVERCOUNTED})])
    def test_an_interrupted_run_is_no_attempt(self, second: int, violated: set[str]) -> None:
        history = (
            HistoryBuilder().add().lease(1).begin(1).end(1, "interrupted").call("release", "x", 1).exit()
        )
        assert history.lease(2, second, process="other").violated(unfinished="x") == violated

    def test_a_rejected_release_leaves_the_attempt_counted(self) -> None:
        history = HistoryBuilder().add().lease(1).call("release", "x", 1, answer=False)
        assert history.lease(2, 1).violated(unfinished="x") == {UNCOUNTED}

    @pytest.mark.parametrize("second", [1, 2])
    def test_a_release_without_an_answer_may_have_counted(self, second: int) -> None:
        history = HistoryBuilder().add().lease(1).call("release", "x", 1, answer=None)
        assert not history.lease(2, second).violated(unfinished="x")

    @pytest.mark.parametrize(("later", "violated"), [(2, set()), (3, set()), (4, {OVERCOUNTED})])
    def test_unrecorded_leases_may_have_been_of_this_item(self, later: int, violated: set[str]) -> None:
        assert HistoryBuilder().add().lease(1).lease(3, later).violated(unfinished="x") == violated

    @pytest.mark.parametrize(("first", "violated"), [(1, set()), (2, {OVERCOUNTED})])
    def test_the_first_lease_is_the_first_attempt(self, first: int, violated: set[str]) -> None:
        assert HistoryBuilder().add().lease(1, first).violated(unfinished="x") == violated

    def test_the_next_incarnation_begins_with_the_first_attempt(self) -> None:
        history = HistoryBuilder().add().lease(1).lease(2, 2).complete(2).add()
        assert not history.lease(3, 1).violated(unfinished="x")

    def test_an_earlier_completion_does_not_restart_the_attempts(self) -> None:
        history = HistoryBuilder().add().lease(1).complete(1, answer=None).add()
        assert history.lease(2, 1).lease(3, 1).violated(unfinished="x") == {UNCOUNTED}

    def test_the_next_incarnation_does_not_continue_the_attempts(self) -> None:
        history = HistoryBuilder().add().lease(1).lease(2, 2).complete(2).add()
        assert history.lease(3, 3).violated(unfinished="x") == {OVERCOUNTED}


class TestInterruptedItemsAreReleased:
    def test_the_item_is_released_before_the_worker_exits(self) -> None:
        history = HistoryBuilder().add().lease(1).begin(1).end(1, "interrupted")
        assert not history.violated(unfinished="x"), "the worker was killed"
        assert history.exit().violated(unfinished="x") == {UNRELEASED}

    def test_an_item_whose_lease_was_lost_need_not_be_released(self) -> None:
        assert not HistoryBuilder().add().lease(1).begin(1).end(1, "lost").exit().violated(unfinished="x")

    def test_an_item_whose_renewal_was_rejected_need_not_be_released(self) -> None:
        history = (
            HistoryBuilder().add().lease(1).begin(1).call("renew", "x", 1, answer=False).end(1, "interrupted")
        )
        assert not history.exit().violated(unfinished="x")

    @pytest.mark.parametrize("outcome", ["unsent", "unknown"])
    def test_an_item_need_not_be_released_while_the_server_is_away(self, outcome: str) -> None:
        history = HistoryBuilder().add().add("y").lease(1).lease(2, item="y").begin(1).end(1, "interrupted")
        call = history.call("complete", "y", 2, answer=None).events[-1]
        history.events.append(call._replace(at=history.now(), called_at=call.at, outcome=outcome))
        assert not history.exit().violated(unfinished="xy")
