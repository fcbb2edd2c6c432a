"""What jobs have in common: their session, where the server is, and how far they are."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from leasehold.spark.options import URL_VARIABLES, handed_on
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
#: What a session that a job makes is told, unless somebody has said something else.
SETTINGS = {"spark.sql.session.timeZone": "UTC"}
#: The same if all of it runs on this machine: then nobody else has to reach it.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
#: How many parts a shuffle has. Spark's 200 are meant for a cluster; on one machine it is two for each core.
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

#: The sessions of jobs that run, and a lock for whoever changes or asks them.
_RUNNING: list[SparkSession] = []
_LOCK = threading.Lock()


def silent(_: str) -> None:
    """Tell nobody."""


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Give the session that there is, or one on all cores of this machine for the length of the block."""
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        with _counted(running):
            yield running
        return
    # Workers would otherwise take whatever `python3` is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    SparkContext._ensure_initialized()  # noqa: SLF001 - it starts the JVM, which knows what Spark was told
    given = SparkConf()
    # spark-submit has started the JVM before Python; what it runs is set up by who calls it.
    ours = "PYSPARK_GATEWAY_PORT" not in os.environ and given.get("spark.master", "local").startswith("local")
    # Spark takes this for a shell and shows bars of its own; a job says itself how far it is.
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    for setting, value in (SETTINGS | (LOCAL if ours else {})).items():
        if not given.contains(setting):
            builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if ours:
        # What fails is told by the job, in a line, and not by Spark before that, with traces.
        spark.sparkContext.setLogLevel("FATAL")
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    else:
        spark.sparkContext.setLogLevel("ERROR")
    if ours and not given.contains(SHUFFLE_PARTITIONS):
        spark.conf.set(SHUFFLE_PARTITIONS, 2 * spark.sparkContext.defaultParallelism)
    register(spark)
    try:
        with _counted(spark):
            yield spark
    finally:
        spark.stop()


@contextmanager
def place(url: str | None, *, cluster: bool = False) -> Iterator[dict[str, str]]:
    """Give the options that say where the server is.

    One with a password goes by way of a file that only this user can read, as Spark logs options.
    """
    url = url or next(filter(None, map(os.environ.get, URL_VARIABLES)), DEFAULT_URL)
    with handed_on(url, cluster=cluster) as options:
        yield options


def tasks() -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many there are; for any thread."""
    with _LOCK:
        if not _RUNNING:
            return 0, 0
        tracker = _RUNNING[-1].sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


@contextmanager
def _counted(spark: SparkSession) -> Iterator[SparkSession]:
    """Let `tasks` count those of this session; not while it begins or ends, as it cannot be asked then."""
    with _LOCK:
        _RUNNING.append(spark)
    try:
        yield spark
    finally:
        with _LOCK:
            _RUNNING.remove(spark)
