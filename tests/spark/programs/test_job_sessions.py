"""Sessions of jobs: their settings, and the URL of the server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Prints the number of partitions of a shuffle.
PARTS = """
import sys
from leasequeue.spark.jobs.session import SHUFFLE_PARTITIONS, session

with session("test") as spark:
    print(spark.conf.get(SHUFFLE_PARTITIONS), spark.sparkContext.defaultParallelism)
    print(spark.sparkContext.getConf().get("spark.ui.showConsoleProgress"), file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.parametrize(("given", "parts"), [("", None), ("--conf spark.sql.shuffle.partitions=7", 7)])
def test_a_local_session_shuffles_into_few_partitions(given: str, parts: int | None) -> None:
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", PARTS], env=environment, capture_output=True, text=True, check=True
    )
    partitions, cores = map(int, done.stdout.split())
    assert done.stderr.splitlines()[-1] == "false", "Spark draws no progress bars"
    assert partitions == (parts or 2 * cores)
