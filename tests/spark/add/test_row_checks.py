"""The check of all rows of a table before the first is added."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pyspark.sql.functions as F  # noqa: N812 - its usual name
import pytest

from leasequeue import InvalidArgument
from leasequeue.spark import add
from leasequeue.spark.add.columns import Columns
from leasequeue.spark.add.row_checks import check_rows
from leasequeue.spark.add.writers import WRITE_OPTIONS as OPTIONS
from leasequeue.spark.options import FormatOptions
from tests.spark.tables import numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasequeue import AsyncWorkQueue

#: Invalid values: the column, an SQL expression, and the message.
NO_ITEMS = {
    "null": ("id", "null", "column 'id' of 1 row: got None, expected a string of 1 to 512 bytes"),
    "empty": ("id", "''", "column 'id' of 1 row: got '', expected a string of 1 to 512 bytes"),
    "long": ("id", "repeat('ü', 257)", "column 'id' of 1 row: got '514 bytes'"),
    "no data": ("data", "null", "column 'data' of 1 row: got None, expected bytes"),
    "much data": ("data", "repeat('x', 67108865)", "'data' of 1 row: got '67108865 bytes', expected bytes"),
    "negative": ("wait", "-1", "column 'wait' of 1 row: got -1.0, expected seconds"),
    "nan": ("wait", "double('nan')", "column 'wait' of 1 row: got nan, expected seconds"),
    "too high": ("level", "10", "column 'level' of 1 row: got 10, expected a whole number from -9 to 9"),
    "too low": ("level", "-128", "column 'level' of 1 row: got -128, expected a whole number"),
    "no group": ("tenant", "''", "column 'tenant' of 1 row: got '', expected a string of 1 to 256 bytes"),
    "all groups": ("tenant", "'*'", "column 'tenant' of 1 row: got '*', expected a string"),
    "group with NUL": ("tenant", "'a' || char(0)", "column 'tenant' of 1 row: got 'a\\x00', expected"),
    "long group": ("tenant", "repeat('x', 257)", "column 'tenant' of 1 row: got"),
    "expired": ("ttl", "0", "column 'ttl' of 1 row: got 0.0, expected seconds, more than 0"),
    "life of nan": ("ttl", "double('nan')", "column 'ttl' of 1 row: got nan, expected seconds"),
    "long life": ("ttl", "31 * 86400", "column 'ttl' of 1 row: got 2678400.0, expected seconds"),
    "for ever": ("wait", "double('infinity')", "column 'wait' of 1 row: got inf, expected seconds"),
}


def with_bad_row(spark: SparkSession, case: str) -> DataFrame:
    """Make a table whose last row, in the second of two partitions, cannot be an item."""
    column, bad, _ = NO_ITEMS[case]
    table = numbered(spark, 10).withColumn("data", F.col("data").cast("string"))
    kinds = {"wait": "double", "level": "tinyint", "tenant": "string", "ttl": "double"}
    table = table.withColumns({name: F.lit(None).cast(kind) for name, kind in kinds.items()})
    return table.withColumn(
        column,
        F.when(F.col("id") == "i9", F.expr(bad).cast(table.schema[column].dataType)).otherwise(F.col(column)),
    )


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.long] if case == "much data" else []) for case in NO_ITEMS],
)
def test_the_check_of_all_rows_finds_one_that_cannot_be_an_item(spark: SparkSession, case: str) -> None:
    df = with_bad_row(spark, case)
    given = {
        "delayColumn": "wait",
        "priorityColumn": "level",
        "groupColumn": "tenant",
        "expiresColumn": "ttl",
    }
    columns = Columns.chosen(FormatOptions(given, OPTIONS), df.schema)
    with pytest.raises(InvalidArgument, match=re.escape(NO_ITEMS[case][2])):
        check_rows(df, columns)
    name, _, _ = NO_ITEMS[case]
    last = df.where("id = 'i9' or id is null or id = ''" if name == "id" else "id = 'i9'")
    batch = last.toArrow().combine_chunks().to_batches()[0] if case not in {"long", "much data"} else None
    if batch is not None and batch.num_rows == 1:  # what a task refuses, without the check of all rows
        with pytest.raises(InvalidArgument, match=f"column '{name}', row 0"):
            columns.rows(batch, lambda at: f"row {at}")


async def test_the_check_finds_rows_that_json_cannot_hold(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    table = spark.createDataFrame([("a", 1.0), ("b", math.nan)], "id string, `x.y ``z` double")
    with pytest.raises(InvalidArgument, match=r"column 'x\.y `z' of 1 row: got nan, expected numbers"):
        add(table, queue.name, url=queue.url)
    with pytest.raises(InvalidArgument, match=r"column 'x\.y `z' of 1 row: got nan, expected numbers"):
        add(table, queue.name, url=queue.url, idFrom="id,x.y `z", dataColumn="id")
    long = table.select(F.repeat("id", F.lit(40_000_000)).alias("a"), F.lit("b").alias("id"))
    long = long.withColumn("c", F.col("a"))
    with pytest.raises(InvalidArgument, match="the row as JSON of 2 rows: got '80000001 bytes'"):
        add(long, queue.name, url=queue.url)
    nothing = spark.createDataFrame([("a",), (None,)], "data string")
    with pytest.raises(InvalidArgument, match="column 'data' of 1 row: got None, expected something to hash"):
        add(nothing, queue.name, url=queue.url, idFrom="data")
    assert not any(await queue.counts())


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("array(1.0d, double('nan'))", "got '[1.0,\"NaN\"]'"),
        ("array(array(null, struct(1 as n, float('infinity') as x)))", "Infinity"),
        ("map('k', struct(-double('infinity') as `a.b`))", "-Infinity"),
    ],
)
async def test_the_check_finds_nested_numbers_that_json_cannot_hold(
    spark: SparkSession, queue: AsyncWorkQueue, expression: str, shown: str
) -> None:
    table = spark.range(20).selectExpr(
        "id", f"if(id > 17, {expression}, null) as nested", "array(id) as more"
    )
    with pytest.raises(InvalidArgument, match="column 'nested' of 2 rows: got") as raised:
        add(table, queue.name, url=queue.url)
    assert shown in str(raised.value)
    assert not any(await queue.counts())


async def test_add_follows_the_setting_of_spark_for_the_case_of_names(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    table = numbered(spark, 3)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for check in (True, False):
            with pytest.raises(InvalidArgument, match=r"got 'ID', expected .*did you mean 'id'"):
                add(table, queue.name, url=queue.url, idColumn="ID", check=check)
        assert not any(await queue.counts())
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert add(table, queue.name, url=queue.url, idColumn="ID", dataColumn="Data").added == 3


async def test_the_longest_id_and_the_longest_delay_pass_the_check(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    table = spark.sql(
        "select repeat('ü', 256) id, '' data, -0.0005 wait union all select 'b', 'x', 30 * 86400"
    )
    report = add(table, queue.name, url=queue.url, delayColumn="wait")
    assert report.added == 2
