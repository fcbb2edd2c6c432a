"""The job `backfill`: schedule the rows of a table of past work at a given rate."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from leasequeue.durations import LONGEST_KEPT_SECONDS
from leasequeue.errors import InvalidArgument
from leasequeue.spark.add.adding import add
from leasequeue.spark.add.columns import OWN
from leasequeue.spark.jobs.load import column_options, read
from leasequeue.spark.jobs.session import no_progress
from leasequeue.spark.options import server_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasequeue.spark.jobs.load import Format
    from leasequeue.spark.jobs.session import Progress

#: The columns that this job adds to the rows.
_DUE, _ROW = f"{OWN}due", f"{OWN}row"
#: The bits of `monotonically_increasing_id` that count the rows of a partition.
_ROW_BITS = 33


def backfill(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    queue: str,
    source: str,
    *,
    rate: float,
    start: str | None = None,
    order_by: str | None = None,
    format: Format | None = None,  # noqa: A002 - the option's name
    id: str | None = None,  # noqa: A002 - as above
    id_from: str | None = None,
    data: str | None = None,
    option: list[str] | None = None,
    url: str | None = None,
    cluster: bool = False,
    codec: str | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Add the rows of a table to a queue so that they fall due at a given rate.

    All items are added at once, as scheduled items: the server holds them until they are completed, and the
    job need not run while they fall due. They fall due one by one, in the order of the rows. Items that are
    already in the queue stay as they are.

    Args:
        spark: The session.
        queue: The queue's name.
        source: As for `load`; so are `format`, `id`, `id_from`, `data` and `option`.
        rate: How many items fall due per second.
        start: When the first item falls due, such as 2030-01-31T09:00Z; None: now.
        order_by: The column to order the rows by; None: the order of the table.
        format: The kind of the source.
        id: The column of the id.
        id_from: The columns whose content is hashed to make the id.
        data: The column of the data.
        option: Options of Spark's reader.
        url: The server's URL; None: that of the environment, or this machine's default port.
        cluster: Whether the server is a node of a cluster.
        codec: Where executors import the codec of the queue from, `module:name`; None: it has none.
        progress: Called with a few words about each step.

    Returns:
        `rows`, `added`, `already_there`, `first_due` and `last_due` (ISO 8601, UTC).

    Raises:
        InvalidArgument: If an argument cannot be used, or the last item would fall due too late; nothing was
            added.
        pyspark.errors.PySparkException: If the source cannot be read, or a row cannot be an item.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise InvalidArgument("rate", rate, "a number of items per second, above 0")
    rows = read(spark, source, format, option)
    # Read and sort once: the next query may order equal rows, or divide the table into partitions, otherwise.
    rows = (rows.orderBy(order_by) if order_by else rows).persist()
    try:
        progress(f"counting the rows of {source}")
        numbered, count = _numbered(rows)
        if count / rate > LONGEST_KEPT_SECONDS:
            days = LONGEST_KEPT_SECONDS / 86400
            raise InvalidArgument("rate", rate, f"one at which {count:,} rows take at most {days:,g} days")
        with server_options(url, cluster=cluster, codec=codec) as server:
            begin = _moment(start) if start else time.time()
            progress(f"loading {count:,} rows into {queue}")
            timed = _timed(numbered, begin, rate)
            report = add(
                timed, queue, check=True, atColumn=_DUE, **column_options(id, id_from, data), **server
            )
    finally:
        rows.unpersist()
    return {
        "queue": queue,
        "rows": report.rows,
        "added": report.added,
        "already_there": report.already_there,
        "first_due": _written(begin),
        "last_due": _written(begin + max(count - 1, 0) / rate),
    }


def _numbered(rows: DataFrame) -> tuple[DataFrame, int]:
    """Number the rows from 0 without gaps, in their order, and without a shuffle."""
    marked = rows.withColumn(_ROW, sql.monotonically_increasing_id())
    partition = sql.shiftright(_ROW, _ROW_BITS).cast("int")
    counts = dict(map(tuple, marked.groupBy(partition).count().collect()))
    before, befores = 0, [0]
    for number in range(max(counts, default=-1) + 1):
        before += counts.get(number, 0)
        befores.append(before)
    offsets = sql.array(*(sql.lit(offset) for offset in befores))
    in_partition = sql.col(_ROW).bitwiseAND((1 << _ROW_BITS) - 1)
    return marked.withColumn(_ROW, sql.get(offsets, partition) + in_partition), before


def _timed(numbered: DataFrame, begin: float, rate: float) -> DataFrame:
    # Without a number, a row would be due now.
    problem = sql.raise_error("the table was divided into other partitions than when they were counted")
    row = sql.coalesce(sql.col(_ROW), problem)
    micros = sql.lit(round(begin * 1e6)) + sql.floor(row * (1e6 / rate)).cast("long")
    return numbered.withColumn(_DUE, sql.timestamp_micros(micros)).drop(_ROW)


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument("start", text, "a time such as 2030-01-31T09:00Z") from error
    if moment.tzinfo is None:
        raise InvalidArgument("start", text, "a time with a zone, such as 2030-01-31T09:00Z")
    return moment.timestamp()


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
