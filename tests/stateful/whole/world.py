"""Two queues, the models of what they hold, and calls that may be stopped inside a script."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue import AsyncWorkQueue, Item, Lease, lease_from
from leasequeue.errors import QueueDeleted, ScriptFailed
from tests.stateful.flows.cutting import STOPPED, stop_after, stop_none
from tests.stateful.live import Live
from tests.stateful.model import Held, Known, Model

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")
#: How long leases last, in seconds; the clock moves as far when they expire.
LEASE_S = 1000
#: A process that waits for items, for which scripts move one to where it would be woken.
SLEEPER = "lh:sleeper"


@dataclass
class Side:
    """One of the queues.

    Attributes:
        model: What it holds.
        is_closed: Whether its deletion has begun, and was stopped.
        is_tidy: Whether no stopped call and no other client has left anything that the calls after it drop.
    """

    name: str
    queue: AsyncWorkQueue
    model: Model = field(default_factory=Model)
    is_closed: bool = False
    is_tidy: bool = True


class World(Live):
    """The two queues. Each method makes one call, and compares the queues with the model after it.

    With `stop`, the scripts of the call are stopped after so many writes in all. What was changed by then is
    read from the server: each item is as it was, or as the call makes it, and in one queue.

    Args:
        url: The server.
        name: What the names of the queues begin with.
    """

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self.sides = [Side(one, self.open(one)) for one in (name, f"{name}:other")]
        self.held: list[tuple[Side, Lease]] = []
        self.numbers = itertools.count(1)

    def call(
        self, stop: int | None, at: Side, make: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[T | None, bool]:
        """Make a call; return what it has returned, and whether a script of a queue was stopped."""
        if stop is not None:
            stop_after(self.server, at.name, stop)
        was_stopped, found = False, None
        try:
            found = self.wait(make())
        except ScriptFailed as error:
            if STOPPED not in str(error):
                raise
            was_stopped = True
        finally:
            left = stop_none(self.server, at.name)
        # A call that raises nothing may have been stopped as well: it says what it has done before.
        was_stopped = was_stopped or (stop is not None and not left)
        return found, was_stopped

    # -------------------------------------------------------------------------------------- calls of one item

    def add(self, side: Side, ids: list[str], *, delay: int, priority: int, group: str | None) -> None:
        """Add items."""
        items = [Item(f"{one} {next(self.numbers)}".encode(), one) for one in ids]
        adding = side.queue.add_items(items, delay=delay, priority=priority, group=group)
        try:
            added = self.wait(adding)
        except QueueDeleted:
            assert side.is_closed
            return
        assert not side.is_closed, "an item was added to a queue that is being deleted"
        new = [Known(item.data, priority, group) for item in items]
        assert added == [
            side.model.add(item.id, known, self.now, delay * 1000)
            for item, known in zip(items, new, strict=True)
        ]

    def complete(self, side: Side, lease: Lease) -> None:
        """Complete an item: it is accepted from any holder of this incarnation."""
        was_leased = side.model.state(lease.id) == "leased"
        done = self.wait(side.queue.complete(lease))
        assert done == side.model.complete(Held(lease.id, lease.token), fenced=False)
        # A place in a lane is not looked for, if its lease has expired.
        side.is_tidy = side.is_tidy and (was_leased or not done)

    def fail(self, side: Side, lease: Lease, retry_in: int) -> None:
        """Fail an item: it is accepted from the current holder alone."""
        done = self.wait(side.queue.fail(lease, "an error", retry_in=retry_in))
        held = Held(lease.id, lease.token)
        assert done == side.model.fail(held, "an error", self.now, retry_in * 1000)

    def furnish(self, side: Side) -> None:
        """Give a queue items in each state: with a level, a group, an error, or attempts."""
        here = "abcdef" if side is self.sides[0] else "efghij"
        self.add(side, [*here[:4]], delay=0, priority=0, group=None)
        self.lease(self.sides.index(side), 3, stop=None)
        mine = [lease for its, lease in self.held if its is side]
        for lease in mine[:2]:
            self.fail(side, lease, 0)
        self.add(side, [here[4], "x"], delay=0, priority=2, group="g")
        self.add(side, [here[5], "y"], delay=0, priority=-3, group=None)
        self.add(side, ["z"], delay=500, priority=0, group=None)

    # ---------------------------------------------------------------------------------- calls of whole queues

    def lease(self, first: int, count: int, *, stop: int | None) -> None:
        """Lease from both queues, in an order."""
        sides = [self.sides[first], self.sides[1 - first]]
        stopped_at = sides[(stop or 0) % 2]
        leases, was_stopped = self.call(
            stop, stopped_at, lambda: lease_from([one.queue for one in sides], count, LEASE_S, block=False)
        )
        open_sides = [side for side in sides if not side.is_closed]
        if not was_stopped and not all(side.is_tidy for side in sides):
            # An id was dropped that was listed in a wrong lane: another call finds its item.
            leases = [*(leases or []), *self.lease_rest(sides, count - len(leases or []))]
            wanted = sum(len(side.model.ids("waiting")) for side in open_sides)
            assert len(leases) == min(count, wanted)
        left = count
        for side in sides:
            waiting = side.model.ids("waiting") if side in open_sides else []
            mine = [one for one in leases or [] if one.queue is side.queue]
            if not was_stopped and all(one.is_tidy for one in sides):
                assert len(mine) == min(left, len(waiting))
            left -= len(mine)
            for lease in mine:
                assert lease.id in waiting
                self.note_lease(side, lease)
            if was_stopped and side is stopped_at:
                self.reread(side, {("waiting", "leased")})

    def lease_rest(self, sides: list[Side], count: int) -> Iterator[Lease]:
        """Lease up to so many items more, in as many calls as it takes."""
        while count and (
            found := self.wait(lease_from([one.queue for one in sides], count, LEASE_S, block=False))
        ):
            count -= len(found)
            yield from found

    def note_lease(self, side: Side, lease: Lease) -> None:
        """Note a lease, which is of an item of the model with its data and the next attempt."""
        known = side.model.items[lease.id]
        assert (lease.data, lease.attempt) == (known.data, known.attempt + 1)
        assert lease.token > side.model.fence
        side.model.leave(lease.id)
        side.model.grant(Held(lease.id, lease.token), self.now, LEASE_S * 1000)
        self.held.append((side, lease))

    def cancel(self, side: Side, ids: list[str]) -> None:
        """Cancel items, whatever state they are in."""
        answers = self.wait(side.queue.cancel_many(ids, keep=0))
        if side.is_closed:
            self.reread(side, {(state, "gone") for state in ("waiting", "leased", "scheduled")})
            return
        assert answers == [side.model.cancel(one) for one in ids]

    def limit(self, side: Side, *, limits: bool) -> None:
        """Give a queue a limit that it never reaches, or remove it."""
        if not side.is_closed:
            change = side.queue.limits.set(concurrency=1000) if limits else side.queue.limits.remove()
            self.wait(change)

    def recover(self, side: Side, count: int, elapsed_s: int, *, stop: int | None) -> None:
        """Lease again what was leased some time ago, the oldest first."""
        oldest = [] if side.is_closed else side.model.oldest(elapsed_s * 1000, self.now)[:count]
        leases, was_stopped = self.call(
            stop, side, lambda: side.queue.admin.recover(count, elapsed_s, LEASE_S)
        )
        if was_stopped:
            self.reread(side, {("leased", "leased")})
            return
        assert [lease.id for lease in leases or []] == oldest
        for lease in leases or []:
            self.note_lease(side, lease)

    def clear_leases(self, side: Side, *, stop: int | None) -> None:
        """End all leases."""
        oldest = side.model.oldest(0, self.now)
        ended, was_stopped = self.call(stop, side, side.queue.admin.clear_leases)
        if was_stopped:
            self.reread(side, {("leased", "waiting")})
            return
        # A lease whose keys alone were written is found and ended, too: the item waits.
        others = [one for one in ended or [] if one not in oldest]
        if not side.is_closed:
            assert [one for one in ended or [] if one in oldest] == oldest
            assert {*others} <= {*side.model.ids("waiting")}
            assert not (others and side.is_tidy)
        for item_id in ended or []:
            if item_id in oldest:
                side.model.end_lease(item_id)

    def purge(self, side: Side, *, scheduled: bool, stop: int | None) -> None:
        """Remove what waits; what is leased stays."""
        places = ("waiting", "scheduled") if scheduled else ("waiting",)
        leaving = side.model.ids(*places)
        removed, was_stopped = self.call(stop, side, lambda: side.queue.admin.purge(scheduled=scheduled))
        if was_stopped:
            self.reread(side, {(place, "gone") for place in places})
        elif side.is_closed:  # its items wait nowhere any more, but those that have become due
            self.reread(side, {(state, "gone") for state in ("waiting", "scheduled")})
        else:
            assert removed == len(leaving)
            for item_id in leaving:
                side.model.cancel(item_id)

    def delete(self, side: Side, *, stop: int | None) -> None:
        """Remove the queue; if it is stopped, nothing can be added or leased until it is deleted."""
        is_exact = side.is_tidy and not side.is_closed
        removed, was_stopped = self.call(stop, side, side.queue.admin.delete)
        if was_stopped:
            side.is_closed = bool(self.server.hexists(f"{side.name}:control", "closed"))
            self.reread(side, {(state, "gone") for state in ("waiting", "leased", "scheduled")})
            return
        assert not is_exact or removed == len(side.model.items)
        side.model, side.is_closed, side.is_tidy = Model(fence=side.model.fence), False, True
        assert self.keys(side) <= {"fence", "sessions"}

    def move(self, source: int, *, count: int | None, ids: list[str] | None, stop: int | None) -> None:
        """Move items to the other queue: an item is in one of the two, as it was."""
        here, there = self.sides[source], self.sides[1 - source]
        if ids is None:
            order = dict.fromkeys(view.id for view in self.wait(here.queue.inspect("waiting", count=200)))
            movable = here.model.ids("waiting")
            expected = [one for one in order if one in movable and one not in there.model.items][:count]
        else:
            movable = here.model.ids("waiting", "scheduled")
            expected = [one for one in dict.fromkeys(ids) if one in movable and one not in there.model.items]
        try:
            moved, was_stopped = self.call(
                stop, there, lambda: here.queue.admin.move(there.queue, count=count, ids=ids)
            )
        except QueueDeleted:
            assert there.is_closed
            return
        if not was_stopped:
            assert moved == (expected if not (there.is_closed or here.is_closed) else [])
        else:
            here.is_tidy = there.is_tidy = False
        for item_id in expected if was_stopped else moved or []:
            is_there = bool(self.server.exists(f"{there.name}:item:{item_id}"))
            is_here = bool(self.server.exists(f"{here.name}:item:{item_id}"))
            assert is_here != is_there, f"{item_id} is in both queues, or in none"
            if is_there:
                known, due = here.model.items[item_id], here.model.scheduled.get(item_id)
                here.model.cancel(item_id)
                if ids is not None and (known.level or known.group):
                    here.is_tidy = False  # its place in a lane is not looked for
                # No holder in the other queue can complete it.
                there.model.items[item_id] = replace(known, first=None)
                there.model.enter(item_id, due)
                self.learn_tokens(there, item_id)

    def clean(self, side: Side, *, thorough: bool) -> None:
        """Let leases end and delays fall due, as the clock says; and check all keys."""
        report = self.wait(side.queue.admin.fsck() if thorough else side.queue.light_clean())
        if side.is_tidy and not side.is_closed:
            assert report.restored == report.dropped == 0, report
            assert report.findings == ()
        else:
            # A lease whose keys alone were written is found.
            self.reread(side, {("waiting", "leased")})
        if thorough and not side.is_closed:
            # Leasing drops what is listed twice, or beside its lease.
            side.is_tidy = self.listed(side) == Counter(side.model.ids("waiting"))

    def pass_time(self) -> None:
        """Move the clock until all leases have expired, and all delayed items are due."""
        for side in [
            *self.sides,
            *self.sides,
        ]:  # the first clean may find leases of which the keys alone were written
            self.now += 10 * LEASE_S * 1000
            self.wait(side.queue.light_clean())
            if not side.is_closed:
                side.model.reclaim(self.now)

    # ------------------------------------------------------------------------------------------ other clients

    def push(self, side: Side, item_id: str) -> None:
        """Push an id, as clients of other libraries do: it is listed twice, or has no data."""
        self.server.lpush(f"{side.name}:queue", item_id)
        side.is_tidy = False

    def wait_for_items(self, side: Side, *, waits: bool) -> None:
        """Let a process wait for items, or no longer: it stays where it is when one is moved to wake it."""
        if waits:
            self.server.zadd(f"{side.name}:sessions", {SLEEPER: self.now + 60_000})
        else:
            self.server.zrem(f"{side.name}:sessions", SLEEPER)

    # ------------------------------------------------------------------------------------------------- checks

    def reread(self, side: Side, permitted: set[tuple[str, str]], *, makes_untidy: bool = True) -> None:
        """Read what a stopped call has made of the items: a change of state that it permits, or none."""
        side.is_tidy = side.is_tidy and not makes_untidy
        found, model = self.read(side), side.model
        for item_id, known in [*model.items.items()]:
            was, now, state = model.state(item_id), found.items.get(item_id), found.state(item_id)
            if now is None:
                assert (was, "gone") in permitted, f"{item_id} is gone: {known}"
                model.cancel(item_id)
                continue
            was_leased = (now.last, now.leased_ms) != (known.last, known.leased_ms)
            may_be_leased = any(after == "leased" for _, after in permitted)
            assert side.is_closed or state == was or (was, state) in permitted
            if was_leased and may_be_leased and now.attempt == known.attempt + 1:
                known.first = known.first or now.last
                known.last, known.attempt, known.leased_ms = now.last, now.attempt, now.leased_ms
            if state != was:
                model.leave(item_id)
                model.enter(item_id, found.scheduled.get(item_id), found.leased.get(item_id))
        model.fence = max(model.fence, found.fence)

    def listed(self, side: Side) -> Counter[str]:
        """Return how often each id is listed as waiting."""
        lists = [self.server.lrange(f"{side.name}:{one}", 0, -1) for one in ("queue", "held")]
        laned = [one.partition(b"\0")[2][16:] for one in self.server.zrange(f"{side.name}:lanes", 0, -1)]
        return Counter(one.decode() for one in itertools.chain(*lists, laned))

    def learn_tokens(self, side: Side, item_id: str) -> None:
        """Note the entry of an item that has come from the other queue: no token is of this incarnation."""
        entry = self.server.hget(f"{side.name}:ledger", item_id)
        if entry:
            first, last, _, at = map(int, entry.split())
            assert first > last, "no holder in the other queue can complete it"
            known = side.model.items[item_id]
            known.last, known.leased_ms = last, at

    def read(self, side: Side) -> Model:
        """Read a queue, without the order in which its items wait."""
        key, server = f"{side.name}:{{}}".format, self.server
        found = Model(fence=int(server.get(key("fence")) or 0))
        for name, ends in (("deadlines", found.leased), ("scheduled", found.scheduled)):
            ends.update(
                (one.decode(), int(at)) for one, at in server.zrange(key(name), 0, -1, withscores=True)
            )
        ledger, options, errors = (
            {one.decode(): text for one, text in server.hgetall(key(name)).items()}
            for name in ("ledger", "options", "errors")
        )
        for name in self.keys(side):
            if name.startswith("item:"):
                one = name.removeprefix("item:")
                its = json.loads(options.get(one, "{}"))
                known = Known(server.get(key(name)), its.get("level", 0), its.get("group"))
                if one in ledger:
                    known.first, known.last, known.attempt, known.leased_ms = map(int, ledger[one].split())
                known.error = errors[one].decode() if one in errors else None
                found.items[one] = known
        return found

    def keys(self, side: Side) -> set[str]:
        """Return the keys of a queue, without what the other one has: its name begins with this one's."""
        return {key for key in self.keys_of(side.name) if side is self.sides[1] or key[:6] != "other:"}

    def check(self) -> None:
        """Compare the queues with their models."""
        for side in self.sides:
            found = self.read(side)
            assert not [*self.differences(side, found)]
            if side.is_tidy and not side.is_closed:
                states = [len(side.model.ids(state)) for state in ("waiting", "leased", "scheduled")]
                assert self.wait(side.queue.counts()) == (*states, 0), (side.name, self.keys(side))
                assert self.leftovers(side) == set()

    def leftovers(self, side: Side) -> set[str]:
        """Return the keys of a queue that it does not need: of lanes without items, or of an empty queue."""
        left, model = self.keys(side), side.model
        if any(model.items[one].level or model.items[one].group for one in model.ids("waiting")):
            return set()
        limited = {"control", "promoted", "alarm"} if "control" in left else set()
        index = ("lanes", "levels", "turns:") + (() if limited else ("held", "promoted", "alarm"))
        found = {key for key in left if key.startswith(index)}
        return found if model.items else found | (left - limited - {"fence", "sessions"})

    def differences(self, side: Side, found: Model) -> Iterator[str]:
        """Yield the items of a queue that are not as they should be."""
        for item_id in sorted({*found.items, *side.model.items}):
            shown = [
                # What is left of a queue that is half gone is no other item.
                (side.is_closed or model.state(item_id), replace(model.items[item_id], first=None))
                if item_id in model.items
                else None
                for model in (found, side.model)
            ]
            if shown[0] != shown[1]:
                yield f"{side.name} {item_id}: is {shown[0]}, expected {shown[1]}"

    def empty(self) -> None:
        """Let all leases expire, and lease and complete every item: each comes once, as in the model."""
        for side in self.sides:
            if side.is_closed:
                self.delete(side, stop=None)
            self.wait_for_items(side, waits=False)
            self.limit(side, limits=False)
        self.pass_time()
        self.held.clear()
        self.lease(0, 200, stop=None)
        assert not any(side.model.ids("waiting") for side in self.sides)
        for side, lease in [*self.held]:
            self.complete(side, lease)
        self.lease(0, 200, stop=None)  # an empty queue is a plain one again
        for side in self.sides:
            self.wait(side.queue.admin.fsck())
            left = {key for key in self.keys(side) if self.server.pttl(f"{side.name}:{key}") == -1}
            assert left <= {"fence"}, {key: self.server.dump(f"{side.name}:{key}") for key in left}
