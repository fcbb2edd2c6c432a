"""States of the queue that is explored: its keys, and what its clients remember.

Two states that differ only in the order of ids or sessions, in the distances between times, or in the numbers
of tokens beyond their order, have the same `digest`.
"""

from __future__ import annotations

import itertools
import json
import marshal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The queue's name, the time at which a search begins, and a unit of time, in ms. The keys with a time to
#: live expire on the server's own clock: in a unit, any command ends.
PREFIX = "q"
UNIT_MS = 60_000
NOW_MS = 28_333_333 * UNIT_MS
#: No time: there is no such entry.
NONE = 1 << 20
#: The values of lease keys: none, a lease of ours, the mark of a scheduled item, a foreign client's lease.
FREE, OURS, DELAYED, FOREIGN = range(4)
HOLDERS = {OURS: "lh:session", DELAYED: "lh:scheduled", FOREIGN: "a foreign session"}
#: The fate of a token: its holder may hold the item; the incarnation has ended; the holder returned it.
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
    """All keys of the queue, with numbers in place of ids and sessions."""

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
    """A token that was given out, its fate, and when its lease ends (ms), as its holder knows."""

    number: int
    status: int
    end: int


class Program(NamedTuple):
    """What a foreign client does: which of its programs, the next step, and the id."""

    name: int = 0
    step: int = 0
    item: int = -1


class DeepClean(NamedTuple):
    """How far a deep clean of ours is: the next step, the ids it suspects, those leased since it began."""

    step: int = 0
    suspects: tuple[int, ...] = ()
    leased: tuple[int, ...] = ()
    began_ms: int = 0


class Memory(NamedTuple):
    """What the clients know, beside the server."""

    #: Of each id: the tokens that were given out, the newest last.
    tokens: tuple[tuple[Token, ...], ...]
    #: Of each id: whether a foreign client has added it again while the ledger had its earlier incarnation.
    blurred: tuple[int, ...]
    #: Of each session: until when each of its processes may be in a blocking move (ms).
    blocking: tuple[tuple[int, ...], ...]
    foreign: tuple[Program, ...]
    deep_clean: DeepClean = DeepClean()


class State(NamedTuple):
    """The keys of the queue, the time, and what its clients know."""

    keys: Keys
    memory: Memory
    now_ms: int
    #: The keys as the engine has dumped them.
    text: bytes


class Action(NamedTuple):
    """One step: what, and of which item, session, or holder."""

    name: str
    #: An id, or a session.
    of: int = 0
    #: Which of the tokens of the id; 0 is the newest. Of a session: which process.
    token: int = 0
    how: str = ""


def read(text: bytes, now_ms: int, ids: Sequence[str], sessions: Sequence[str]) -> Keys:
    """Return the keys of a dump, at a time."""
    number = {name: n for n, name in enumerate(ids)}
    found: dict[str, Any] = {}
    ends: dict[str, int] = {}
    for key, _, contents, end in json.loads(text):
        if end < 0 or end > now_ms:
            name = key.removeprefix(f"{PREFIX}:")
            found[name], ends[name] = contents, end

    def line(name: str) -> tuple[int, ...]:
        return tuple(number[one] for one in found.pop(name, ()))

    def pairs(name: str) -> dict[str, str]:
        flat = found.pop(name, ())
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def times(name: str) -> dict[str, int]:
        return {one: half_units(float(score) - now_ms) for one, score in pairs(name).items()}

    deadlines, due, gone, until = map(times, ("deadlines", "scheduled", "gone", "sessions"))
    buried, ledger, errors = pairs("dead"), pairs("ledger"), pairs("errors")
    strangers, items = 0, []
    for one in ids:
        first, last = map(int, ledger.pop(one, "0 0").split()[:2])
        held = []
        for name in (f"lease:{one}", f"leased_by_session:{one}"):
            kind = _kind(found.pop(name, None))
            held += [kind, half_units(ends[name] - now_ms) if kind else NONE]
        dead = int(found.pop(f"dead:{one}", None) is not None)
        strangers += (buried.pop(one, None) is not None) != dead
        exists = int(found.pop(f"item:{one}", None) is not None)
        places = [times.pop(one, NONE) for times in (deadlines, due, gone)]
        values = (exists, *places, first, last, *held, dead, int(one in errors))
        items.append(ItemKeys._make(values))
    strangers += len(deadlines) + len(due) + len(gone) + len(buried) + len(ledger)
    queue, processing, cleaning = map(line, ("queue", "processing", "cleaning"))
    inboxes = tuple((until.pop(one, NONE), line(f"inbox:{one}")) for one in sessions)
    fence = int(found.pop("fence", 0))
    strangers += len(until) + len(found)
    return Keys(tuple(items), queue, processing, cleaning, inboxes, fence, strangers)


def half_units(ms: float) -> int:
    """Return a time in half units; it is odd if it has a fraction of a ms."""
    return 2 * round(ms / UNIT_MS) + (ms % 1 != 0)


def ms(half_units: int) -> int:
    """Return a time of half units in ms."""
    return half_units * UNIT_MS // 2


def _kind(value: str | None) -> int:
    if value is None:
        return FREE
    return next((kind for kind, holder in HOLDERS.items() if value == holder), OURS)


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


def times(state: State) -> Iterable[int]:
    """Yield the times of the keys at which something ends."""
    for one in state.keys.items:
        yield from (one.deadline, one.due, one.lease_end, one.leased_by_end)
    yield from (end for end, _ in state.keys.sessions)


def next_end(state: State) -> int:
    """Return when the next lease, delay or registration ends (ms); now: there is none."""
    first = min((time for time in times(state) if 0 < time < NONE), default=0)
    return state.now_ms + ms(first + (first & 1))


def last_end(state: State) -> int:
    """Return when all have ended (ms)."""
    last = max((time for time in times(state) if 0 < time < NONE), default=0)
    return state.now_ms + ms(last + (last & 1))


def digest(state: State, *, alike: bool) -> bytes:
    """Return a short name of the state, the same for all states that differ only in names and distances.

    Args:
        state: A state.
        alike: Whether the ids may be exchanged.
    """
    keys, memory, now_ms, _ = state
    held = [
        [(token.number, token.status, _left(token, now_ms)) for token in tokens] for tokens in memory.tokens
    ]
    blocked = [
        [half_units(end - now_ms) if end > now_ms else NONE for end in ends] for ends in memory.blocking
    ]
    found = {0, *times(state)}
    found.update(one.gone for one in keys.items)
    found.update(end for tokens in held for _, _, end in tokens)
    found.update(end for ends in blocked for end in ends)
    ranks = {time: n for n, time in enumerate(sorted(found))}
    now = ranks[0]
    items = []
    for one, tokens, blurred in zip(keys.items, held, memory.blurred, strict=True):
        number = {old: n for n, old in enumerate(sorted({0, one.first, one.last, *(it[0] for it in tokens)}))}
        times_ = (ranks[time] for time in (one.deadline, one.due, one.gone, one.lease_end, one.leased_by_end))
        others = (one.deadline & 1, one.lease, one.leased_by, number[one.first], number[one.last])
        given = tuple((number[token], status, ranks[end]) for token, status, end in tokens)
        items.append((one.exists, *times_, *others, one.dead, one.error, blurred, given))
    # Sessions by their inboxes' lengths, as ids may be exchanged.
    sessions = [
        (ranks[end], len(inbox), tuple(sorted(ranks[one] for one in blocking)), inbox)
        for (end, inbox), blocking in zip(keys.sessions, blocked, strict=True)
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


def _left(token: Token, now_ms: int) -> int:
    return max(0, half_units(token.end - now_ms)) if token.status == LIVE else NONE


def _orders(items: Sequence[tuple[Any, ...]]) -> list[tuple[int, ...]]:
    """Return the orders of ids that sort their keys; more than one if two ids have the same."""
    order = sorted(range(len(items)), key=items.__getitem__)
    if len({*items}) == len(items):
        return [tuple(order)]
    return [*itertools.permutations(order)]
