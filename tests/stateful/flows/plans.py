"""Draw plans of flow runs: small graphs with all joins, choices, children, and stages without items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICIES = ("all", "all", "settled", "fail", "fail_fast")
NAMES = "abcde"


def joins(of: int) -> st.SearchStrategy[str]:
    """Draw a join of so many edges or children."""
    return st.sampled_from([*POLICIES, *(f"n:{n}" for n in range(1, of + 1))])


@st.composite
def children(draw: st.DrawFn, queues: Sequence[str], at_most: int = 3) -> tuple[tuple[ChildPlan, ...], str]:
    """Draw children and their join."""
    places = draw(st.lists(st.sampled_from(queues), min_size=1, max_size=at_most))
    return tuple(ChildPlan(queue, b'"child"') for queue in places), draw(joins(len(places)))


@st.composite
def plans(draw: st.DrawFn, queues: Sequence[str]) -> FlowPlan:
    """Draw a plan of up to five stages, whose first ones come first."""
    stages = []
    for number in range(draw(st.integers(1, len(NAMES)))):
        earlier = NAMES[:number]
        # Most graphs are connected.
        after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        kind = draw(st.sampled_from(["item", "item", "item", "item", "none", "children"]))
        fans, policy = draw(children(queues)) if kind == "children" else ((), "all")
        waits = kind == "item" and draw(st.integers(0, 4)) == 0  # for a signal
        stages.append(
            StagePlan(
                NAMES[number],
                draw(st.sampled_from(queues)) if kind == "item" else "",
                b'"stage"' if kind == "item" else b"",
                tuple(after),
                join=draw(joins(len(after))) if after else "all",
                signal=waits,
                choice=kind == "item" and not waits and draw(st.integers(0, 4)) == 0,
                delay_ms=draw(st.sampled_from([90_000] if waits else [0, 0, 0, 90_000]))
                if kind == "item"
                else 0,
                expires_ms=draw(st.sampled_from([0, 0, 0, 200_000])) if kind == "item" else 0,
                level=draw(st.sampled_from([0, 0, 0, 2])) if kind == "item" else 0,
                children=fans,
                policy=policy,
            )
        )
    return FlowPlan(
        tuple(stages),
        result=stages[-1].name,
        attributes={"user": b"[1, 2.50]"},
        flow=draw(st.sampled_from(["", "access"])),
        lookup=draw(st.sampled_from([{}, {"user": ["1", "2"]}])),
        keep_ms=draw(st.sampled_from([86_400_000, 86_400_000, 0])),
    )
