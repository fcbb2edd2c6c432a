"""The job `report`: what the kept events say of a queue, as tables and as one page."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pyspark.sql import SparkSession  # noqa: TC002 - the annotations are read

from leasehold.errors import InvalidArgument
from leasehold.spark.durable import Folder
from leasehold.spark.jobs import charts
from leasehold.spark.jobs.archive import archive
from leasehold.spark.jobs.command import main
from leasehold.spark.jobs.lives import Lives
from leasehold.spark.jobs.page import chart, figures, page, seconds, section, table
from leasehold.spark.jobs.session import Tell, Url, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

#: The spans that the charts show (s): the shortest with which there are no more than `_MOST_SPANS`.
_SPANS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_MOST_SPANS = 150
#: The name of the page in the folder of the report.
PAGE = "report.html"
_PERCENTILES = ("p50", "p90", "p99")
_TROUBLES = {"failed": "retries", "lapsed": "redeliveries", "died": "dead_letters"}


def report(
    spark: SparkSession,
    output: Annotated[str, "The folder of the report."],
    *,
    events: Annotated[str | None, "An archive of events."] = None,
    queue: Annotated[str | None, "Or a queue, whose kept events are read now."] = None,
    slowest: Annotated[int, "How many of the slowest items are listed."] = 20,
    url: Url = None,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Tell how a queue did: throughput, waits, service times, retries, workers, hours, slowest items.

    The queue wait is the time from when an item began to wait (added, due, lapsed, given back, failed,
    requeued) until it was leased; the service time that from a lease until its completion.

    Writes the tables `hours`, `workers`, `slowest` and `totals` as Parquet, times in seconds, and a page
    `report.html` that holds all it shows and needs nothing else.

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
    with tempfile.TemporaryDirectory(prefix="leasehold-") as place:
        done = archive(spark, str(queue), f"file:{place}/events", url=url, tell=tell)
        if not done["events"]:
            raise InvalidArgument("queue", queue, "one that has kept events")
        kept = spark.read.parquet(f"file:{place}/events")
        return _report(spark, kept, output, slowest, title=str(queue), tell=tell)


def _report(
    spark: SparkSession, events: DataFrame, output: str, slowest: int, *, title: str, tell: Tell
) -> dict[str, Any]:
    missing = {"number", "what", "id", "at", "holder", "token", "due", "deliveries"} - {*events.columns}
    if missing:
        raise InvalidArgument(
            "events", title, f"an archive of events; it has no {', '.join(sorted(missing))}"
        )
    lives = Lives(events)
    lives.marked.persist()
    try:
        tell("counting the events")
        totals, now = lives.totals(), lives.now()
        if not totals["events"]:
            raise InvalidArgument("events", title, "an archive that has events")
        span = next((one for one in _SPANS if totals["seconds"] <= one * _MOST_SPANS), _SPANS[-1])
        tables = {"hours": lives.hours(), "workers": lives.workers(), "slowest": lives.slowest(slowest)}
        found: dict[str, list[Row]] = {}
        for name, rows in tables.items():
            tell(f"writing {name}")
            rows.coalesce(1).write.mode("overwrite").parquet(f"{output}/{name}")
            found[name] = spark.read.parquet(f"{output}/{name}").collect()
        facts = {**totals, **now}
        schema = ", ".join(f"{name} {_type(value)}" for name, value in facts.items())
        spark.createDataFrame([tuple(facts.values())], schema).write.mode("overwrite").parquet(
            f"{output}/totals"
        )
        tell("drawing")
        html = _page(title, totals, now, found, lives.spans(span).collect(), span)
        Folder(spark, output).put(PAGE, html)
    finally:
        lives.marked.unpersist()
    told = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in totals.items()
    }
    return {**told, "now": now, "page": f"{output.rstrip('/')}/{PAGE}"}


def _type(value: object) -> str:
    return {int: "bigint", datetime: "timestamp"}.get(type(value), "double")


def _page(
    title: str,
    totals: dict[str, Any],
    now: dict[str, int],
    found: dict[str, list[Row]],
    spans: list[Row],
    span: int,
) -> str:
    first, last = (f"{totals[one]:%Y-%m-%d %H:%M:%S}" for one in ("first", "last"))
    subtitle = (
        f"{totals['events']:,} events of {totals['ids']:,} ids, from {first} to {last} UTC. "
        f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by Leasehold."
    )
    main_figures = {
        **{
            name.replace("_", " "): totals[name] for name in ("added", "completed", "retries", "redeliveries")
        },
        "dead letters": totals["dead_letters"],
        "completed per second": totals["per_second"],
        **{f"queue wait {one}": seconds(totals[f"wait_{one}"]) for one in _PERCENTILES},
        **{f"service time {one}": seconds(totals[f"service_{one}"]) for one in _PERCENTILES},
        **{f"{state} at the end": count for state, count in now.items()},
    }
    return page(
        f"Queue report: {title}",
        subtitle,
        [figures(main_figures), *_over_time(spans, span), *_by_worker(found["workers"]), *_lists(found)],
    )


def _over_time(spans: list[Row], span: int) -> list[str]:
    times = [row["begin"] for row in spans]
    rates = {name: [row[name] / span for row in spans] for name in ("added", "completed")}
    troubles = {label: [row[name] for row in spans] for label, name in _TROUBLES.items()}

    def times_of(kind: str) -> dict[str, list[Any]]:
        return {one: [row[f"{kind}_{one}"] for row in spans] for one in _PERCENTILES}

    drawn = [
        section(
            "Throughput",
            f"Items per second, over spans of {span:,} s.",
            chart(charts.over_time("rate", "Items per second over time", times, rates)),
        ),
        section(
            "Queue wait",
            "Seconds from when an item began to wait until it was leased.",
            chart(charts.over_time("wait", "Queue wait over time", times, times_of("wait"), log=True)),
        ),
        section(
            "Service time",
            "Seconds from a lease until its completion.",
            chart(
                charts.over_time("service", "Service time over time", times, times_of("service"), log=True)
            ),
        ),
    ]
    if any(any(counts) for counts in troubles.values()):
        about = f"Runs that failed, leases that lapsed and items that died, in {span:,} s."
        drawn.append(section("Trouble", about, chart(charts.over_time("trouble", about, times, troubles))))
    return drawn


def _by_worker(workers: list[Row]) -> list[str]:
    if not workers:
        return []
    names = ("leased", "completed", "retries", "redeliveries", "dead_letters")
    rows = [
        [
            row["worker"],
            *(row[name] for name in names),
            *(seconds(row[f"service_{one}"]) for one in _PERCENTILES),
        ]
        for row in workers
    ]
    counts = {name: [row[name] for row in workers] for name in ("completed", "redeliveries")}
    svg = charts.bars("workers", "Completions of each worker", [row["worker"] for row in workers], counts)
    more = len(workers) - charts.MOST_BARS
    about = "Who held the leases" + (f"; the chart leaves out the last {more:,}." if more > 0 else ".")
    titles = ("worker", *(name.replace("_", " ") for name in names), *_PERCENTILES)
    return [section("Workers", about, chart(svg), table(titles, rows))]


def _lists(found: dict[str, list[Row]]) -> list[str]:
    counted = ("added", "leased", "completed", "retries", "redeliveries", "dead_letters")
    timed = [f"{kind}_{one}" for kind in ("wait", "service") for one in _PERCENTILES]
    hours = [
        [row["hour"], *(row[name] for name in counted), *(seconds(row[name]) for name in timed)]
        for row in found["hours"]
    ]
    slow = [
        [row["id"], seconds(row["service"]), row["worker"], row["deliveries"], row["at"]]
        for row in found["slowest"]
    ]
    titles = ("hour", *(name.replace("_", " ") for name in (*counted, *timed)))
    return [
        section("Hours", "Each hour in which anything happened, UTC.", table(titles, hours)),
        section(
            "Slowest items",
            "The completions with the longest service times.",
            table(("id", "service time", "worker", "deliveries", "completed at"), slow),
        ),
    ]


if __name__ == "__main__":
    main(report)
