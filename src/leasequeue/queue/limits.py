"""Limits and pauses: how many items of a queue, or of a group, may be leased at once and in a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from leasequeue.durations import Duration, check_int, moment_ms, to_ms
from leasequeue.errors import InvalidArgument, LimitExceeded
from leasequeue.keys import check_prefix, hash_tag
from leasequeue.queue.encoding import check_group
from leasequeue.queue.holds import MAX_HOLD_MS, Hold, check_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from leasequeue.queue.engine import Engine

#: In place of a group: each group without separate limits.
EACH_GROUP = "*"
#: The maximum of items that are leased at once, and of a burst.
MAX_LIMIT = 1_000_000
#: The longest time between two items, and the longest reason of a pause in bytes of UTF-8.
MAX_INTERVAL_SECONDS = 30 * 86400
MAX_REASON_BYTES = 1000
#: How many queues may share limits under one name.
MAX_SHARERS = 64

LimitName = Literal["rate", "concurrency", "ageing", "shared"]
_OF_GROUPS = ("rate", "concurrency")
_OF_QUEUE = (*_OF_GROUPS, "ageing", "shared")
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE = re.compile(r"([1-9]\d{0,8})/(\d{1,9}(?:\.\d{1,6})?)?([smhd])", re.ASCII)
_RATE_ALLOWED = (
    f'a rate such as "10/s", "100/m", "5000/h" or "1/5s": 1 to {MAX_LIMIT:,} items in a time, at most one '
    "each µs and at least one in 30 days"
)
#: Values as they are stored.
_NUMBER = re.compile(r"[1-9]\d{0,15}", re.ASCII)
_STORED_RATE = re.compile(r"([1-9]\d{0,15}):([1-9]\d{0,15})", re.ASCII)
_STORED_PAUSE = re.compile(r"(inf|\d{1,16}) (\d{1,16}) (.*)", re.ASCII | re.DOTALL)
_PAGE = 500
_TIME_PASSED = -1
#: What `set_limits` answers to a burst without a rate.
_NO_RATE = -1


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The limits of a queue or a group."""

    #: How many items may be leased in a time, such as "10/s"; None: any number.
    rate: str | None = None
    #: How many of them may be leased at once after a pause; None: there is no rate.
    burst: int | None = None
    #: How many items may be under lease at once; None: any number.
    concurrency: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeclaredLimit:
    """The limits of a group that a program has, and its workers declare when they start."""

    group: str
    rate: str | None
    concurrency: int | None

    def __post_init__(self) -> None:
        self.fields()

    def fields(self) -> list[tuple[str, str]]:
        """Return the fields of `P:control`; one that is not limited is to be removed."""
        rate = "" if self.rate is None else f"{interval_of(self.rate)}:1"
        concurrency = "" if self.concurrency is None else f"{_limit('concurrency', self.concurrency)}"
        return [("rate", rate), ("concurrency", concurrency)]


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A pause of a queue or a group."""

    #: When it began: seconds since 1970, server's clock.
    since: float
    #: When it ends by itself; None: never.
    until: float | None
    #: Why the queue or the group was paused.
    reason: str


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """All limits and pauses of a queue."""

    #: Those of the whole queue.
    queue: Limit = Limit()
    #: Those of each group without separate ones.
    each_group: Limit = Limit()
    #: Those of single groups.
    groups: dict[str, Limit] = field(default_factory=dict)
    #: After how many seconds without a lease a level counts as one higher; None: never.
    ageing: float | None = None
    #: The name under which the queue shares limits with others; None: it does not.
    shared: str | None = None
    #: Those that it shares.
    shared_limit: Limit = Limit()
    #: The pause of the whole queue; None: it is not paused. Its time may have passed.
    paused: Pause | None = None
    #: The pauses of groups.
    paused_groups: dict[str, Pause] = field(default_factory=dict)
    #: How many items are leased of each group with a separate concurrency; 0 is left out.
    leased: dict[str, int] = field(default_factory=dict)
    #: How many are leased of all queues that share a concurrency.
    shared_leased: int = 0


@dataclass(frozen=True, kw_only=True)
class HoldLimit(Limit):
    """The limit of a name that blocks hold, and how many do."""

    #: How many blocks have a place.
    held: int = 0
    #: How many wait for one.
    waiting: int = 0


class Limits:
    """The limits of a queue: `AsyncWorkQueue.limits`.

        await queue.limits.set(rate="10/s", concurrency=50)
        await queue.limits.set(group="*", concurrency=2)            # of each group
        await queue.limits.set(group="tenant-7", rate="100/m", burst=20)

    The server checks them when it leases items, so they hold for all workers together. An item that may not
    be leased yet stays where it waits, and is leased as soon as it may. Clients of other libraries obey no
    limits.

    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
    Repeating is safe.
    """

    def __init__(self, engine: Callable[[], Engine], queue_name: str) -> None:
        self._engine = engine
        self._queue_name = queue_name

    async def set(
        self,
        *,
        rate: str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        group: str | None = None,
        ageing: Duration | None = None,
        shared: str | None = None,
        hold: str | None = None,
    ) -> bool:
        """Set limits; those that are None stay as they are. They are in force from the next lease on.

        Args:
            rate: How many items may be leased in a time, by the server's clock: `"10/s"`, `"100/m"`,
                `"5000/h"`, `"1/5s"`. They are leased evenly: of `"10/s"`, one every 100 ms.
            burst: How many items may be leased at once when fewer than the rate were leased before; 1 if it
                is not given with the rate. Alone, it changes that of a rate which is set.
            concurrency: How many items may be under lease at once.
            group: A group; `"*"`: each group without a separate one; None: the whole queue.
            ageing: Seconds after which a level from which no item was leased counts as one higher, so that
                items of a low priority do not wait without end.
            shared: A name: `rate` and `concurrency` are those of all queues together that share limits under
                it, at most 64. It contains the same hash tag as the queue's name, and is not the name of a
                queue.
            hold: A name: `rate` and `concurrency` are those of the blocks that `hold` it, as `hold` says.
                Up to 1,000 names have limits.

        Returns:
            Whether one was changed.

        Raises:
            InvalidArgument: If none is given, or one cannot be used, or there is no rate for a burst; nothing
                was changed.
        """
        fields = _fields(rate, burst, concurrency)
        if hold is not None:
            return await self._set_hold(hold, fields, group=group, ageing=ageing, shared=shared)
        if ageing is not None:
            if group is not None or shared is not None:
                raise InvalidArgument("ageing", ageing, "None with a group or with shared: it is the queue's")
            fields["ageing"] = f"{to_ms('ageing', ageing)}"
        if not fields:
            if shared is not None:
                raise InvalidArgument(
                    "shared", shared, "a rate or a concurrency with it, which the queues share"
                )
            raise InvalidArgument("rate", rate, "a rate, a concurrency or an ageing: one at least")
        if shared is None:
            suffix = _suffix(group)
            return await self._send([(name + suffix, value) for name, value in fields.items()])
        if group is not None:
            raise InvalidArgument("shared", shared, "None with a group: queues share limits as a whole")
        self._check_shared(shared)
        try:
            return await self._send(
                [("shared", shared), *((f"shared/{name}", value) for name, value in fields.items())]
            )
        except LimitExceeded as error:
            allowed = f"a name that fewer than {MAX_SHARERS} queues share"
            raise InvalidArgument("shared", shared, allowed) from error

    async def remove(self, *names: LimitName, group: str | None = None) -> bool:
        """Remove limits; return whether there was one.

        Args:
            names: Which: `"rate"`, `"concurrency"`, and without a group `"ageing"`, `"shared"`; none: all.
            group: See `set`.
        """
        allowed = _OF_QUEUE if group is None else _OF_GROUPS
        for name in names:
            if name not in allowed:
                raise InvalidArgument("names", name, f"one of {', '.join(allowed)}")
        suffix = _suffix(group)
        return await self._send([(name + suffix, "") for name in names or allowed])

    def hold(self, name: str, *, weight: int = 1, lease_time: Duration = 30) -> Hold:
        """Hold a place of a named limit during a block, in any process: wait until there is one.

            await queue.limits.set(hold="api", concurrency=5, rate="10/s", burst=10)
            async with queue.limits.hold("api"):
                ...

        No more blocks than the concurrency run at once, and no more begin than the rate permits, by the
        server's clock. Who came first is served first. The place is renewed while the block runs; a process
        that dies leaves it after `lease_time`. To wait no longer than a time, put it into `asyncio.timeout`.

        Args:
            name: The limit's name, as that of a group.
            weight: What the block uses of the rate, at most its burst; of the concurrency each uses one.
            lease_time: Seconds after which the place is free if the process dies, at most 3,600.

        Raises:
            InvalidArgument: If an argument cannot be used, or the name has no limits.
            HoldLost: If the server did not answer for `lease_time`: the block was cancelled.
        """
        check_int("weight", weight, minimum=1, maximum=MAX_LIMIT)
        lease_ms = to_ms("lease_time", lease_time)
        if lease_ms > MAX_HOLD_MS:
            raise InvalidArgument("lease_time", lease_time, "at most 3,600 seconds")
        return Hold(self._engine, check_hold(name), weight, lease_ms)

    async def holds(self) -> dict[str, HoldLimit]:
        """Return the limits that blocks hold by name."""
        _, *found = await self._engine().run("hold_limits")
        texts = [one.decode(errors="replace") for one in found]
        stored = dict(zip(texts[::2], texts[1::2], strict=True))
        names = sorted(name for field in stored for kind, _, name in [field.partition("/")] if kind == "held")
        limits = {
            name: read_limit(stored.get(f"rate/{name}"), stored.get(f"concurrency/{name}")) for name in names
        }
        return {
            name: HoldLimit(
                rate=one.rate,
                burst=one.burst,
                concurrency=one.concurrency,
                held=int(stored[f"held/{name}"]),
                waiting=int(stored[f"waits/{name}"]),
            )
            for name, one in limits.items()
            if one != Limit()
        }

    async def remove_hold(self, name: str) -> bool:
        """Remove the limits of a name that blocks hold; return whether there were some.

        Who waits for it gets InvalidArgument.
        """
        return await self._set_hold(check_hold(name), {"rate": "", "concurrency": ""})

    async def _set_hold(self, hold: str, fields: dict[str, str], **others: object) -> bool:
        for name, value in others.items():
            if value is not None:
                raise InvalidArgument(name, value, "None with hold: it limits blocks, not items")
        check_hold(hold)
        if not fields or fields.get("rate", "").startswith(":"):
            raise InvalidArgument("rate", None, "a rate (with the burst) or a concurrency, for hold")
        rows = [text.encode() for field, value in fields.items() for text in (f"{field}/{hold}", value)]
        try:
            return bool((await self._engine().run("hold_limits", rows))[0])
        except LimitExceeded as error:
            allowed = "a name that has limits already: 1,000 have, and `remove_hold` makes room"
            raise InvalidArgument("hold", hold, allowed) from error

    async def get(self) -> QueueLimits:
        """Return all limits and pauses."""
        stored: dict[str, str] = {}
        cursor = b"0"
        while True:
            cursor, _, _, *found = await self._engine().run("read_control", cursor=cursor, count=_PAGE)
            texts = [one.decode(errors="surrogateescape") for one in found]
            stored |= zip(texts[::2], texts[1::2], strict=True)
            if cursor == b"0":
                return _read(stored)

    async def _declare(self, limit: DeclaredLimit) -> None:
        await self._send([(f"{name}/{limit.group}", value) for name, value in limit.fields()])

    async def _send(self, fields: Sequence[tuple[str, str]]) -> bool:
        """Set fields; an empty value removes one. Return whether one was changed."""
        rows = [text.encode() for pair in fields for text in pair]
        more, changed = await self._engine().run("set_limits", rows)
        if more == _NO_RATE:
            burst = next(value for _, value in fields if value.startswith(":"))
            raise InvalidArgument("burst", int(burst[1:]), "a rate with it, as none is set")
        while more:
            more, _ = await self._engine().run("set_limits")
        return bool(changed)

    def _check_shared(self, shared: str) -> None:
        try:
            check_prefix(shared)
        except InvalidArgument as error:
            raise InvalidArgument("shared", shared, error.allowed) from error
        tag = hash_tag(self._queue_name)
        if tag is None:
            allowed = (
                f"a queue with a {{hash tag}} in its name, such as {{shop}}:a: "
                f"{self._queue_name!r} has none, and cannot share limits"
            )
            raise InvalidArgument("shared", shared, allowed)
        if hash_tag(shared) != tag or shared == self._queue_name:
            allowed = f"a name with the hash tag {'{' + tag + '}'!r}, as the queue's, that no queue has"
            raise InvalidArgument("shared", shared, allowed)


async def pause(
    engine: Engine,
    *,
    reason: str = "",
    until: datetime | None = None,
    for_: Duration | None = None,
    group: str | None = None,
) -> Pause:
    """Pause a queue or a group. See `AsyncWorkQueue.pause`."""
    if not isinstance(reason, str) or len(reason.encode(errors="replace")) > MAX_REASON_BYTES:
        raise InvalidArgument("reason", reason, f"a string of at most {MAX_REASON_BYTES:,} bytes in UTF-8")
    try:
        text = reason.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("reason", reason, "a string that can be encoded as UTF-8") from error
    if until is not None and for_ is not None:
        raise InvalidArgument("for_", for_, "a duration or a time, not both")
    till = b"inf"
    if until is not None:
        till = b"%d" % max(0, moment_ms("until", until))
    elif for_ is not None:
        till = b"+%d" % to_ms("for_", for_)
    scope = b"" if group is None else check_group(group).encode()
    answer, since_ms, ends_ms = await engine.run("pause_queue", of_group=scope, until_ms=till, reason=text)
    if answer == _TIME_PASSED:
        raise InvalidArgument("until", until, "a time in the future, by the server's clock")
    return Pause(since=since_ms / 1000, until=None if ends_ms < 0 else ends_ms / 1000, reason=reason)


async def resume(engine: Engine, group: str | None) -> bool:
    """Resume a queue or a group. See `AsyncWorkQueue.resume`."""
    scope = b"" if group is None else check_group(group).encode()
    return bool((await engine.run("pause_queue", of_group=scope, until_ms=b"", reason=b""))[0])


def interval_of(rate: object) -> int:
    """Check a rate, and return the time between two items in µs, rounded up."""
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None:
        raise InvalidArgument("rate", rate, _RATE_ALLOWED)
    count, period = int(match[1]), float(match[2] or 1) * _UNITS[match[3]]
    interval = -(-round(period) // count)
    if not (count <= MAX_LIMIT and count <= period and interval <= MAX_INTERVAL_SECONDS * 1_000_000):
        raise InvalidArgument("rate", rate, _RATE_ALLOWED)
    return interval


def rate_text(interval: int) -> str:
    """Return the rate of a time between two items in µs as a text that `interval_of` reads."""
    for unit, length in _UNITS.items():
        count = round(length / interval)
        if count >= 1 and -(-length // count) == interval:
            return f"{count}/{unit}"
    return f"1/{interval / 1_000_000:.6f}".rstrip("0").rstrip(".") + "s"


def _fields(rate: str | None, burst: int | None, concurrency: int | None) -> dict[str, str]:
    """Return limits as they are stored; those that are None are left out."""
    fields: dict[str, str] = {}
    if rate is not None:
        fields["rate"] = f"{interval_of(rate)}:{_limit('burst', 1 if burst is None else burst)}"
    elif burst is not None:
        fields["rate"] = f":{_limit('burst', burst)}"
    if concurrency is not None:
        fields["concurrency"] = f"{_limit('concurrency', concurrency)}"
    return fields


def _limit(argument: str, value: int) -> int:
    return check_int(argument, value, minimum=1, maximum=MAX_LIMIT)


def _suffix(group: str | None) -> str:
    """Return what follows the name of a field."""
    return "" if group is None else f"/{group if group == EACH_GROUP else check_group(group)}"


def _read(stored: dict[str, str]) -> QueueLimits:
    """Make the views of the fields of `P:control`."""
    names = [name.partition("/") for name in stored]
    groups = dict.fromkeys(
        group for kind, _, group in names if kind in _OF_GROUPS and group not in ("", EACH_GROUP)
    )
    paused = dict.fromkeys(group for kind, _, group in names if kind == "paused" and group)

    def limit(suffix: str) -> Limit:
        return read_limit(stored.get(f"rate{suffix}"), stored.get(f"concurrency{suffix}"))

    ageing = _number(stored.get("ageing"))
    pauses = {group: read_pause(stored[f"paused/{group}"]) for group in paused}
    return QueueLimits(
        queue=limit(""),
        each_group=limit("/*"),
        groups={group: found for group in groups if (found := limit(f"/{group}")) != Limit()},
        ageing=ageing / 1000 if ageing else None,
        shared=stored.get("shared"),
        shared_limit=read_limit(stored.get("shared/rate"), stored.get("shared/concurrency")),
        paused=read_pause(stored.get("paused", "")),
        paused_groups={group: pause for group, pause in pauses.items() if pause is not None},
        leased={group: n for group in groups if (n := _number(stored.get(f"leased/{group}")))},
        shared_leased=_number(stored.get("shared/leased")) or 0,
    )


def read_limit(rate: str | None, concurrency: str | None) -> Limit:
    """Parse limits; what another client has written and cannot be read is no limit."""
    found = _STORED_RATE.fullmatch(rate or "")
    return Limit(
        rate=rate_text(int(found[1])) if found else None,
        burst=int(found[2]) if found else None,
        concurrency=_number(concurrency),
    )


def read_pause(text: str) -> Pause | None:
    """Parse a pause; None: there is none, or it cannot be read."""
    found = _STORED_PAUSE.fullmatch(text)
    if found is None:
        return None
    until = None if found[1] == "inf" else int(found[1]) / 1000
    return Pause(since=int(found[2]) / 1000, until=until, reason=found[3])


def _number(text: str | None) -> int | None:
    return int(text) if text and _NUMBER.fullmatch(text) else None
