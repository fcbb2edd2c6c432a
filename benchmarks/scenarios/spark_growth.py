"""What a row costs with Spark, in time and memory, as a table grows: load, snapshot, drain, process."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.footprint import footprint
from benchmarks.measure import Row, Sample, Setting, metered, speed_row
from benchmarks.scenarios.spark import CORES, add_with_format, add_with_pipeline, read_all, table
from leasequeue.spark import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from benchmarks.bench import Bench

PAYLOAD = 200
#: The maximum of rows in a micro-batch.
BATCH = 50_000
COSTS = ("us_per_item", "script_us_per_item")
#: A target and a step -> its samples, and the peaks of memory beside them, in MB by kind of process.
Samples = dict[tuple[str, str], list[tuple[Sample, dict[str, float]]]]


async def growth(bench: Bench, spark: SparkSession) -> list[Row]:
    """Measure each step with a hundredth, a tenth and all of `--rows`, on an empty server.

    The references do the same with the same rows: `foreachPartition` with a pipeline of redis-py, and Spark's
    own source of Parquet files in micro-batches of as many rows.
    """
    most = bench.rows
    rows: list[Row] = []
    for count in bench.scaled((most // 100, most // 10, most), (300, 3_000)):
        found: Samples = defaultdict(list)
        with table(spark, count, PAYLOAD) as df, TemporaryDirectory(prefix="leasequeue-bench-") as folder:
            steps = Steps(bench, spark, df, count, Path(folder))
            for _ in range(bench.scaled(4 if count < most else 2, 1)):
                await steps.measure(found)
        for (who, what), its in found.items():
            setting: Setting = {"rows": count, "payload": PAYLOAD}
            samples = [sample for sample, _ in its[1:] or its]  # the first round warms up
            costs = COSTS if who == "leasequeue" else COSTS[:1]
            row = speed_row(what, samples, who=who, setting=setting, unit="rows/s", costs=costs)
            kinds = sorted({kind for _, peaks in its for kind in peaks})
            memory = {f"{kind}_mb": max(peaks.get(kind, 0.0) for _, peaks in its) for kind in kinds}
            rows.append(replace(row, more=row.more | memory))
    return rows


class Steps:
    """The steps of one size, one after the other; each checks what the one before has left."""

    def __init__(self, bench: Bench, spark: SparkSession, df: DataFrame, count: int, folder: Path) -> None:
        self._bench, self._spark, self._df, self._count, self._folder = bench, spark, df, count, folder
        self._number = 0
        #: Spark's source of files takes whole files: a batch has one for each core.
        self._files = folder / "files"
        parts = CORES * -(-count // min(count, BATCH))
        df.repartition(parts).write.parquet(str(self._files))

    async def measure(self, found: Samples) -> None:
        """Run each step once."""
        bench, url = self._bench, self._bench.server_url
        take = partial(self._take, found)
        name = bench.name()
        await take("bare", "add", partial(add_with_pipeline, self._df, url, name))
        await self._expect(name, self._count)
        await bench.reset()
        for drained in ("drain", "process"):
            name = bench.name()
            await take("leasequeue", "add", partial(add_with_format, self._df, url, name))
            await self._expect(name, self._count)
            if drained == "drain":
                await take("leasequeue", "snapshot", partial(read_all, self._spark, url, name))
            step = self._drain if drained == "drain" else self._process
            await take("leasequeue", drained, partial(step, name))
            await self._expect(name, 0)
            await bench.reset()
        await take("bare", "drain", self._drain_files)

    async def _take(self, found: Samples, who: str, what: str, step: Callable[[], object]) -> None:
        with footprint() as memory:
            async with metered(self._bench.redis, self._count) as sample:
                step()
        found[who, what].append((sample, memory.peaks))

    async def _expect(self, name: str, waiting: int) -> None:
        assert await self._bench.redis.llen(f"{name}:queue") == waiting
        assert await self._bench.redis.zcard(f"{name}:deadlines") == 0

    def _drain(self, name: str) -> None:
        reader = self._spark.readStream.format("leasequeue")
        options: dict[str, Any] = {"url": self._bench.server_url, "queue": name, "partitions": CORES}
        self._discard(reader.options(**options, maxItemsPerTrigger=BATCH).load())

    def _drain_files(self) -> None:
        schema: StructType = self._df.schema
        reader = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", CORES)
        self._discard(reader.parquet(str(self._files)))

    def _discard(self, rows: DataFrame) -> None:
        """Run a stream to its end."""
        writer = rows.writeStream.format("noop").option("checkpointLocation", self._new_folder())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(one["numInputRows"] for one in query.recentProgress)
        assert read == self._count, f"{read:,} of {self._count:,} rows"

    def _process(self, name: str) -> None:
        done = process(
            self._spark,
            sizes,
            queue=name,
            output=self._new_folder(),
            schema="id string, bytes bigint",
            batch=BATCH,
            url=self._bench.server_url,
        )
        assert done.items == self._count

    def _new_folder(self) -> str:
        self._number += 1
        return str(self._folder / f"{self._number}")


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Return the id and the size of each item."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        lengths = pc.binary_length(batch["data"]).cast(pa.int64())
        yield pa.RecordBatch.from_arrays([batch["id"], lengths], ["id", "bytes"])
