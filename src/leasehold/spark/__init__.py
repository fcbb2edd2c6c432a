"""Load, read, drain and analyse queues in bulk with Spark.

    from leasehold.spark import register

    register(spark)
    df.write.format("leasehold").option("queue", "emails").mode("append").save()

Needs the extra `leasehold[spark]`. docs/pages/explanation/spark.md says which process does what.
"""

from leasehold.errors import ExtraMissing

try:
    import pyarrow as _pyarrow  # noqa: F401, ICN001 - to say here what is missing and how to install it
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise ExtraMissing("queues in Spark", "spark") from error

from leasehold.spark.add_task import add_task
from leasehold.spark.backlog import Backlog, backlogs
from leasehold.spark.bulk_add import add
from leasehold.spark.bulk_writer import Report
from leasehold.spark.errors import OutputTakenOver, QueryStopped, StreamTakenOver
from leasehold.spark.process import Processed, process
from leasehold.spark.source import LeaseholdSource, register
from leasehold.spark.task_results import task_results

__all__ = [
    "Backlog",
    "LeaseholdSource",
    "OutputTakenOver",
    "Processed",
    "QueryStopped",
    "Report",
    "StreamTakenOver",
    "add",
    "add_task",
    "backlogs",
    "process",
    "register",
    "task_results",
]
