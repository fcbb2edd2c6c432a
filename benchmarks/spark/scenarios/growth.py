"""What a row costs, from 10,000 rows to 1,000,000: bulk adds, and snapshots with data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measure import command_stats, stats_between
from benchmarks.spark.rows import speed
from benchmarks.spark.scenarios.bulk_add import by_format
from benchmarks.spark.scenarios.snapshot import read_all
from benchmarks.spark.session import PAYLOAD, table, timed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from benchmarks.bench import Bench
    from benchmarks.spark.rows import SparkRow

SIZES = (10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 3_000)


async def run(bench: Bench, spark: SparkSession) -> list[SparkRow]:
    """Measure; each size begins with an empty server."""
    rows: list[SparkRow] = []
    for count in QUICK_SIZES if bench.quick else SIZES:
        seconds: dict[str, list[float]] = {"add": [], "snapshot": []}
        server: dict[str, list[float]] = {"add": [], "snapshot": []}
        with table(spark, count) as df:
            for number in range(bench.some(4 if count < 1_000_000 else 2, 1) + 1):
                name = bench.name("growth")
                steps: dict[str, Callable[[], None]] = {
                    "add": lambda name=name: by_format(df, bench.server_url, name),  # type: ignore[misc]
                    "snapshot": lambda name=name: read_all(spark, bench.server_url, name),  # type: ignore[misc]
                }
                for what, step in steps.items():
                    before = await command_stats(bench)
                    took = timed(step)
                    between = stats_between(before, await command_stats(bench))
                    if number:  # the first time is for warming up
                        seconds[what].append(took)
                        server[what].append(sum(between.get(one, (0, 0.0))[1] for one in ("eval", "evalsha")))
                assert await bench.redis.llen(f"{name}:queue") == count
                await bench.clear()
        rows += [
            speed(
                "growth",
                what,
                "leasehold",
                {"rows": count, "payload": PAYLOAD},
                items=count,
                seconds=seconds[what],
                server_us=server[what],
            )
            for what in seconds
        ]
    return rows
