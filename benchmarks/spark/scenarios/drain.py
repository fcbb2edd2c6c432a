"""Draining as a stream: rows per second by the size of a batch, and what a micro-batch costs besides.

What the plot shows of it are rows of `speed` with the setting `batch`, and rows of `times`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.bench import Bench
    from benchmarks.spark.rows import SparkRow


async def run(bench: Bench, spark: SparkSession) -> list[SparkRow]:  # noqa: ARG001 - what a scenario is given
    """Measure."""
    return []
