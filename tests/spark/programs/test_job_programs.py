"""Jobs as programs: their commands, spark-submit, progress on a terminal, and failures."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from leasequeue.cli import pipeline
from leasequeue.cli.server import Code
from leasequeue.spark.jobs.session import SparkFailed
from tests.cli.program import run_process, started
from tests.spark.quick import quick_python
from tests.spark.tables import waiting

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

CSV = "Id;text\na;one\nb;two\n"


@pytest.mark.long
async def test_a_job_as_a_command(
    queue: AsyncWorkQueue,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(quick_python(tmp_path)))
    (tmp_path / "rows.csv").write_text(CSV)
    command = ("pipeline", "load", queue.name, str(tmp_path / "rows.csv"))
    outcome = await run_process(
        *command, "--option", "sep=;", "--id", "Id", "--json", LEASEQUEUE_URL=redis_url
    )
    assert outcome.code == 0, outcome.err
    assert outcome.document == {"queue": queue.name, "rows": 2, "added": 2, "already_there": 0}
    assert "loading" in outcome.err
    assert "Stage" not in outcome.err
    assert sorted(await waiting(queue)) == ["a", "b"]
    assert redis_url not in outcome.err


@pytest.mark.long
async def test_a_job_shows_its_progress_on_a_terminal(
    queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id\n" + "\n".join(map(str, range(50_000))))
    ours, theirs = pty.openpty()
    shown = bytearray()

    def look() -> None:
        shown.extend(os.read(ours, 65_536))

    asyncio.get_running_loop().add_reader(ours, look)
    command = (
        "pipeline",
        "load",
        queue.name,
        str(tmp_path / "rows.csv"),
        "--format",
        "csv",
        "--url",
        redis_url,
    )
    try:
        async with started(*command, "--json", stderr=theirs) as process:
            out, _ = await process.communicate()
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0, shown
    assert json.loads(out)["added"] == 50_000
    lines = shown.decode(errors="replace")
    assert "starting Spark" in lines
    assert re.search(r"loading \S+ into \S+ .*\d of \d+ tasks", lines.replace("\r\n", " ")), lines
    assert "Traceback" not in lines


@pytest.mark.long
async def test_a_job_under_spark_submit(queue: AsyncWorkQueue, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"id": "a", "data": "1"}\n')
    program = str(Path(sys.executable).with_name("spark-submit"))
    arguments = ["load", queue.name, str(tmp_path / "rows.json"), "--format", "json", "--url", redis_url]
    process = await asyncio.create_subprocess_exec(
        *[program, "--master", "local[1]", pipeline.__file__, *arguments, "--json"],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    # Spark's launcher may have written lines before.
    assert json.loads(out.splitlines()[-1])["added"] == 1
    assert sorted(await waiting(queue)) == ["a"]


@pytest.mark.parametrize("url", ["redis://:secret@host", "redis://host?PassWord=secret"])
def test_a_job_under_spark_submit_refuses_a_password_among_its_arguments(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    result = CliRunner().invoke(pipeline.app, ["load", "q", "rows", "--url", url])
    assert result.exit_code == 2
    assert "LEASEQUEUE_URL or REDIS_URL" in " ".join(result.stderr.split())
    assert "secret" not in result.stderr


async def test_a_job_without_the_extra_names_it(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError")
    async with started("pipeline", "load", "q", "x", environment={"PYTHONPATH": str(tmp_path)}) as process:
        out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert err.decode().strip() == (
        'leasequeue: queues in Spark need a library that is not installed: pip install "leasequeue[spark]"'
    )


def test_the_reason_of_a_failure_is_found_in_the_error_of_spark() -> None:
    ours = SparkFailed(
        "[SOURCE] Failed: Traceback:\n  File\nleasequeue.errors.ServerBusy: busy\n SQLSTATE: 38000"
    )
    assert (str(ours), ours.kind, pipeline.exit_code(ours)) == ("busy", "ServerBusy", Code.SERVER)
    python = SparkFailed(
        "Job aborted\nTraceback (most recent call last):\n  File x\nValueError: no\n\tat org.Exception: x"
    )
    assert (str(python), python.kind, pipeline.exit_code(python)) == ("ValueError: no", "", Code.MISSED)
    assert str(SparkFailed("[PATH] none\n\nplan")) == "[PATH] none"
    for kind, code in (
        ("InvalidArgument", Code.USAGE),
        ("InvalidCall", Code.USAGE),
        ("LoginRefused", Code.SERVER),
        ("TooManyConnections", Code.SERVER),
        ("LeaseLost", Code.MISSED),
        ("none_of_ours", Code.MISSED),
    ):
        assert pipeline.exit_code(SparkFailed(f"leasequeue.errors.{kind}: x: got 1, expected 2")) == code
