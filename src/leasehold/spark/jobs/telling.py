"""What the page of a report tells, and how."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from leasehold.spark.jobs import charts
from leasehold.spark.jobs.page import chart, figures, page, seconds, section, table

#: The rows of a small table, by the names of their columns; times know their zone.
Rows = list[dict[str, Any]]

_PERCENTILES = ("p50", "p90", "p99")
_TROUBLES = {"failed": "retries", "lapsed": "redeliveries", "died": "dead_letters"}


def page_of(
    title: str,
    totals: dict[str, Any],
    now: dict[str, int],
    found: dict[str, Rows],
    spans: Rows,
    span: int,
) -> str:
    """Write the page.

    Args:
        title: What the report is about.
        totals: What there is to say of all events.
        now: How many items were in each state after the last event.
        found: The rows of the tables `hours`, `workers` and `slowest`.
        spans: Rows as those of `hours`, of the spans that the charts show.
        span: The length of such a span, in seconds.
    """
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


def _over_time(spans: Rows, span: int) -> list[str]:
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


def _by_worker(workers: Rows) -> list[str]:
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


def _lists(found: dict[str, Rows]) -> list[str]:
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
