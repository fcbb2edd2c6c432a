"""A rule machine of levels, groups, batches, limits and pauses, on a real queue.

After each lease, what was leased was permitted: nothing of a paused queue or group, never more at once or
in a time than the limits say, and no item while one of a higher level was permitted. Nor is too little
leased: if the limits permit an item, a lease finds it. Items that gather are leased when enough are there, or
their time is over. In the end every item is leased, and no key is left.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leasequeue import Item
from tests.stateful.live import Live, run_machine
from tests.stateful.model import Held, Known, Model

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from leasequeue import Lease

pytestmark = [pytest.mark.core, pytest.mark.slow]

T = TypeVar("T")
_names = itertools.count()
GROUPS = st.sampled_from([None, "a", "b", "ü/*"])
LEVELS = st.sampled_from([-9, -1, 0, 0, 3])
#: Longer than the clock moves in a run: no lease expires before the end.
LONG = 1_000_000
RATE_SECONDS = 10
BATCH, SIZE, WAIT_MS = "batch:2:20000:c", 2, 20_000


class ControlMachine(RuleBasedStateMachine):
    """Calls a queue, and checks what it leases."""

    url: str

    @initialize(limited=st.sampled_from([(), (None, 2), ("*", 1)]))
    def begin(self, limited: tuple[()] | tuple[str | None, int]) -> None:
        self.name = f"control-{next(_names)}"
        self.live = Live(self.url)
        self.queue = self.live.open(self.name)
        self.model = Model()
        self.held: dict[str, Lease] = {}
        self.paused: set[str | None] = set()
        self.limits: dict[str | None, int] = {}
        self.burst = 0
        self.leased_at: list[float] = []
        self.ids = itertools.count()
        #: Since when items gather, and how many more of a batch the same call may lease, once it has one.
        self.since: dict[str, int] = {}
        self.left_of_batch: int | None = None
        #: Whether an item has returned to those that gather: its place, and so their time, is not modelled.
        self.has_returned = False
        if limited:
            # Some items have to wait for a slot from the beginning.
            self.limit(*limited)
            self.add(0, "a", 3)
            self.add(3, "b", 2)
            self.lease(5)

    @property
    def now(self) -> float:
        return self.live.now / 1000

    @property
    def waiting(self) -> dict[str, Known]:
        return {one: self.model.items[one] for one in self.model.ids("waiting")}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.live.wait(work)

    def permits(self, group: str | None, *, returned: bool = False) -> bool:
        """Return whether an item of a group may be leased now; `returned`: the answer where it is unknown."""
        running = Counter(self.model.items[one].group for one in self.held)
        others = None not in self.paused and group not in self.paused
        if group == BATCH:
            others = others and (returned if self.has_returned else self.is_complete())
        in_queue = len(self.held) < self.limits.get(None, LONG)
        of_each = LONG if group == BATCH else self.limits.get("*", LONG)  # it would cut batches
        in_group = group is None or running[group] < self.limits.get(group, of_each)
        return others and in_queue and in_group and not self.is_rate_used()

    def is_complete(self) -> bool:
        """Return whether a batch may be leased now: one of a lane in a call."""
        if self.left_of_batch is not None:
            return self.left_of_batch > 0
        gathering = self.gathering()
        due = (self.since[one] + WAIT_MS <= self.live.now for one in gathering)
        return len(gathering) >= SIZE or any(due)

    def gathering(self) -> list[str]:
        return [one for one, its in self.waiting.items() if its.group == BATCH]

    def is_rate_used(self) -> bool:
        """Return whether the rate permits nothing now: GCRA over all leases since it was set."""
        till = 0.0
        for at in self.leased_at:
            till = max(till, at) + RATE_SECONDS
        return bool(self.burst) and till > self.now + (self.burst - 1) * RATE_SECONDS

    @rule(count=st.integers(1, 3))
    def add_to_batch(self, count: int) -> None:
        self.add(0, BATCH, count)

    @rule(level=LEVELS, group=GROUPS, count=st.integers(1, 4))
    def add(self, level: int, group: str | None, count: int) -> None:
        ids = [f"i{next(self.ids)}" for _ in range(count)]
        added = self.queue.add_items([Item(b"", one) for one in ids], priority=level, group=group)
        assert all(self.run(added))
        assert all(self.model.add(one, Known(b"", level, group), self.live.now) for one in ids)
        self.since |= dict.fromkeys(ids, self.live.now)

    @rule(count=st.integers(1, 5))
    def lease(self, count: int) -> None:
        leases = self.run(self.queue.lease_many(count, LONG, block=False))
        for lease in leases:
            waiting, known = self.waiting, self.model.items[lease.id]
            assert lease.id in waiting
            assert self.permits(known.group, returned=True), f"{lease.id} was leased"
            higher = {
                one for one, its in waiting.items() if its.level > known.level and self.permits(its.group)
            }
            assert not higher, f"{lease.id} was leased before {higher}"
            if known.group == BATCH:
                self.left_of_batch = (self.left_of_batch or min(SIZE, len(self.gathering()))) - 1
            self.model.grant(Held(lease.id, lease.token), self.live.now, LONG * 1000)
            self.held[lease.id] = lease
            self.leased_at.append(self.now)
        self.has_returned = self.has_returned and bool(self.gathering())
        if len(leases) < count:
            assert not {one for one, its in self.waiting.items() if self.permits(its.group)}, "missed"
        self.left_of_batch = None

    @precondition(lambda self: self.held)
    @rule(
        pick=st.integers(min_value=0), how=st.sampled_from(["complete", "release", "fail", "end", "cancel"])
    )
    def finish(self, pick: int, how: str) -> None:
        item_id = sorted(self.held)[pick % len(self.held)]
        lease, now = self.held.pop(item_id), self.live.now
        held = Held(item_id, lease.token)
        if how == "complete":
            assert self.run(self.queue.complete(lease)) == self.model.complete(held, fenced=False)
        elif how == "release":
            front = bool(pick % 2)
            released = self.run(self.queue.release(lease, front=front))
            assert released == self.model.release(held, now, 0, front=front)
        elif how == "cancel":
            assert self.run(self.queue.cancel(item_id)) == self.model.cancel(item_id)
        else:
            retry_in = 0 if how == "fail" else None
            failed = self.run(self.queue.fail(lease, "an error", retry_in=retry_in))
            assert failed == self.model.fail(held, "an error", now, retry_in)
        if how == "end":
            assert self.run(self.queue.dead_letters.requeue(item_id)) == [self.model.requeue(item_id)]
        its = self.model.items.get(item_id)
        self.has_returned = self.has_returned or (its is not None and its.group == BATCH)
        self.lease(5)  # whatever is permitted now

    @rule(group=GROUPS | st.just("*"), limit=st.one_of(st.none(), st.integers(1, 4)))
    def limit(self, group: str | None, limit: int | None) -> None:
        if limit is None:
            self.run(self.queue.limits.remove("concurrency", group=group))
            self.limits.pop(group, None)
        else:
            self.run(self.queue.limits.set(concurrency=limit, group=group))
            self.limits[group] = limit
        self.lease(5)

    @rule(burst=st.integers(0, 3))
    def limit_rate(self, burst: int) -> None:
        self.run(self.queue.limits.remove("rate"))
        self.burst, self.leased_at = burst, []
        if burst:
            self.run(self.queue.limits.set(rate=f"1/{RATE_SECONDS}s", burst=burst))

    @rule(group=GROUPS)
    def pause(self, group: str | None) -> None:
        self.run(self.queue.pause(group=group))
        self.paused.add(group)

    @rule(group=GROUPS)
    def resume(self, group: str | None) -> None:
        self.run(self.queue.resume(group=group))
        self.paused.discard(group)
        self.lease(5)

    @rule(seconds=st.sampled_from([0, 1, 10, 25]))
    def move_the_clock(self, seconds: int) -> None:
        self.live.now += seconds * 1000

    @rule()
    def clean(self) -> None:
        self.run(self.queue.light_clean())
        report = self.run(self.queue.deep_clean())
        assert report.restored == 0

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(min_value=0))
    def another_client_pushes_an_id(self, pick: int) -> None:
        """Make a double, as foreign clients do."""
        item_id = sorted(self.waiting)[pick % len(self.waiting)]
        self.live.server.lpush(f"{self.name}:queue", item_id)

    @invariant()
    def the_leases_are_counted(self) -> None:
        if hasattr(self, "ids"):
            counts = self.run(self.queue.counts())
            assert counts.leased == len(self.held)
            assert counts.waiting >= len(self.waiting)

    def teardown(self) -> None:
        if not hasattr(self, "ids"):
            return
        for group in (None, "a", "b", "ü/*", "*"):
            self.run(self.queue.limits.remove(group=group))
            if group != "*":
                self.run(self.queue.resume(group=group))
        for lease in self.held.values():
            assert self.run(self.queue.complete(lease))
        self.live.now += WAIT_MS
        left: set[str] = set()
        while leases := self.run(self.queue.lease_many(500, LONG, block=False)):
            left |= {lease.id for lease in leases}
        assert left == self.waiting.keys()
        for item_id in left:
            self.run(self.queue.cancel(item_id))
        self.run(self.queue.lease_many(500, LONG, block=False))
        self.run(self.queue.close())
        left = self.live.keys_of(self.name)
        self.live.close()
        assert left <= {"fence", "cancelled"}


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.seed("GLD-B9", "GLD-B13")
def test_no_limit_is_exceeded_and_no_pause_broken(redis_url: str, examples: int) -> None:
    ControlMachine.url = redis_url
    run_machine(ControlMachine, examples)
