"""Draining as a stream: rows per second by the size of a batch, and what a micro-batch costs besides.

The rows are thrown away. The first micro-batch of a query, in which Spark starts its workers, is left out.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.spark.rows import speed, times
from benchmarks.spark.scenarios.bulk_add import Plain
from benchmarks.spark.session import CORES, PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.bench import Bench
    from benchmarks.spark.rows import SparkRow

#: Items in a batch, and how many batches.
BATCHES = {1_000: 20, 10_000: 12, 50_000: 6, 200_000: 4}
QUICK_BATCHES = {500: 3}
#: A batch that is small: what it takes is what any batch takes besides its rows.
SMALL, MANY = 50, 40
#: What Spark tells of the time of a micro-batch.
STEPS = {
    "all": "triggerExecution",
    "complete and lease": "latestOffset",
    "offset log": "walCommit",
    "plan": "queryPlanning",
    "read and write": "addBatch",
    "commit log": "commitOffsets",
}


async def run(bench: Bench, spark: SparkSession) -> list[SparkRow]:
    """Measure."""
    rows: list[SparkRow] = []
    for batch, count in (QUICK_BATCHES if bench.quick else BATCHES).items():
        found = await triggers(bench, spark, batch, count)
        setting = {"batch": batch, "payload": PAYLOAD}
        seconds = [one["triggerExecution"] / 1000 for one in found]
        rows.append(speed("drain", "drain", "leasehold", dict(setting), items=batch, seconds=seconds))
        leasing = [one["latestOffset"] / 1000 for one in found]
        rows.append(
            speed("drain", "complete and lease", "leasehold", dict(setting), items=batch, seconds=leasing)
        )
    small = await triggers(bench, spark, SMALL, bench.some(MANY, 3))
    for what, step in STEPS.items():
        seconds = [one.get(step, 0) / 1000 for one in small]
        rows.append(times("drain", what, {"items": SMALL, "payload": PAYLOAD}, seconds))
    return rows


async def triggers(bench: Bench, spark: SparkSession, batch: int, count: int) -> list[dict[str, int]]:
    """Drain so many full batches, and return the times of each in ms, without the first."""
    name = bench.name("drain")
    Plain(bench.server_url, batch * (count + 1), "add_items").add(name)
    with TemporaryDirectory(prefix="leasehold-bench-") as place:
        rows = (
            spark.readStream.format("leasehold")
            .options(url=bench.server_url, queue=name, maxRows=batch, partitions=CORES)
            .load()
        )
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(Path(place) / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        await asyncio.to_thread(query.awaitTermination)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [batch] * (count + 1)
    assert not await bench.redis.exists(f"{name}:queue", f"{name}:deadlines")
    await bench.clear()
    return [one["durationMs"] for one in progress[1:]]
