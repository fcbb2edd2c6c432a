"""The Spark session of a job, how many of its tasks are done, and why the job failed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from leasequeue.errors import LeasequeueError
from leasequeue.spark.errors import reason_of
from leasequeue.spark.sessions import is_connect
from leasequeue.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Iterator


class SparkFailed(LeasequeueError):
    """Spark could not finish a job. The text says why; Spark's error is the cause.

    Attributes:
        kind: The class name of the Leasequeue error that ended the job, as `InvalidArgument`; else empty.
    """

    def __init__(self, message: str) -> None:
        reason, self.kind = reason_of(message)
        super().__init__(reason)


#: Called with a few words about each step of a job.
Progress = Callable[[str], None]
#: Settings of a session that a job starts, unless the user has set them.
SETTINGS = {"spark.sql.session.timeZone": "UTC"}
#: More of them for a session on this machine, which no other machine has to reach.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
#: The number of partitions of a shuffle. Spark's default of 200 is for clusters; a local session uses two per
#: core.
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

#: The sessions of running jobs, and a lock that guards the list and its sessions.
_RUNNING: list[SparkSession] = []
_LOCK = threading.Lock()


def no_progress(_: str) -> None:
    """Report nothing."""


def run_job(job: Callable[..., dict[str, Any]], given: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run a job in the active session, or in a new one, and return its report."""
    progress("starting Spark")
    with session(f"leasequeue {job.__name__}") as spark:
        try:
            return job(spark, **given, progress=progress)
        except PySparkException as error:
            raise SparkFailed(str(error)) from error


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Yield the active session, or one for the length of the block.

    If `SPARK_REMOTE` names a server of Spark Connect, it runs there, else on all cores of this machine.
    """
    running = SparkSession.getActiveSession()
    remote = is_remote() or "SPARK_REMOTE" in os.environ
    spark = running or (SparkSession.builder.getOrCreate() if remote else _started(name))
    register(spark)
    try:
        with _counted(spark):
            yield spark
    finally:
        if running is None:
            spark.stop()


def _started(name: str) -> SparkSession:
    """Start a classic session, on all cores of this machine unless the user has set a master."""
    from pyspark import SparkConf, SparkContext  # pyspark-client, for Spark Connect, has neither

    # Workers would otherwise run the `python3` on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    SparkContext._ensure_initialized()  # noqa: SLF001 - it starts the JVM, which knows the user's settings
    given = SparkConf()
    # spark-submit starts the JVM before Python; then the caller configures the session.
    local = not under_spark_submit() and given.get("spark.master", "local").startswith("local")
    # Spark takes this process for a shell and would draw progress bars.
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    for setting, value in (SETTINGS | (LOCAL if local else {})).items():
        if not given.contains(setting):
            builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if local:
        # The job reports a failure in one line; Spark would log traces before it.
        spark.sparkContext.setLogLevel("FATAL")
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    else:
        spark.sparkContext.setLogLevel("ERROR")
    if local and not given.contains(SHUFFLE_PARTITIONS):
        spark.conf.set(SHUFFLE_PARTITIONS, 2 * spark.sparkContext.defaultParallelism)
    return spark


def under_spark_submit() -> bool:
    """Return whether spark-submit runs this process; Spark then logs its arguments."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def task_counts() -> tuple[int, int]:
    """Return how many tasks of the running stages are done, and how many there are; from any thread."""
    with _LOCK:
        if not _RUNNING:
            return 0, 0
        tracker = _RUNNING[-1].sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


@contextmanager
def _counted(spark: SparkSession) -> Iterator[SparkSession]:
    """Let `task_counts` ask this session, but not while it starts or stops, when it cannot answer.

    A session of Spark Connect does not know the tasks.
    """
    if is_connect(spark):
        yield spark
        return
    with _LOCK:
        _RUNNING.append(spark)
    try:
        yield spark
    finally:
        with _LOCK:
            _RUNNING.remove(spark)
