"""Due times of schedules: at intervals, or by a cron expression in a time zone. No function reads a clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, TypeAlias

from leasequeue.durations import Duration, moment_ms, seconds
from leasequeue.errors import ExtraMissing, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_INTERVAL_ALLOWED = "seconds (a number or a timedelta), 1 ms or more, at most 30 days"
_EXPRESSION_ALLOWED = "a cron expression such as '0 3 * * *': minute, hour, day, month, weekday"
_TZ_ALLOWED = "the name of a time zone that this machine knows, such as 'UTC' or 'Europe/Berlin'"
#: The longest expression, in characters.
_LONGEST_EXPRESSION = 512


@dataclass(frozen=True)
class Every:
    """Due at intervals, from a start or from when the schedule was made. Times are whole ms since 1970."""

    interval: int
    start: int | None

    @classmethod
    def checked(cls, interval: Duration, start: datetime | None) -> Every:
        """Check the arguments of a user."""
        try:
            # Rounded to the nearest, not up: the excess of 0.07 in binary would add up with each tick.
            interval_ms = round(seconds("interval", interval, zero=False) * 1000)
        except InvalidArgument as error:
            raise InvalidArgument("interval", interval, _INTERVAL_ALLOWED) from error
        if interval_ms < 1:
            raise InvalidArgument("interval", interval, _INTERVAL_ALLOWED)
        return cls(interval_ms, None if start is None else moment_ms("start", start))

    def text(self) -> str:
        """Return a text from which `read_timing` makes the same timing."""
        return f"every {self.interval} {'-' if self.start is None else self.start}"

    def first(self, now: int) -> int:
        """Return the first due time of a schedule that is made at `now`."""
        if self.start is None:
            return now + self.interval
        if self.start >= now:
            return self.start
        return self.following(self.latest(self.start, now))

    def following(self, due: int) -> int:
        """Return the due time after `due`."""
        return due + self.interval

    def latest(self, due: int, now: int) -> int:
        """Return the last due time up to `now`, given an earlier due time."""
        return due + (now - due) // self.interval * self.interval


@dataclass(frozen=True)
class Cron:
    """Due at the times of a cron expression in a time zone.

    A clock that is set forward skips some times; one that is set back shows some twice. A fixed hour and
    minute is due right after the skipped time, and only the first time; an hour or minute that begins with a
    star follows the elapsed time.
    """

    expression: str
    tz: str

    @classmethod
    def checked(cls, expression: str, tz: str) -> Cron:
        """Check the arguments of a user."""
        if not isinstance(expression, str) or len(expression) > _LONGEST_EXPRESSION:
            raise InvalidArgument("expression", expression, _EXPRESSION_ALLOWED)
        zone(tz)
        made = cls(" ".join(expression.split()), tz)
        made.first(0)
        return made

    def text(self) -> str:
        """See `Every`."""
        return f"cron {self.tz} {self.expression}"

    def first(self, now: int) -> int:
        """See `Every`."""
        return self.following(now)

    def following(self, due: int) -> int:
        """See `Every`."""
        # In an hour that occurs twice, the iterator may repeat times of the first pass.
        return next(tick for tick in self._from(due) if tick > due)

    def latest(self, due: int, now: int) -> int:
        """See `Every`."""
        if self.following(due) > now:
            return due
        # A binary search: after a year, there are too many minutes to iterate over.
        found, end = due, now
        while found < end:
            middle = (found + end) // 2
            tick = self.following(middle)
            if tick <= now:
                found = tick
            else:
                end = middle
        return found

    def _from(self, begin: int) -> Iterator[int]:
        """Yield the due times from `begin` on, and perhaps some before."""
        try:
            from cronsim import CronSim, CronSimError
        except ImportError as error:
            raise ExtraMissing("cron expressions", "schedules") from error
        tz = zone(self.tz)
        try:
            local = datetime.fromtimestamp(begin // 1000, tz)
            for tick in CronSim(self.expression, local):
                in_utc = tick.astimezone(UTC)
                ms = (in_utc - _EPOCH) // timedelta(milliseconds=1)
                if in_utc.astimezone(tz) != tick:
                    # It came to a day without such a midnight: the clock shows another time then.
                    yield from self._from(ms - 1000)
                yield ms
        except InvalidArgument:
            raise
        except (CronSimError, ValueError, OverflowError) as error:
            raise InvalidArgument(
                "expression", self.expression, f"{_EXPRESSION_ALLOWED} ({error})"
            ) from error
        raise InvalidArgument("expression", self.expression, "one that matches within 50 years")


Timing: TypeAlias = Every | Cron


def zone(tz: str) -> tzinfo:
    """Return a time zone by its name; refuse one that this machine does not know."""
    if not isinstance(tz, str) or not tz or " " in tz:
        raise InvalidArgument("tz", tz, _TZ_ALLOWED)
    if tz == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # rarely needed, and slow to import

    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidArgument("tz", tz, _TZ_ALLOWED) from error


def timing_of(cron: str | None, tz: str | None, every: Duration | None) -> Timing | None:
    """Return the timing that a user has written, as a cron expression or an interval; None if as neither."""
    if cron is not None and every is not None:
        raise InvalidArgument("every", every, "a cron expression or an interval, not both")
    if cron is not None:
        try:
            return Cron.checked(cron, "UTC" if tz is None else tz)
        except InvalidArgument as error:
            name = "cron" if error.argument == "expression" else error.argument
            raise InvalidArgument(name, cron if name == "cron" else tz, error.allowed) from error
    if tz is not None:
        raise InvalidArgument("tz", tz, "a time zone beside a cron expression")
    if every is None:
        return None
    try:
        return Every.checked(every, None)
    except InvalidArgument as error:
        raise InvalidArgument("every", every, error.allowed) from error


def read_timing(text: str) -> Timing:
    """Parse the text of a timing, or raise ValueError. What is in it is checked when it is used."""
    kind, _, rest = text.partition(" ")
    first, _, second = rest.partition(" ")
    if kind == "every":
        interval = int(first)
        start = None if second == "-" else int(second)
        if not 1 <= interval <= _LAST_MS or abs(start or 0) > _LAST_MS:
            raise ValueError(f"{rest!r} is not an interval and a start in ms")
        return Every(interval, start)
    if kind == "cron":
        return Cron(second, first)
    raise ValueError(f"{kind!r} is neither 'every' nor 'cron'")


def moment(ms: int) -> datetime:
    """Return a time in milliseconds since 1970 as a `datetime` in UTC, at most the last possible one."""
    return _EPOCH + timedelta(milliseconds=min(ms, _LAST_MS))


def stamp(ms: int) -> str:
    """Return a time in milliseconds since 1970 in ISO 8601: `2030-01-31T03:00:00Z`, or with milliseconds."""
    precision = "milliseconds" if ms % 1000 else "seconds"
    return moment(ms).isoformat(timespec=precision).replace("+00:00", "Z")
