"""Queues in Spark: load, look at, drain and analyse them in bulk.

    from leasehold.spark import register

    register(spark)
    df.write.format("leasehold").option("queue", "emails").mode("append").save()

Needs the extra `leasehold[spark]`. What runs where is in docs/explanation/spark.md.
"""

from leasehold.errors import ExtraMissing

try:
    import pyarrow as _pyarrow  # noqa: F401, ICN001 - so that what is missing is said here, and how to get it
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:
    raise ExtraMissing("queues in Spark", "spark") from error

from leasehold.spark.bulk_writer import Report, add
from leasehold.spark.process import Processed, process
from leasehold.spark.source import LeaseholdSource, register

__all__ = ["LeaseholdSource", "Processed", "Report", "add", "process", "register"]
