"""What must hold after each step, and how each state must recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.stateful.explorer.actions import GRACE, LEASE, leased
from tests.stateful.explorer.state import LIVE, NONE, STALE, Action, Keys, State, last_end, ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stateful.explorer.engine import Command
    from tests.stateful.explorer.queue import Board

#: Calls that only the current holder may make.
_OF_HOLDER = {"renew", "release", "fail"}
#: Calls that change items of which the caller knows nothing.
_RECLAIMS = {"lease", "light_clean", "deep_clean"}


def violations(action: Action, before: State, reply: Any, after: State) -> Iterator[str]:
    """Yield what a step has broken. `reply` has numbers in place of ids."""
    old, new = before.keys, after.keys
    if new.strangers:
        yield f"{new.strangers} keys that no script should write, or fields of them"
    if action.name in {"foreign", "clock"}:
        return
    yield from _no_item_is_lost(action, old, reply, new)
    yield from _it_is_cancelled(action, old, reply, new)
    if action.name in _RECLAIMS:
        for item, (was, now) in enumerate(zip(old.items, new.items, strict=True)):
            if now.exists and was.foreign and not now.foreign:
                yield f"the lease key of a foreign client on item {item} was deleted"
    if action.name == "lease":
        yield from _a_lease_is_right(before, reply, new)
        if len(reply) < int(action.how) and (new.queue or new.sessions[action.of][1]):
            yield "ids are left in the list although fewer items were leased than asked for"
    elif action.name == "complete":
        yield from _one_caller_completes(action, before, reply[0])
    elif action.name in _OF_HOLDER:
        yield from _only_the_holder_may(action, before, reply[0])


def _no_item_is_lost(action: Action, old: Keys, reply: Any, new: Keys) -> Iterator[str]:
    for item, (was, now) in enumerate(zip(old.items, new.items, strict=True)):
        ends = action.of == item and (
            (action.name in {"complete", "cancel"} and reply == [1])
            or (action.name == "fail" and reply == [1] and now.dead and action.how == "dead")
        )
        if was.exists and not now.exists and not ends:
            yield f"the data of item {item} is gone"
        if was.exists and now.exists and old.placed(item) and not new.placed(item):
            yield f"item {item} is in no list"
        if was.dead and not now.dead and action.name not in {"requeue", "drop"}:
            yield f"the dead letter {item} is gone"


def _a_lease_is_right(before: State, reply: list[tuple[int, int]], new: Keys) -> Iterator[str]:
    for item, token in reply:
        was, now = before.keys.items[item], new.items[item]
        known = before.memory.tokens[item]
        if not was.exists:
            yield f"a lease of item {item}, which has no data"
        if was.foreign:
            yield f"a lease of item {item} while a foreign client holds it"
        if NONE > was.due > 0:
            yield f"a lease of item {item} before it is due"
        if token <= before.keys.fence:
            yield f"token {token} of item {item} has not grown beyond {before.keys.fence}"
        if known and known[-1].status == LIVE and known[-1].end > before.now_ms:
            yield f"a lease of item {item} while another holder has one"
        if item not in new.processing or now.deadline != LEASE or now.last != token:
            yield f"the lease of item {item} is not written down"
    if len({item for item, _ in reply}) < len(reply):
        yield "one item was leased twice in one call"


def _one_caller_completes(action: Action, before: State, answer: int) -> Iterator[str]:
    item = action.of
    was, blurred = before.keys.items[item], before.memory.blurred[item]
    token = before.memory.tokens[item][-1 - action.token]
    if answer == 1:
        if not was.exists:
            yield f"a second caller has completed item {item}"
        if token.status == STALE and not blurred:
            yield f"a holder of an earlier incarnation has completed item {item}"
        if action.how == "fenced" and action.token > 0 and not blurred:
            yield f"a holder that is not the current one has completed item {item}, fenced"
        return
    if (answer == 0) == bool(was.exists):
        yield f"the answer {answer} for item {item} is wrong"
    holds = token.status == LIVE and action.token == 0 and token.end > before.now_ms and not was.foreign
    if was.exists and token.status != STALE and (action.how != "fenced" or holds):
        yield f"a holder of item {item} was rejected"


def _it_is_cancelled(action: Action, old: Keys, reply: Any, new: Keys) -> Iterator[str]:
    if action.name != "cancel":
        return
    was, now = old.items[action.of], new.items[action.of]
    if now.exists or reply != [was.exists]:
        yield f"item {action.of} was cancelled with the answer {reply}"
    if now.deadline != NONE and was.exists:
        yield f"item {action.of} is leased although it was cancelled"


def _only_the_holder_may(action: Action, before: State, answer: int) -> Iterator[str]:
    item = action.of
    was, blurred = before.keys.items[item], before.memory.blurred[item]
    token = before.memory.tokens[item][-1 - action.token]
    if answer:
        if not was.exists or action.token > 0 or (token.status != LIVE and not blurred):
            yield f"{action.name} of item {item} was accepted from a former holder"
    elif was.exists and action.token == 0 and token.status == LIVE and token.end > before.now_ms:
        yield f"{action.name} of item {item} was rejected although its lease has not expired"


# --------------------------------------------------------------------------------------------- one state


def counted(reply: list[int], keys: Keys) -> Iterator[str]:
    """Yield how the reply of `counts` differs from the keys."""
    waiting = len(keys.queue) + sum(len(inbox) for end, inbox in keys.sessions if end != NONE)
    leased_ = sum(one.deadline != NONE for one in keys.items)
    scheduled = sum(one.due != NONE for one in keys.items)
    truth = [waiting, leased_, scheduled, sum(one.dead for one in keys.items)]
    if reply != truth:
        yield f"counts() is {reply}, and should be {truth}"
    for end, inbox in keys.sessions:
        if inbox and end == NONE:
            yield "an inbox of a session that is not registered has ids"


class Recovery:
    """What a live system does after all clients of a state have died, in one trip.

    Twice: everything expires, a light clean, and leases, which are completed. What a foreign client has left
    in no list needs a deep clean before a third round. Then no key may be left but the fence, and what a
    foreign cleaner has noted for itself.
    """

    def __init__(self, board: Board, state: State) -> None:
        self.board = board
        #: When it begins, and when it ends (ms).
        self.begin_ms = last_end(state)
        self.end_ms = self.begin_ms + ms(12 * LEASE)
        keys = state.keys
        existing = [item for item, one in enumerate(keys.items) if one.exists]
        #: Items that a light clean and leases must find, and those that a foreign client has left in no list.
        self.placed = [item for item in existing if keys.placed(item)]
        self.orphans = [item for item in existing if not keys.placed(item)]
        self.dead = sum(one.dead for one in keys.items)
        #: All commands, in order.
        self.commands = [*self._commands(keys.fence)]

    def _commands(self, fence: int) -> Iterator[Command]:
        script, ids = self.board.script, self.board.ids
        for round_ in range(3 if self.orphans else 2):
            # What began in the round before has expired.
            now = self.begin_ms + round_ * ms(4 * LEASE)
            when = {"grace_ms": ms(GRACE), "started_ms": now}
            if round_ == 2:
                lost = [ids[item] for item in self.orphans]
                yield script("deep_clean_scan", now, **when)
                yield script("deep_clean_walk", now)
                yield script("deep_clean_restore", now, *lost, step="restore", clean="", **when)
            else:
                yield script("light_clean", now, **when)
            yield script("lease_many", now, 10, ms(LEASE), session="lh:recovery")
            yield script("counts", now)
            # Which tokens are given to which ids, no reply says yet: complete with each that may be.
            tokens = range(fence + 1, fence + len(ids) * (round_ + 1) + 1)
            rows = [part for item in ids for token in tokens for part in (item, token, 0)]
            yield script("complete_many", now, *rows)
        yield script("drop_many", self.end_ms, *ids)
        for _ in range(2):
            yield script("light_clean", self.end_ms, grace_ms=ms(GRACE), started_ms=self.end_ms)

    def violations(self, replies: list[Any], left: Keys) -> Iterator[str]:
        """Yield what the recovery has shown to be broken."""
        for reply in replies:
            if isinstance(reply, Exception):
                yield f"the recovery has failed: {reply}"
                return
        found: list[int] = []
        at = 0
        for round_ in range(3 if self.orphans else 2):
            at += 3 if round_ == 2 else 1
            items = [item for item, _ in leased(self.board, replies[at])]
            yield from self._round(round_, items, replies[at + 1], replies[at + 2])
            found += items
            at += 3
            if round_ == 1 and (missing := {*self.placed} - {*found}):
                yield f"items {sorted(missing)} cannot be leased any more"
        if sorted(found) != sorted(self.placed + self.orphans):
            yield f"items {sorted(self.placed + self.orphans)} exist, and {sorted(found)} were leased"
        allowed = Keys(
            tuple(type(one)() for one in left.items),
            cleaning=left.cleaning,
            sessions=tuple((NONE, ()) for _ in left.sessions),
            fence=left.fence,
        )
        if left != allowed:
            yield f"keys are left: {left}"

    def _round(self, round_: int, items: list[int], counts: list[int], completed: list[int]) -> Iterator[str]:
        if counts[1] < len(items) or counts[0] or counts[2] or counts[3] != self.dead:
            yield f"counts() is {counts} when items {items} are leased"
        elif round_ == 1 and counts[1] != len(items):
            yield f"counts() is {counts} when only items {items} are leased"
        each = len(completed) // len(self.board.ids)
        for item in range(len(self.board.ids)):
            ones = completed[item * each : (item + 1) * each].count(1)
            if ones != items.count(item):
                yield f"item {item} was leased {items.count(item)} times and completed {ones} times"
