"""The axes and lines of charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from leasequeue.spark.jobs.charts import SECONDS, SHARE, bars, over_time
from leasequeue.spark.jobs.html_page import cell, duration, interval, share, table
from leasequeue.spark.jobs.report_text import Rows, page_of

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMES = [BEGIN + number * MINUTE for number in range(3)]


def lasting(series: dict[str, list[float | None]], times: list[datetime] = TIMES) -> str:
    """Draw durations for a wide screen."""
    wide, _ = over_time("a", "a", times, MINUTE, series, unit=SECONDS)
    return wide


def labels(svg: str) -> list[str]:
    """Return the texts in a chart, without its description."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def points(svg: str, line: str) -> list[tuple[float, float]]:
    """Return the points of a line, in the coordinates of the chart; y grows downwards."""
    drawn = re.search(rf'<path d="([^"]*)"[^>]*style="[^"]*{re.escape(line)}', svg)
    assert drawn
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", drawn[1])]


def test_durations_on_an_axis_have_units() -> None:
    alike = labels(lasting({"p50": [0.12, None, 0.2]}))
    assert {"0 ms", "100 ms", "200 ms"} <= {*alike}
    unlike = labels(lasting({"p50": [0.012, 0.0, 200.0]}))
    assert {"20 ms", "100 ms", "1.00 s", "50.0 s"} <= {*unlike}
    assert not [label for label in alike + unlike if "10^" in label or "times" in label]


def test_a_single_interval_is_as_wide_as_the_chart() -> None:
    written = labels(lasting({"p50": [1.0]}, [BEGIN]))
    assert {"12:00", "30", "12:01"} <= {*written}


def test_an_interval_without_values_is_a_gap() -> None:
    none = dict.fromkeys(("added", "completed", "retries", "expired_leases", "dead_letters"), 0)
    unknown = dict.fromkeys(("wait_p50", "wait_p90", "wait_p99"), None)
    row = none | unknown | {name.replace("wait", "service"): None for name in unknown}
    row |= {"failures": 0, "failure_share": None}
    totals = row | {"first": BEGIN, "last": TIMES[2], "events": 2, "ids": 2, "per_second": 0.0}
    spans = [row | {"begin": BEGIN, "added": 60}, row | {"begin": TIMES[2], "added": 60}]
    found: dict[str, Rows] = {"hours": [], "spans": spans, "workers": [], "errors": [], "slowest": []}
    html = page_of("q", totals, {}, found, 60)
    rates = html[html.index("Throughput") : html.index("Queue wait over time")]
    (_, first), (_, empty), (_, last) = points(rates, "var(--first)")
    assert first == last < empty


def test_a_duration_is_shown_in_a_suitable_unit() -> None:
    expected = {
        0.0: "0 ms",
        0.5: "500 ms",
        1.5: "1.50 s",
        12: "12.0 s",
        150: "2.5 min",
        7200: "2.0 h",
        2e5: "2.3 d",
    }
    assert {value: duration(value) for value in expected} == expected


def test_an_interval_is_shown_in_whole_units() -> None:
    expected = {1: "1 s", 30: "30 s", 60: "1 min", 1800: "30 min", 3600: "1 h", 21600: "6 h", 604800: "7 d"}
    assert {value: interval(value) for value in expected} == expected


def test_the_axes_of_values_name_their_unit() -> None:
    for svg in over_time("a", "a", TIMES, MINUTE, {"rate": [1500.0, 0.0, 2500.0]}, unit="items/s"):
        assert {"items/s", "1,000", "2,000", "UTC"} <= {*labels(svg)}
    for svg in over_time("a", "a", TIMES, MINUTE, {"share": [0.015, None, 0.02]}, unit=SHARE):
        assert {"0%", "1%", "2%", "UTC"} <= {*labels(svg)}
    for svg in bars("a", "a", ["w"], {"completed": [4000], "failures": [10]}, unit="runs"):
        assert {"w", "runs", "2,000", "completed", "failures"} <= {*labels(svg)}


def test_a_chart_is_drawn_for_wide_and_for_narrow_screens() -> None:
    """The page shows one of them, so that its text is large enough to be read."""
    long = "mailer.errors." + "Very" * 9 + "LongError"
    wide, narrow = bars("a", "<a>", [long], {"failures": [1]}, unit="failures")
    widths = [float(svg.split('viewBox="0 0 ')[1].split()[0]) for svg in (wide, narrow)]
    assert widths[0] > 600
    assert widths[1] < 300
    assert [svg.split('class="')[1].split('"')[0] for svg in (wide, narrow)] == ["wide", "narrow"]
    assert long in labels(wide)
    assert "mailer.e…VeryVeryLongError" in labels(narrow)
    assert "<title>&lt;a&gt;</title>" in wide
    assert not {*re.findall(' id="([^"]+)"', wide)} & {*re.findall(' id="([^"]+)"', narrow)}


def test_shares_are_shown_in_per_cent() -> None:
    expected = {0.0: "0.0%", 0.0123: "1.2%", 0.5: "50%", 1.0: "100%"}
    assert {value: cell(share(value)) for value in expected} == expected
    assert cell(share(None)) == "–"  # noqa: RUF001 - what a table shows for nothing


def test_only_long_texts_of_a_table_are_broken_into_lines() -> None:
    html = table("errors", ("type", "count", "text"), [("a", 1, "x" * 50), ("b", 2, None)])
    assert re.findall("<th( [^>]*|)>", html) == [' class="text"', "", ' class="text long"']
    assert 'role="region" aria-label="errors"' in html
