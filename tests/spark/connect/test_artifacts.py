"""A server of Spark Connect whose Python has this package only from the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession as ConnectSession

from leasequeue.spark import register
from tests.spark.connect.conftest import connect_server
from tests.spark.programs.test_cluster import package, python
from tests.spark.streaming import stream
from tests.spark.tables import names, numbered, waiting, writer

__all__ = ["package", "python"]

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from leasequeue import AsyncWorkQueue


@pytest.mark.long
async def test_artifacts_are_enough_for_all_but_streams(
    package: Path, python: Path, queue: AsyncWorkQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with connect_server(tmp_path, python) as url:
        spark = cast("SparkSession", ConnectSession.builder.remote(url).create())
        register(spark)
        with pytest.raises(PySparkException, match="No module named 'leasequeue'"):
            writer(numbered(spark, 5), queue).save()
        spark.addArtifacts(str(package), pyfile=True)
        register(spark)
        writer(numbered(spark, 5), queue).save()
        assert (await waiting(queue)).keys() == names(5)
        items = spark.read.format("leasequeue").options(url=str(queue.url), queue=queue.name).load()
        assert items.where("id > 'i2'").count() == 2
        query = (
            stream(spark, queue).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "at"))
        )
        with pytest.raises(PySparkException, match="No module named 'leasequeue'"):
            query.trigger(availableNow=True).start().awaitTermination()
        spark.stop()
