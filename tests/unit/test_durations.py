"""Checks of durations and counts."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue import InvalidArgument
from leasequeue.durations import LONGEST_SECONDS, check_int, seconds, to_ms

LONGEST = int(LONGEST_SECONDS)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1, 1_000),
        (1.5, 1_500),
        (0.001, 1),
        (0.0001, 1),
        (5e-324, 1),
        (0.25, 250),
        (timedelta(milliseconds=7), 7),
        (timedelta(microseconds=1), 1),
        (timedelta(days=30), LONGEST * 1_000),
        (LONGEST, LONGEST * 1_000),
    ],
)
@pytest.mark.seed("RWQ-B13")
def test_seconds_become_whole_milliseconds_rounded_up(value: float | timedelta, ms: int) -> None:
    assert to_ms("lease_time", value) == ms


@pytest.mark.parametrize("nothing", [0, 0.0, -0.0, timedelta(0)])
def test_zero_is_allowed_only_with_zero(nothing: float | timedelta) -> None:
    assert to_ms("delay", nothing, zero=True) == 0
    assert seconds("timeout", nothing, zero=True) == 0.0
    with pytest.raises(InvalidArgument, match="more than 0"):
        to_ms("lease_time", nothing)


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -0.001, math.nan, math.inf, -math.inf, LONGEST + 1, LONGEST_SECONDS + 0.01, 10**400),
        *(timedelta(seconds=-1), timedelta(days=30, microseconds=1)),
        *(True, "30", b"30", None, Fraction(1, 2), 1j, [30]),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize("zero", [True, False])
def test_an_invalid_duration_is_refused_by_name(value: object, zero: bool) -> None:  # noqa: FBT001 - a parameter
    with pytest.raises(InvalidArgument, match=r"^lease_time: got .*, expected seconds") as refused:
        seconds("lease_time", value, zero=zero)  # type: ignore[arg-type]  # that is the point
    assert refused.value.argument == "lease_time"
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("value", [61, 60.5, timedelta(seconds=61)])
def test_another_maximum_holds_for_each_type(value: float | timedelta) -> None:
    assert seconds("wait", 60, zero=False, longest=60) == seconds("wait", 60.0, zero=False, longest=60) == 60
    with pytest.raises(InvalidArgument, match="wait"):
        seconds("wait", value, zero=False, longest=60)


@given(st.floats(min_value=0, max_value=LONGEST_SECONDS, exclude_min=True))
def test_rounding_loses_no_time_and_adds_less_than_a_millisecond(value: float) -> None:
    assert seconds("delay", value, zero=False) == value
    ms = to_ms("delay", value)
    assert ms >= 1
    assert -1e-3 < ms - value * 1_000 <= 1


@given(st.integers(min_value=1, max_value=LONGEST * 1_000))
def test_whole_milliseconds_are_not_reduced_and_grow_by_one_at_most(ms: int) -> None:
    """A thousandth has no exact binary form: 2.007 s are a little more than 2,007 ms."""
    assert to_ms("delay", timedelta(milliseconds=ms)) in {ms, ms + 1}
    assert to_ms("delay", ms / 1_000) in {ms, ms + 1}


@given(st.integers(min_value=1, max_value=LONGEST))
def test_whole_seconds_stay_what_they_are(value: int) -> None:
    assert to_ms("delay", value) == value * 1_000


def test_a_whole_number_between_its_bounds_is_returned() -> None:
    assert [check_int("count", number, minimum=1, maximum=3) for number in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("value", [0, 4, -1, 1.0, True, "1", None, math.nan], ids=repr)
def test_other_values_than_whole_numbers_between_the_bounds_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^count: got .*, expected a whole number from 1 to 3$"):
        check_int("count", value, minimum=1, maximum=3)  # type: ignore[arg-type]  # that is the point
