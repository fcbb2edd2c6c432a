"""Load, read, drain and analyse queues in bulk with Spark.

    from leasequeue.spark import register

    register(spark)
    df.write.format("leasequeue").option("queue", "emails").mode("append").save()

Needs the extra `leasequeue[spark]`. docs/pages/explanation/spark.md says which process does what.
"""

from leasequeue.errors import ExtraMissing

try:
    import pyarrow as _pyarrow  # noqa: F401, ICN001 - to say here what is missing and how to install it
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise ExtraMissing("queues in Spark", "spark") from error

from leasequeue.spark.adding import add, add_task
from leasequeue.spark.backlog import StreamBacklog, backlogs
from leasequeue.spark.errors import HandlerFailed, OutputTakenOver, QueryStopped, StreamTakenOver
from leasequeue.spark.process import Processed, process
from leasequeue.spark.source import LeasequeueSource, register
from leasequeue.spark.task_results import task_results
from leasequeue.spark.writers import Report

__all__ = [
    "HandlerFailed",
    "LeasequeueSource",
    "OutputTakenOver",
    "Processed",
    "QueryStopped",
    "Report",
    "StreamBacklog",
    "StreamTakenOver",
    "add",
    "add_task",
    "backlogs",
    "process",
    "register",
    "task_results",
]
