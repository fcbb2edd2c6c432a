"""Two queues, a model of what they hold, and calls that may be stopped inside a script."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Redis

from leasequeue import AsyncWorkQueue, Item, Lease, lease_from
from leasequeue.errors import QueueDeleted, ScriptFailed
from tests.stateful.flows.cutting import STOPPED, stop_after, stop_none

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")
#: How long leases last, in seconds; the clock moves as far when they expire.
LEASE_S = 1000
#: A process that waits for items, for which scripts move one to where it would be woken.
SLEEPER = "lh:sleeper"


@dataclass(frozen=True)
class Known:
    """An item as it should be.

    Attributes:
        number: Its incarnation: another one after it was moved, or removed and added again.
        leased: The time of its last lease in ms, and the token, as in the ledger; None: it was never leased.
    """

    number: int
    data: bytes
    state: str = "waiting"
    priority: int = 0
    group: str | None = None
    attempt: int = 0
    error: str | None = None
    leased: tuple[int, int] | None = None


@dataclass
class Side:
    """One of the queues.

    Attributes:
        items: Its items by their ids.
        is_closed: Whether its deletion has begun, and was stopped.
        is_tidy: Whether no stopped call and no other client has left anything that the calls after it drop.
        highest: Its highest token.
    """

    name: str
    queue: AsyncWorkQueue
    items: dict[str, Known] = field(default_factory=dict)
    is_closed: bool = False
    is_tidy: bool = True
    highest: int = 0

    def ids(self, *states: str) -> list[str]:
        """Return the ids in some states."""
        return [one for one, known in self.items.items() if known.state in states]

    def oldest(self, elapsed_ms: int, now: int) -> list[str]:
        """Return the ids of leases that began so long ago, the oldest first."""
        found = [
            (known.leased or (0, 0), one) for one, known in self.items.items() if known.state == "leased"
        ]
        return [one for (at, _), one in sorted(found) if at <= now - elapsed_ms]


@dataclass(frozen=True)
class Held:
    """A lease that was granted once, in a queue, of an incarnation."""

    side: Side
    lease: Lease
    number: int


class World:
    """The two queues. Each method makes one call, and compares the queues with the model after it.

    With `stop`, the scripts of the call are stopped after so many writes in all. What was changed by then is
    read from the server: each item is as it was, or as the call makes it, and in one queue.

    Args:
        url: The server.
        name: What the names of the queues begin with.
    """

    def __init__(self, url: str, name: str) -> None:
        self.now = 1_700_000_000_000
        self.runner = asyncio.Runner()
        self.server: Any = Redis.from_url(url)  # its stubs mix bytes and str
        self.sides = [
            Side(one, AsyncWorkQueue.from_url(url, one, clock=lambda: self.now / 1000))
            for one in (name, f"{name}:other")
        ]
        self.held: list[Held] = []
        self.numbers = itertools.count(1)

    def close(self) -> None:
        """Close the queues."""
        for side in self.sides:
            self.wait(side.queue.close())
        self.runner.close()
        self.server.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.runner.run(work)

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
        assert added == [one not in side.items and one not in ids[:at] for at, one in enumerate(ids)]
        for item in items:
            state = "scheduled" if delay else "waiting"
            known = Known(next(self.numbers), item.data, state, priority, group)
            side.items.setdefault(item.id, known)

    def complete(self, held: Held) -> None:
        """Complete an item: it is accepted from any holder of this incarnation."""
        side, item_id = held.side, held.lease.id
        known = side.items.get(item_id)
        done = self.wait(side.queue.complete(held.lease))
        assert done == (known is not None and known.number == held.number)
        if done:
            # A place in a lane is not looked for, if its lease has expired.
            side.is_tidy = side.is_tidy and known is not None and known.state == "leased"
            del side.items[item_id]

    def fail(self, held: Held, retry_in: int) -> None:
        """Fail an item: it is accepted from the current holder alone."""
        side, item_id = held.side, held.lease.id
        known = side.items.get(item_id)
        done = self.wait(side.queue.fail(held.lease, "an error", retry_in=retry_in))
        is_current = known is not None and known.leased is not None and known.leased[1] == held.lease.token
        assert done == (known is not None and known.state == "leased" and is_current)
        if done and known is not None:
            state = "scheduled" if retry_in else "waiting"
            side.items[item_id] = replace(known, state=state, error="an error")

    def furnish(self, side: Side) -> None:
        """Give a queue items in each state: with a level, a group, an error, or attempts."""
        here = "abcdef" if side is self.sides[0] else "efghij"
        self.add(side, [*here[:4]], delay=0, priority=0, group=None)
        self.lease(self.sides.index(side), 3, stop=None)
        mine = [one for one in self.held if one.side is side]
        for held in mine[:2]:
            self.fail(held, 0)
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
            wanted = sum(len(side.ids("waiting")) for side in open_sides)
            assert len(leases) == min(count, wanted)
        left = count
        for side in sides:
            waiting = side.ids("waiting") if side in open_sides else []
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
        known = side.items[lease.id]
        assert (lease.data, lease.attempt) == (known.data, known.attempt + 1)
        assert lease.token > side.highest
        side.highest = lease.token
        side.items[lease.id] = replace(
            known, state="leased", attempt=lease.attempt, leased=(self.now, lease.token)
        )
        self.held.append(Held(side, lease, known.number))

    def cancel(self, side: Side, ids: list[str]) -> None:
        """Cancel items, whatever state they are in."""
        answers = self.wait(side.queue.cancel_many(ids, keep=0))
        if side.is_closed:
            self.reread(side, {(state, "gone") for state in ("waiting", "leased", "scheduled")})
            return
        assert answers == [one in side.items and one not in ids[:at] for at, one in enumerate(ids)]
        for item_id in ids:
            side.items.pop(item_id, None)

    def limit(self, side: Side, *, limits: bool) -> None:
        """Give a queue a limit that it never reaches, or remove it."""
        if not side.is_closed:
            change = side.queue.limits.set(concurrency=1000) if limits else side.queue.limits.remove()
            self.wait(change)

    def recover(self, side: Side, count: int, elapsed_s: int, *, stop: int | None) -> None:
        """Lease again what was leased some time ago, the oldest first."""
        oldest = [] if side.is_closed else side.oldest(elapsed_s * 1000, self.now)[:count]
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
        oldest = side.oldest(0, self.now)
        ended, was_stopped = self.call(stop, side, side.queue.admin.clear_leases)
        if was_stopped:
            self.reread(side, {("leased", "waiting")})
            return
        if not side.is_closed:
            assert ended == oldest
        for item_id in ended or []:
            side.items[item_id] = replace(side.items[item_id], state="waiting")

    def purge(self, side: Side, *, scheduled: bool, stop: int | None) -> None:
        """Remove what waits; what is leased stays."""
        places = ("waiting", "scheduled") if scheduled else ("waiting",)
        leaving = side.ids(*places)
        removed, was_stopped = self.call(stop, side, lambda: side.queue.admin.purge(scheduled=scheduled))
        if was_stopped:
            self.reread(side, {(place, "gone") for place in places})
        elif side.is_closed:  # its items wait nowhere any more, but those that have become due
            self.reread(side, {(state, "gone") for state in ("waiting", "scheduled")})
        else:
            assert removed == len(leaving)
            for item_id in leaving:
                del side.items[item_id]

    def delete(self, side: Side, *, stop: int | None) -> None:
        """Remove the queue; if it is stopped, nothing can be added or leased until it is deleted."""
        is_exact = side.is_tidy and not side.is_closed
        removed, was_stopped = self.call(stop, side, side.queue.admin.delete)
        if was_stopped:
            side.is_closed = bool(self.server.hexists(f"{side.name}:control", "closed"))
            self.reread(side, {(state, "gone") for state in ("waiting", "leased", "scheduled")})
            return
        assert not is_exact or removed == len(side.items)
        side.items, side.is_closed, side.is_tidy = {}, False, True
        left = {key.removeprefix(f"{side.name}:") for key in self.keys(side)}
        assert left <= {"fence", "sessions"}

    def move(self, source: int, *, count: int | None, ids: list[str] | None, stop: int | None) -> None:
        """Move items to the other queue: an item is in one of the two, as it was."""
        here, there = self.sides[source], self.sides[1 - source]
        if ids is None:
            order = dict.fromkeys(view.id for view in self.wait(here.queue.inspect("waiting", count=200)))
            expected = [one for one in order if one in here.ids("waiting") and one not in there.items][:count]
        else:
            movable = here.ids("waiting", "scheduled")
            expected = [one for one in dict.fromkeys(ids) if one in movable and one not in there.items]
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
                known = here.items.pop(item_id)
                if ids is not None and (known.priority or known.group):
                    here.is_tidy = False  # its place in a lane is not looked for
                there.items[item_id] = replace(known, number=next(self.numbers))
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
            side.is_tidy = self.listed(side) == Counter(side.ids("waiting"))

    def pass_time(self) -> None:
        """Move the clock until all leases have expired, and all delayed items are due."""
        for side in [
            *self.sides,
            *self.sides,
        ]:  # the first clean may find leases of which the keys alone were written
            self.now += 10 * LEASE_S * 1000
            self.wait(side.queue.light_clean())
            if not side.is_closed:
                for item_id, known in side.items.items():
                    side.items[item_id] = replace(known, state="waiting")

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
        found = self.read(side)
        for item_id, known in [*side.items.items()]:
            now = found.get(item_id)
            if now is None:
                assert (known.state, "gone") in permitted, f"{item_id} is gone: {known}"
                del side.items[item_id]
                continue
            was_leased = now.leased != known.leased and now.attempt == known.attempt + 1
            may_be_leased = any(after == "leased" for _, after in permitted)
            assert side.is_closed or now.state == known.state or (known.state, now.state) in permitted
            its = now if was_leased and may_be_leased else known
            side.items[item_id] = replace(known, state=now.state, attempt=its.attempt, leased=its.leased)
        side.highest = max(side.highest, int(self.server.get(f"{side.name}:fence") or 0))

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
            side.items[item_id] = replace(side.items[item_id], leased=(at, last))

    def read(self, side: Side) -> dict[str, Known]:
        """Read the items of a queue."""
        key = f"{side.name}:{{}}".format
        leased = {one.decode() for one in self.server.zrange(key("deadlines"), 0, -1)}
        scheduled = {one.decode() for one in self.server.zrange(key("scheduled"), 0, -1)}
        ledger = {
            one.decode(): tuple(map(int, text.split()))
            for one, text in self.server.hgetall(key("ledger")).items()
        }
        options = {
            one.decode(): json.loads(text) for one, text in self.server.hgetall(key("options")).items()
        }
        errors = {one.decode(): text.decode() for one, text in self.server.hgetall(key("errors")).items()}
        found = {}
        for name in self.keys(side):
            if name.startswith(key("item:")):
                one = name.removeprefix(key("item:"))
                _, last, attempt, at = ledger.get(one, (0, 0, 0, 0))
                its = options.get(one, {})
                found[one] = Known(
                    side.items[one].number if one in side.items else 0,
                    self.server.get(name),
                    "leased" if one in leased else "scheduled" if one in scheduled else "waiting",
                    its.get("level", 0),
                    its.get("group"),
                    attempt,
                    errors.get(one),
                    (at, last) if one in ledger else None,
                )
        return found

    def keys(self, side: Side) -> set[str]:
        """Return the keys of a queue, without what the other one has: its name begins with this one's."""
        other = f"{self.sides[1].name}:"
        found = {key.decode() for key in self.server.scan_iter(count=1000)}
        mine = {key for key in found if key.startswith(f"{side.name}:")}
        return mine if side is self.sides[1] else {key for key in mine if not key.startswith(other)}

    def check(self) -> None:
        """Compare the queues with the model."""
        for side in self.sides:
            found = self.read(side)
            if side.is_closed:
                # It is half gone, but nothing of what is left is another item.
                found = {one: replace(known, state=side.items[one].state) for one, known in found.items()}
            assert found == side.items, "\n".join(self.differences(side, found))
            if side.is_tidy and not side.is_closed:
                states = [known.state for known in side.items.values()]
                expected = (states.count("waiting"), states.count("leased"), states.count("scheduled"), 0)
                assert self.wait(side.queue.counts()) == expected, (side.name, self.keys(side))
                assert self.leftovers(side) == set()

    def leftovers(self, side: Side) -> set[str]:
        """Return the keys of a queue that it does not need: of lanes without items, or of an empty queue."""
        left = {key.removeprefix(f"{side.name}:") for key in self.keys(side)}
        waiting = [known for known in side.items.values() if known.state == "waiting"]
        if any(known.priority or known.group for known in waiting):
            return set()
        limited = {"control", "promoted", "alarm"} if "control" in left else set()
        index = ("lanes", "levels", "turns:") + (() if limited else ("held", "promoted", "alarm"))
        found = {key for key in left if key.startswith(index)}
        return found if side.items else found | (left - limited - {"fence", "sessions"})

    def differences(self, side: Side, found: dict[str, Known]) -> Iterator[str]:
        """Yield the items of a queue that are not as they should be."""
        for item_id in sorted({*found, *side.items}):
            if found.get(item_id) != side.items.get(item_id):
                yield f"{side.name} {item_id}: is {found.get(item_id)}, expected {side.items.get(item_id)}"

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
        assert not any(side.ids("waiting") for side in self.sides)
        for held in [*self.held]:
            self.complete(held)
        self.lease(0, 200, stop=None)  # an empty queue is a plain one again
        for side in self.sides:
            self.wait(side.queue.admin.fsck())
            left = {
                key.removeprefix(f"{side.name}:") for key in self.keys(side) if self.server.pttl(key) == -1
            }
            assert left <= {"fence"}, {key: self.server.dump(f"{side.name}:{key}") for key in left}
