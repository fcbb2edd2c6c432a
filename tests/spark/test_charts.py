"""The axes and lines of charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from leasehold.spark.jobs.charts import over_time
from leasehold.spark.jobs.html_page import duration
from leasehold.spark.jobs.report_text import Rows, page_of

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMES = [BEGIN + number * MINUTE for number in range(3)]


def labels(svg: str) -> list[str]:
    """Return the texts in a chart, without its description."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def points(svg: str, line: str) -> list[tuple[float, float]]:
    """Return the points of a line, in the coordinates of the chart; y grows downwards."""
    drawn = re.search(rf'<path d="([^"]*)"[^>]*style="[^"]*{re.escape(line)}', svg)
    assert drawn
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", drawn[1])]


def test_durations_on_an_axis_have_units() -> None:
    alike = labels(over_time("a", "a", TIMES, MINUTE, {"p50": [0.12, None, 0.2]}, lengths=True))
    assert {"0 ms", "100 ms", "200 ms"} <= {*alike}
    unlike = labels(over_time("a", "a", TIMES, MINUTE, {"p50": [0.012, 0.0, 200.0]}, lengths=True))
    assert {"20 ms", "100 ms", "1.00 s", "50.0 s"} <= {*unlike}
    assert not [label for label in alike + unlike if "10^" in label or "times" in label]


def test_a_single_interval_is_as_wide_as_the_chart() -> None:
    written = labels(over_time("a", "a", [BEGIN], MINUTE, {"p50": [1.0]}, lengths=True))
    assert "12:00:30" in written


def test_an_interval_without_values_is_a_gap() -> None:
    none = dict.fromkeys(("added", "completed", "retries", "expired_leases", "dead_letters"), 0)
    unknown = dict.fromkeys(("wait_p50", "wait_p90", "wait_p99"), None)
    row = none | unknown | {name.replace("wait", "service"): None for name in unknown}
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
