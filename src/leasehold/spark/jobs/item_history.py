"""The history of items, computed from the kept events: waits, service times, workers, hours.

The events of one id are ordered by number. Ids are independent: all computations use windows over an id and
run on all machines of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sql

from leasehold.states import DEAD_LETTERS, ENDS, ENDS_OF_DEAD_LETTERS, ENTERS, GONE, ITEM_STATES, EventKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The percentiles of a report, and their accuracy: one rank in 10,000.
PERCENTILES, ACCURACY = (0.5, 0.9, 0.99), 10_000
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


@dataclass(frozen=True)
class ItemHistory:
    """The tables of a report. Times are seconds.

    - The *queue wait* of a lease is the time between its lease and the last event before it that made the
      item wait: it was added, fell due, expired, was released, failed, was requeued or restored.
    - The *service time* of a completion is the time since the lease that was completed.
    - An event under a lease counts for the lease's holder, also if it expires; a completion counts for the
      holder of the completed lease, even if another worker has leased the item since.

    Args:
        events: The kept events, each once.
    """

    events: DataFrame

    @cached_property
    def marked(self) -> DataFrame:
        """The events with the columns `wait` (of leases), `service` (of completions) and `worker`."""
        of_id = Window.partitionBy("id").orderBy("number")
        before = of_id.rowsBetween(Window.unboundedPreceding, -1)
        of_lease = Window.partitionBy("id", "token")
        leased, completed = _is(EventKind.LEASED), _is(EventKind.COMPLETED)
        known = (
            self.events.withColumn("ms", sql.unix_millis("at"))
            .withColumn("entered", sql.last(_if(_is(*ENTERS), "ms"), ignorenulls=True).over(before))
            .withColumn("added", sql.last(_if(_is(EventKind.ADDED), "at"), ignorenulls=True).over(before))
            .withColumn("bytes", sql.last("size", ignorenulls=True).over(before))
            .withColumn("last_holder", sql.last(_if(leased, "holder"), ignorenulls=True).over(before))
            .withColumn("lease_at", sql.max(_if(leased, "ms")).over(of_lease))
            .withColumn("lease_holder", sql.max(_if(leased, "holder")).over(of_lease))
            .withColumn("attempt", sql.max(_if(leased, "attempt")).over(of_lease))
        )
        worker = sql.when(_is(EventKind.EXPIRED), sql.col("last_holder")).when(
            sql.col("token").isNotNull(), sql.coalesce("lease_holder", "holder")
        )
        return (
            known.withColumn("wait", _if(leased, (sql.col("ms") - sql.col("entered")) / 1000))
            .withColumn("waited", sql.max("wait").over(of_lease))
            .withColumn("service", _if(completed, (sql.col("ms") - sql.col("lease_at")) / 1000))
            .withColumn("worker", worker)
            .drop("entered", "last_holder", "lease_at", "lease_holder")
        )

    def totals(self) -> dict[str, Any]:
        """Return the totals of all events."""
        row = self.marked.agg(
            sql.count("number").alias("events"),
            sql.min("at").alias("first"),
            sql.max("at").alias("last"),
            ((sql.max("ms") - sql.min("ms")) / 1000).alias("seconds"),
            *_counts(),
            *_percentiles("wait"),
            *_percentiles("service"),
        ).first()
        found: dict[str, Any] = row.asDict() if row else {}
        # A separate query: a distinct count among the others would make Spark aggregate per id.
        found["ids"] = self.marked.select("id").distinct().count()
        found["per_second"] = found["completed"] / found["seconds"] if found["seconds"] else None
        return found

    def now(self) -> dict[str, int]:
        """Return how many items were in each state after the last event, as `AsyncWorkQueue.counts` does."""
        what_due = sql.struct("what", "due")
        states = self.events.groupBy("id").agg(
            _last(what_due, ~_is(*ENDS_OF_DEAD_LETTERS)).alias("item"),
            _last(what_due, _is(*DEAD_LETTERS)).alias("letter"),
        )
        what, delayed = sql.col("item.what"), sql.col("item.due").isNotNull()
        state = sql.when(what.isNull(), GONE)
        for kind in EventKind:
            if kind.can_delay:
                state = state.when((what == kind.value) & delayed, "scheduled")
            state = state.when(what == kind.value, GONE if kind in ENDS else kind.after)
        state = state.otherwise(sql.raise_error(sql.concat(sql.lit("unknown event: "), what)))
        row = states.select(state.alias("state"), "letter").agg(
            *(sql.count_if(sql.col("state") == name).alias(name) for name in ITEM_STATES),
            sql.count_if(sql.col("letter.what") == EventKind.DIED.value).alias("dead"),
        )
        first = row.first()
        return first.asDict() if first else {}

    def hours(self) -> DataFrame:
        """Return a row for each hour with an event."""
        return self.spans(3600).withColumnRenamed("begin", "hour")

    def spans(self, seconds: int) -> DataFrame:
        """Return a row for each interval of so many seconds with an event."""
        begin = sql.timestamp_seconds(sql.floor(sql.col("ms") / (1000 * seconds)) * seconds)
        return (
            self.marked.groupBy(begin.alias("begin"))
            .agg(*_counts(), *_percentiles("wait"), *_percentiles("service"))
            .orderBy("begin")
        )

    def workers(self) -> DataFrame:
        """Return a row for each worker that held leases."""
        return (
            self.marked.where(sql.col("worker").isNotNull())
            .groupBy("worker")
            .agg(
                *_counts("leased", "completed", "retries", "expired_leases", "dead_letters"),
                *_percentiles("service"),
            )
            .orderBy(sql.desc("completed"), "worker")
        )

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
            sql.col("attempt").alias("attempt"),
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


def _last(value: Column, condition: Column) -> Column:
    return sql.max_by(value, sql.when(condition, sql.col("number")))


def _counts(*names: str) -> list[Column]:
    return [sql.count_if(_is(COUNTED[name])).alias(name) for name in names or COUNTED]


def _percentiles(of: str) -> list[Column]:
    return [
        sql.percentile_approx(of, [share], ACCURACY)[0].alias(f"{of}_p{share * 100:g}")
        for share in PERCENTILES
    ]
