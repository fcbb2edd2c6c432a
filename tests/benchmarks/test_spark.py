"""The benchmark of Spark runs, checks what it counts, and writes what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.goals import of_spark

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_quick_run_measures_everything(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark", "--quick", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr

    assert {path.name for path in tmp_path.iterdir()} == {"spark.json", "spark.md", "spark.png"}
    assert (tmp_path / "spark.png").read_bytes().startswith(b"\x89PNG")
    content: dict[str, Any] = json.loads((tmp_path / "spark.json").read_text())
    assert {row["scenario"] for row in content["rows"]} >= {"bulk_add", "snapshot", "growth"}
    assert all(
        row["command"] == f"make bench-spark ARGS='--only {row['scenario']}'" for row in content["rows"]
    )
    assert [goal["goal"] for goal in content["goals"]] == [goal.sentence for goal in of_spark()]
    assert "## growth\n" in (tmp_path / "spark.md").read_text()
