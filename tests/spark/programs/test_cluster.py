"""Executors in separate processes, whose Python has this package only from `--py-files`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.programs import cluster_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue import AsyncWorkQueue

pytestmark = pytest.mark.long

#: Two executors of one core and this much memory each (MB).
MASTER = "local-cluster[2,1,700]"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Build our wheel, with a name that Spark puts on the path of the executors."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    return Path(shutil.copy(wheel, tmp_path / "leasequeue.zip"))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Make a Python with all packages of this one except ours."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "leasequeue" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    return home / "bin" / "python"


async def run(command: Sequence[object], place: Path, more: dict[str, str]) -> tuple[int | None, str, str]:
    """Run a program with a clean environment; return its exit code and its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=place,
        env=environment | more,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await process.communicate()
    return process.returncode, out.decode(), said.decode()


async def test_executors_need_only_a_wheel_among_the_py_files(
    queue: AsyncWorkQueue, redis_url: str, package: Path, python: Path, tmp_path: Path
) -> None:
    code, _, said = await run([python, "-c", "import leasequeue"], tmp_path, {})
    assert (code, "No module named 'leasequeue'" in said) == (1, True), said
    program = Path(shutil.copy(cluster_program.__file__, tmp_path))
    submit = Path(sys.executable).with_name("spark-submit")
    settings = (
        "ui.enabled=false",
        "executor.memory=700m",
        "driver.host=127.0.0.1",
        "driver.bindAddress=127.0.0.1",
    )
    given = [part for setting in settings for part in ("--conf", f"spark.{setting}")]
    given += ["--master", MASTER, "--py-files", str(package)]
    command = [submit, *given, program, queue.name, tmp_path]
    where = {"PYSPARK_PYTHON": str(python), "LEASEQUEUE_URL": redis_url, "SPARK_LOCAL_IP": "127.0.0.1"}
    code, out, said = await run(command, tmp_path, where)
    assert code == 0, out + said
    result = json.loads(out.splitlines()[-1])
    assert result.pop("executors") == 2
    (file,) = result.pop("files")
    assert "leasequeue.zip" in file
    assert result == {"added": 2000, "waiting": 2000, "items": 2000, "ids": 2000, "rows": 2000}
    assert (await queue.counts()).total == 0
