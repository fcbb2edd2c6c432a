"""The job `report`: statistics of a queue from its events, as tables and as one page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leasehold.errors import InvalidArgument
from leasehold.spark.jobs.archive import archive
from leasehold.spark.jobs.item_history import ItemHistory
from leasehold.spark.jobs.session import no_progress
from leasehold.spark.output import OutputFolder
from leasehold.spark.sessions import check_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.jobs.report_text import Rows
    from leasehold.spark.jobs.session import Progress

#: The intervals of the charts (s): the shortest that gives at most `_MAX_SPANS` points is used.
_SPANS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_MAX_SPANS = 150
#: The file name of the page.
PAGE = "report.html"


def report(
    spark: SparkSession,
    output: str,
    *,
    events: str | None = None,
    queue: str | None = None,
    slowest: int = 20,
    url: str | None = None,
    cluster: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Report on a queue: throughput, waits, service times, retries, workers, hours, slowest items.

    The queue wait is the time from when an item began to wait (added, due, expired, released, failed,
    requeued) until it was leased; the service time is that from a lease until its completion.

    Writes the tables `completed` (a row per completion), `hours`, `workers`, `slowest` and `totals` as
    Parquet, times in seconds, and a self-contained page `report.html`.

    Args:
        spark: The session.
        output: The folder of the report.
        events: An archive of events.
        queue: Instead: a queue, whose kept events are read now.
        slowest: How many of the slowest items to list.
        url: The server's URL; None: that of the environment, or this machine's default port.
        cluster: Whether the server is a node of a cluster.
        progress: Called with a few words about each step.

    Returns:
        The totals, and `now`: how many items were in each state after the last event.

    Raises:
        InvalidArgument: If the session is one of Spark Connect, not one of `events` and `queue` is given, or
            it has no events.
        ExtraMissing: If matplotlib is not installed.
        pyspark.errors.PySparkException: If the events cannot be read.
    """
    check_classic(spark, "report")
    if (events is None) == (queue is None):
        raise InvalidArgument("events", events, "an archive of events, or a queue")
    if slowest < 1:
        raise InvalidArgument("slowest", slowest, "1 or more")
    if events is not None:
        return _report(spark, spark.read.parquet(events), output, slowest, title=events, progress=progress)
    # In the output folder, which all machines can read.
    folder, name = OutputFolder(spark, output), "_events"
    folder.drop(name)
    try:
        done = archive(
            spark, str(queue), f"{folder.path}/{name}", url=url, cluster=cluster, progress=progress
        )
        if not done["events"]:
            raise InvalidArgument("queue", queue, "one that keeps events")
        kept = spark.read.parquet(f"{folder.path}/{name}")
        return _report(spark, kept, output, slowest, title=str(queue), progress=progress)
    finally:
        folder.drop(name)


def _report(
    spark: SparkSession, events: DataFrame, output: str, slowest: int, *, title: str, progress: Progress
) -> dict[str, Any]:
    # Imported here, as the other jobs need no charts, and first, to report a missing library early.
    from leasehold.spark.jobs.report_text import page_of

    missing = {"number", "what", "id", "at", "holder", "token", "due", "attempt"} - {*events.columns}
    if missing:
        raise InvalidArgument(
            "events", title, f"an archive of events; it has no {', '.join(sorted(missing))}"
        )
    history = ItemHistory(events)
    history.marked.persist()
    try:
        progress("counting the events")
        totals, now = utc(history.totals()), history.now()
        if not totals["events"]:
            raise InvalidArgument("events", title, "an archive that has events")
        span = next((one for one in _SPANS if totals["seconds"] <= one * _MAX_SPANS), _SPANS[-1])
        tables = {"hours": history.hours(), "workers": history.workers(), "slowest": history.slowest(slowest)}
        progress("writing completed")
        history.completed().write.mode("overwrite").parquet(f"{output}/completed")
        found: dict[str, Rows] = {}
        for name, rows in tables.items():
            progress(f"writing {name}")
            rows.coalesce(1).write.mode("overwrite").parquet(f"{output}/{name}")
            found[name] = in_utc(spark.read.parquet(f"{output}/{name}"))
        facts = {**totals, **now}
        schema = ", ".join(f"{name} {_type(value)}" for name, value in facts.items())
        spark.createDataFrame([tuple(facts.values())], schema).write.mode("overwrite").parquet(
            f"{output}/totals"
        )
        progress("drawing")
        html = page_of(title, totals, now, found, in_utc(history.spans(span)), span)
        OutputFolder(spark, output).put(PAGE, html)
    finally:
        history.marked.unpersist()
    times = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in totals.items()
    }
    return {**times, "now": now, "page": f"{output.rstrip('/')}/{PAGE}"}


def in_utc(table: DataFrame) -> Rows:
    """Collect a small table and convert its times to UTC."""
    return [utc(row.asDict()) for row in table.collect()]


def utc(row: dict[str, Any]) -> dict[str, Any]:
    """Convert the times of a row to UTC: Spark returns them in this machine's time zone."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()
    }


def _type(value: object) -> str:
    return {int: "bigint", datetime: "timestamp"}.get(type(value), "double")
