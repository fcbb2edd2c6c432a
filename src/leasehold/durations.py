"""Durations and counts at the border: seconds above it, whole milliseconds below."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from leasehold.errors import InvalidArgument

#: A length of time: seconds as a number, or a `timedelta`.
Duration = float | timedelta
_DURATION_TYPES = (int, float, timedelta)

#: The longest lease, delay or wait that is accepted: 30 days, in seconds.
LONGEST_SECONDS = 30 * 24 * 3600.0
#: The longest time for which something finished is kept: some 100 years, in seconds.
LONGEST_KEPT_SECONDS = 36_500 * 24 * 3600.0


def seconds(argument: str, value: Duration, *, zero: bool, longest: float = LONGEST_SECONDS) -> float:
    """Check a duration and return it in seconds.

    Args:
        argument: The name to put into the error.
        value: Seconds, or a `timedelta`.
        zero: Whether 0 is a legal value.
        longest: The longest legal value, in seconds, at least 30 days.

    Raises:
        InvalidArgument: If the value is no number, not finite, negative, zero (unless allowed) or
            longer than is legal.
    """
    if type(value) is float and 0 < value <= LONGEST_SECONDS:
        return value  # the usual case, at the usual speed
    if type(value) is int and (0 < value <= LONGEST_SECONDS or (zero and value == 0)):
        return float(value)
    lower = "0 or more" if zero else "more than 0"
    allowed = f"seconds (a number or a timedelta), {lower}, at most {longest / 86400:,g} days"
    if isinstance(value, bool) or not isinstance(value, _DURATION_TYPES):
        raise InvalidArgument(argument, value, allowed)
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= number <= longest or (number == 0 and not zero):  # also NaN is not between them
        raise InvalidArgument(argument, value, allowed)
    return float(number)


def to_ms(argument: str, value: Duration, *, zero: bool = False, longest: float = LONGEST_SECONDS) -> int:
    """Check a duration and return whole milliseconds, rounded up, so that 0.1 ms is still a lease."""
    return math.ceil(seconds(argument, value, zero=zero, longest=longest) * 1000)


_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ms(argument: str, value: datetime) -> int:
    """Check a time and return it in whole milliseconds since 1970, rounded up: never too early.

    Raises:
        InvalidArgument: If it is no `datetime`, or has no time zone, so that nobody knows when it is.
    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidArgument(argument, value, "a datetime with a time zone, such as datetime.now(UTC)")
    return -((_EPOCH - value) // _MILLISECOND)


def check_int(argument: str, value: int, *, minimum: int, maximum: int) -> int:
    """Check a whole number between two bounds, both included.

    Raises:
        InvalidArgument: If it is not an `int`, or lies outside.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidArgument(argument, value, f"a whole number from {minimum} to {maximum}")
    return value
