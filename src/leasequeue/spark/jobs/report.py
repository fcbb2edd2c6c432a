"""The job `report`: statistics of a queue from its events, as tables and as one page."""

from __future__ import annotations

import base64
import io
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from leasequeue.durations import duration_text
from leasequeue.errors import ExtraMissing, InvalidArgument
from leasequeue.errors.describing import plain
from leasequeue.keys import session_origin
from leasequeue.spark.jobs.item_history import COUNTED, DURATIONS, NEEDED, PERCENTILE_NAMES, ItemHistory
from leasequeue.spark.jobs.session import no_progress
from leasequeue.spark.options import server_options
from leasequeue.spark.process.output import OutputFolder
from leasequeue.spark.read.events import has_events
from leasequeue.spark.sessions import check_classic
from leasequeue.spark.source import register
from leasequeue.states import STATES

try:
    from jinja2 import Environment
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
except ImportError as error:
    raise ExtraMissing("the page of a report", "spark") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from leasequeue.spark.jobs.item_history import Row
    from leasequeue.spark.jobs.session import Progress

#: The intervals of the charts (s): the shortest that gives at most 150 points is used.
_SPANS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
#: The name of the page and of its template.
PAGE = "report.html"
#: How many rows of a table, and how many bars, the page shows at most; the tables have all.
MAX_ROWS, MAX_BARS = 750, 20
#: How many of the slowest items are listed; the table `completed` has all.
SLOWEST = 20

_WAIT, _SERVICE = ([f"{of}_{name}" for name in PERCENTILE_NAMES] for of in DURATIONS)
_STATISTICS = (*COUNTED, "failures", "failure_share", *_WAIT, *_SERVICE)
_RUNS = ("leased", "completed", "retries", "expired_leases", "dead_letters", "failures", "failure_share")
_AT_END = [f"{state}_at_end" for state in STATES]
#: The columns of the tables. `spans` are the intervals of the charts.
TABLES: dict[str, tuple[str, ...]] = {
    "errors": ("error", "failures", "retries", "dead_letters", "share", "last", "example"),
    "workers": ("worker", "name", "host", "pid", *_RUNS, *_SERVICE),
    "hours": ("hour", *_STATISTICS),
    "slowest": ("id", "added", "at", "worker", "wait", "service", "attempt", "size", "token", "number"),
    "spans": ("begin", *_STATISTICS),
    # "leased" alone is how many leases there were.
    "totals": ("events", "ids", "first", "last", "seconds", "per_second", *_STATISTICS, *_AT_END),
}
#: The types of the columns that are no counts.
_TYPES = {
    **dict.fromkeys(("error", "example", "worker", "name", "host", "id"), pa.string()),
    **dict.fromkeys(("last", "hour", "at", "begin", "first"), pa.timestamp("us", tz="UTC")),
    **dict.fromkeys(("share", "failure_share", "seconds", "per_second", *DURATIONS), pa.float64()),
    **dict.fromkeys((*_WAIT, *_SERVICE), pa.float64()),
    "attempt": pa.int32(),
}
#: Units of the charts over time.
SECONDS, SHARE, RATE = "seconds", "share", "items/s"
#: Of charts: text stays text, equal data give equal images.
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "", "axes.grid": True, "date.converter": "concise"}


def report(
    spark: SparkSession,
    output: str,
    *,
    events: str | None = None,
    queue: str | None = None,
    url: str | None = None,
    cluster: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Report on a queue: throughput, waits, service times, failures, errors, workers, hours, slowest items.

    Writes the tables of `TABLES`, and `completed` (a row per completion), as Parquet with times in seconds,
    and a self-contained page `report.html`. Waits and service times are those of `ItemHistory`.

    Args:
        spark: The session.
        output: The folder of the report.
        events: An archive of events.
        queue: Instead: a queue, whose kept events are read now.
        url: The server's URL; None: that of the environment, or this machine's default port.
        cluster: Whether the server is a node of a cluster.
        progress: Called with a few words about each step.

    Returns:
        The totals, and `now`: how many items were in each state after the last event.

    Raises:
        InvalidArgument: If the session is one of Spark Connect, not one of `events` and `queue` is given, or
            it has no events.
        ExtraMissing: If matplotlib or Jinja is not installed.
        NoEventsKept: If the queue keeps no events.
        ServerError: If the server does not answer.
        pyspark.errors.PySparkException: If the events cannot be read.
    """
    check_classic(spark, "report")
    if (events is None) == (queue is None):
        raise InvalidArgument("events", events, "an archive of events, or a queue")
    if events is not None:
        return _report(spark, spark.read.parquet(events), output, title=events, progress=progress)
    register(spark)
    name = str(queue)
    with server_options(url, cluster=cluster) as server:
        given = {**server, "queue": name, "from": "events"}
        if not has_events(given):
            raise InvalidArgument("queue", name, "one that has events")
        progress(f"reading the events of {name}")
        # The oldest may be dropped before they are read.
        given |= {"failOnLoss": "false", "partitions": f"{spark.sparkContext.defaultParallelism}"}
        kept = spark.read.format("leasequeue").options(**given).load()
        return _report(spark, kept, output, title=name, progress=progress)


def _report(
    spark: SparkSession, events: DataFrame, output: str, *, title: str, progress: Progress
) -> dict[str, Any]:
    if missing := {*NEEDED} - {*events.columns}:
        problem = f"an archive of events; it has no {', '.join(sorted(missing))}"
        raise InvalidArgument("events", title, problem)
    history = ItemHistory(events)
    with history.cached():
        progress("counting the events")
        totals, now = history.totals()
        totals = _in_utc(totals)
        if not totals["events"]:
            raise InvalidArgument("events", title, "an archive that has events")
        span = next((one for one in _SPANS if totals["seconds"] <= one * 150), _SPANS[-1])
        progress("writing completed")
        history.completed().write.mode("overwrite").parquet(f"{output}/completed")
        progress("grouping the events")
        groups = history.groups(span)
        slow = [row.asDict() for row in history.slowest(SLOWEST).collect()]
    progress("writing tables")
    tables = _tables(groups, slow)
    tables["totals"] = [totals | {f"{state}_at_end": count for state, count in now.items()}]
    folder = OutputFolder(spark, output)
    for name, rows in tables.items():
        _write(folder, name, rows)
    progress("drawing")
    folder.put(PAGE, page_of(title, tables, span))
    times = {name: totals[name].isoformat() for name in ("first", "last")}
    return {**totals, **times, "now": now, "page": f"{output.rstrip('/')}/{PAGE}"}


def _tables(groups: Mapping[str, Sequence[Row]], slowest: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of all tables but `totals`."""
    failures = sum(row["failures"] for row in groups["error"])
    workers = [(row, session_origin(row["worker"])) for row in groups["worker"]]
    return {
        "errors": [_in_utc(row) | {"share": row["failures"] / failures} for row in groups["error"]],
        "workers": [row | {"host": at and at.host, "pid": at and at.pid} for row, at in workers],
        "hours": [row | {"hour": datetime.fromtimestamp(row["hour"], UTC)} for row in groups["hour"]],
        "slowest": [_in_utc(row) for row in slowest],
        "spans": [row | {"begin": datetime.fromtimestamp(row["begin"], UTC)} for row in groups["begin"]],
    }


def _in_utc(row: Row) -> Row:
    """Convert the times of a row to UTC: Spark returns them in this machine's time zone."""
    times = {name: value.astimezone(UTC) for name, value in row.items() if isinstance(value, datetime)}
    return row | times


def _write(folder: OutputFolder, name: str, rows: Sequence[Row]) -> None:
    """Replace a table by one Parquet file, without a job of Spark, which would take longer than the file."""
    types = {**_TYPES, "added": _TYPES["at"]} if name == "slowest" else _TYPES
    schema = pa.schema([(column, types.get(column, pa.int64())) for column in TABLES[name]])
    table = pa.Table.from_pylist([{column: row[column] for column in schema.names} for row in rows], schema)
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    folder.drop(name)
    folder.put(f"{name}/part-00000.snappy.parquet", sink.getvalue().to_pybytes())


def page_of(title: str, tables: Mapping[str, Sequence[Row]], span: int) -> str:
    """Return the page: the totals, the charts, and the tables of errors, workers, hours and slowest items."""
    text = resources.files(__package__).joinpath(PAGE).read_text()
    template = Environment(autoescape=True, trim_blocks=True).from_string(text)
    return template.render(
        title=plain(title),
        written=datetime.now(UTC),
        totals=tables["totals"][0],
        charts=[*_charts(tables, span)],
        tables={name: tables[name] for name in ("errors", "workers", "hours", "slowest")},
        columns=TABLES,
        texts=[name for name, kind in _TYPES.items() if kind == pa.string()],
        max_rows=MAX_ROWS,
        shown=shown,
    )


def shown(name: str, value: Any) -> str:
    """Return a value of a column as the page shows it."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if name.endswith("share"):
        return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:,.1f}" if name == "per_second" else duration_text(value)
    return f"{value:,}" if isinstance(value, int) and name != "pid" else plain(str(value))


def _charts(tables: Mapping[str, Sequence[Row]], span: int) -> Iterator[tuple[str, str, str]]:
    """Yield the title of each chart, its explanation, and the URL of the image, which contains it."""
    # An interval without events has no row.
    spans = pd.DataFrame(tables["spans"]).set_index("begin").asfreq(f"{span}s")
    each, failures = duration_text(span), ["retries", "expired_leases", "dead_letters"]
    for title, text, names, unit in (
        ("Throughput", f"Items per second, averaged over {each}.", ["added", "completed"], RATE),
        ("Queue wait", "From when an item began to wait until it was leased.", _WAIT, SECONDS),
        ("Service time", "From a lease until its completion.", _SERVICE, SECONDS),
        ("Failures", f"Retries, expired leases and dead letters in each {each}.", failures, f"per {each}"),
        ("Share of failures", "Of the runs that completed or failed.", ["failure_share"], SHARE),
    ):
        values = spans[names].astype(float)
        if unit not in (SECONDS, SHARE):
            values = values.fillna(0) / (span if unit == RATE else 1)
        if unit in (RATE, SECONDS) or values.any(axis=None):
            yield title, text, lines(values, unit)
    for title, text, names, counted in (
        ("Errors", "Failures by the type that their text names.", ["error"], ["retries", "dead_letters"]),
        ("Workers", "Runs by holder.", ["name", "worker"], ["completed", "failures", "expired_leases"]),
    ):
        if rows := tables[title.lower()][:MAX_BARS]:
            labels = [next(filter(None, map(row.get, names))) for row in rows]
            yield title, text, bars(pd.DataFrame(rows, labels)[counted])


def lines(values: pd.DataFrame, unit: str) -> str:
    """Draw a line for each column, with points in the middle of each interval; return the image.

    Args:
        values: A row for each interval of equal length, with its start as index; NaN leaves a gap.
        unit: What the values are: `seconds`, `share`, or a text for their axis. Of durations 0 is left out,
            and the scale is logarithmic if the longest is ten times the shortest.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 2.6), layout="constrained")
        axes = figure.add_subplot(xlabel="UTC", ylabel="" if unit in (SECONDS, SHARE) else unit)
        drawn = values.mask(values == 0) if unit == SECONDS else values
        span, marker = values.index.freq, "." if len(values) < 40 else ""
        for dashes, name in zip(("-", "--", ":"), drawn, strict=False):
            axes.plot(drawn.index + span / 2, drawn[name], dashes, label=name, marker=marker)
        axes.set_xlim(values.index[0], values.index[-1] + span)
        if unit == SECONDS and drawn.max(axis=None) >= 10 * drawn.min(axis=None):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.1 * (values.fillna(0).max(axis=None) or 1))
        text: Any = {SECONDS: duration_text, SHARE: lambda part: f"{100 * part:.3g}%"}.get(
            unit, "{:,g}".format
        )
        axes.yaxis.set_major_formatter(lambda value, _: text(value))
        return _image(figure)


def bars(counts: pd.DataFrame) -> str:
    """Draw a stacked bar for each row; return the image."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 0.9 + 0.25 * len(counts)), layout="constrained")
        axes, rows, begins = figure.add_subplot(), range(len(counts)), counts.cumsum(axis=1) - counts
        for name in counts:
            axes.barh(rows, counts[name], left=begins[name], label=name)
        # The ends of hosts and classes distinguish them. To matplotlib, two dollars mark a formula.
        names = [plain(name, None) for name in counts.index]
        short = [name if len(name) <= 60 else f"{name[:20]}…{name[-39:]}" for name in names]
        axes.set_yticks(rows, [name.replace("$", r"\$") for name in short])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        return _image(figure)


def _image(figure: Figure) -> str:
    names = figure.axes[0].get_legend_handles_labels()[1]
    if len(names) > 1:
        figure.legend([name.replace("_", " ") for name in names], loc="outside upper left", ncols=3)
    written = io.BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(written.getvalue()).decode()}"
