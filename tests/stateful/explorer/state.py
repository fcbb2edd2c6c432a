"""States that the explorer compares: the keys of one queue, and what its clients remember.

A state holds no name, time or token of its own: ids and sessions are numbers, times are relative to now, and
tokens are ranks. Two states that differ only in the order of ids or sessions, or in the distances between
times, have the same `digest`.
"""

from __future__ import annotations

import itertools
import marshal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: No time: there is no such entry.
NONE = 1 << 20
#: The values of lease keys: none, a lease of ours, the mark of a scheduled item, a foreign client's lease.
FREE, OURS, DELAYED, FOREIGN = range(4)
#: What became of a token: its holder may hold the item; the incarnation has ended; the holder returned it.
LIVE, STALE, RETURNED = range(3)


class ItemKeys(NamedTuple):
    """The keys of one id. Times are in half units from now; odd ones are those of watched foreign leases."""

    exists: int = 0
    deadline: int = NONE
    due: int = NONE
    gone: int = NONE
    first: int = 0
    last: int = 0
    lease: int = FREE
    lease_end: int = NONE
    leased_by: int = FREE
    leased_by_end: int = NONE
    dead: int = 0
    error: int = 0

    @property
    def foreign(self) -> bool:
        """Whether a foreign client holds a lease on the item."""
        return FOREIGN in (self.lease, self.leased_by)


class Keys(NamedTuple):
    """All keys of the queue."""

    items: tuple[ItemKeys, ...]
    queue: tuple[int, ...] = ()
    processing: tuple[int, ...] = ()
    cleaning: tuple[int, ...] = ()
    #: Of each session: until when it is registered, and its inbox.
    sessions: tuple[tuple[int, tuple[int, ...]], ...] = ()
    fence: int = 0
    #: How many keys the queue has that the explorer does not know.
    strangers: int = 0

    def placed(self, item: int) -> bool:
        """Return whether leasing or a light clean finds the id of an item.

        A mark in `gone` says that one of the entries in `processing` is garbage.
        """
        keys = self.items[item]
        return (
            item in self.queue
            or self.processing.count(item) > (keys.gone != NONE)
            or any(item in inbox for _, inbox in self.sessions)
            or keys.deadline != NONE
            or keys.due != NONE
        )


class Token(NamedTuple):
    """A token that was given out, what became of it, and when its lease ends, as its holder knows."""

    number: int
    status: int
    end: int


class Program(NamedTuple):
    """What a foreign client does: which of its programs, the next step, and the id."""

    name: int = 0
    step: int = 0
    item: int = -1


class DeepClean(NamedTuple):
    """How far a deep clean of ours is: the next step, the ids it suspects, and which were leased since."""

    step: int = 0
    suspects: tuple[int, ...] = ()
    leased: tuple[int, ...] = ()


class Memory(NamedTuple):
    """What the clients know, beside the server."""

    #: Of each id: the tokens that were given out, the newest last.
    tokens: tuple[tuple[Token, ...], ...]
    #: Of each id: whether a foreign client has added it again while the ledger had its earlier incarnation.
    blurred: tuple[int, ...]
    #: Of each session: until when each of its processes may be in a blocking move.
    blocking: tuple[tuple[int, ...], ...]
    foreign: tuple[Program, ...]
    deep_clean: DeepClean = DeepClean()


class State(NamedTuple):
    """The keys of the queue, and what its clients know."""

    keys: Keys
    memory: Memory


class Action(NamedTuple):
    """One step: what, and of which item, session, or holder."""

    name: str
    #: An id, or a session.
    of: int = 0
    #: Which of the tokens of the id; 0 is the newest. Of a session: which process.
    token: int = 0
    how: str = ""


def initial(ids: int, processes: Sequence[int], foreign: int) -> State:
    """Return the state in which nothing has been done.

    Args:
        ids: How many ids there are.
        processes: How many processes each session has.
        foreign: How many foreign clients run at the same time.
    """
    keys = Keys(tuple([ItemKeys()] * ids), sessions=tuple((NONE, ()) for _ in processes))
    memory = Memory(
        tuple([()] * ids),
        tuple([0] * ids),
        tuple(tuple([NONE] * count) for count in processes),
        tuple([Program()] * foreign),
    )
    return State(keys, memory)


def put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    """Return the values with another one in one place."""
    return (*values[:place], value, *values[place + 1 :])


def kept(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    """Return one token of each kind: the newest of all, the newest live one before it, and a stale one.

    A token that is dropped is treated by the scripts as one of those that are kept.
    """
    if len(tokens) < 2:
        return tokens
    found = [tokens[-1]]
    for status in ({LIVE, RETURNED}, {STALE}):
        found += [one for one in tokens[:-1] if one.status in status][-1:]
    return tuple(sorted(found))


def normal(state: State) -> State:
    """Return the state with tokens renamed to their ranks, of each id by itself, and past times closed up."""
    keys, memory = state
    past = sorted(
        {time for one in keys.items for time in (one.deadline, one.due, one.gone) if time <= 0}
        | {end for end, _ in keys.sessions if end <= 0}
    )
    rank = {time: -2 * n - (time & 1) for n, time in enumerate(reversed(past))}  # odd times stay odd
    items, held = [], []
    for one, given in zip(keys.items, memory.tokens, strict=True):
        tokens = kept(given)
        numbers = sorted({one.first, one.last, *(token.number for token in tokens)} - {0})
        number = {old: n for n, old in enumerate(numbers, 1)}
        number[0] = 0
        items.append(
            one._replace(
                deadline=rank.get(one.deadline, one.deadline),
                due=rank.get(one.due, one.due),
                gone=rank.get(one.gone, one.gone),
                first=number[one.first],
                last=number[one.last],
            )
        )
        held.append(
            tuple(
                Token(number[token.number], token.status, token.end if token.status == LIVE else NONE)
                for token in tokens
            )
        )
    highest = max(
        (
            max(one.last, *(token.number for token in tokens), 0)
            for one, tokens in zip(items, held, strict=True)
        ),
        default=0,
    )
    sessions = tuple((rank.get(end, end), inbox) for end, inbox in keys.sessions)
    fence = max(1, highest) if keys.fence else 0
    return State(
        keys._replace(items=tuple(items), sessions=sessions, fence=fence),
        memory._replace(tokens=tuple(held)),
    )


def advance(state: State, by: int) -> State:
    """Return the state after the clock has moved, with lease keys gone that have expired."""
    keys, memory = state

    def shift(time: int) -> int:
        return time if time == NONE else time - by

    items = []
    for one in keys.items:
        moved = one._replace(
            deadline=shift(one.deadline),
            due=shift(one.due),
            gone=shift(one.gone),
            lease_end=shift(one.lease_end),
            leased_by_end=shift(one.leased_by_end),
        )
        if moved.lease_end <= 0:
            moved = moved._replace(lease=FREE, lease_end=NONE)
        if moved.leased_by_end <= 0:
            moved = moved._replace(leased_by=FREE, leased_by_end=NONE)
        items.append(moved)

    def still(time: int) -> int:
        return shift(time) if shift(time) > 0 else NONE

    return State(
        keys._replace(
            items=tuple(items), sessions=tuple((shift(end), inbox) for end, inbox in keys.sessions)
        ),
        memory._replace(
            tokens=tuple(
                tuple(token._replace(end=max(0, shift(token.end))) for token in tokens)
                for tokens in memory.tokens
            ),
            blocking=tuple(tuple(still(end) for end in ends) for ends in memory.blocking),
        ),
    )


def times(state: State) -> Iterable[int]:
    """Yield all times of the state that are to come."""
    for one in state.keys.items:
        yield from (one.deadline, one.due, one.lease_end, one.leased_by_end)
    yield from (end for end, _ in state.keys.sessions)


def next_end(state: State) -> int:
    """Return in what time the next lease, delay or registration ends; 0: there is none."""
    first = min((time for time in times(state) if 0 < time < NONE), default=0)
    return first + (first & 1)


def last_end(state: State) -> int:
    """Return in what time all have ended."""
    last = max((time for time in times(state) if 0 < time < NONE), default=0)
    return last + (last & 1)


def digest(state: State, *, alike: bool) -> bytes:
    """Return a short name of the state, the same for all states that differ only in names and distances.

    Args:
        state: A state in normal form.
        alike: Whether the ids may be exchanged.
    """
    keys, memory = state
    found = {0, *times(state)}
    found.update(one.gone for one in keys.items)
    found.update(token.end for tokens in memory.tokens for token in tokens)
    found.update(end for ends in memory.blocking for end in ends)
    ranks = {time: n for n, time in enumerate(sorted(found))}
    now = ranks[0]
    items = [
        (
            one.exists,
            ranks[one.deadline],
            one.deadline & 1,
            ranks[one.due],
            ranks[one.gone],
            *one[4:7],
            ranks[one.lease_end],
            one.leased_by,
            ranks[one.leased_by_end],
            one.dead,
            one.error,
            blurred,
            tuple((token.number, token.status, ranks[token.end]) for token in tokens),
        )
        for one, tokens, blurred in zip(keys.items, memory.tokens, memory.blurred, strict=True)
    ]
    # Sessions by their inboxes' lengths, as ids may be exchanged.
    sessions = [
        (ranks[end], len(inbox), tuple(sorted(ranks[one] for one in blocking)), inbox)
        for (end, inbox), blocking in zip(keys.sessions, memory.blocking, strict=True)
    ]
    shortest = b""
    for order in _orders(items) if alike else [tuple(range(len(items)))]:
        place = [0] * len(order)
        for n, item in enumerate(order):
            place[item] = n
        text = marshal.dumps(
            (
                now,
                keys.fence > 0,
                [items[item] for item in order],
                [place[item] for item in keys.queue],
                [place[item] for item in keys.processing],
                [place[item] for item in keys.cleaning],
                sorted((*one[:3], [place[item] for item in one[3]]) for one in sessions),
                sorted(
                    (one.name, one.step, place[one.item] if one.item >= 0 else -1) for one in memory.foreign
                ),
                memory.deep_clean.step,
                sorted(place[item] for item in memory.deep_clean.suspects),
                sorted(place[item] for item in memory.deep_clean.leased),
            ),
            2,
        )
        if not shortest or text < shortest:
            shortest = text
    return blake2b(shortest, digest_size=12).digest()


def _orders(items: Sequence[tuple[Any, ...]]) -> list[tuple[int, ...]]:
    """Return the orders of ids that sort their keys; more than one if two ids have the same."""
    order = sorted(range(len(items)), key=items.__getitem__)
    if len({*items}) == len(items):
        return [tuple(order)]
    return [*itertools.permutations(order)]
