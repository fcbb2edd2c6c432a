"""The Spark session that is measured, and the tables of the scenarios."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from leasehold.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

#: Threads, and partitions of every table.
CORES = 2
PAYLOAD = 100


@contextmanager
def open_session(folder: Path) -> Iterator[SparkSession]:
    """Run a session that writes its files into a folder."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("leasehold benchmarks")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def table(spark: SparkSession, rows: int) -> Iterator[DataFrame]:
    """Hold a table of ids and 100 bytes of data in memory."""
    created = spark.range(0, rows, 1, CORES).selectExpr(
        "concat('item-', id) as id", f"cast(repeat('x', {PAYLOAD}) as binary) as data"
    )
    created.cache().count()
    try:
        yield created
    finally:
        created.unpersist()
