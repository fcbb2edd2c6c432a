"""The report: what it counts and measures, of events that are written down here, and its page."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leasehold import InvalidArgument
from leasehold.spark.jobs.item_history import ItemHistory
from leasehold.spark.jobs.report import PAGE, report
from leasehold.spark.schema import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

START = 1_900_000_000


class Diary:
    """Events of a queue, written down by hand; times are seconds after the start."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def tell(self, at: float, what: str, id_: str, **fields: Any) -> Diary:
        """Write one down."""
        due = fields.pop("due", None)
        row = dict.fromkeys(EVENTS.fieldNames()) | {"front": False, **fields}
        row |= {"number": len(self.rows) + 1, "what": what, "id": id_, "at": _moment(at)}
        row["due"] = None if due is None else _moment(due)
        self.rows.append(row)
        return self

    def lease(self, at: float, id_: str, token: int, holder: str, attempt: int = 1) -> Diary:
        """Write down a lease."""
        return self.tell(at, "leased", id_, token=token, holder=holder, attempt=attempt, due=at + 30)

    def table(self, spark: SparkSession) -> DataFrame:
        """All of them, as an archive has them."""
        return spark.createDataFrame([tuple(row[name] for name in EVENTS.names) for row in self.rows], EVENTS)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> ItemHistory:
    """Give a small queue with everything that a report tells apart."""
    diary = Diary()
    # a: waits for 2 s, is worked on for 3.
    diary.tell(0, "added", "a").lease(2, "a", 1, "one").tell(5, "completed", "a", token=1)
    # b: its lease expires; it waits for 1 s and 4 s; the first holder completes it all the same, after 40 s.
    diary.tell(1, "added", "b").lease(2, "b", 2, "one").tell(32, "expired", "b").lease(36, "b", 3, "two", 2)
    diary.tell(42, "completed", "b", token=2)
    # c: delayed: it waits from when it falls due; fails, is tried again, dies, is requeued.
    diary.tell(0, "added", "c", due=10).tell(10, "due", "c").lease(11, "c", 4, "two")
    diary.tell(12, "failed", "c", token=4, error="no", due=20).tell(20, "due", "c").lease(
        28, "c", 5, "two", 2
    )
    diary.tell(29, "died", "c", token=5, error="no").tell(3601, "requeued", "c")
    # d: leased, renewed. e: scheduled. f: dead, and there again. g: dropped. h: known only from its end.
    diary.tell(0, "added", "d").lease(3700, "d", 6, "three").tell(3710, "renewed", "d", token=6, due=3800)
    diary.tell(0, "added", "e", due=9000)
    diary.tell(0, "added", "f").lease(1, "f", 7, "three").tell(2, "died", "f", token=7).tell(3, "added", "f")
    diary.tell(0, "added", "g").lease(1, "g", 8, "three").tell(2, "died", "g", token=8).tell(
        3, "dropped", "g"
    )
    diary.tell(100, "completed", "h", token=99)
    # a is there once more, and waits for 16 s; its history have nothing to do with each other.
    diary.tell(5, "added", "a").lease(21, "a", 9, "one").tell(22, "released", "a", token=9, front=True)
    history = ItemHistory(diary.table(spark))
    history.marked.persist()
    return history


def test_totals(history: ItemHistory) -> None:
    totals = history.totals()
    assert {name: totals[name] for name in ("added", "leased", "completed", "retries", "expired_leases")} == {
        "added": 9,
        "leased": 9,
        "completed": 3,
        "retries": 1,
        "expired_leases": 1,
    }
    assert (totals["dead_letters"], totals["requeued"], totals["released"], totals["vanished"]) == (
        3,
        1,
        1,
        0,
    )
    assert (totals["events"], totals["ids"], totals["seconds"]) == (len(history.events.collect()), 8, 3710)
    # The waits: 2, 1, 4, 1 (c from its due time), 8, 3700, 1, 1, 16.
    assert (totals["wait_p50"], totals["wait_p90"], totals["wait_p99"]) == (2, 3700, 3700)
    assert (totals["service_p50"], totals["service_p99"]) == (3, 40)
    assert totals["per_second"] == pytest.approx(3 / 3710)


def test_states_after_the_last_event(history: ItemHistory) -> None:
    assert history.now() == {"waiting": 3, "leased": 1, "scheduled": 1, "dead": 1}


def test_a_completion_is_of_the_worker_whose_lease_it_is(history: ItemHistory) -> None:
    workers = {row["worker"]: row.asDict() for row in history.workers().collect()}
    assert {name: (row["leased"], row["completed"]) for name, row in workers.items()} == {
        "one": (3, 2),
        "two": (3, 0),
        "three": (3, 0),
    }
    assert {name: row["expired_leases"] for name, row in workers.items()} == {"one": 1, "two": 0, "three": 0}
    assert {name: row["dead_letters"] for name, row in workers.items()} == {"one": 0, "two": 1, "three": 2}
    assert workers["two"]["retries"] == 1
    assert workers["one"]["service_p99"] == 40


def test_hours_add_up_to_the_totals(history: ItemHistory) -> None:
    hours = history.hours().collect()
    assert [row["hour"].minute for row in hours] == [0] * len(hours)
    totals = history.totals()
    for name in ("added", "leased", "completed", "retries", "expired_leases", "dead_letters"):
        assert sum(row[name] for row in hours) == totals[name]
    assert len(hours) == 2


def test_the_slowest_come_first(history: ItemHistory) -> None:
    slow = [
        (row["id"], row["service"], row["worker"], row["attempt"]) for row in history.slowest(5).collect()
    ]
    assert slow == [("b", 40, "one", 1), ("a", 3, "one", 1)]
    assert len(history.slowest(1).collect()) == 1


def test_a_completion_has_what_is_known_of_its_item(spark: SparkSession) -> None:
    diary = Diary().tell(0, "added", "a", size=7).lease(2, "a", 1, "one").tell(3, "released", "a", token=1)
    diary.lease(7, "a", 2, "two", 2).tell(8, "completed", "a", token=2)
    diary.tell(9, "added", "a", size=8).lease(10, "a", 3, "one").tell(12, "completed", "a", token=3)
    diary.tell(20, "completed", "b", token=9)
    rows = ItemHistory(diary.table(spark)).completed().orderBy("number").collect()
    assert [tuple(row)[3:-1] for row in rows] == [
        ("two", 4, 1, 2, 7, 2),
        ("one", 1, 2, 1, 8, 3),
        (None, None, None, None, None, 9),
    ]
    added = [row["added"] and round(row["added"].timestamp()) - START for row in rows]
    assert added == [0, 9, None]


# --------------------------------------------------------------------------------------------------- the page


class Page(HTMLParser):
    """Reads a page: checks that its tags match, and takes out what it refers to."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.note(attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag
        self.note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")


def check_page(text: str) -> Page:
    """Check that a page is whole, and needs nothing else."""
    page = Page(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert {*page.references} <= {f"#{id_}" for id_ in page.ids}
    assert not re.findall(r"https?:|@import|<script|<link", text)
    assert {*re.findall(r"url\(([^)]*)\)", text)} <= {f"#{id_}" for id_ in page.ids}
    return page


def test_tables_and_page(history: ItemHistory, spark: SparkSession, tmp_path: Path) -> None:
    events, output = str(tmp_path / "<events>"), str(tmp_path / "report")
    history.events.write.parquet(events)
    # An earlier report in the same folder is replaced.
    spark.range(9).write.parquet(f"{output}/slowest")
    Path(output, PAGE).write_text("old")
    told = report(spark, output, events=events, slowest=1)
    assert told["completed"] == 3
    assert told["now"] == history.now()
    assert told["page"] == f"{output}/{PAGE}"
    page = check_page(Path(output, PAGE).read_text())
    assert f"Queue report: {events}" in page.words
    words = " ".join(page.words)
    for shown in (
        "32 events of 8 ids",
        "dead letters",
        "service time p99",
        "40.0 s",
        "Slowest items",
        "61.7 min",
    ):
        assert shown in words
    tables = ("completed", "hours", "workers", "slowest")
    rows = {name: spark.read.parquet(f"{output}/{name}").count() for name in tables}
    assert rows == {"completed": 3, "hours": 2, "workers": 3, "slowest": 1}
    totals = spark.read.parquet(f"{output}/totals").collect()
    assert [row["dead_letters"] for row in totals] == [3]


@pytest.mark.long
def test_events_of_which_nothing_can_be_measured(spark: SparkSession, tmp_path: Path) -> None:
    events = str(tmp_path / "events")
    Diary().tell(0, "added", "$a$").table(spark).write.parquet(events)
    told = report(spark, str(tmp_path / "report"), events=events)
    assert (told["added"], told["wait_p50"], told["per_second"]) == (1, None, None)
    check_page((tmp_path / "report" / PAGE).read_text())


@pytest.fixture
def far_away() -> Iterator[None]:
    """Let this process live where the clocks show other hours than in UTC."""
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
def test_times_are_in_utc_wherever_it_is_made(spark: SparkSession, tmp_path: Path) -> None:
    events = str(tmp_path / "events")
    Diary().tell(0, "added", "a").lease(1, "a", 1, "w").tell(2, "completed", "a", token=1).table(
        spark
    ).write.parquet(events)
    told = report(spark, str(tmp_path / "report"), events=events)
    assert (told["first"], told["last"]) == ("2030-03-17T17:46:40+00:00", "2030-03-17T17:46:42+00:00")
    words = " ".join(check_page((tmp_path / "report" / PAGE).read_text()).words)
    assert "from 2030-03-17 17:46:40 to 2030-03-17 17:46:42 UTC" in words
    assert "2030-03-17 17:00:00" in words, "the hour"
    assert words.count("2030-03-17 17:46:42") == 2, "in the title, and of the slowest"


@pytest.mark.long
def test_odd_names_stand_on_the_page_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    odd = "_<b>&amp;$x^2$"
    diary = Diary().tell(0, "added", odd).lease(1, odd, 1, odd).tell(2, "completed", odd, token=1)
    diary.table(spark).write.parquet(str(tmp_path / "events"))
    report(spark, str(tmp_path / "report"), events=str(tmp_path / "events"))
    page = check_page((tmp_path / "report" / PAGE).read_text())
    assert page.words.count(odd) == 4, "in the chart, in two tables, and there as id and as worker"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "an archive of events, or a queue"),
        ({"events": "x", "queue": "y"}, "an archive of events, or a queue"),
        ({"events": "x", "slowest": 0}, "1 or more"),
    ],
)
def test_arguments_that_make_no_sense(
    spark: SparkSession, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        report(spark, str(tmp_path / "report"), **given)
    assert not (tmp_path / "report").exists()


def test_a_table_that_is_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    with pytest.raises(InvalidArgument, match="it has no at, attempt, due"):
        report(spark, str(tmp_path / "report"), events=str(tmp_path / "rows"))
    Diary().table(spark).write.parquet(str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="an archive that has events"):
        report(spark, str(tmp_path / "report"), events=str(tmp_path / "none"))
