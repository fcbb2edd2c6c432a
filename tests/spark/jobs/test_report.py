"""The report of given events: its counts, its times and its page."""

from __future__ import annotations

import base64
import html
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest

from leasequeue import InvalidArgument
from leasequeue.spark.jobs.item_history import COUNTED, RESIZE, ItemHistory, Row
from leasequeue.spark.jobs.report import (
    MAX_ROWS,
    PAGE,
    RATE,
    SECONDS,
    SHARE,
    TABLES,
    lines,
    page_of,
    report,
    shown,
)
from leasequeue.spark.schema import EVENTS
from tests.hostile import LONG, NAME, SHOWN, TEXT, harm_of
from tests.spark.jobs.test_error_types import traced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

START = 1_900_000_000
#: The events of the history that are of items.
OF_ITEMS = "what not in ('paused', 'worker_up', 'worker_down')"
#: The number of Spark's jobs that a report of an archive takes; the how-to page says what each is for.
MAX_JOBS = 9


class EventLog:
    """Made-up events of a queue; times are seconds after the start."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def event(self, at: float, what: str, id_: str, **fields: Any) -> EventLog:
        """Add an event."""
        due = fields.pop("due", None)
        row = dict.fromkeys(EVENTS.fieldNames()) | {"front": False, **fields}
        row |= {"number": len(self.rows) + 1, "what": what, "id": id_, "at": _moment(at)}
        row["due"] = None if due is None else _moment(due)
        self.rows.append(row)
        return self

    def lease(self, at: float, id_: str, token: int, holder: str, attempt: int = 1) -> EventLog:
        """Add a lease."""
        return self.event(at, "leased", id_, token=token, holder=holder, attempt=attempt, due=at + 30)

    def table(self, spark: SparkSession) -> DataFrame:
        """Return the events as an archive holds them."""
        return spark.createDataFrame([tuple(row[name] for name in EVENTS.names) for row in self.rows], EVENTS)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> Iterator[ItemHistory]:
    """Yield a small history with every case that a report distinguishes."""
    log = EventLog()
    # a: waits for 2 s, runs for 3 s.
    log.event(0, "added", "a").lease(2, "a", 1, "one").event(5, "completed", "a", token=1)
    # b: its lease expires; it waits for 1 s and 4 s; the first holder completes it after 40 s.
    log.event(1, "added", "b").lease(2, "b", 2, "one").event(32, "expired", "b").lease(36, "b", 3, "two", 2)
    log.event(42, "completed", "b", token=2)
    # c: delayed, so it waits from its due time; fails, is retried, dies, is requeued.
    log.event(0, "added", "c", due=10).event(10, "due", "c").lease(11, "c", 4, "two")
    log.event(12, "failed", "c", token=4, error="no", due=20).event(20, "due", "c").lease(
        28, "c", 5, "two", 2
    )
    log.event(29, "died", "c", token=5, error="no").event(3601, "requeued", "c")
    # d: leased, renewed. e: scheduled. f: dead and added again. g: dropped. h: only its completion is kept.
    log.event(0, "added", "d").lease(3700, "d", 6, "three").event(3710, "renewed", "d", token=6, due=3800)
    log.event(0, "added", "e", due=9000)
    log.event(0, "added", "f").lease(1, "f", 7, "three").event(2, "died", "f", token=7).event(3, "added", "f")
    log.event(0, "added", "g").lease(1, "g", 8, "three").event(2, "died", "g", token=8).event(
        3, "dropped", "g"
    )
    log.event(100, "completed", "h", token=99)
    # a is added again and waits for 16 s, independent of the first time.
    log.event(5, "added", "a").lease(21, "a", 9, "one").event(22, "released", "a", token=9, front=True)
    # Events of the queue and of workers belong to no item.
    log.event(5000, "worker_up", "one", details='{"worker": "mailer"}').event(5000, "paused", "")
    log.event(5000, "worker_up", "idle", details='{"worker": "spare"}').event(5000, "worker_down", "one")
    history = ItemHistory(log.table(spark))
    with history.cached():
        yield history


@pytest.fixture(scope="module")
def groups(history: ItemHistory) -> dict[str, list[Row]]:
    """Return the rows of that history by hour, by minute, by worker and by type of error."""
    return history.groups(60)


def test_the_cache_has_as_many_partitions_as_its_size_takes(history: ItemHistory) -> None:
    """Spark keeps the 200 of a shuffle for a cached table, and each query would run 200 tasks."""
    conf = history.events.sparkSession.conf
    before = {name: conf.get(name) for name in (RESIZE, "spark.sql.shuffle.partitions")}
    conf.set("spark.sql.shuffle.partitions", "200")
    try:
        other = ItemHistory(history.events.where("number > 1"))  # equal plans would share a cache
        with other.cached():
            assert other.marked.rdd.getNumPartitions() < 5
            assert conf.get(RESIZE) == before[RESIZE]
    finally:
        for name, value in before.items():
            conf.set(name, str(value))


def test_totals_of_all_events(history: ItemHistory) -> None:
    totals, _ = history.totals()
    assert {name: totals[name] for name in COUNTED} == {
        "added": 9,
        "leased": 9,
        "completed": 3,
        "retries": 1,
        "expired_leases": 1,
        "released": 1,
        "dead_letters": 3,
        "requeued": 1,
        "vanished": 0,
    }
    assert (totals["events"], totals["ids"], totals["seconds"]) == (
        len(history.events.collect()) - 4,
        8,
        3710,
    )
    # The waits: 2, 1, 4, 1 (c from its due time), 8, 3700, 1, 1, 16.
    assert (totals["wait_p50"], totals["wait_p90"], totals["wait_p99"]) == (2, 3700, 3700)
    assert (totals["service_p50"], totals["service_p99"]) == (3, 40)
    assert totals["per_second"] == pytest.approx(3 / 3710)
    assert (totals["failures"], totals["failure_share"]) == (4, 4 / 7)


def test_states_after_the_last_event(history: ItemHistory) -> None:
    assert history.totals()[1] == {"waiting": 3, "leased": 1, "scheduled": 1, "dead": 1}


def test_a_completion_counts_for_the_worker_of_the_completed_lease(groups: dict[str, list[Row]]) -> None:
    workers = {row["worker"]: row for row in groups["worker"]}
    assert [*workers] == ["one", "three", "two"], "the most completions first"
    assert {name: (row["leased"], row["completed"]) for name, row in workers.items()} == {
        "one": (3, 2),
        "two": (3, 0),
        "three": (3, 0),
    }
    assert {name: row["expired_leases"] for name, row in workers.items()} == {"one": 1, "two": 0, "three": 0}
    assert {name: row["dead_letters"] for name, row in workers.items()} == {"one": 0, "two": 1, "three": 2}
    assert {name: row["name"] for name, row in workers.items()} == {
        "one": "mailer",
        "two": None,
        "three": None,
    }
    assert workers["two"]["retries"] == 1
    assert workers["one"]["service_p99"] == 40
    assert {name: row["failure_share"] for name, row in workers.items()} == {"one": 0, "two": 1, "three": 1}


def test_hours_and_minutes_add_up_to_the_totals(history: ItemHistory, groups: dict[str, list[Row]]) -> None:
    totals, _ = history.totals()
    for key, length in (("hour", 3600), ("begin", 60)):
        rows = groups[key]
        begins = [row[key] for row in rows]
        assert begins == sorted({row.at for row in _floors(history, length)})
        for name in COUNTED:
            assert sum(row[name] for row in rows) == totals[name]
    assert len(groups["hour"]) == 2


def _floors(history: ItemHistory, length: int) -> list[Any]:
    return (
        history.events.where(OF_ITEMS).selectExpr(f"unix_seconds(at) div {length} * {length} as at").collect()
    )


def test_errors_are_counted_by_type(spark: SparkSession) -> None:
    log = EventLog()
    for at, (kind, error) in enumerate(
        [
            ("failed", traced("ValueError: bad")),
            ("failed", traced("ValueError: worse")),
            ("died", "ValueError: worst"),
            ("died", traced("app.mail.Bounced")),
            ("failed", "the disk is full"),
        ]
    ):
        log.event(at, "added", f"i{at}").lease(at + 0.1, f"i{at}", at, "one")
        log.event(at + 0.2, kind, f"i{at}", token=at, error=error)
    rows = ItemHistory(log.table(spark)).groups(60)["error"]
    assert [
        (row["error"], row["failures"], row["retries"], row["dead_letters"], row["example"]) for row in rows
    ] == [
        ("ValueError", 3, 2, 1, "ValueError: worst"),
        ("app.mail.Bounced", 1, 0, 1, "app.mail.Bounced"),
        ("other", 1, 1, 0, "the disk is full"),
    ]
    assert rows[0]["last"].timestamp() == pytest.approx(START + 2.2)


def test_the_slowest_come_first(history: ItemHistory) -> None:
    slow = [
        (row["id"], row["service"], row["worker"], row["attempt"]) for row in history.slowest(5).collect()
    ]
    assert slow == [("b", 40, "one", 1), ("a", 3, "one", 1)]
    assert len(history.slowest(1).collect()) == 1


def test_a_completion_has_the_facts_of_its_item(spark: SparkSession) -> None:
    log = EventLog().event(0, "added", "a", size=7).lease(2, "a", 1, "one").event(3, "released", "a", token=1)
    log.lease(7, "a", 2, "two", 2).event(8, "completed", "a", token=2)
    log.event(9, "added", "a", size=8).lease(10, "a", 3, "one").event(12, "completed", "a", token=3)
    log.event(20, "completed", "b", token=9)
    rows = ItemHistory(log.table(spark)).completed().orderBy("number").collect()
    assert [tuple(row)[3:-1] for row in rows] == [
        ("two", 4, 1, 2, 7, 2),
        ("one", 1, 2, 1, 8, 3),
        (None, None, None, None, None, 9),
    ]
    added = [row["added"] and round(row["added"].timestamp()) - START for row in rows]
    assert added == [0, 9, None]


# --------------------------------------------------------------------------------------------------- the page


def labels(image: str) -> list[str]:
    """Return the texts in a chart."""
    kind, _, encoded = image.partition(",")
    assert kind == "data:image/svg+xml;base64"
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", base64.b64decode(encoded).decode())
    return [html.unescape(one) for one in texts]


def read_page(folder: Path) -> tuple[list[str], list[list[str]]]:
    """Return the texts of a page, and those of each of its charts. It must refer to nothing outside."""
    page = (folder / PAGE).read_text()
    images = re.findall(r'src="([^"]*)"', page)
    rest = re.sub(r'src="[^"]*"', "", page)
    assert not re.findall(r"https?:|@import|<script|<link|href=|url\(", rest)
    tags = [one for one in re.findall(r"<(/?[a-z][a-z0-9]*)", rest) if one not in ("meta", "img")]
    for name in {*tags}:
        assert f"/{name.removeprefix('/')}" in tags
        assert tags.count(name) == tags.count(f"/{name.removeprefix('/')}")
    words = [html.unescape(one).strip() for one in re.findall(r">([^<]+)", page)]
    return [one for one in words if one], [labels(one) for one in images]


def test_the_tables_and_the_page_agree_with_the_history(
    history: ItemHistory, spark: SparkSession, tmp_path: Path
) -> None:
    events, output = str(tmp_path / "<events>"), str(tmp_path / "report")
    history.events.write.parquet(events)
    # An earlier report in the same folder is replaced.
    spark.range(9).write.parquet(f"{output}/slowest")
    Path(output, PAGE).write_text("old")
    spark.sparkContext.setJobGroup(output, "the report")
    result = report(spark, output, events=events)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(output)) <= MAX_JOBS
    assert result["completed"] == 3
    assert result["now"] == history.totals()[1]
    assert result["page"] == f"{output}/{PAGE}"
    texts, charts = read_page(tmp_path / "report")
    assert texts.count(f"Queue report: {events}") == 2
    assert len(charts) == 7
    words = " ".join(texts)
    for text in (
        "32 events of 8 ids",
        "dead letters",
        "service p99",
        "40 s",
        "Table: slowest",
        "61.7 min",
    ):
        assert text in words
    tables = ("completed", "hours", "spans", "workers", "errors", "slowest")
    rows = {name: spark.read.parquet(f"{output}/{name}").count() for name in tables}
    assert rows == {"completed": 3, "hours": 2, "spans": 6, "workers": 3, "errors": 2, "slowest": 2}
    [totals] = spark.read.parquet(f"{output}/totals").collect()
    # How many leases there were, and how many items are leased at the end.
    assert (totals["leased"], totals["leased_at_end"], totals["dead_at_end"]) == (9, 1, 1)
    assert {name: totals[name] for name in COUNTED} == {name: result[name] for name in COUNTED}


@pytest.mark.long
def test_a_report_without_any_lease(spark: SparkSession, tmp_path: Path) -> None:
    events = str(tmp_path / "events")
    EventLog().event(0, "added", "$a$").table(spark).write.parquet(events)
    result = report(spark, str(tmp_path / "report"), events=events)
    assert (result["added"], result["wait_p50"], result["per_second"]) == (1, None, None)
    _, charts = read_page(tmp_path / "report")
    assert len(charts) == 3


@pytest.fixture
def far_away() -> Iterator[None]:
    """Set another time zone than UTC for this process."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kathmandu"  # 5 h 45 min before UTC
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.long
@pytest.mark.usefixtures("far_away")
def test_times_are_in_utc_in_any_time_zone_and_odd_names_are_unchanged(
    spark: SparkSession, tmp_path: Path
) -> None:
    events, odd = str(tmp_path / "events"), "_<b>&amp;$x^2$"
    log = EventLog().event(0, "added", odd).lease(1, odd, 1, odd).event(2, "completed", odd, token=1)
    log.table(spark).write.parquet(events)
    result = report(spark, str(tmp_path / "report"), events=events)
    assert (result["first"], result["last"]) == ("2030-03-17T17:46:40+00:00", "2030-03-17T17:46:42+00:00")
    texts, charts = read_page(tmp_path / "report")
    assert "2030-03-17 17:00:00" in texts, "the hour"
    assert "from 2030-03-17 17:46:40\nto 2030-03-17 17:46:42 UTC" in " ".join(texts)
    assert "2030-03-17 17:46:42" in texts, "in the table of the slowest"
    assert texts.count(odd) == 3, "in two tables, as id and as worker"
    assert odd in charts[-1]


def drawn(**columns: list[float]) -> pd.DataFrame:
    """Return values for the minutes from a time on."""
    return pd.DataFrame(columns, pd.date_range("2026-03-01T12:00Z", periods=3, freq="60s"))


def test_axes_show_units_and_times() -> None:
    none = float("nan")
    alike = labels(lines(drawn(wait_p50=[0.12, none, 0.2], wait_p90=[none, none, 0.1]), SECONDS))
    assert {"0 ms", "100 ms", "200 ms", "UTC", "12:01", "wait p50", "wait p90"} <= {*alike}
    unlike = labels(lines(drawn(wait_p50=[0.012, 0.0, 200.0]), SECONDS))
    assert {"20 ms", "100 ms", "1 s", "50 s"} <= {*unlike}
    assert not [label for label in alike + unlike if "10^" in label or "times" in label]
    assert {"0%", "1%", "2%"} <= {*labels(lines(drawn(failure_share=[0.015, none, 0.02]), SHARE))}
    assert {"items/s", "1,000", "2,000"} <= {*labels(lines(drawn(added=[1500.0, 0.0, 2500.0]), RATE))}
    assert labels(lines(drawn(wait_p50=[none] * 3), SECONDS)), "nothing is known"


def test_values_are_shown_in_suitable_units() -> None:
    times = {
        0.0: "0 ms",
        0.5: "500 ms",
        1.5: "1.5 s",
        12.0: "12 s",
        150.0: "2.5 min",
        7200.0: "2.0 h",
        2e5: "2.3 d",
    }
    assert {value: shown("wait_p50", value) for value in times} == times
    shares = {0.0: "0.0%", 0.0123: "1.2%", 0.5: "50%", 1.0: "100%", None: "–"}  # noqa: RUF001 - for nothing
    assert {value: shown("share", value) for value in shares} == shares
    assert (shown("pid", 12345), shown("size", 12345)) == ("12345", "12,345")


def test_the_page_shows_what_others_have_written_as_text() -> None:
    def row(table: str, **fields: Any) -> Row:
        return dict.fromkeys(TABLES[table], 1) | fields

    tables = {
        "spans": [row("spans", begin=_moment(at)) for at in (0, 60)],
        "hours": [],
        "errors": [row("errors", error=LONG)],
        "workers": [row("workers", name=TEXT, worker=LONG, host=TEXT)],
        "slowest": [row("slowest", id=LONG)],
        "totals": [row("totals", first=_moment(0), last=_moment(60))],
    }
    page = page_of(NAME, tables, 60)
    drawn = r'"data:image/svg\+xml;base64,([^"]*)"'
    assert "<script" not in page
    assert harm_of(re.sub(drawn, "", page)) == []
    assert html.escape(SHOWN, quote=False) in page
    pictures = re.findall(drawn, page)
    assert len(pictures) > 4
    for picture in pictures:
        ET.fromstring(base64.b64decode(picture))  # noqa: S314 - our own; a control character would break it


def test_an_interval_without_events_is_zero_and_a_long_table_is_cut() -> None:
    def row(table: str, **fields: Any) -> Row:
        return dict.fromkeys(TABLES[table]) | dict.fromkeys(COUNTED, 0) | fields

    spans = [row("spans", begin=_moment(at), added=120) for at in (0, 120)]
    hours = [row("hours", hour=_moment(0))] * (MAX_ROWS + 2)
    totals = row("totals", first=_moment(0), last=_moment(120), events=1, ids=1)
    none: dict[str, list[Row]] = {"errors": [], "workers": [], "slowest": []}
    page = page_of("q", {"spans": spans, "hours": hours, "totals": [totals], **none}, 60)
    assert "leaves out the last 2; they are in the table hours" in page
    encoded = page.split('src="data:image/svg+xml;base64,')[1].split('"')[0]
    svg = base64.b64decode(encoded).decode()
    line = re.search(r'<g id="line2d_\d+">\s*<path d="M \S+ (\S+) \nL \S+ (\S+) \nL \S+ (\S+) \n"', svg)
    assert line
    assert line[1] == line[3] != line[2]


def test_what_is_neither_an_archive_nor_a_queue_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    EventLog().table(spark).write.parquet(str(tmp_path / "none"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "an archive of events, or a queue"),
        ({"events": "x", "queue": "y"}, "an archive of events, or a queue"),
        ({"events": str(tmp_path / "rows")}, "it has no at, attempt, due"),
        ({"events": str(tmp_path / "none")}, "an archive that has events"),
    ]
    for given, says in cases:
        with pytest.raises(InvalidArgument, match=says):
            report(spark, str(tmp_path / "report"), **given)
    assert not (tmp_path / "report").exists()
