"""The session of Spark that is measured, and the tables that it works on."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from leasehold.spark import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

#: Threads, and partitions of every table.
CORES = 2
PAYLOAD = 100


@contextmanager
def open_session(place: Path) -> Iterator[SparkSession]:
    """Start a session, and end it with the block.

    Args:
        place: A folder for what it writes.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("leasehold benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def table(spark: SparkSession, rows: int) -> Iterator[DataFrame]:
    """A table of ids and 100 bytes of data, in memory: making it is not measured."""
    made = spark.range(0, rows, 1, CORES).selectExpr(
        "concat('item-', id) as id", f"cast(repeat('x', {PAYLOAD}) as binary) as data"
    )
    made.cache().count()
    try:
        yield made
    finally:
        made.unpersist()


def timed(work: Callable[[], object]) -> float:
    """How long something takes (s)."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
