"""A rule machine of calls on whole queues: two queues, and calls of which some are stopped in the middle.

They are purged and deleted; items are moved between them, recovered, and leased from both. After each call
no item is lost or in two places, and each keeps its data, options, attempts and last error. What is leased
outlives a purge; a queue that is being deleted takes no item; no earlier holder can complete an item that was
moved. Nothing is left of the lanes once the last item with a level or a group has left, and of an empty queue
nothing but the fence. In the end every item is leased once, and no key is left.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.stateful.flows.cutting import stoppable_scripts
from tests.stateful.live import run_machine
from tests.stateful.whole.world import World

pytestmark = [pytest.mark.core, pytest.mark.slow, pytest.mark.timeout(1800)]

_names = itertools.count()
#: `World.furnish` has added most of them; the last ones are odd.
IDS = st.lists(st.sampled_from([*"abcdefghijxyz", "b:c", "*", "{ü}"]), min_size=1, max_size=5)
SIDES = st.integers(0, 1)
LEVELS = st.sampled_from([-3, 0, 0, 0, 2])
GROUPS = st.sampled_from([None, None, "g", "ü/*"])
#: How many examples the quick test takes, each time the same.
QUICK = 10
#: After how many writes a call stops; most do not.
STOPS = st.one_of(st.none(), st.none(), st.integers(0, 20))


class WholeQueueMachine(RuleBasedStateMachine):
    """Calls two queues, and lets the world check them."""

    url: str

    @initialize()
    def begin(self) -> None:
        self.world = World(self.url, f"whole-{next(_names)}")
        for side in self.world.sides:
            self.world.furnish(side)

    @rule(at=SIDES, ids=IDS, delay=st.sampled_from([0, 0, 0, 500]), priority=LEVELS, group=GROUPS)
    def add(self, at: int, ids: list[str], delay: int, priority: int, group: str | None) -> None:
        self.world.add(self.world.sides[at], ids, delay=delay, priority=priority, group=group)

    @rule(at=SIDES, count=st.integers(1, 6), stop=STOPS)
    def lease_from_both(self, at: int, count: int, stop: int | None) -> None:
        self.world.lease(at, count, stop=stop)

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(min_value=0))
    def complete(self, pick: int) -> None:
        self.world.complete(*self.world.held[pick % len(self.world.held)])

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(min_value=0), retry_in=st.sampled_from([0, 500]))
    def fail(self, pick: int, retry_in: int) -> None:
        self.world.fail(*self.world.held[pick % len(self.world.held)], retry_in)

    @rule(at=SIDES, ids=IDS)
    def cancel(self, at: int, ids: list[str]) -> None:
        self.world.cancel(self.world.sides[at], ids)

    @rule(at=SIDES, limits=st.booleans())
    def limit(self, at: int, limits: bool) -> None:  # noqa: FBT001 - Hypothesis fills it in
        self.world.limit(self.world.sides[at], limits=limits)

    @rule(at=SIDES, count=st.sampled_from([None, None, 1, 2, 4]), stop=STOPS)
    def move(self, at: int, count: int | None, stop: int | None) -> None:
        self.world.move(at, count=count, ids=None, stop=stop)

    @rule(at=SIDES, ids=IDS, stop=STOPS)
    def move_some(self, at: int, ids: list[str], stop: int | None) -> None:
        self.world.move(at, count=None, ids=ids, stop=stop)

    @rule(at=SIDES, scheduled=st.booleans(), stop=STOPS)
    def purge(self, at: int, scheduled: bool, stop: int | None) -> None:  # noqa: FBT001 - Hypothesis fills it in
        self.world.purge(self.world.sides[at], scheduled=scheduled, stop=stop)

    @rule(at=SIDES, stop=STOPS)
    def delete(self, at: int, stop: int | None) -> None:
        self.world.delete(self.world.sides[at], stop=stop)
        if not self.world.sides[at].model.items:
            self.world.furnish(self.world.sides[at])

    @rule(at=SIDES, count=st.integers(1, 4), elapsed=st.sampled_from([0, 50]), stop=STOPS)
    def recover(self, at: int, count: int, elapsed: int, stop: int | None) -> None:
        self.world.recover(self.world.sides[at], count, elapsed, stop=stop)

    @rule(at=SIDES, stop=STOPS)
    def clear_leases(self, at: int, stop: int | None) -> None:
        self.world.clear_leases(self.world.sides[at], stop=stop)

    @rule(at=SIDES, thorough=st.booleans())
    def clean(self, at: int, thorough: bool) -> None:  # noqa: FBT001 - Hypothesis fills it in
        self.world.clean(self.world.sides[at], thorough=thorough)

    @rule(seconds=st.sampled_from([1, 60]))
    def move_the_clock(self, seconds: int) -> None:
        self.world.now += seconds * 1000

    @rule()
    def let_all_leases_expire(self) -> None:
        self.world.pass_time()

    @rule(at=SIDES, ids=IDS)
    def another_client_pushes_an_id(self, at: int, ids: list[str]) -> None:
        self.world.push(self.world.sides[at], ids[0])

    @rule(at=SIDES, waits=st.booleans())
    def a_process_waits(self, at: int, waits: bool) -> None:  # noqa: FBT001 - Hypothesis fills it in
        self.world.wait_for_items(self.world.sides[at], waits=waits)

    @invariant()
    def the_queues_are_those_of_the_model(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.empty()
            self.world.close()


@pytest.mark.parametrize("examples", [QUICK, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.seed("WRQ-O21", "WRQ-B7", "RRQ-O2")
def test_calls_on_whole_queues_lose_and_double_nothing(redis_url: str, examples: int) -> None:
    WholeQueueMachine.url = redis_url
    with stoppable_scripts():
        run_machine(WholeQueueMachine, examples, steps=30, repeats=examples == QUICK)  # the long one searches
