"""The history of items, computed from the kept events: waits, service times, workers, errors, hours.

The events of one id are ordered by number. Ids are independent: the events are shuffled once, by id, and all
else of an event comes from windows over its id. The result is cached, so that each further query is one scan.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from leasequeue.states import (
    DEAD,
    DEAD_LETTERS,
    ENDS,
    ENDS_OF_DEAD_LETTERS,
    ENTERS,
    GONE,
    ITEM_EVENTS,
    ITEM_STATES,
    EventKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame


#: The type of texts that name none.
OTHER = "other"
#: The bytes that an event keeps of an error: its end. A text of this size may have lost its beginning.
KEPT_BYTES = 1000
#: The longest line that is kept (characters).
LINE_LENGTH = 200

#: What a traceback of an exception group has at the beginning of its lines, and the lines between its parts.
_GROUP_MARKS = r"(?m)^ *(?:\| ?|\+[-+]+(?: \d+ -+)?$)"
#: The line after the last frame of a traceback; between them are lines of code and marks, which are indented.
_AFTER_LAST_FRAME = r'(?s)^.*(?:^|\n) *File "[^\n]*\n(?:[ \t][^\n]*\n)*([^\s\n][^\n]*)'
_FIRST_LINE, _LAST_LINE = r"^\s*([^\n]*)", r"([^\n]*)\s*$"
#: A name, such as that of a class with its module, that is the whole line or ends at a colon.
_NAME = r"^([A-Za-z_][\w.]*)(?=:\s|:?\s*$)"


def error_line(error: str) -> Column:
    """Return the line of an error that names it.

    Of a traceback this is the line of the exception that was raised last; of an exception group, that of its
    last exception; of another text, its first line.
    """
    text = sql.regexp_replace(error, _GROUP_MARKS, "")
    after_frames = sql.regexp_extract(text, _AFTER_LAST_FRAME, 1)
    rest = sql.when(sql.octet_length(error) < KEPT_BYTES, sql.regexp_extract(text, _FIRST_LINE, 1)).otherwise(
        sql.concat(sql.lit("… "), sql.regexp_extract(text, _LAST_LINE, 1))
    )
    line = sql.when(after_frames != "", after_frames).otherwise(rest)
    return sql.left(line, sql.lit(LINE_LENGTH))


def error_type(line: str) -> Column:
    """Return the type of an error: `ValueError` of `ValueError: bad amount`, or `other` if it names none."""
    name = sql.regexp_extract(line, _NAME, 1)
    return sql.when(name != "", name).otherwise(OTHER)


#: The columns of an archive of events that a history needs.
NEEDED = ("number", "what", "id", "at", "holder", "token", "attempt", "size", "due", "error")
#: The percentiles of a report, and their accuracy: one rank in 10,000.
PERCENTILES, ACCURACY = (0.5, 0.9, 0.99), 10_000
PERCENTILE_NAMES = tuple(f"p{share * 100:g}" for share in PERCENTILES)
#: The durations of which percentiles are computed.
DURATIONS = ("wait", "service")
#: The counts of a report, and the events that they count.
COUNTED = {
    "added": EventKind.ADDED,
    "leased": EventKind.LEASED,
    "completed": EventKind.COMPLETED,
    "retries": EventKind.FAILED,
    "expired_leases": EventKind.EXPIRED,
    "released": EventKind.RELEASED,
    "dead_letters": EventKind.DIED,
    "requeued": EventKind.REQUEUED,
    "vanished": EventKind.VANISHED,
}
#: The events that report a failure, with its error.
FAILURES = (EventKind.FAILED, EventKind.DIED)
#: The events of the queue and its workers, which are of no item.
OTHER_EVENTS = tuple(kind for kind in EventKind if kind not in ITEM_EVENTS)
#: The columns by which `ItemHistory.groups` groups.
KEYS = ("hour", "begin", "worker", "error")

#: Spark's setting: whether it may change the number of partitions of a cached table while it computes it.
RESIZE = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"

#: A row, by column name.
Row = dict[str, Any]


@dataclass(frozen=True)
class ItemHistory:
    """The statistics of a report. Times are seconds.

    - The *queue wait* of a lease is the time between its lease and the last event before it that made the
      item wait: it was added, fell due, expired, was released, failed, was requeued or restored.
    - The *service time* of a completion is the time since the lease that was completed.
    - An event under a lease counts for the lease's holder, also if it expires; a completion counts for the
      holder of the completed lease, even if another worker has leased the item since.
    - The *share of failures* is that of the retries and dead letters among all runs that have completed or
      failed. Expired leases are in neither: such a run may still be completed.
    """

    events: DataFrame

    @cached_property
    def marked(self) -> DataFrame:
        """The events of items with what they say of their lease and their item, and the names of workers.

        `wait` is of leases, `service` of completions; `state` is that of the item after its last event,
        `is_dead` marks a dead letter that is still there, and `is_last` the last event of an id.
        """
        failed = _is(*FAILURES)
        # What is not needed is dropped, and texts are shortened, before the shuffle.
        kept = self.events.where(~_is(*OTHER_EVENTS) | _is(EventKind.WORKER_UP))
        # Archives of an earlier version have no such column.
        details = sql.col("details") if "details" in kept.columns else sql.lit("{}")
        shard = sql.col("shard") if "shard" in kept.columns else sql.lit(None)
        events = kept.select(
            "number",
            "what",
            "id",
            "at",
            "holder",
            "token",
            "attempt",
            "size",
            shard.alias("shard"),
            sql.unix_millis("at").alias("ms"),
            sql.col("due").isNotNull().alias("delayed"),
            _if(failed, error_line("error")).alias("line"),
            _if(_is(EventKind.WORKER_UP), sql.get_json_object(details, "$.worker")).alias("name"),
        ).withColumn("error", _if(failed, error_type("line")))
        of_id, of_lease = Window.partitionBy("id", "shard"), Window.partitionBy("id", "shard", "token")
        before = of_id.orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
        leased, completed = _is(EventKind.LEASED), _is(EventKind.COMPLETED)
        known = events.withColumns(
            {
                "entered": sql.last(_if(_is(*ENTERS), "ms"), ignorenulls=True).over(before),
                "added": sql.last(_if(_is(EventKind.ADDED), "at"), ignorenulls=True).over(before),
                "bytes": sql.last("size", ignorenulls=True).over(before),
                "last_holder": sql.last(_if(leased, "holder"), ignorenulls=True).over(before),
                "last": sql.max("number").over(of_id),
                "last_of_item": sql.max(_if(~_is(*ENDS_OF_DEAD_LETTERS), "number")).over(of_id),
                "last_of_letter": sql.max(_if(_is(*DEAD_LETTERS), "number")).over(of_id),
            }
        ).withColumn("wait", _if(leased, (sql.col("ms") - sql.col("entered")) / 1000))
        of_its_lease = known.withColumns(
            {
                "lease_at": sql.max(_if(leased, "ms")).over(of_lease),
                "lease_holder": sql.max(_if(leased, "holder")).over(of_lease),
                "attempt": sql.max(_if(leased, "attempt")).over(of_lease),
                "waited": sql.max("wait").over(of_lease),
            }
        )
        number, died, of_item = sql.col("number"), _is(EventKind.DIED), ~_is(EventKind.WORKER_UP)
        return of_its_lease.select(
            *("what", "id", "token", "attempt", "added", "bytes", "waited", "wait", "line", "error", "name"),
            *(_if(of_item, one).alias(one) for one in ("number", "at", "ms")),
            _if(completed, (sql.col("ms") - sql.col("lease_at")) / 1000).alias("service"),
            sql.when(_is(EventKind.EXPIRED, EventKind.RECLAIMED), sql.col("last_holder"))
            .when(sql.col("token").isNotNull(), sql.coalesce("lease_holder", "holder"))
            .when(~of_item, sql.col("id"))
            .alias("worker"),
            (of_item & (number == sql.col("last"))).alias("is_last"),
            _if(of_item & (number == sql.col("last_of_item")), _state()).alias("state"),
            ((number == sql.col("last_of_letter")) & died).alias("is_dead"),
        )

    @contextmanager
    def cached(self) -> Iterator[None]:
        """Cache the marked events for the length of a block: each query scans them."""
        conf = self.events.sparkSession.conf
        before = conf.get(RESIZE) or "false"
        # The number of partitions follows from the size. Spark would keep 200 for a cached table of any size.
        conf.set(RESIZE, "true")
        try:
            self.marked.persist()
        finally:
            conf.set(RESIZE, before)
        try:
            yield
        finally:
            self.marked.unpersist()

    def totals(self) -> tuple[Row, dict[str, int]]:
        """Return the totals of all events, and how many items were in each state after the last.

        The states are those of `AsyncWorkQueue.counts`.
        """
        states = {str(name): sql.col("state") == name for name in ITEM_STATES} | {DEAD: sql.col("is_dead")}
        [row] = self.marked.agg(
            sql.count("number").alias("events"),
            sql.count_if("is_last").alias("ids"),
            sql.min("at").alias("first"),
            sql.max("at").alias("last"),
            ((sql.max("ms") - sql.min("ms")) / 1000).alias("seconds"),
            *_statistics(),
            sql.struct(*(sql.count_if(one).alias(name) for name, one in states.items())).alias("now"),
        ).collect()
        found: Row = row.asDict(recursive=True)
        now = found.pop("now")
        totals = _spread(found)
        totals["per_second"] = totals["completed"] / totals["seconds"] if totals["seconds"] else None
        return totals, now

    def groups(self, span: int) -> dict[str, list[Row]]:
        """Return rows for each hour, interval, worker and type of error, in one query.

        Returns:
            By key: `hour` and `begin` (both in seconds since 1970; only those with an event), in their order;
            `worker`, the one with the most completions first; `error`, the most frequent type first.
        """
        rows = (
            self.marked.withColumns({"hour": _floor("ms", 3600), "begin": _floor("ms", span)})
            .groupingSets([[sql.col(key)] for key in KEYS], *KEYS)
            .agg(
                *(sql.grouping(key).alias(f"{key}_is_open") for key in KEYS),
                *_statistics(),
                sql.max("at").alias("last"),
                sql.max("name").alias("name"),
                sql.max_by("line", _if(sql.col("line").isNotNull(), "number")).alias("example"),
            )
            .collect()
        )
        found: dict[str, list[Row]] = {key: [] for key in KEYS}
        for row in rows:
            values = _spread(row.asDict())
            [key] = [one for one in KEYS if not values[f"{one}_is_open"]]
            # Events without a worker, and those without an error, are a group too. Some workers have no run.
            if values[key] is not None and values["last"] is not None:
                found[key].append(values)
        for key in ("hour", "begin"):
            found[key].sort(key=lambda row, key=key: row[key])  # type: ignore[misc]  # a default argument
        found["worker"].sort(key=lambda row: (-row["completed"], row["worker"]))
        found["error"].sort(key=lambda row: (-row["failures"], row["error"]))
        return found

    def completed(self) -> DataFrame:
        """Return a row for each completion: its time, its worker, and the facts known of the item.

        `wait` is that of the completed lease. Values whose events were dropped are null.
        """
        return self.marked.where(_is(EventKind.COMPLETED)).select(
            "id",
            "added",
            "at",
            "worker",
            sql.col("waited").alias("wait"),
            "service",
            "attempt",
            sql.col("bytes").alias("size"),
            "token",
            "number",
        )

    def slowest(self, count: int) -> DataFrame:
        """Return the completions with the longest service times."""
        timed = self.completed().where(sql.col("service").isNotNull())
        return timed.orderBy(sql.desc("service"), "number").limit(count)


def _is(*kinds: EventKind) -> Column:
    return sql.col("what").isin(*(kind.value for kind in kinds))


def _if(condition: Column, value: str | Column) -> Column:
    """Return a value where the condition holds, else null."""
    return sql.when(condition, sql.col(value) if isinstance(value, str) else value)


def _floor(ms: str, seconds: int) -> Column:
    """Return the begin of the interval that contains a time, in seconds since 1970."""
    return sql.floor(sql.col(ms) / (1000 * seconds)) * seconds


def _state() -> Column:
    """Return the state of an item after an event."""
    what = sql.col("what")
    state: Any = sql
    for kind in ITEM_EVENTS:
        if kind.can_delay:
            state = state.when((what == kind.value) & sql.col("delayed"), "scheduled")
        state = state.when(what == kind.value, GONE if kind in ENDS else kind.after)
    unknown: Column = state.otherwise(sql.raise_error(sql.concat(sql.lit("unknown event: "), what)))
    return unknown


def _statistics() -> list[Column]:
    # All percentiles of a duration come from one sketch.
    return [
        *(sql.count_if(_is(kind)).alias(name) for name, kind in COUNTED.items()),
        *(sql.percentile_approx(of, [*PERCENTILES], ACCURACY).alias(of) for of in DURATIONS),
    ]


def _spread(row: Row) -> Row:
    """Give each percentile its own entry, such as `wait_p50`, and add the failures and their share."""
    spread = {name: value for name, value in row.items() if name not in DURATIONS}
    for of in DURATIONS:
        values = row[of] or [None] * len(PERCENTILES)
        spread |= {f"{of}_{name}": value for name, value in zip(PERCENTILE_NAMES, values, strict=True)}
    failures = row["retries"] + row["dead_letters"]
    runs = failures + row["completed"]
    return spread | {"failures": failures, "failure_share": failures / runs if runs else None}
