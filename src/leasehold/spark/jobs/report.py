"""The job `report`: what the kept events say of a queue, as tables and as one page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pyspark.sql import SparkSession  # noqa: TC002 - the annotations are read

from leasehold.errors import InvalidArgument
from leasehold.spark.jobs.archive import archive
from leasehold.spark.jobs.command import main
from leasehold.spark.jobs.item_history import ItemHistory
from leasehold.spark.jobs.session import Cluster, Tell, Url, silent
from leasehold.spark.output import OutputFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from leasehold.spark.jobs.report_text import Rows

#: The spans that the charts show (s): the shortest with which there are no more than `_MOST_SPANS`.
_SPANS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_MOST_SPANS = 150
#: The name of the page in the folder of the report.
PAGE = "report.html"


def report(
    spark: SparkSession,
    output: Annotated[str, "The folder of the report."],
    *,
    events: Annotated[str | None, "An archive of events."] = None,
    queue: Annotated[str | None, "Or a queue, whose kept events are read now."] = None,
    slowest: Annotated[int, "How many of the slowest items are listed."] = 20,
    url: Url = None,
    cluster: Cluster = False,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Tell how a queue did: throughput, waits, service times, retries, workers, hours, slowest items.

    The queue wait is the time from when an item began to wait (added, due, expired, given back, failed,
    requeued) until it was leased; the service time that from a lease until its completion.

    Writes the tables `completed` (a row for each completion), `hours`, `workers`, `slowest` and `totals` as
    Parquet, times in seconds, and a page `report.html` that holds all it shows and needs nothing else.

    Returns:
        The totals, and `now`: how many items were in each state after the last event.

    Raises:
        InvalidArgument: If not one of `events` and `queue` is given, or there are no events in it.
        ExtraMissing: If matplotlib is not installed.
        pyspark.errors.PySparkException: If the events cannot be read.
    """
    if (events is None) == (queue is None):
        raise InvalidArgument("events", events, "an archive of events, or a queue")
    if slowest < 1:
        raise InvalidArgument("slowest", slowest, "1 or more")
    if events is not None:
        return _report(spark, spark.read.parquet(events), output, slowest, title=events, tell=tell)
    # Where all machines can read it.
    folder, place = OutputFolder(spark, output), "_events"
    folder.drop(place)
    try:
        done = archive(spark, str(queue), f"{folder.path}/{place}", url=url, cluster=cluster, tell=tell)
        if not done["events"]:
            raise InvalidArgument("queue", queue, "one that has kept events")
        kept = spark.read.parquet(f"{folder.path}/{place}")
        return _report(spark, kept, output, slowest, title=str(queue), tell=tell)
    finally:
        folder.drop(place)


def _report(
    spark: SparkSession, events: DataFrame, output: str, slowest: int, *, title: str, tell: Tell
) -> dict[str, Any]:
    # Not before, as the other jobs need no charts; and not at the end, to say soon what is not installed.
    from leasehold.spark.jobs.report_text import page_of

    missing = {"number", "what", "id", "at", "holder", "token", "due", "attempt"} - {*events.columns}
    if missing:
        raise InvalidArgument(
            "events", title, f"an archive of events; it has no {', '.join(sorted(missing))}"
        )
    history = ItemHistory(events)
    history.marked.persist()
    try:
        tell("counting the events")
        totals, now = utc(history.totals()), history.now()
        if not totals["events"]:
            raise InvalidArgument("events", title, "an archive that has events")
        span = next((one for one in _SPANS if totals["seconds"] <= one * _MOST_SPANS), _SPANS[-1])
        tables = {"hours": history.hours(), "workers": history.workers(), "slowest": history.slowest(slowest)}
        tell("writing completed")
        history.completed().write.mode("overwrite").parquet(f"{output}/completed")
        found: dict[str, Rows] = {}
        for name, rows in tables.items():
            tell(f"writing {name}")
            rows.coalesce(1).write.mode("overwrite").parquet(f"{output}/{name}")
            found[name] = in_utc(spark.read.parquet(f"{output}/{name}"))
        facts = {**totals, **now}
        schema = ", ".join(f"{name} {_type(value)}" for name, value in facts.items())
        spark.createDataFrame([tuple(facts.values())], schema).write.mode("overwrite").parquet(
            f"{output}/totals"
        )
        tell("drawing")
        html = page_of(title, totals, now, found, in_utc(history.spans(span)), span)
        OutputFolder(spark, output).put(PAGE, html)
    finally:
        history.marked.unpersist()
    told = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in totals.items()
    }
    return {**told, "now": now, "page": f"{output.rstrip('/')}/{PAGE}"}


def in_utc(table: DataFrame) -> Rows:
    """Collect a small table, with its times in UTC."""
    return [utc(row.asDict()) for row in table.collect()]


def utc(row: dict[str, Any]) -> dict[str, Any]:
    """Put the times of a row into UTC: Spark gives them as a clock on this machine's wall shows them."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()
    }


def _type(value: object) -> str:
    return {int: "bigint", datetime: "timestamp"}.get(type(value), "double")


if __name__ == "__main__":
    main(report)
