"""Checks of durations, times, counts and lists: seconds in the API, whole ms in the scripts. And back-off."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from leasequeue.errors import InvalidArgument

#: A length of time: seconds as a number, or a `timedelta`.
Duration = float | timedelta
_DURATION_TYPES = (int, float, timedelta)

#: The longest lease, delay or wait that is accepted: 30 days, in seconds.
LONGEST_SECONDS = 30 * 24 * 3600.0
#: The longest time for which finished things are kept: some 100 years, in seconds.
LONGEST_KEPT_SECONDS = 36_500 * 24 * 3600.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_PARTS = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration(text: str) -> float | None:
    """Return the seconds of `500ms`, `30s`, `5m`, `1h30m`, `2d`, `1w` or a number; None: it is none."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _PARTS.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def duration_text(seconds: float) -> str:
    """Return a duration for people, with three digits: `120 ms`, `1.25 s`, `2.5 min`, `3.1 h`, `4.0 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def seconds(argument: str, value: Duration, *, zero: bool, longest: float = LONGEST_SECONDS) -> float:
    """Check a duration and return it in seconds."""
    if type(value) is float and 0 < value <= longest:
        return value  # the usual case, without further checks
    if type(value) is int and (0 < value <= longest or (zero and value == 0)):
        return float(value)
    lower = "0 or more" if zero else "more than 0"
    allowed = f"seconds (a number or a timedelta), {lower}, at most {longest / 86400:,g} days"
    if isinstance(value, bool) or not isinstance(value, _DURATION_TYPES):
        raise InvalidArgument(argument, value, allowed)
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= number <= longest or (number == 0 and not zero):  # this refuses NaN, too
        raise InvalidArgument(argument, value, allowed)
    return float(number)


def to_ms(argument: str, value: Duration, *, zero: bool = False, longest: float = LONGEST_SECONDS) -> int:
    """Check a duration and return whole milliseconds, rounded up, so that 0.1 ms is not 0."""
    return math.ceil(seconds(argument, value, zero=zero, longest=longest) * 1000)


_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ms(argument: str, value: datetime) -> int:
    """Check a time and return it in whole milliseconds since 1970, rounded up, so never too early."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidArgument(argument, value, "a datetime with a time zone, such as datetime.now(UTC)")
    return -((_EPOCH - value) // _MILLISECOND)


def check_bool(argument: str, value: bool) -> bool:  # noqa: FBT001 - it is the value that is checked
    """Check that a value is True or False, and return it."""
    if value is not True and value is not False:
        raise InvalidArgument(argument, value, "True or False")
    return value


def check_list(argument: str, values: Iterable[Any], of: str) -> list[Any]:
    """Return some values as a list.

    Any iterable will do, but a text or a mapping. `of` says what they are, in the plural.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(values, Iterable):
        raise InvalidArgument(argument, values, f"a list, or another iterable, of {of}")
    return list(values)


def check_int(argument: str, value: int, *, minimum: int, maximum: int) -> int:
    """Check a whole number between two bounds, both inclusive, and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidArgument(argument, value, f"a whole number from {minimum} to {maximum}")
    return value


#: A number of bytes: a whole number, or a text such as `"64KiB"` or `"1MiB"`.
Size = int | str
_SIZE = re.compile(r"(\d{1,6}) ?(KiB|MiB)", re.ASCII)


def check_size(argument: str, value: Size, *, minimum: int, maximum: int) -> int:
    """Check a number of bytes between two bounds, both inclusive, and return it."""
    parts = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = value if parts is None else int(parts[1]) << (10 if parts[2] == "KiB" else 20)
    if isinstance(size, bool) or not isinstance(size, int) or not minimum <= size <= maximum:
        allowed = f'bytes, from {minimum:,} to {maximum:,}: a whole number, or a text such as "64KiB"'
        raise InvalidArgument(argument, value, allowed)
    return size


#: The first and the longest wait before a call is repeated, or a connection opened again (s).
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0


class Backoff:
    """Waits between repetitions of a call: each is twice the last, up to a maximum.

    A wait is shortened at random by up to half, so that the clients of a server do not all return at once.

        backoff = Backoff()
        while not await answered():
            await backoff.wait()
    """

    __slots__ = ("_first", "_longest", "failures")

    def __init__(self, *, first: float = FIRST_WAIT, longest: float = LONGEST_WAIT) -> None:
        self._first = first
        self._longest = longest
        #: How many failures there were since the last success.
        self.failures = 0

    def next(self) -> float:
        """Count a failure, and return how long to wait, in seconds."""
        upper = min(self._longest, self._first * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return upper * random.uniform(0.5, 1)  # noqa: S311 - no secret

    async def wait(self) -> None:
        """Wait before the next try."""
        await asyncio.sleep(self.next())

    def reset(self) -> None:
        """Start again with the first wait, after a success."""
        self.failures = 0
