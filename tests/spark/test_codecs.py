"""Spark adds, reads and looks up payloads of a queue with codecs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from leasequeue import AsyncWorkQueue, InvalidArgument, TaskQueue, Worker
from leasequeue.cli.pipeline import app
from leasequeue.codecs import AesGcm, Zstd, codec_in
from leasequeue.spark import add, add_task, task_results
from tests.queue.asking import take
from tests.spark.streaming import drained, stream
from tests.spark.tables import names, numbered, waiting

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.queue.fixtures import MakeQueue

CODEC = [Zstd(), AesGcm({"a": b"k" * 32})]
#: Where executors find it.
PLACE = f"{__name__}:CODEC"


@pytest.mark.parametrize("shards", [None, 2])
async def test_rows_are_encoded_and_items_are_decoded(
    spark: SparkSession, make_queue: MakeQueue, tmp_path: Path, shards: int | None
) -> None:
    keyless, queue = make_queue(shards=shards), make_queue(shards=shards, codec=PLACE)
    options: dict[str, Any] = {"url": queue.url, "codec": PLACE} | ({"shards": shards} if shards else {})
    assert add(numbered(spark, 10, size=2000), queue.name, **options).added == 10
    assert {codec_in(data) for data in (await waiting(keyless)).values()} == {"aes.a"}
    expected = await waiting(queue)
    assert expected.keys() == names(10)
    for codec, wanted in ((PLACE, expected), ("", await waiting(keyless))):
        table = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name, codec=codec).load()
        assert {row["id"]: bytes(row["data"]) for row in table.collect()} == wanted
    with pytest.raises(StreamingQueryException, match="UnreadablePayload"):
        drained(stream(spark, queue, leaseTime=60), tmp_path / "keyless")
    assert await queue.admin.clear_leases()
    [(_, rows)] = drained(stream(spark, queue, codec=PLACE), tmp_path / "checkpoint")
    assert {row["id"]: bytes(row["data"]) for row in rows} == expected
    assert not any(await queue.counts())


async def test_tasks_and_their_results_have_the_codec_of_their_queue(
    spark: SparkSession, redis_url: str, name: str
) -> None:
    tasks = TaskQueue.from_url(redis_url, name, codec=PLACE)
    given = TaskQueue.from_url(redis_url, name, codec=CODEC)

    async def double(number: int) -> int:
        return 2 * number

    for queue in (tasks, given):
        queue.task(double)
    table = spark.createDataFrame([("a", 1), ("b", 2)], "id string, number long")
    with pytest.raises(InvalidArgument, match="codec: got None, expected `module:name`"):
        add_task(table, given.tasks[0], url=redis_url, idColumn="id")
    async with tasks, AsyncWorkQueue.from_url(redis_url, name) as keyless:
        assert add_task(table, tasks.tasks[0], url=redis_url, idColumn="id").added == 2
        assert [codec_in(view.data or b"") for view in await keyless.inspect()] == ["aes.a"] * 2
        await Worker(tasks).drain()
    for codec, wanted in (
        (PLACE, [(2, None), (4, None)]),
        (f"{__name__}:NONE", [(None, "no codec for it")] * 2),
    ):
        found = task_results(table.select("id"), tasks.tasks[0], url=redis_url, codec=codec).orderBy("id")
        rows = [(row["result"], row["error"]) for row in found.collect()]
        assert all(
            one[0] == two[0] and (two[1] or "") in (one[1] or "")
            for one, two in zip(rows, wanted, strict=True)
        )


@pytest.mark.usefixtures("spark")
async def test_commands_encode_rows_and_read_dead_letters_with_the_codec_of_the_environment(
    make_queue: MakeQueue, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyless, queue = make_queue(), make_queue(codec=PLACE)
    monkeypatch.setattr(sys, "path", [*sys.path])  # commands put the current folder into it
    environment = {"LEASEQUEUE_URL": redis_url, "LEASEQUEUE_CODEC": PLACE}

    def run(job: str, *arguments: str) -> dict[str, Any]:
        outcome = CliRunner().invoke(app, [job, queue.name, *arguments, "--json"], env=environment)
        assert outcome.exit_code == 0, outcome.output
        found: dict[str, Any] = json.loads(outcome.stdout)
        return found

    for job, item_id, more in (("load", "a", ()), ("backfill", "b", ("--rate", "0.001"))):
        source = tmp_path / f"{item_id}.csv"
        source.write_text(f"id,data\n{item_id},text of {item_id}\n")
        assert run(job, str(source), *more)["added"] == 1
    encoded = [await keyless.find(item_id) for item_id in "ab"]
    assert [codec_in(one.data or b"") for one in encoded if one] == ["aes.a"] * 2
    lease = await take(queue)
    assert lease.data == f"text of {lease.id}".encode()
    await queue.fail(lease, "an error")
    assert run("redrive", "--where", "data like 'text of %'")["requeued"] == 1


#: Another key.
NONE = [AesGcm({"b": b"k" * 32})]
