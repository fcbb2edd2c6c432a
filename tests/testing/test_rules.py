"""The rules of a right history: for each, stories that keep it and stories that break it."""

from __future__ import annotations

import pytest

from leasehold.testing.history import RULES
from tests.testing.stories import Story

LOST = "nothing is lost"
TWICE = "one True per incarnation"
READDED = "no item is added while it is there"
NUMBERS = "tokens grow"
BEGINS = "nothing begins when it is completed"
HOLDERS = "only the holder decides"
COUNTED = "every attempt is counted"
NOT_COUNTED = "what was given back was no attempt"
GIVEN_BACK = "interrupted runs are given back"


def test_all_rules_are_told_of() -> None:
    assert set(RULES) == {
        LOST, TWICE, READDED, NUMBERS, BEGINS, HOLDERS, COUNTED, NOT_COUNTED, GIVEN_BACK
    }  # fmt: skip


def test_an_empty_history_is_right() -> None:
    assert not Story().broken()


def test_an_item_is_added_run_and_completed() -> None:
    story = Story().add().lease(1).begin(1).end(1).complete(1).exit()
    assert not story.broken()


class TestNothingIsLost:
    def test_an_added_item_may_still_be_there(self) -> None:
        assert not Story().add().broken(unfinished="x")

    def test_an_added_item_may_not_be_gone(self) -> None:
        assert Story().add().broken() == {LOST}

    def test_without_a_final_state_nobody_knows(self) -> None:
        assert not Story().add().broken(unknown_end=True)

    def test_an_add_without_an_answer_may_have_come_to_nothing(self) -> None:
        assert not Story().add(answer=None).broken()

    def test_a_leased_item_may_not_be_gone(self) -> None:
        assert Story().add().lease(1).begin(1).broken() == {LOST}

    def test_a_refused_completion_completes_nothing(self) -> None:
        assert Story().add().lease(1).complete(1, answer=False).broken() == {LOST}

    def test_a_completion_whose_answer_was_lost_may_count(self) -> None:
        assert not Story().add().lease(1).complete(1, answer=None).broken()

    def test_a_completion_of_long_ago_is_no_excuse(self) -> None:
        story = Story().add().lease(1).complete(1, answer=None).complete(1, answer=False).add()
        assert story.broken() == {LOST}

    def test_the_second_incarnation_may_not_be_gone(self) -> None:
        assert Story().add().lease(1).complete(1).add().broken() == {LOST}

    def test_a_dead_letter_stays(self) -> None:
        story = Story().add().lease(1).call("die", "x", 1)
        assert not story.broken(dead="x")
        assert story.broken() == {LOST}

    @pytest.mark.parametrize("answer", [True, None])
    def test_a_dead_letter_may_be_dropped(self, answer: bool | None) -> None:  # noqa: FBT001 - a parameter
        assert not Story().add().lease(1).call("die", "x", 1).call("drop", "x", answer=answer).broken()

    def test_a_requeued_item_may_not_be_gone(self) -> None:
        story = Story().add().lease(1).call("die", "x", 1).call("requeue", "x")
        assert not story.broken(unfinished="x")
        assert story.broken() == {LOST}


class TestOneTrue:
    def test_the_second_of_two_holders_is_told_false(self) -> None:
        story = Story().add().lease(1).lease(2, 2)
        assert not story.complete(1).complete(2, answer=False).broken()

    def test_two_holders_may_not_both_be_told_true(self) -> None:
        assert Story().add().lease(1).lease(2, 2).complete(1).complete(2).broken() == {TWICE}

    def test_one_holder_may_not_be_told_true_twice(self) -> None:
        assert Story().add().lease(1).complete(1).complete(1).broken() == {TWICE}

    @pytest.mark.parametrize("answer", [True, None])
    def test_each_incarnation_has_its_own(self, answer: bool | None) -> None:  # noqa: FBT001 - a parameter
        story = Story().add().lease(1).complete(1).add(answer=answer).lease(2).complete(2)
        assert not story.broken()

    def test_an_add_of_long_ago_is_no_second_incarnation(self) -> None:
        story = Story().add().lease(1).complete(1).add().lease(2).complete(2)
        assert story.lease(3).complete(3).broken() == {TWICE}

    def test_a_refused_add_is_no_second_incarnation(self) -> None:
        story = Story().add().lease(1).complete(1).add(answer=False).lease(2).complete(2)
        assert story.broken() == {TWICE}

    def test_a_dead_letter_is_requeued_before_it_is_completed(self) -> None:
        story = Story().add().lease(1).call("die", "x", 1)
        assert not Story.complete(story.call("requeue", "x").lease(2), 2).broken()

    def test_a_completed_item_may_not_die(self) -> None:
        assert Story().add().lease(1).complete(1).call("die", "x", 1).broken(dead="x") == {TWICE}

    def test_what_was_completed_is_gone(self) -> None:
        assert Story().add().lease(1).complete(1).broken(unfinished="x") == {TWICE}


class TestAddingAgain:
    def test_it_is_refused_while_the_item_is_there(self) -> None:
        assert not Story().add().add(answer=False).broken(unfinished="x")

    def test_it_may_not_be_granted_while_the_item_is_there(self) -> None:
        assert Story().add().add().broken(unfinished="x") == {READDED}

    def test_it_may_come_while_the_completion_is_under_way(self) -> None:
        story = Story().add().lease(1)
        asked = story.now()
        story.add().complete(1, asked=asked)
        assert not story.broken(unfinished="x")

    def test_it_may_follow_a_completion_whose_answer_was_lost(self) -> None:
        assert not Story().add().lease(1).complete(1, answer=None).add().broken(unfinished="x")


class TestNumbers:
    def test_a_later_lease_has_a_greater_number(self) -> None:
        story = Story().add("x").add("y").lease(2)
        assert story.lease(1, item="y").broken(unfinished="xy") == {NUMBERS}

    def test_two_leases_under_way_at_once_may_be_told_in_any_order(self) -> None:
        story = Story().add("x").add("y")
        asked = story.now()
        story.lease(2, asked=asked).lease(1, item="y", asked=asked)
        assert not story.broken(unfinished="xy")

    def test_no_number_is_given_twice(self) -> None:
        story = Story().add("x").add("y")
        asked = story.now()
        story.lease(1, asked=asked).lease(1, item="y", asked=asked)
        assert story.broken(unfinished="xy") == {NUMBERS}

    def test_numbers_go_on_over_incarnations(self) -> None:
        story = Story().add().lease(7).complete(7).add().lease(3).complete(3)
        assert NUMBERS in story.broken()


class TestBegins:
    def test_no_run_begins_after_its_own_completion(self) -> None:
        assert Story().add().lease(1).complete(1).begin(1).broken() == {BEGINS}

    def test_no_run_begins_after_a_later_holder_has_completed(self) -> None:
        story = Story().add().lease(1).lease(2, 2).complete(2)
        assert story.begin(1).broken() == {BEGINS}

    def test_a_run_may_have_begun_before(self) -> None:
        story = Story().add().lease(1).begin(1).lease(2, 2).begin(2).complete(2)
        assert not story.complete(1, answer=False).broken()

    def test_a_run_in_hand_may_begin_after_an_earlier_holder_has_completed(self) -> None:
        assert not Story().add().lease(1).lease(2, 2).complete(1).begin(2).broken()

    def test_what_an_earlier_holder_completed_is_not_leased_again(self) -> None:
        story = Story().add().lease(1).complete(1).lease(2, 2).begin(2)
        assert BEGINS in story.broken()

    def test_the_next_incarnation_begins(self) -> None:
        assert not Story().add().lease(1).complete(1).add().lease(2).begin(2).complete(2).broken()


class TestHolders:
    @pytest.mark.parametrize("kind", ["renew", "retry", "release"])
    def test_only_the_current_holder_may(self, kind: str) -> None:
        def story(answer: bool) -> Story:  # noqa: FBT001 - the one thing that differs
            return Story().add().lease(1).lease(2, 2).call(kind, "x", 1, answer=answer)  # type: ignore[arg-type]  # one of them

        assert not story(answer=False).broken(unfinished="x")
        assert HOLDERS in story(answer=True).broken(unfinished="x")

    def test_no_item_dies_of_its_earlier_holder(self) -> None:
        assert Story().add().lease(1).lease(2, 2).call("die", "x", 1).broken(dead="x") == {HOLDERS}

    def test_what_was_asked_for_before_may_be_told_later(self) -> None:
        story = Story().add().lease(1)
        asked = story.now()
        story.lease(2).call("release", "x", 1, asked=asked)
        assert not story.broken(unfinished="x")


class TestAttempts:
    @pytest.mark.parametrize(("second", "broken"), [(1, {COUNTED}), (2, set()), (3, {NOT_COUNTED})])
    def test_a_crash_counts_once(self, second: int, broken: set[str]) -> None:
        assert Story().add().lease(1).begin(1).lease(2, second).broken(unfinished="x") == broken

    @pytest.mark.parametrize(("second", "broken"), [(1, {COUNTED}), (2, set()), (3, {NOT_COUNTED})])
    def test_a_failure_counts_once(self, second: int, broken: set[str]) -> None:
        story = Story().add().lease(1).begin(1).end(1, "raised").call("retry", "x", 1)
        assert story.lease(2, second).broken(unfinished="x") == broken

    @pytest.mark.parametrize(("second", "broken"), [(0, {COUNTED}), (1, set()), (2, {NOT_COUNTED})])
    def test_an_interrupted_run_does_not_count(self, second: int, broken: set[str]) -> None:
        story = Story().add().lease(1).begin(1).end(1, "interrupted").call("release", "x", 1).exit()
        assert story.lease(2, second, by="v").broken(unfinished="x") == broken

    def test_a_refused_release_takes_nothing_back(self) -> None:
        story = Story().add().lease(1).call("release", "x", 1, answer=False)
        assert story.lease(2, 1).broken(unfinished="x") == {COUNTED}

    @pytest.mark.parametrize("second", [1, 2])
    def test_a_release_without_an_answer_may_have_counted(self, second: int) -> None:
        story = Story().add().lease(1).call("release", "x", 1, answer=None)
        assert not story.lease(2, second).broken(unfinished="x")

    @pytest.mark.parametrize(("later", "broken"), [(2, set()), (3, set()), (4, {NOT_COUNTED})])
    def test_leases_that_nobody_told_of_may_have_been_of_this_item(
        self, later: int, broken: set[str]
    ) -> None:
        assert Story().add().lease(1).lease(3, later).broken(unfinished="x") == broken

    @pytest.mark.parametrize(("first", "broken"), [(1, set()), (2, {NOT_COUNTED})])
    def test_the_first_attempt_is_the_first(self, first: int, broken: set[str]) -> None:
        assert Story().add().lease(1, first).broken(unfinished="x") == broken

    def test_the_next_incarnation_begins_with_the_first_attempt(self) -> None:
        story = Story().add().lease(1).lease(2, 2).complete(2).add()
        assert not story.lease(3, 1).broken(unfinished="x")

    def test_a_completion_of_long_ago_does_not_end_a_later_incarnation(self) -> None:
        story = Story().add().lease(1).complete(1, answer=None).add()
        assert story.lease(2, 1).lease(3, 1).broken(unfinished="x") == {COUNTED}

    def test_the_next_incarnation_does_not_go_on_counting(self) -> None:
        story = Story().add().lease(1).lease(2, 2).complete(2).add()
        assert story.lease(3, 3).broken(unfinished="x") == {NOT_COUNTED}


class TestInterrupted:
    def test_its_item_is_given_back_before_the_worker_leaves(self) -> None:
        story = Story().add().lease(1).begin(1).end(1, "interrupted")
        assert not story.broken(unfinished="x"), "it was killed"
        assert story.exit().broken(unfinished="x") == {GIVEN_BACK}

    def test_one_whose_lease_was_lost_has_nothing_to_give_back(self) -> None:
        assert not Story().add().lease(1).begin(1).end(1, "lost").exit().broken(unfinished="x")

    def test_one_that_is_known_to_be_lost_has_nothing_to_give_back(self) -> None:
        story = Story().add().lease(1).begin(1).call("renew", "x", 1, answer=False).end(1, "interrupted")
        assert not story.exit().broken(unfinished="x")

    @pytest.mark.parametrize("outcome", ["unsent", "unknown"])
    def test_nobody_can_give_back_when_the_server_is_away(self, outcome: str) -> None:
        story = Story().add().add("y").lease(1).lease(2, item="y").begin(1).end(1, "interrupted")
        ask = story.call("complete", "y", 2, answer=None).events[-1]
        story.events.append(ask._replace(at=story.now(), asked=ask.at, outcome=outcome))
        assert not story.exit().broken(unfinished="xy")
