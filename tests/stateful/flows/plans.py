"""Draw plans of flow runs: small graphs with all joins and choices, and stages of all kinds.

A stage is an item, also one that begins at a time; a wait for a signal; children; a run of another flow; or
none of these, only a join. A child that a stage fans out to is an item, a chain or a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from leasequeue.queue.plans.plan import CHAIN, ChildPlan, FlowPlan, StagePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICIES = ("all", "all", "settled", "fail", "fail_fast")
NAMES = "abcde"
#: When a stage begins: ms after the start, or at the time in an attribute. One that has no time fails, and a
#: retry begins it at once.
BEGINS: tuple[int | str, ...] = (90_000, "@when")
#: A time, 200 s after the tests begin.
WHEN = b'"2023-11-14T22:16:40Z"'


def joins(of: int) -> st.SearchStrategy[str]:
    """Draw a join of so many edges or children."""
    return st.sampled_from([*POLICIES, *(f"n:{n}" for n in range(1, of + 1))])


@st.composite
def children(draw: st.DrawFn, queues: Sequence[str], at_most: int = 3) -> tuple[tuple[ChildPlan, ...], str]:
    """Draw children and their join."""
    places = draw(st.lists(st.sampled_from(queues), min_size=1, max_size=at_most))
    return tuple(ChildPlan(queue, b'"child"') for queue in places), draw(joins(len(places)))


@st.composite
def fans(draw: st.DrawFn, queues: Sequence[str]) -> tuple[tuple[ChildPlan, ...], str]:
    """Draw what a stage fans out to: items, chains and groups; and their join."""

    def drawn(depth: int) -> ChildPlan:
        if depth == 2 or draw(st.booleans()):
            return ChildPlan(draw(st.sampled_from(queues)), b'"child"')
        parts = tuple(drawn(depth + 1) for _ in range(draw(st.integers(1, 3))))
        policy = draw(st.one_of(st.just(CHAIN), st.just(CHAIN), joins(len(parts))))
        return ChildPlan("", b"", parts=parts, policy=policy)

    found = tuple(drawn(0) for _ in range(draw(st.integers(1, 3))))
    return found, draw(joins(len(found)))


@st.composite
def plans(draw: st.DrawFn, queues: Sequence[str], at_most: int = len(NAMES)) -> FlowPlan:
    """Draw a plan of up to five stages, whose first ones come first.

    Args:
        draw: What Hypothesis draws with.
        queues: The names of the queues, the home first.
        at_most: How many stages it has; with fewer than five, none is a flow.
    """
    stages = []
    kinds = ["item", "item", "item", "item", "none", "children", "time"]
    kinds += ["flow"] if at_most == len(NAMES) else []
    for number in range(draw(st.integers(1, at_most))):
        earlier = NAMES[:number]
        # Most graphs are connected.
        after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        kind = draw(st.sampled_from(kinds))
        fans, policy = draw(children(queues)) if kind == "children" else ((), "all")
        waits = kind == "item" and draw(st.integers(0, 4)) == 0  # for a signal
        if kind in {"time", "flow"}:
            at = draw(st.sampled_from(BEGINS)) if kind == "time" else None
            join = draw(joins(len(after))) if after else "all"
            flow = "inner" if kind == "flow" else ""
            stages.append(
                StagePlan(NAMES[number], queues[0], b"1", tuple(after), join=join, at=at, flow=flow)
            )
            continue
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
        attributes={"user": b"[1, 2.50]", "when": WHEN},
        flow=draw(st.sampled_from(["", "access"])),
        lookup=draw(st.sampled_from([{}, {"user": ["1", "2"]}])),
        keep_ms=draw(st.sampled_from([86_400_000, 86_400_000, 0])),
    )
