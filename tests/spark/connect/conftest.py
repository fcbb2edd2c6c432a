"""A session of Spark Connect for all tests of this folder, on a server in another process."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyspark
import pytest
from pyspark.sql.connect.session import SparkSession as ConnectSession

from leasequeue.spark import register
from tests.spark.quick import quick_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SPARK = Path(pyspark.__file__).parent
#: What users run with sbin/start-connect-server.sh, which would leave it in the background.
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
STARTED = re.compile(r"Spark Connect server started at: 127\.0\.0\.1:(\d+)")


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server of Spark Connect, and return its address."""
    folder = tmp_path_factory.mktemp("connect")
    with connect_server(folder, quick_python(folder)) as url:
        yield url


@contextmanager
def connect_server(folder: Path, python: Path) -> Iterator[str]:
    """Run a server of Spark Connect whose workers are run by this Python, and return its address."""
    folders = {"spark.sql.warehouse.dir": folder / "warehouse", "spark.local.dir": folder / "local"}
    settings = [f"--conf={name}={value}" for name, value in (SETTINGS | folders).items()]
    environment = os.environ | {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": str(python)}
    submit = str(SPARK / "bin" / "spark-submit")
    command = [submit, "--class", SERVER, "--master", "local[2]", *settings, "spark-internal"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        port: Future[int] = Future()
        reader = threading.Thread(target=follow, args=(server, port))
        reader.start()
        try:
            yield f"sc://localhost:{port.result()}"
        finally:
            server.kill()
            reader.join()


def follow(server: subprocess.Popen[str], port: Future[int]) -> None:
    """Read the log of a server to its end, and note its port."""
    assert server.stderr is not None
    lines: list[str] = []
    for line in server.stderr:
        lines.append(line)
        if started := STARTED.search(line):
            port.set_result(int(started[1]))
            break
    else:
        port.set_exception(AssertionError("the server has ended: " + "".join(lines)))
    for _ in server.stderr:
        pass


@pytest.fixture(scope="session")
def only_session(connect_url: str) -> Iterator[SparkSession]:
    """Open a session with the registered format."""
    session = cast("SparkSession", ConnectSession.builder.remote(connect_url).create())
    register(session)
    yield session
    session.stop()


@pytest.fixture
def connect(only_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Return the session, for a test after which a classic one may be used."""
    # `pyspark.sql.functions` makes columns for the kind of session that this names.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return only_session
