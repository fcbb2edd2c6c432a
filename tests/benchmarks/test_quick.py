"""The benchmarks run, and write what they promise; how fast anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import SCENARIOS
from benchmarks.goals import goals

ROOT = Path(__file__).parents[2]
TEXTS = {"queue.json", "queue.md"}
PLOTS = {
    "backlog.png",
    "cost.png",
    "flight.png",
    "kill.png",
    "latency.png",
    "memory.png",
    "payload.png",
    "throughput.png",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def run(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_quick_run_measures_every_scenario_and_goal(tmp_path: Path) -> None:
    said = run("--out", str(tmp_path))

    assert {path.name for path in tmp_path.iterdir()} == TEXTS | PLOTS
    for plot in PLOTS:
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")

    content: dict[str, Any] = json.loads((tmp_path / "queue.json").read_text())
    assert {row["scenario"] for row in content["rows"]} == set(SCENARIOS)
    assert all(row["command"] == f"make bench ARGS='--only {row['scenario']}'" for row in content["rows"])
    assert [goal["goal"] for goal in content["goals"]] == [goal.sentence for goal in goals()]
    assert said.count("\ngoal ") == len(goals())

    written = (tmp_path / "queue.md").read_text()
    for scenario in SCENARIOS:
        assert f"## {scenario}\n" in written


def test_the_profile_names_the_scripts_and_what_they_call() -> None:
    said = run("--profile", "--seconds", "0.1")
    for name in ("add_items", "lease_many", "complete_many", "lrange", "py-spy"):
        assert name in said
