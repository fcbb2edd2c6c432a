"""Schedules: items that are added repeatedly, at intervals or by the clock. The server keeps them by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from leasequeue.errors import ExtraMissing, InvalidArgument
from leasequeue.errors.log import Log
from leasequeue.item import MAX_ID_BYTES, Item, check_id
from leasequeue.queue.cron import Cron, Every, Timing, moment, read_timing, stamp
from leasequeue.queue.encoding import MAX_REPLY_BYTES, encoded_id

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from leasequeue.durations import Duration
    from leasequeue.queue.engine import Engine

#: How to treat ticks that were due while no process ticked.
CatchUp = Literal["skip", "once", "all"]
_POLICIES = get_args(CatchUp)
#: A tick that is found later than this is missed, for `catch_up="skip"`.
LATE_MS = 60_000
#: The maximum number of ticks of one schedule, and of all, that one step adds.
MAX_OF_ONE = 100
MAX_OF_ALL = 250
#: The maximum number of steps of one call of `tick`.
_MAX_STEPS = 10
#: When to look again whether a queue that is being deleted can be ticked (s).
CLOSED_SECONDS = 5.0
#: The version of the definitions that this module writes. It ignores others.
_VERSION = "1"
#: The longest suffix of the name in an item's id: `@2030-01-31T03:00:00.000Z`.
_STAMP_BYTES = 25
_NAME_ALLOWED = f"a string of 1 to {MAX_ID_BYTES - _STAMP_BYTES} bytes in UTF-8"
#: The answer of `schedule_put` if it needs the first due time.
_NEEDS_DUE = -1
#: How often `tick` is called for overdue ticks of an earlier definition before it is replaced.
_MAX_OVERDUE = 100
#: The definition of a declared schedule counts for so long after its last declaration, if there are others.
FORGET_MS = 300_000
#: A declared schedule is removed so long after its last declaration.
KEEP_DECLARED_MS = 3_600_000
#: Values per schedule in the replies of `schedules` and `ticks_due`.
_FIELDS, _DUE_FIELDS = 5, 3
_PAGE = 100

log = Log("leasequeue.schedules")


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """One schedule at one instant."""

    #: Its name.
    name: str
    #: "unknown": a newer version of Leasequeue has made it.
    kind: Literal["every", "cron", "unknown"]
    #: Of an "every": seconds between two ticks; else None.
    interval: float | None
    #: Of an "every": the start, if one was given; else None.
    start: datetime | None
    #: Of a "cron": the expression; else None.
    expression: str | None
    #: Of a "cron": the name of the time zone; else None.
    tz: str | None
    #: How ticks are treated that were due while no process ticked; None if unknown.
    catch_up: CatchUp | None
    #: When it is due next, in UTC; None if never.
    next_due: datetime | None
    #: Bytes of data.
    size: int
    #: The data of the items that it adds; None if it was not asked for, or did not fit into the reply.
    data: bytes | None


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A schedule that a program has, and its workers declare while they run."""

    name: str
    #: The data of the items.
    data: bytes
    timing: Timing
    catch_up: CatchUp = "once"

    def __post_init__(self) -> None:
        _checked_name(self.name)


class _Row(NamedTuple):
    """A tick that is due, as the script `tick` expects it."""

    name: bytes
    definition: bytes
    due: int
    #: The time in the item's id; None: no item is added.
    stands_for: int | None
    next_due: int

    def values(self) -> tuple[bytes, ...]:
        item_id = b"" if self.stands_for is None else b"%b@%b" % (self.name, stamp(self.stands_for).encode())
        return (self.name, self.definition, b"%d" % self.due, item_id, b"%d" % self.next_due)


class Schedules:
    """The schedules of a queue: `AsyncWorkQueue.schedules`.

        await queue.schedules.every(timedelta(minutes=5), "poll")
        await queue.schedules.cron("0 3 * * *", "nightly", tz="Europe/Berlin")

    The server keeps them. Every `Worker` of the queue ticks them; elsewhere call `tick`. Each tick adds one
    item, whatever the number of workers. Its id is the name and the due time, such as
    `nightly@2030-01-31T02:00:00Z`, so an unfinished item does not prevent the next one.

    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
    Repeating is safe.
    """

    def __init__(self, engine: Callable[[], Engine], queue_name: str) -> None:
        self._engine = engine
        self._queue_name = queue_name

    async def every(
        self,
        interval: Duration,
        name: str,
        data: bytes | str = b"",
        *,
        start: datetime | None = None,
        catch_up: CatchUp = "once",
    ) -> bool:
        """Add an item at intervals, from now on.

        Repeating the call changes nothing, so a program may make it at each start. Other data or another
        policy do not change the times; another interval or start begins a new series, after the items that
        are due until then have been added.

        Args:
            interval: Seconds between two ticks, 0.001 to 30 days, in whole milliseconds.
            name: The schedule's name within the queue, 1 to 487 bytes of UTF-8.
            data: The data of the items.
            start: A time with a time zone. Ticks are whole intervals away from it, and none is before it.
                None: the first is one interval from now.
            catch_up: How to treat ticks that were due while no process ticked: `"once"` adds one item, for
                the last of them; `"all"` adds each; `"skip"` adds none that is over 60 s late or was followed
                by another.

        Returns:
            True if it is new or was changed.
        """
        return await self._put(name, data, Every.checked(interval, start), catch_up)

    async def cron(
        self,
        expression: str,
        name: str,
        data: bytes | str = b"",
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "once",
    ) -> bool:
        """Add an item at the times of a cron expression, from now on.

        Repeating the call has the same effect as with `every`.

        Args:
            expression: Minute, hour, day, month, weekday, as in cron; or six fields, the first for seconds.
            name: The schedule's name within the queue, 1 to 487 bytes of UTF-8.
            data: The data of the items.
            tz: The name of the time zone. When its clock is set forward, a fixed time that it skips is due
                right after; when it is set back, a fixed time is due once. If the hour or minute field begins
                with a star, ticks follow the elapsed time.
            catch_up: As in `every`.

        Returns:
            True if it is new or was changed.

        Raises:
            ExtraMissing: If `leasequeue[schedules]` is not installed.
        """
        return await self._put(name, data, Cron.checked(expression, tz), catch_up)

    async def list(self, *, data: bool = True) -> builtins.list[ScheduleView]:
        """Return all schedules, the next due first.

        Args:
            data: Whether to fetch the data (8 MiB of each hundred schedules at most).
        """
        found: dict[bytes, ScheduleView] = {}
        cursor, engine = b"", self._engine()
        while cursor != b"0":
            cursor, *reply = await engine.run(
                "schedules", cursor=cursor or b"0", count=_PAGE, max_bytes=MAX_REPLY_BYTES if data else -1
            )
            for at in range(0, len(reply), _FIELDS):
                *facts, stored = reply[at : at + _FIELDS]
                found[facts[0]] = _view([*facts, engine.payloads.shown(stored, facts[0])])
        views = sorted(found.values(), key=lambda view: view.name)
        return sorted(views, key=lambda view: view.next_due.timestamp() if view.next_due else math.inf)

    async def remove(self, name: str) -> bool:
        """Remove a schedule; return whether there was one with this name. Items that it has added stay."""
        return bool((await self._engine().run("schedule_drop", [encoded_id(name, argument="name")]))[0])

    async def tick(self) -> float:
        """Add the items that are due. A `Worker` does so by itself.

        Any number of processes may call it at once. It adds a bounded number of items, and returns 0 if more
        are due. Return the seconds until the next item is due, by the server's clock; infinity if none will
        be. While the queue is being deleted, nothing is added: if an item is due, 5 s are returned.
        """
        skipped, before = 0, list[Any]()
        for _ in range(_MAX_STEPS):
            now, wait, *due = await self._engine().run("ticks_due", start=skipped, count=_PAGE)
            if not due:
                return wait / 1000 if wait >= 0 else math.inf
            rows = self._rows(due, now)
            if not rows:
                skipped += len(due) // _DUE_FIELDS  # none of these can be parsed
            answers: builtins.list[int] = []
            for at in range(0, len(rows), MAX_OF_ALL):
                values = [value for row in rows[at : at + MAX_OF_ALL] for value in row.values()]
                answers += await self._engine().run("tick", values, max_bytes=MAX_REPLY_BYTES)
            # What another process has ticked is not as it was before.
            if due == before and not any(answers):
                return CLOSED_SECONDS
            before = due
        return 0.0

    async def _declare(self, declaration: Declaration) -> bool:
        """Store a schedule, or keep it, because this program has it; return whether it is new or was changed.

        Of several definitions of a name that are declared at the same time, the one counts that was declared
        first at the latest time, by the server's clock.
        """
        return await self._put(
            declaration.name, declaration.data, declaration.timing, declaration.catch_up, declares=True
        )

    async def _expire_declared(self) -> builtins.list[str]:
        """Remove the schedules that were declared once, and not in the last hour; return their names."""
        removed: builtins.list[str] = []
        cursor = b""
        while cursor != b"0":
            cursor, *names = await self._engine().run(
                "schedules_expire", cursor=cursor or b"0", count=_PAGE, keep_ms=KEEP_DECLARED_MS
            )
            removed += [name.decode(errors="surrogateescape") for name in names]
        return removed

    async def _put(
        self, name: str, data: bytes | str, timing: Timing, catch_up: CatchUp, *, declares: bool = False
    ) -> bool:
        schedule = _checked_name(name)
        if catch_up not in _POLICIES:
            raise InvalidArgument("catch_up", catch_up, "'skip', 'once' or 'all'")
        fixed: dict[str, bytes | int] = {
            "schedule": schedule,
            "definition": f"{_VERSION} {catch_up} {timing.text()}".encode(),
            "data": self._engine().payloads.encode(Item(data).data, name),
            "forget_ms": FORGET_MS if declares else b"",
        }
        answer, now, owed = await self._engine().run("schedule_put", (), **fixed, due_ms=b"")
        if answer == _NEEDS_DUE and owed:
            for _ in range(_MAX_OVERDUE):
                if await self.tick() > 0:
                    break
            answer, now, _ = await self._engine().run("schedule_put", (), **fixed, due_ms=b"")
        if answer == _NEEDS_DUE:
            answer, _, _ = await self._engine().run("schedule_put", (), **fixed, due_ms=timing.first(now))
        return bool(answer)

    def _rows(self, due: Sequence[Any], now: int) -> builtins.list[_Row]:
        """Return the rows of due ticks. Schedules that cannot be parsed have none."""
        rows: builtins.list[_Row] = []
        for at in range(0, len(due), _DUE_FIELDS):
            name, due_ms, definition = due[at : at + _DUE_FIELDS]
            if definition is None:
                rows.append(_Row(name, b"", due_ms, None, due_ms))
                continue
            try:
                policy, timing = read_definition(definition)
                rows += _owed(name, definition, timing, policy, due_ms, now)
            except (ValueError, OverflowError, ExtraMissing) as error:
                _warn_once(self._queue_name, name, definition, str(error))
        # Rows of one schedule keep their order.
        return sorted(rows, key=lambda row: row.due)


def _owed(name: bytes, definition: bytes, timing: Timing, policy: str, due: int, now: int) -> list[_Row]:
    if policy != "all":
        last = timing.latest(due, now)
        missed = policy == "skip" and now - last > LATE_MS
        return [_Row(name, definition, due, None if missed else last, timing.following(last))]
    rows: list[_Row] = []
    while due <= now and len(rows) < MAX_OF_ONE:
        following = timing.following(due)
        rows.append(_Row(name, definition, due, due, following))
        due = following
    return rows


def read_definition(definition: bytes) -> tuple[str, Timing]:
    """Parse a definition into its policy and times, or raise ValueError: it may be of another version."""
    version, policy, text = definition.decode().split(" ", 2)
    if version != _VERSION:
        raise ValueError(f"it has version {version}, and this Leasequeue knows version {_VERSION}")
    if policy not in _POLICIES:
        raise ValueError(f"unknown policy {policy!r}")
    return policy, read_timing(text)


def _view(fields: Sequence[Any]) -> ScheduleView:
    name, definition, due_ms, size, data = fields
    policy: Any = None
    timing: Timing | None = None
    try:
        policy, timing = read_definition(definition)
    except ValueError:
        kind: Literal["every", "cron", "unknown"] = "unknown"
    else:
        kind = "cron" if isinstance(timing, Cron) else "every"
    every = timing if isinstance(timing, Every) else None
    cron = timing if isinstance(timing, Cron) else None
    return ScheduleView(
        name=name.decode(errors="surrogateescape"),
        kind=kind,
        interval=every.interval / 1000 if every else None,
        start=moment(every.start) if every and every.start is not None else None,
        expression=cron.expression if cron else None,
        tz=cron.tz if cron else None,
        catch_up=policy,
        next_due=moment(due_ms) if due_ms >= 0 else None,
        size=size,
        data=data,
    )


def _checked_name(name: str) -> bytes:
    try:
        encoded = check_id(name, argument="name").encode()
    except InvalidArgument as error:
        raise InvalidArgument("name", name, _NAME_ALLOWED) from error
    if len(encoded) > MAX_ID_BYTES - _STAMP_BYTES:
        raise InvalidArgument("name", name, _NAME_ALLOWED)
    return encoded


@lru_cache(maxsize=1000)
def _warn_once(queue_name: str, name: bytes, definition: bytes, problem: str) -> None:
    """Log a warning once per process, as ticks are frequent."""
    log.warning(
        "ignoring the schedule %r of %s: %s (%r)",
        name.decode(errors="replace"),
        queue_name,
        problem,
        definition,
    )
