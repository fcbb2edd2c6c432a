"""Snapshots: rows per second, with and without data, and of a few items of many."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.spark.rows import speed, times
from benchmarks.spark.scenarios.bulk_add import Plain
from benchmarks.spark.session import CORES, PAYLOAD, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.bench import Bench
    from benchmarks.spark.rows import SparkRow

ITEMS = 200_000
COLUMNS = {
    "all columns": "",
    "without data": "id string, state string, size long, attempt int, token long, holder string, "
    "due timestamp, age double, error string",
}


async def run(bench: Bench, spark: SparkSession) -> list[SparkRow]:
    """Measure."""
    count, name = bench.some(ITEMS, 2_000), bench.name("snapshot")
    Plain(bench.server_url, count, "add_items").add(name)
    rows: list[SparkRow] = []
    rounds = bench.some(5, 1)
    for what, schema in COLUMNS.items():
        read_all(spark, bench.server_url, name, schema)
        once = partial(read_all, spark, bench.server_url, name, schema)
        seconds = [timed(once) for _ in range(rounds)]
        setting = {"items": count, "payload": PAYLOAD}
        rows.append(speed("snapshot", what, "leasehold", dict(setting), items=count, seconds=seconds))
    some = load(spark, bench.server_url, name).where("id in ('item-1', 'item-2')")
    rows.append(
        times(
            "snapshot",
            "two items by their ids",
            {"items": count},
            [timed(some.collect) for _ in range(rounds)],
        )
    )
    await bench.clear()
    return rows


def load(spark: SparkSession, url: str, name: str, schema: str = "") -> DataFrame:
    """A snapshot with one partition for each core."""
    reader = spark.read.format("leasehold").options(url=url, queue=name, partitions=CORES)
    return (reader.schema(schema) if schema else reader).load()


def read_all(spark: SparkSession, url: str, name: str, schema: str = "") -> None:
    """Read all of a snapshot, and throw it away."""
    load(spark, url, name, schema).write.format("noop").mode("overwrite").save()
