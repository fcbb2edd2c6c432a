"""Sessions: classic ones, which have a JVM in this process, and those of Spark Connect, which have none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


def is_connect(source: SparkSession | DataFrame) -> bool:
    """Return whether a session, or the session of a table, is one of Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(source).__mro__)


def check_classic(source: SparkSession | DataFrame, function: str) -> None:
    """Refuse a session of Spark Connect for a function that renames folders of its output."""
    if is_connect(source):
        allowed = (
            f"a classic one: {function} renames folders with the driver's JVM. With Spark Connect, use a "
            "stream and foreachBatch"
        )
        raise InvalidArgument("session", "one of Spark Connect", allowed)


def activate(spark: SparkSession) -> None:
    """Make a classic session the active one of this thread, as `spark.createDataFrame` does."""
    _classes(spark).setActiveSession(spark._jsparkSession)  # noqa: SLF001 - there is no public way


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread for the length of a block.

    Spark looks up formats in the active session, and a new thread has none.
    """
    if is_connect(spark):
        yield
        return
    before = _classes(spark).getActiveSession()
    activate(spark)
    try:
        yield
    finally:
        if before.isDefined():
            _classes(spark).setActiveSession(before.get())
        else:
            _classes(spark).clearActiveSession()


def _classes(spark: SparkSession) -> Any:
    """Return the class of classic sessions in the JVM."""
    jvm = spark._jvm  # noqa: SLF001 - as above
    assert jvm is not None  # noqa: S101 - a classic session has one
    return spark._get_j_spark_session_class(jvm)  # noqa: SLF001 - as above
