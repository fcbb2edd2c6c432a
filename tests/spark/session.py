"""One session of Spark for all tests of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.spark import register
from tests.spark.quick import end_session, quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run a session with two threads and the registered format."""
    session = quick_session(tmp_path_factory.mktemp("spark"), "local[2]")
    register(session)
    yield session
    end_session(session)  # this fixture may run once per folder
