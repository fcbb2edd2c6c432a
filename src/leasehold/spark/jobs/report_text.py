"""The texts, charts and tables on the page of a report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from leasehold.spark.jobs import charts
from leasehold.spark.jobs.html_page import chart, figures, page, seconds, section, table

#: The rows of a small table, by column name; times have a zone.
Rows = list[dict[str, Any]]

_PERCENTILES = ("p50", "p90", "p99")
#: The lines of the chart of failures: their labels and columns.
_FAILURES = {"retries": "retries", "expired leases": "expired_leases", "dead letters": "dead_letters"}


def page_of(
    title: str,
    totals: dict[str, Any],
    now: dict[str, int],
    found: dict[str, Rows],
    span: int,
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
        f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by Leasehold."
    )
    main_figures = {
        **{
            name.replace("_", " "): totals[name]
            for name in ("added", "completed", "retries", "expired_leases")
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
        [
            figures(main_figures),
            *_over_time(found["spans"], span),
            *_by_worker(found["workers"]),
            *_lists(found),
        ],
    )


def _over_time(spans: Rows, span: int) -> list[str]:
    length = timedelta(seconds=span)
    known = {row["begin"]: row for row in spans}
    times, last = [min(known)], max(known)
    while times[-1] < last:
        times.append(times[-1] + length)
    # An interval without events has no row.
    rows = [known.get(time, {}) for time in times]

    def counts(*names: str) -> dict[str, list[int]]:
        return {name: [row.get(name, 0) for row in rows] for name in names}

    def times_of(kind: str) -> dict[str, list[float | None]]:
        return {one: [row.get(f"{kind}_{one}") for row in rows] for one in _PERCENTILES}

    rates = {name: [count / span for count in each] for name, each in counts("added", "completed").items()}
    found = counts(*_FAILURES.values())
    failures = {label: found[name] for label, name in _FAILURES.items()}
    draw = partial(charts.over_time, times=times, span=length)
    drawn = [
        section(
            "Throughput",
            f"Items per second, averaged over {span:,} s.",
            chart(draw("rate", "Items per second over time", series=rates)),
        ),
        section(
            "Queue wait",
            "From when an item began to wait until it was leased.",
            chart(draw("wait", "Queue wait over time", series=times_of("wait"), lengths=True)),
        ),
        section(
            "Service time",
            "From a lease until its completion.",
            chart(draw("service", "Service time over time", series=times_of("service"), lengths=True)),
        ),
    ]
    if any(any(counts) for counts in failures.values()):
        about = f"Retries, expired leases and dead letters in each {span:,} s."
        drawn.append(section("Failures", about, chart(draw("failures", about, series=failures))))
    return drawn


def _by_worker(workers: Rows) -> list[str]:
    if not workers:
        return []
    names = ("leased", "completed", "retries", "expired_leases", "dead_letters")
    rows = [
        [
            row["worker"],
            *(row[name] for name in names),
            *(seconds(row[f"service_{one}"]) for one in _PERCENTILES),
        ]
        for row in workers
    ]
    counts = {name: [row[name] for row in workers] for name in ("completed", "expired_leases")}
    svg = charts.bars("workers", "Completions of each worker", [row["worker"] for row in workers], counts)
    more = len(workers) - charts.MAX_BARS
    about = "The holders of leases" + (f"; the chart leaves out the last {more:,}." if more > 0 else ".")
    titles = ("worker", *(name.replace("_", " ") for name in names), *_PERCENTILES)
    return [section("Workers", about, chart(svg), table(titles, rows))]


def _lists(found: dict[str, Rows]) -> list[str]:
    counted = ("added", "leased", "completed", "retries", "expired_leases", "dead_letters")
    timed = [f"{kind}_{one}" for kind in ("wait", "service") for one in _PERCENTILES]
    hours = [
        [row["hour"], *(row[name] for name in counted), *(seconds(row[name]) for name in timed)]
        for row in found["hours"]
    ]
    slow = [
        [row["id"], seconds(row["service"]), row["worker"], row["attempt"], row["at"]]
        for row in found["slowest"]
    ]
    titles = ("hour", *(name.replace("_", " ") for name in (*counted, *timed)))
    return [
        section("Hours", "Each hour with an event, UTC.", table(titles, hours)),
        section(
            "Slowest items",
            "The completions with the longest service times.",
            table(("id", "service time", "worker", "attempt", "completed at"), slow),
        ),
    ]
