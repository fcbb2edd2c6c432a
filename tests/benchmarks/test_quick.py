"""The benchmarks run, and write what they promise; how fast anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import QUEUE, SCENARIOS, WORKER
from benchmarks.goals import goals

ROOT = Path(__file__).parents[2]
TEXTS = {"queue.json", "queue.md", "worker.json", "worker.md"}
PLOTS = {
    "backlog.png",
    "cost.png",
    "flight.png",
    "kill.png",
    "latency.png",
    "memory.png",
    "payload.png",
    "throughput.png",
    "worker.png",
}
#: What `make bench` says of the worker.
WORKER_FIGURES = {
    "jobs that do nothing",
    "whole cycle",
    "Python",
    "server",
    "server: all scripts",
    "jobs of 50 ms, time over ideal",
    "add_item to handler",
    "due to handler",
    "CPU of an idle worker",
    "commands of an idle worker",
    "server back to handler",
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

    told: list[str] = []
    content: dict[str, Any] = {}
    for name, scenarios in (("queue", QUEUE), ("worker", WORKER)):
        content = json.loads((tmp_path / f"{name}.json").read_text())
        assert {row["scenario"] for row in content["rows"]} == set(scenarios)
        assert all(row["command"] == f"make bench ARGS='--only {row['scenario']}'" for row in content["rows"])
        told += [goal["goal"] for goal in content["goals"]]
        written = (tmp_path / f"{name}.md").read_text()
        for scenario in scenarios:
            assert f"## {scenario}\n" in written
    assert {row["what"] for row in content["rows"]} >= WORKER_FIGURES
    assert {scenario for scenario in SCENARIOS if f"\n{scenario} (" in said} == set(SCENARIOS)
    assert told == [goal.sentence for goal in goals()]
    assert said.count("\ngoal ") == len(goals())


def test_what_was_not_measured_is_not_written(tmp_path: Path) -> None:
    run("--out", str(tmp_path), "--only", "worker_idle")
    assert {path.name for path in tmp_path.iterdir()} == {"worker.json", "worker.md", "worker.png"}


def test_the_profile_names_the_scripts_and_what_they_call() -> None:
    said = run("--profile", "--seconds", "0.1")
    for name in ("add_items", "lease_many", "complete_many", "lrange", "py-spy"):
        assert name in said
