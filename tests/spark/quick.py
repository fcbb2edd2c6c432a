"""Sessions of Spark that start quickly: most queries of the tests run once."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

# pytest adds its handlers to loggers that do not propagate, such as Spark's. These would change the format of
# a handler for all later tests of the process, to one that asks each exception for its text.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign, assignment]


def quick_python(folder: Path) -> Path:
    """Write a program that runs this Python with the installed pyspark.

    Spark puts a zip of it first. What is imported from a zip is compiled at each start, which would be half
    the time of these tests. Those that run programs of users leave it as it is.
    """
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def quick_session(folder: Path, master: str) -> SparkSession:
    """Start Spark on this machine; its workers are run by `quick_python`."""
    os.environ["PYSPARK_PYTHON"] = str(quick_python(folder))
    session = (
        SparkSession.builder.master(master)
        .appName("leasequeue tests")
        .config("spark.ui.enabled", "false")
        # Most code runs once: do not optimise it.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def end_session(session: SparkSession) -> None:
    """End Spark. What is started after that finds no `quick_python` whose folder may be gone."""
    session.stop()
    os.environ.pop("PYSPARK_PYTHON", None)
