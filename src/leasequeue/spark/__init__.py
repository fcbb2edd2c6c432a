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

from leasequeue.spark.add.adding import add, add_task
from leasequeue.spark.add.writers import Report
from leasequeue.spark.errors import HandlerFailed, OutputTakenOver, QueryStopped, StreamTakenOver
from leasequeue.spark.process.processing import Processed, process
from leasequeue.spark.read.backlog import StreamBacklog, backlogs
from leasequeue.spark.read.task_results import task_results
from leasequeue.spark.source import LeasequeueSource, register

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
