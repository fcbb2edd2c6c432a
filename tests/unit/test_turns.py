"""The order in which a worker asks its queues."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasequeue.queue.leasing import MAX_ITEMS
from leasequeue.worker.turns import PART_BEHIND, Source, Turns

if TYPE_CHECKING:
    from leasequeue.worker.turns import Order


def make(*weights: float, order: Order = "weighted") -> tuple[Turns, list[Source]]:
    """Make sources with these weights, all of which may have items."""
    handlers: list[Any] = [SimpleNamespace(weight=weight, batch=None, lease_time=30) for weight in weights]
    sources = [Source(cast("Any", handler), place, []) for place, handler in enumerate(handlers)]
    turns = Turns(sources, order)
    for source in sources:
        turns.add(source)
    return turns, sources


def serve(turns: Turns, room: int, *, pace: float = 10_000.0) -> tuple[int, int]:
    """Make one call for a source with many items; return its place and how many runs it got."""
    source = turns.begin(room, 0, pace)
    assert source is not None
    turns.end(source, source.asked)
    turns.go_on(source)
    return source.place, source.asked


@settings(max_examples=20)
@given(weights=st.lists(st.sampled_from([0.5, 1, 2, 5]), min_size=2, max_size=5), room=st.integers(1, 500))
def test_queues_with_work_share_by_their_weights(weights: list[float], room: int) -> None:
    turns, _ = make(*weights)
    served = Counter[int]()
    for _ in range(4000):
        place, runs = serve(turns, room)
        served[place] += runs
    shares = [served[place] / weight for place, weight in enumerate(weights)]
    assert max(shares) < 1.5 * min(shares)


def test_the_only_queue_with_work_gets_all_the_room() -> None:
    turns, sources = make(1, 1, 1)
    for source in sources:
        assert turns.begin(1, 1, 0.0) is source
        turns.end(source, 0)
    for room in (1, 7, MAX_ITEMS, MAX_ITEMS * 3):
        turns.go_on(source)
        assert turns.begin(room, room, 100.0) is source
        assert source.asked == min(room, MAX_ITEMS)
        turns.end(source, source.asked)


def test_at_no_pace_each_queue_gets_one_slot() -> None:
    turns, sources = make(*[1.0] * 5)
    begun = [turns.begin(room, 5, 0.0) for room in (5, 4, 3, 2, 1)]
    assert begun == sources
    assert [source.asked for source in sources] == [1] * 5


def test_a_turn_that_is_not_over_goes_on_unless_its_call_takes_long() -> None:
    turns, [first, second] = make(1, 1)
    assert turns.begin(10, 0, 10_000.0) is first
    assert not turns
    assert turns.begin(10, 0, 10_000.0) is None
    turns.give_way(first)
    assert turns
    assert turns.begin(10, 0, 10_000.0) is second


def test_a_queue_that_fails_is_asked_for_one_item() -> None:
    turns, [first, second] = make(1, 1)
    first.failing = True
    assert turns.begin(100, 100, 1000.0) is first
    assert first.asked == 1
    assert turns.begin(100, 100, 1000.0) is second, "it does not hold the turn"


def test_a_queue_in_which_an_item_has_arrived_leaves_room_to_others() -> None:
    turns, [first, second] = make(1, 1)
    for source in (first, second):
        assert turns.begin(1, 1, 0.0) is source
        turns.end(source, 0)
    turns.add(first, is_new=True)
    assert turns.begin(100, 100, 0.0) is first
    assert first.asked == 25
    turns.end(first, 25)
    turns.go_on(first)
    assert turns.begin(100, 100, 0.0) is first
    assert first.asked == 100, "it has many"


@pytest.mark.parametrize("failing", [False, True])
def test_in_strict_order_a_later_queue_waits_for_the_call_of_an_earlier_one(*, failing: bool) -> None:
    turns, [first, second, third] = make(1, 9, 9, order="strict")
    first.failing = failing
    assert turns.begin(10, 10, 0.0) is first
    assert turns.begin(5, 5, 0.0) is (second if failing else None)
    if not failing:
        turns.end(first, 10)
        turns.go_on(first)
        assert turns.begin(5, 5, 0.0) is first, "it may have more"
        turns.end(first, 0)
        assert turns.begin(5, 5, 0.0) is second
    turns.end(second, 0)
    assert turns.begin(5, 5, 0.0) is third
    turns.add(first)
    turns.end(third, 5)
    turns.go_on(third)
    if not failing:
        assert turns.begin(5, 5, 0.0) is first


def make_shards(order: Order) -> tuple[Turns, list[Source]]:
    """Make two sources that are shards of one queue, with nothing known of their levels."""
    turns, sources = make(1, 1, order=order)
    for source in sources:
        turns.remove(source)
    for source in sources:
        source.siblings, source.place = sources, 0
        turns.add(source)
    return turns, sources


@pytest.mark.parametrize("order", ["weighted", "strict"])
def test_a_shard_gets_a_few_runs_while_another_one_may_have_a_higher_level(order: Order) -> None:
    turns, [first, second] = make_shards(order)
    assert turns.begin(200, 200, 10_000.0) is first
    few = first.asked
    assert few <= 200 // (2 * PART_BEHIND), "nothing is known of the second"
    turns.end(first, few)
    first.level = 0
    turns.go_on(first)
    assert turns.begin(200, 200, 10_000.0) is second
    assert second.asked <= 200 // (2 * PART_BEHIND), "nothing is known of it"
    turns.end(second, second.asked)
    second.level = 3
    turns.go_on(second)
    served = Counter[Source]()
    for _ in range(100):
        source = turns.begin(200, 200, 10_000.0)
        assert source is not None
        served[source] += source.asked
        turns.end(source, source.asked)
        turns.go_on(source)
    assert 0 < served[first] <= served[second] / PART_BEHIND
    while (source := turns.begin(200, 200, 10_000.0)) is not second:
        assert source is not None
        turns.end(source, 0)
        turns.go_on(source)
    turns.end(second, 0)  # and so it is empty
    assert turns.begin(200, 200, 10_000.0) is first
    assert first.asked > few


@pytest.mark.parametrize("order", ["weighted", "strict"])
def test_a_shard_whose_call_takes_long_holds_up_no_other(order: Order) -> None:
    turns, [first, second] = make_shards(order)
    first.level, second.level = 3, 0
    assert turns.begin(200, 200, 10_000.0) is first
    turns.give_way(first)
    assert turns.begin(200, 200, 10_000.0) is second
    assert second.asked > 200 // (2 * PART_BEHIND)
