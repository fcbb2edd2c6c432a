"""The job `backfill`: a table of past work into a queue, no faster than its workers can take it."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from leasehold.durations import LONGEST_KEPT_SECONDS
from leasehold.errors import InvalidArgument
from leasehold.spark.bulk_writer import add
from leasehold.spark.columns import OWN
from leasehold.spark.jobs.command import main
from leasehold.spark.jobs.load import Data, Format, Id, IdFrom, Queue, Reading, Source, columns, read
from leasehold.spark.jobs.session import Cluster, Tell, Url, place, silent

#: The columns that are put to the rows.
_DUE, _ROW = f"{OWN}due", f"{OWN}row"
#: `monotonically_increasing_id` counts the rows of a partition in so many bits.
_ROW_BITS = 33


def backfill(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    queue: Queue,
    source: Source,
    *,
    rate: Annotated[float, "How many items fall due in a second."],
    start: Annotated[
        str | None, "When the first falls due, such as 2030-01-31T09:00Z; by default now."
    ] = None,
    order_by: Annotated[
        str | None, "The column whose order is that of the work; by default the table's."
    ] = None,
    format: Format = None,  # noqa: A002 - the option's name
    id: Id = None,  # noqa: A002 - as above
    id_from: IdFrom = None,
    data: Data = None,
    option: Reading = None,
    url: Url = None,
    cluster: Cluster = False,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Load a table of past work into a queue at a given rate.

    All items are put into the queue at once, as scheduled ones: so the server has to hold all of them until
    they are done, and the job need not run while they fall due. They fall due in the order of the rows, one
    after the other. What is there already, scheduled or not, stays as it is.

    Returns:
        `rows`, `added`, `already_there`, `first_due` and `last_due` (ISO 8601, UTC).

    Raises:
        InvalidArgument: If an argument cannot be used, or it would take too long; nothing was added.
        pyspark.errors.PySparkException: If the source cannot be read, or a row can be no item.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise InvalidArgument("rate", rate, "a number of items in a second, above 0")
    rows = read(spark, source, format, option)
    if order_by:
        # So that the order is made once: rows that are alike may come in another one the next time.
        rows = rows.orderBy(order_by).persist()
    try:
        tell(f"counting the rows of {source}")
        numbered, count = _numbered(rows)
        if count / rate > LONGEST_KEPT_SECONDS:
            days = LONGEST_KEPT_SECONDS / 86400
            raise InvalidArgument("rate", rate, f"one at which {count:,} rows take {days:,g} days at most")
        with place(url, cluster=cluster) as where:
            begin = _moment(start) if start else time.time()
            tell(f"loading {count:,} rows into {queue}")
            timed = _timed(numbered, begin, rate)
            report = add(timed, queue, check=True, atColumn=_DUE, **columns(id, id_from, data), **where)
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
    """Number the rows from 0 without gaps, in their order; the data stay where they are."""
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
    """Give each row its due time instead of its number."""
    micros = sql.lit(round(begin * 1e6)) + sql.floor(sql.col(_ROW) * (1e6 / rate)).cast("long")
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


if __name__ == "__main__":
    main(backfill)
