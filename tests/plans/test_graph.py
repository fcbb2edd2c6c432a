"""Tests of the order of stages, and of whose results there are for certain."""

from __future__ import annotations

from leasequeue.queue.plans.plan import StagePlan, certain_before, stages_before


def node(*after: str, chooses: bool = False, join: str = "all") -> StagePlan:
    return StagePlan("", after=after, choice=chooses, join=join)


def test_all_stages_before_a_stage_are_its_stages_before() -> None:
    nodes = {"a": node(), "b": node("a"), "c": node("a"), "d": node("b", "c"), "e": node()}
    assert sorted(stages_before(nodes, "d") or ()) == ["a", "b", "c"]
    assert stages_before(nodes, "a") == []


def test_a_loop_and_an_unknown_stage_have_no_order() -> None:
    nodes = {
        "a": node("c"),
        "b": node("a"),
        "c": node("b"),
        "d": node("c"),
        "e": node("a", "?"),
        "f": node("f"),
    }
    assert {name: stages_before(nodes, name) for name in nodes} == dict.fromkeys(nodes)


def test_a_stage_whose_join_waits_for_all_has_all_results() -> None:
    nodes = {
        "a": node(),
        "b": node("a"),
        "c": node("a"),
        "d": node("b", "c"),
        "f": node("b", "c", join="fail"),
    }
    assert certain_before(nodes, "d") == certain_before(nodes, "f") == {"a", "b", "c"}


def test_a_stage_that_was_not_chosen_may_have_no_result() -> None:
    nodes = {"a": node(chooses=True), "b": node("a"), "c": node("a"), "d": node("b", "c"), "e": node("b")}
    assert certain_before(nodes, "b") == {"a"}
    assert certain_before(nodes, "d") == {"a"}
    assert certain_before(nodes, "e") == {"a", "b"}


def test_a_stage_that_follows_a_choice_and_another_stage_has_the_result_of_the_other() -> None:
    nodes = {"a": node(chooses=True), "b": node("a"), "x": node(), "d": node("b", "x")}
    assert certain_before(nodes, "d") == {"x"}


def test_a_chooser_among_those_before_a_stage_has_succeeded_also_if_it_did_not_choose_it() -> None:
    nodes = {"a": node(chooses=True), "x": node(), "d": node("a", "x")}
    assert certain_before(nodes, "d") == {"a", "x"}


def test_a_settled_join_promises_no_results() -> None:
    nodes = {"a": node(), "b": node("a"), "c": node("a"), "d": node("b", "c", join="settled")}
    assert certain_before(nodes, "d") == set()


def test_a_join_of_some_promises_what_all_of_them_have() -> None:
    nodes = {
        "a": node(),
        "b": node("a"),
        "c": node("a"),
        "d": node("b", "c", join="n:1"),
        "e": node("b", join="n:1"),
    }
    assert certain_before(nodes, "d") == {"a"}
    assert certain_before(nodes, "e") == {"a", "b"}


def test_long_chains_are_no_problem() -> None:
    nodes = {f"s{i}": node(*([f"s{i - 1}"] if i else [])) for i in range(500)}
    assert len(certain_before(nodes, "s499")) == 499
