"""The job `report`: statistics of a queue from its events, as tables and as one page."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from leasequeue.errors import InvalidArgument
from leasequeue.spark.events import has_events
from leasequeue.spark.jobs.item_history import NEEDED, ItemHistory
from leasequeue.spark.jobs.report_tables import in_utc, tables_of, write_table
from leasequeue.spark.jobs.session import no_progress
from leasequeue.spark.options import server_options
from leasequeue.spark.output import OutputFolder
from leasequeue.spark.sessions import check_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasequeue.spark.jobs.session import Progress

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
    """Report on a queue: throughput, waits, service times, failures, errors, workers, hours, slowest items.

    The queue wait is the time from when an item began to wait (added, due, expired, released, failed,
    requeued) until it was leased; the service time is that from a lease until its completion.

    Writes the tables `completed` (a row per completion), `hours`, `spans` (the intervals of the charts),
    `workers`, `errors`, `slowest` and `totals` as Parquet, times in seconds, and a self-contained page
    `report.html`.

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
        NoEventsKept: If the queue keeps no events.
        ServerError: If the server does not answer.
        pyspark.errors.PySparkException: If the events cannot be read.
    """
    check_classic(spark, "report")
    if (events is None) == (queue is None):
        raise InvalidArgument("events", events, "an archive of events, or a queue")
    if slowest < 1:
        raise InvalidArgument("slowest", slowest, "1 or more")
    if events is not None:
        return _report(spark, spark.read.parquet(events), output, slowest, title=events, progress=progress)
    name = str(queue)
    with server_options(url, cluster=cluster) as server:
        given = {**server, "queue": name, "from": "events"}
        if not has_events(given):
            raise InvalidArgument("queue", name, "one that has events")
        progress(f"reading the events of {name}")
        # The oldest may be dropped before they are read.
        given |= {"failOnLoss": "false", "partitions": f"{spark.sparkContext.defaultParallelism}"}
        kept = spark.read.format("leasequeue").options(**given).load()
        return _report(spark, kept, output, slowest, title=name, progress=progress)


def _report(
    spark: SparkSession, events: DataFrame, output: str, slowest: int, *, title: str, progress: Progress
) -> dict[str, Any]:
    # Imported here, as the other jobs need no charts, and first, to report a missing library early.
    from leasequeue.spark.jobs.report_text import page_of

    if missing := {*NEEDED} - {*events.columns}:
        raise InvalidArgument(
            "events", title, f"an archive of events; it has no {', '.join(sorted(missing))}"
        )
    history = ItemHistory(events)
    with history.cached():
        progress("counting the events")
        totals, now = history.totals()
        totals = in_utc(totals)
        if not totals["events"]:
            raise InvalidArgument("events", title, "an archive that has events")
        span = next((one for one in _SPANS if totals["seconds"] <= one * _MAX_SPANS), _SPANS[-1])
        progress("writing completed")
        history.completed().write.mode("overwrite").parquet(f"{output}/completed")
        progress("grouping the events")
        groups = history.groups(span)
        slow = [row.asDict() for row in history.slowest(slowest).collect()]
    progress("writing tables")
    folder, tables = OutputFolder(spark, output), tables_of(groups, slow)
    facts = totals | {f"{state}_at_end": count for state, count in now.items()}
    for name, rows in (tables | {"totals": [facts]}).items():
        write_table(folder, name, rows)
    progress("drawing")
    folder.put(PAGE, page_of(title, totals, now, tables, span))
    times = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in totals.items()
    }
    return {**times, "now": now, "page": f"{output.rstrip('/')}/{PAGE}"}
