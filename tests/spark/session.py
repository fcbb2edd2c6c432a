"""One session of Spark for all tests of a process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from leasehold.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def quick_python(folder: Path) -> Path:
    """Write a program that runs this Python, with pyspark as it is installed.

    Spark puts a zip of it first. What is imported from a zip is compiled at each start, which would be half
    the time of these tests. Those that run programs of users leave it as it is.
    """
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run a session with two threads, which knows the format."""
    place = tmp_path_factory.mktemp("spark")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", str(quick_python(place)))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("leasehold tests")
        .config("spark.ui.enabled", "false")
        # Most of what these tests run is run once: no use in compiling it well.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
    patch.undo()
