"""What jobs have in common: their session, where the server is, and how far they are."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pyspark import SparkContext
from pyspark.sql import SparkSession

from leasehold.spark.options import URL_VARIABLES
from leasehold.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Is told how far a job is, in a few words.
Tell = Callable[[str], None]
#: Where the server is, as an argument of a job.
Url = Annotated[str | None, "Where the server is; else LEASEHOLD_URL, REDIS_URL, or this machine."]
#: What kind of server that is, as an argument of a job.
Cluster = Annotated[bool, "That server is a node of a cluster; the queue's name has a hash tag."]
#: Where the server is, if nobody says; as for the command line.
DEFAULT_URL = "redis://localhost:6379"
#: How many parts a shuffle has. Spark's 200 are meant for a cluster.
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def silent(_: str) -> None:
    """Tell nobody."""


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Give the session that there is, or one on all cores of this machine for the length of the block."""
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    # Workers would otherwise take whatever `python3` is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName(name)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    _fit(spark)
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def _fit(spark: SparkSession) -> None:
    """On this machine, shuffle into twice as many parts as there are cores, unless somebody says how many."""
    context = spark.sparkContext
    # spark-submit has started the JVM before Python; what it runs is set up by who calls it.
    own = str(context.master).startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ
    if own and not context.getConf().contains(SHUFFLE_PARTITIONS):
        spark.conf.set(SHUFFLE_PARTITIONS, 2 * context.defaultParallelism)


@contextmanager
def place(url: str | None, *, cluster: bool = False) -> Iterator[dict[str, str]]:
    """Give the options that say where the server is.

    One with a password goes by way of a file that only this user can read, as Spark logs options.
    """
    url = url or next(filter(None, map(os.environ.get, URL_VARIABLES)), DEFAULT_URL)
    kind = {"cluster": "true"} if cluster else {}
    if "@" not in url and "password" not in url.lower():
        yield {"url": url, **kind}
        return
    handle, name = tempfile.mkstemp(prefix="leasehold-", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(url)
        yield {"urlFile": name, **kind}
    finally:
        Path(name).unlink(missing_ok=True)


def tasks() -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many there are."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - another thread has no other way to it
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
