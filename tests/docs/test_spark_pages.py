"""Run the examples of the pages about Spark, and the recipes on real stores, as after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from leasequeue import AsyncWorkQueue, Item
from tests.docs.pages import DOCS
from tests.docs.test_examples import WITH_SPARK, each_of, queue, run_page, runner
from tests.postgres import postgres
from tests.spark.session import spark

__all__ = ["queue", "runner", "spark"]

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    Recipe = Callable[[DataFrame, int], None]

#: Those of this page need a database, too.
RECIPES = DOCS / "how-to" / "spark-recipes.md"
IDS = ["w1", "w2", "w3"]


@pytest.fixture
def database() -> Iterator[str]:
    with postgres() as location:
        yield location


@each_of([page for page in WITH_SPARK if page != RECIPES])
def test_the_examples_of_a_page_about_spark_run(
    page: Path,
    runner: asyncio.Runner,
    queue: AsyncWorkQueue,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_page(page, runner, capsys, {"queue": queue, "spark": spark, "folder": tmp_path})


@pytest.mark.long
def test_the_recipes_about_spark_run_and_repeat(
    runner: asyncio.Runner,
    queue: AsyncWorkQueue,
    spark: SparkSession,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"queue": queue, "spark": spark, "database": database, "folder": str(tmp_path)}
    page: dict[str, Any] = run_page(RECIPES, runner, capsys, given)
    with pytest.raises(AnalysisException, match=r"add WITH \(queue = …\) to the query"):
        spark.sql("select * from all_mails").collect()
    while leases := runner.run(queue.lease_many(10, 60, block=False)):
        runner.run(queue.complete_many(leases))

    def crash_after(recipe: Recipe) -> Recipe:
        def crash(batch: DataFrame, number: int) -> None:
            recipe(batch, number)
            raise RuntimeError("the batch is written, and not in Spark's commit log")

        return crash

    for name, checkpoint in (("merge", "merged"), ("replace", "replaced")):
        runner.run(queue.add_items([Item("data", id=one) for one in IDS]))
        recipe, folder = page[name], str(tmp_path / checkpoint)
        with pytest.raises(StreamingQueryException, match="not in Spark's commit log"):
            page["drain"](crash_after(recipe), folder)
        assert runner.run(queue.counts()).leased == 3
        page["drain"](recipe, folder)
        assert not runner.run(queue.counts()).leased, "all are completed"

    with psycopg.connect(database) as connection:
        rows = connection.execute("select id, body from mails where id like 'w%' order by id").fetchall()
    assert rows == [(one, "data") for one in IDS]
    files = spark.read.parquet(f"{tmp_path}/mails").where("id like 'w%'").orderBy("id").collect()
    assert [(row.id, bytes(row.data), row.batch) for row in files] == [(one, b"data", 1) for one in IDS]
