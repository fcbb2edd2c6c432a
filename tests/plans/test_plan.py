"""Plans of flow runs: the order of stages, what is refused, and that they are read as they were written."""

from __future__ import annotations

import pytest

from leasequeue.errors import InvalidArgument, InvalidFlow, JobFailed
from leasequeue.queue.plans.plan import (
    AtLeast,
    ChildPlan,
    FlowPlan,
    StagePlan,
    certain_before,
    check_run_id,
    join_text,
    parse_stages,
    stages_before,
)


def plan_of(*stages: StagePlan, result: str | None = None) -> FlowPlan:
    return FlowPlan(stages, result, flow="access")


CHECK = StagePlan("check", "q", b'{"n": 1.10}')
CHILDREN = (ChildPlan("q", b"1", 2, "g", 30), ChildPlan("r", b"2", foreign=True))


def layers(count: int, width: int) -> list[StagePlan]:
    """Return stages of which each follows all of the layer before."""
    before: tuple[str, ...] = ()
    stages = []
    for layer in range(count):
        names = tuple(f"s{layer}.{i}" for i in range(width))
        stages += [StagePlan(name, "q", after=before) for name in names]
        before = names
    return stages


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (plan_of(), "it has no stages"),
        (plan_of(CHECK, CHECK), "two stages have the name 'check'"),
        (plan_of(StagePlan("a/b", "q")), "'a/b': expected a name"),
        (plan_of(CHECK, result="member"), "its result is that of 'member'"),
        (plan_of(StagePlan("b", "q", after=("a",))), "'b' follows 'a': there is no stage 'a'"),
        (plan_of(StagePlan("b", "q", then=("a",))), "'b' is followed by 'a': there is no stage 'a'"),
        (plan_of(StagePlan("a", "q", after=("a",))), "it has a loop: a → a"),
        (
            plan_of(
                CHECK,
                StagePlan("b", "q", after=("check", "d")),
                StagePlan("c", "q", after=("b",)),
                StagePlan("d", "q", after=("c",)),
                StagePlan("e", "q", after=("d",)),
            ),
            "it has a loop: b → c → d → b",
        ),
        (plan_of(CHECK, StagePlan("b", "q", after=("check",), join="some")), "has the join 'some'"),
        (plan_of(CHECK, StagePlan("b", "q", after=("check",), join="n:2")), "waits for 2 of its 1 stages"),
        (plan_of(StagePlan("b", children=CHILDREN, policy="n:3")), "waits for 3 of its 2 children"),
        (plan_of(StagePlan("b", children=(ChildPlan("", b""),))), "has a child without a queue"),
        (plan_of(CHECK, *(StagePlan(f"{i}", "q", after=("check",)) for i in range(251))), "251 successors"),
        (plan_of(*(StagePlan(f"{i}", "q") for i in range(2001))), "it has 2,001 stages"),
        (plan_of(*layers(10, 16)), "more than 2,000 edges come after stage 's0.0'"),
        (plan_of(StagePlan("a", "q", b"\xff")), "stage 'a': data: got"),
        (FlowPlan((CHECK,), lookup={"guilds": ["1"] * 251}), "more than 250 values"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(plan: FlowPlan, problem: str) -> None:
    with pytest.raises(InvalidFlow, match=problem.replace("(", r"\(")) as caught:
        plan.fields()
    assert caught.value.flow == plan.flow


def test_a_long_chain_and_few_wide_layers_are_not_refused() -> None:
    chain = [StagePlan("0", "q"), *(StagePlan(f"{i}", "q", after=(f"{i - 1}",)) for i in range(1, 2000))]
    for stages in (chain, layers(9, 15)):
        assert plan_of(*stages).fields()


def test_a_plan_is_read_as_it_was_written() -> None:
    """Both directions of an edge may be given; numbers in the data keep their digits."""
    plan = plan_of(
        CHECK,
        StagePlan("a", "q", b"{}", then=("end",), choice=True, after=("check",)),
        StagePlan("b", "r", b"x", after=("check",), level=-2, group="g", delay_ms=5, expires_ms=9),
        StagePlan("group", after=("check",), children=CHILDREN, policy="n:1"),
        StagePlan("end", after=("b", "group"), join="settled", foreign=True),
        result="end",
    )
    stages = parse_stages(dict(plan.fields()))
    assert {stage.name: {*stage.after} for stage in stages}["end"] == {"a", "b", "group"}
    assert stages == plan.linked().stages
    assert stages[0].data == b'{"n": 1.10}'
    assert stages[0].then == ("a", "b", "group")


@pytest.mark.parametrize("bad", ["", "some", "n:", "n:0", "n:-1", "n:x", 3, AtLeast(0)])
def test_an_unknown_join_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument):
        join_text(bad)


def test_a_join_of_some_is_stored_as_a_text() -> None:
    assert join_text(AtLeast(3)) == join_text("n:3") == "n:3"


@pytest.mark.parametrize("bad", ["", "a/b", "a\0b", "x" * 201, "\ud800", 7])
def test_an_id_that_paths_could_not_follow_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument, match="id: got"):
        check_run_id(bad)


def test_the_error_of_a_run_names_its_stage() -> None:
    error = JobFailed("r", "ValueError: no access", stage="check")
    assert (error.stage, error.type, error.message) == ("check", "ValueError", "no access")
    assert str(error) == "the flow run 'r' has failed at stage 'check': ValueError: no access"


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


#: Whose results a stage is sure to have.
CERTAIN: dict[str, tuple[dict[str, StagePlan], dict[str, set[str]]]] = {
    "a join that waits for all": (
        {"a": node(), "b": node("a"), "c": node("a"), "d": node("b", "c"), "f": node("b", "c", join="fail")},
        {"d": {"a", "b", "c"}, "f": {"a", "b", "c"}},
    ),
    "a stage that was not chosen": (
        {"a": node(chooses=True), "b": node("a"), "c": node("a"), "d": node("b", "c"), "e": node("b")},
        {"b": {"a"}, "d": {"a"}, "e": {"a", "b"}},
    ),
    "a choice, and another stage": (
        {"a": node(chooses=True), "b": node("a"), "x": node(), "d": node("b", "x")},
        {"d": {"x"}},
    ),
    "what follows a stage that was not chosen, and another stage": (
        {"a": node(chooses=True), "b": node("a"), "c": node("b"), "x": node(), "d": node("c", "x")},
        {"d": {"x"}},
    ),
    "a chooser, which has succeeded also if it did not choose the stage": (
        {"a": node(chooses=True), "x": node(), "d": node("a", "x"), "y": node(), "e": node("d", "y")},
        {"d": {"a", "x"}, "e": {"a", "d", "x", "y"}},
    ),
    "a settled join": (
        {"a": node(), "b": node("a"), "c": node("a"), "d": node("b", "c", join="settled")},
        {"d": set()},
    ),
    "a join of some, which has what all of them have": (
        {
            "a": node(),
            "b": node("a"),
            "c": node("a"),
            "d": node("b", "c", join="n:1"),
            "e": node("b", join="n:1"),
        },
        {"d": {"a"}, "e": {"a", "b"}},
    ),
}


@pytest.mark.parametrize(("nodes", "certain"), CERTAIN.values(), ids=CERTAIN)
def test_a_stage_is_sure_to_have_the_results_of_those_before_it_that_must_have_succeeded(
    nodes: dict[str, StagePlan], certain: dict[str, set[str]]
) -> None:
    assert {name: certain_before(nodes, name) for name in certain} == certain


def test_long_chains_are_no_problem() -> None:
    nodes = {f"s{i}": node(*([f"s{i - 1}"] if i else [])) for i in range(500)}
    assert len(certain_before(nodes, "s499")) == 499
