"""Due times of schedules: across clock changes, in order, and none twice."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue import InvalidArgument
from leasequeue.durations import moment_ms
from leasequeue.errors import ExtraMissing
from leasequeue.queue.cron import Cron, Every, moment, read_timing, stamp

BERLIN = "Europe/Berlin"
#: The nights in which the clocks of Berlin change: 2:00 is followed by 3:00, and 3:00 by 2:00.
SPRING = datetime(2030, 3, 31, tzinfo=ZoneInfo(BERLIN))
AUTUMN = datetime(2030, 10, 27, tzinfo=ZoneInfo(BERLIN))


def ticks(expression: str, begin: datetime, hours: float, tz: str = BERLIN) -> list[int]:
    """Return the times from `begin` on, inclusive, each computed from the last, as ticking does."""
    cron = Cron.checked(expression, tz)
    end = moment_ms("begin", begin) + round(hours * 3_600_000)
    found: list[int] = []
    tick = cron.following(moment_ms("begin", begin) - 1)
    while tick < end:
        found.append(tick)
        tick = cron.following(tick)
    return found


def shown(times: list[int], tz: str = BERLIN) -> list[str]:
    """Return the local times of these times."""
    return [moment(time).astimezone(ZoneInfo(tz)).strftime("%H:%M") for time in times]


def in_utc(times: list[int]) -> list[str]:
    return [moment(time).strftime("%H:%M") for time in times]


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 2 * * *", ["03:00"], ["02:30"]),
        ("0 2 * * *", ["03:00"], ["02:00"]),
        ("15,45 2 * * *", ["03:00"], ["02:15", "02:45"]),
        ("0 1,2,3 * * *", ["01:00", "03:00"], ["01:00", "02:00", "03:00"]),
        ("30 1-3 * * *", ["01:30", "03:00", "03:30"], ["01:30", "02:30", "03:30"]),
        ("0 3 * * *", ["03:00"], ["03:00"]),
        ("30 * * * *", ["00:30", "01:30", "03:30"], ["00:30", "01:30", "02:30", "02:30", "03:30"]),
        ("*/30 2 * * *", [], ["02:00", "02:30", "02:00", "02:30"]),
        (
            "*/30 * * * *",
            ["00:00", "00:30", "01:00", "01:30", "03:00", "03:30"],
            ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30", "02:00", "02:30", "03:00", "03:30"],
        ),
        ("0 30 2 * * *", [], ["02:30", "02:30"]),
    ],
)
@pytest.mark.seed("GLD-T6")
def test_due_times_in_nights_in_which_clocks_change(
    expression: str, spring: list[str], autumn: list[str]
) -> None:
    for night, expected, hours in ((SPRING, spring, 3), (AUTUMN, autumn, 5)):
        times = ticks(expression, night, hours)
        assert shown(times) == expected
        assert all(before < after for before, after in pairwise(times)), "no time comes twice"


def test_intervals_by_stars_stay_even_when_the_clocks_change() -> None:
    for night in (SPRING, AUTUMN):
        times = ticks("*/30 * * * *", night, 30)
        assert {after - before for before, after in pairwise(times)} == {1_800_000}


def test_a_fixed_time_comes_once_a_day_all_year_round() -> None:
    times = ticks("30 2 * * *", SPRING - timedelta(days=30), 24 * 400)
    days = [moment(time).astimezone(ZoneInfo(BERLIN)).date() for time in times]
    assert all(after - before == timedelta(days=1) for before, after in pairwise(days))


@pytest.mark.parametrize("minute", range(0, 60, 7))
def test_a_start_within_the_repeated_hour_yields_no_past_time(minute: int) -> None:
    cron = Cron.checked("30 2 * * *", BERLIN)
    second_pass = (AUTUMN + timedelta(hours=2)).replace(minute=minute, fold=1)
    assert second_pass.astimezone(UTC).hour == 1
    tomorrow = moment(cron.following(moment_ms("begin", second_pass)))
    assert tomorrow == datetime(2030, 10, 28, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("tz", "day", "expression", "expected"),
    [
        ("UTC", datetime(2030, 3, 31, tzinfo=UTC), "30 2 * * *", ["02:30"]),
        # Here the clocks jump from 0:00 to 1:00.
        ("Asia/Beirut", datetime(2030, 3, 30, 22, tzinfo=UTC), "0 0 * * *", ["22:00"]),
        ("Asia/Beirut", datetime(2030, 3, 30, 22, tzinfo=UTC), "*/30 0 31 3 *", []),
        ("Asia/Beirut", datetime(2030, 3, 30, 12, tzinfo=UTC), "*/30 0,1 31 3 *", ["22:00", "22:30"]),
        # And here by half an hour.
        ("Australia/Lord_Howe", datetime(2030, 10, 5, 15, tzinfo=UTC), "15 2 * * *", ["15:30"]),
        ("Asia/Kathmandu", datetime(2030, 3, 31, tzinfo=UTC), "0 6 * * *", ["00:15"]),
    ],
)
def test_due_times_in_zones_with_unusual_changes(
    tz: str, day: datetime, expression: str, expected: list[str]
) -> None:
    assert in_utc(ticks(expression, day, 12, tz)) == expected


EXPRESSIONS = st.sampled_from(
    [
        "30 2 * * *",
        "*/7 * * * *",
        "0 0 1 * *",
        "15 */5 * * 1-5",
        "*/20 * * * * *",
        "5 1-3 L * *",
        "0 3 29 2 *",
    ]
)
MOMENTS = st.integers(1_890_000_000_000, 1_990_000_000_000)
ZONES = st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"])


@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(0, 5_000_000))
def test_the_latest_time_equals_that_of_a_linear_search(
    expression: str, tz: str, begin: int, ahead: int
) -> None:
    cron = Cron(expression, tz)
    due = cron.following(begin)
    now = due + ahead
    all_of_them = [due]
    while (tick := cron.following(all_of_them[-1])) <= now:
        assert tick > all_of_them[-1]
        all_of_them.append(tick)
    assert cron.latest(due, now) == all_of_them[-1]


def test_the_latest_of_many_years_is_found_at_once() -> None:
    cron = Cron("* * * * * *", BERLIN)
    begin, now = moment_ms("", datetime(2020, 1, 1, tzinfo=UTC)), moment_ms("", AUTUMN)
    assert cron.latest(begin, now + 999) == now


@given(st.integers(1, 10**9), st.none() | MOMENTS, MOMENTS, st.integers(0, 10**10))
def test_intervals_are_a_grid(interval: int, start: int | None, now: int, ahead: int) -> None:
    every = Every(interval, start)
    first = every.first(now)
    assert first >= now
    assert first == now + interval if start is None else (first - start) % interval == 0
    assert start is None or first >= start
    last = every.latest(first, first + ahead)
    assert last <= first + ahead < every.following(last)
    assert (last - first) % interval == 0


@pytest.mark.parametrize(
    ("given", "ms"),
    [(0.07, 70), (1 / 3, 333), (0.001, 1), (timedelta(microseconds=1500), 2), (30 * 86400, 2_592_000_000)],
)
def test_intervals_are_whole_milliseconds(given: Any, ms: int) -> None:
    assert Every.checked(given, None).interval == ms


@pytest.mark.parametrize(
    "timing",
    [Every(5, None), Every(60_000, -7), Cron("0 3 * * *", "UTC"), Cron("*/5 1 * * MON#2", BERLIN)],
    ids=repr,
)
def test_a_timing_is_parsed_from_its_text(timing: Every | Cron) -> None:
    assert read_timing(timing.text()) == timing


def test_spaces_make_no_difference() -> None:
    assert Cron.checked(" 0  3 * *\t* ", "UTC") == Cron.checked("0 3 * * *", "UTC")


@pytest.mark.parametrize(
    "text",
    ["", "every", "every x -", "every 0 -", "every -5 -", "every 5 x", "every 5", "monthly 5", "Every 5 -"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_timing(text)


NO_EXPRESSIONS: list[Any] = [
    *("", "* * * *", "* * * * * * *", "@daily", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
    *("x * * * *", "*/0 * * * *", "5-1 * * * *", "0 0 31 2 *", "0 0 30 2 *", "- * * * *", "1,,2 * * * *"),
    *("0 0 * * ²L", "0 0 * * 1#6", "0 0 LL * *", "9" * 400 + " * * * *", "* " * 500),
    *(None, 5, b"* * * * *", ["* * * * *"]),
]
NO_ZONES: list[Any] = [
    *("", "Nowhere", "Europe/Nowhere", "Europe", "../etc/passwd", "/etc/localtime", "Europe/Berlin "),
    *("\0", "UTC UTC", "é", None, 5, b"UTC", UTC, ZoneInfo(BERLIN)),
]


@pytest.mark.parametrize("expression", NO_EXPRESSIONS, ids=lambda value: repr(value)[:20])
def test_invalid_expressions_are_refused(expression: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^expression: got .* expected ") as caught:
        Cron.checked(expression, "UTC")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("tz", NO_ZONES, ids=repr)
def test_invalid_zones_are_refused(tz: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^tz: got .*, expected the name of a time zone"):
        Cron.checked("* * * * *", tz)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ExtraMissing, match=r'pip install "leasequeue\[schedules\]"') as caught:
        Cron.checked("* * * * *", "UTC")
    assert isinstance(caught.value, ImportError)
    assert caught.value.extra == "schedules"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (1_900_000_000_020, "2030-03-17T17:46:40.020Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_has_one_text(ms: int, text: str) -> None:
    assert stamp(ms) == text
    assert datetime.fromisoformat(text) == moment(ms)


def test_no_time_follows_the_last_one() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert last - moment(Every.checked(60, last).first(0) + 60_000) < timedelta(milliseconds=1)
