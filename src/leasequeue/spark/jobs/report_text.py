"""The texts, charts and tables on the page of a report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue.spark.jobs import charts
from leasequeue.spark.jobs.charts import SECONDS, SHARE
from leasequeue.spark.jobs.html_page import chart, figures, interval, page, seconds, section, share, table
from leasequeue.spark.jobs.item_history import PERCENTILE_NAMES

if TYPE_CHECKING:
    from leasequeue.spark.jobs.item_history import Row

#: The rows of a small table, by column name; times have a zone.
Rows = list[dict[str, Any]]

#: The lines of the chart of failures: their labels and columns.
_FAILURES = {"retries": "retries", "expired leases": "expired_leases", "dead letters": "dead_letters"}
#: How many rows of a table the page shows at most; the tables have all.
MAX_ROWS = 750


def page_of(
    title: str, totals: dict[str, Any], now: dict[str, int], found: dict[str, Rows], span: int
) -> str:
    """Write the page.

    Args:
        title: The queue or archive that the report is about.
        totals: The totals of all events.
        now: How many items were in each state after the last event.
        found: The rows of the other tables, by name.
        span: The length of an interval, in seconds.
    """
    first, last = (f"{totals[one]:%Y-%m-%d %H:%M:%S}" for one in ("first", "last"))
    subtitle = (
        f"{totals['events']:,} events of {totals['ids']:,} ids, from {first} to {last} UTC. "
        f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by Leasequeue."
    )
    main_figures = {
        **{name: totals[name] for name in ("added", "completed")},
        "completed per second": totals["per_second"],
        "share of failures": share(totals["failure_share"]),
        **{name.replace("_", " "): totals[name] for name in ("retries", "dead_letters", "expired_leases")},
        **{f"queue wait {one}": seconds(totals[f"wait_{one}"]) for one in PERCENTILE_NAMES},
        **{f"service time {one}": seconds(totals[f"service_{one}"]) for one in PERCENTILE_NAMES},
        **{f"{state} at the end": count for state, count in now.items()},
    }
    parts = [
        figures(main_figures),
        *_over_time(found["spans"], span),
        *_errors(found["errors"]),
        *_workers(found["workers"]),
        _hours(found["hours"]),
        _slowest(found["slowest"]),
    ]
    return page(f"Queue report: {title}", subtitle, parts)


def _over_time(spans: Rows, span: int) -> list[str]:
    length, about = timedelta(seconds=span), interval(span)
    known = {row["begin"]: row for row in spans}
    times, last = [min(known)], max(known)
    while times[-1] < last:
        times.append(times[-1] + length)
    # An interval without events has no row.
    rows = [known.get(time, {}) for time in times]

    def values(*names: str, default: float | None = 0) -> dict[str, list[Any]]:
        return {name: [row.get(name, default) for row in rows] for name in names}

    def times_of(kind: str) -> dict[str, list[Any]]:
        return {one: values(f"{kind}_{one}", default=None)[f"{kind}_{one}"] for one in PERCENTILE_NAMES}

    rates = {name: [count / span for count in each] for name, each in values("added", "completed").items()}
    counts = values(*_FAILURES.values())
    failures = {label: counts[name] for label, name in _FAILURES.items()}
    shares = {"share of failures": values("failure_share", default=None)["failure_share"]}
    draw = partial(charts.over_time, times=times, span=length)
    drawn = [
        section(
            "Throughput",
            f"Items per second, averaged over {about}.",
            chart(draw("rate", "Items per second over time", series=rates, unit="items/s")),
        ),
        section(
            "Queue wait",
            "From when an item began to wait until it was leased.",
            chart(draw("wait", "Queue wait over time", series=times_of("wait"), unit=SECONDS)),
        ),
        section(
            "Service time",
            "From a lease until its completion.",
            chart(draw("service", "Service time over time", series=times_of("service"), unit=SECONDS)),
        ),
    ]
    if any(any(counts) for counts in failures.values()):
        text = f"Retries, expired leases and dead letters in each {about}."
        drawn.append(
            section("Failures", text, chart(draw("failures", text, series=failures, unit=f"per {about}")))
        )
    if any(shares["share of failures"]):
        text = "Retries and dead letters, of the runs that completed or failed."
        drawn.append(
            section("Share of failures", text, chart(draw("shares", text, series=shares, unit=SHARE)))
        )
    return drawn


def _errors(errors: Rows) -> list[str]:
    if not errors:
        return []
    counts = {name.replace("_", " "): [row[name] for row in errors] for name in ("retries", "dead_letters")}
    names = [row["error"] for row in errors]
    drawn = charts.bars("errors", "Failures by type of error", names, counts, unit="failures")
    rows = [
        [
            row["error"],
            row["failures"],
            share(row["share"]),
            row["retries"],
            row["dead_letters"],
            row["last"],
            row["example"],
        ]
        for row in errors
    ]
    titles = ("type", "failures", "share", "retries", "dead letters", "last", "the last one")
    about = f"Failures by the type that their text names.{_left_out(errors, charts.MAX_BARS, 'chart')}"
    return [section("Errors", about, chart(drawn), _table("errors", titles, rows))]


def _workers(workers: Rows) -> list[str]:
    if not workers:
        return []
    ends = ("completed", "failures", "expired_leases")
    counts = {name.replace("_", " "): [row[name] for row in workers] for name in ends}
    names = [_process(row) for row in workers]
    drawn = charts.bars("workers", "Runs of each worker", names, counts, unit="runs")
    rows = [
        [
            row["name"],
            row["host"],
            None if row["pid"] is None else str(row["pid"]),
            row["worker"] if row["host"] is None else row["worker"].rpartition("/")[2],
            *(row[name] for name in ("leased", "completed", "retries", "dead_letters")),
            share(row["failure_share"]),
            row["expired_leases"],
            *(seconds(row[f"service_{one}"]) for one in PERCENTILE_NAMES),
        ]
        for row in workers
    ]
    titles = (
        *("name", "host", "process", "session", "leased", "completed", "retries", "dead letters"),
        *("share of failures", "expired leases", *(f"service {one}" for one in PERCENTILE_NAMES)),
    )
    about = f"The holders of leases.{_left_out(workers, charts.MAX_BARS, 'chart')}"
    return [section("Workers", about, chart(drawn), _table("workers", titles, rows))]


def _hours(hours: Rows) -> str:
    counted = ("added", "leased", "completed", "retries", "dead_letters", "expired_leases")
    timed = [f"{kind}_{one}" for kind in ("wait", "service") for one in PERCENTILE_NAMES]
    rows = [
        [
            f"{row['hour']:%Y-%m-%d %H:%M}",
            *(row[name] for name in counted),
            share(row["failure_share"]),
            *(seconds(row[name]) for name in timed),
        ]
        for row in hours
    ]
    titles = ("hour", *counted, "share of failures", *timed)
    text = "Each hour with an event, UTC."
    return section("Hours", text, _table("hours", [one.replace("_", " ") for one in titles], rows))


def _slowest(slowest: Rows) -> str:
    rows = [
        [
            row["id"],
            seconds(row["service"]),
            seconds(row["wait"]),
            row["worker"] and _process(row),
            row["attempt"],
            row["at"],
        ]
        for row in slowest
    ]
    titles = ("id", "service time", "queue wait", "worker", "attempt", "completed at")
    text = "The completions with the longest service times."
    return section("Slowest items", text, _table("slowest", titles, rows))


def _process(row: Row) -> str:
    """Return the name of a worker, or its host and process, or its session if that does not say them."""
    if row.get("name"):
        return str(row["name"])
    return row["worker"] if row["host"] is None else f"{row['host']}/{row['pid']}"


def _table(name: str, titles: tuple[str, ...] | list[str], rows: list[list[Any]]) -> str:
    more = _left_out(rows, MAX_ROWS, "page", f"; they are in the table {name}")
    return table(name, titles, rows[:MAX_ROWS]) + (f"<p>{more.strip()}</p>" if more else "")


def _left_out(rows: list[Any], shown: int, where: str, more: str = "") -> str:
    return f" The {where} leaves out the last {len(rows) - shown:,}{more}." if len(rows) > shown else ""
