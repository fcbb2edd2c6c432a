"""The recipes of the docs with a session of Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.test_examples import queue, run_page, runner
from tests.docs.test_spark_pages import RECIPES
from tests.postgres import postgres

__all__ = ["queue", "runner"]

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from pyspark.sql import SparkSession

    from leasequeue import AsyncWorkQueue


@pytest.mark.long
def test_the_recipes_run(
    connect: SparkSession,
    queue: AsyncWorkQueue,
    runner: asyncio.Runner,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with postgres() as database:
        given = {"queue": queue, "spark": connect, "database": database, "folder": str(tmp_path)}
        run_page(RECIPES, runner, capsys, given)
