"""The comparison with other queues runs and checks what it counts; here with Leasehold alone.

The others need the network to be installed: `make bench-rivals`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals.contestants import CONTESTANTS
from benchmarks.rivals.results import HEADS, Result, goals
from benchmarks.rivals.scenarios import Figures, checked

ROOT = Path(__file__).parents[2]
OURS = CONTESTANTS[0]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_measures_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.rivals", "--quick", "--rounds", "1", "--here"]
    result = subprocess.run(
        [*command, "--only", "leasehold", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr

    assert {path.name for path in tmp_path.iterdir()} == {"rivals.json", "rivals.md", "rivals.png"}
    assert (tmp_path / "rivals.png").read_bytes().startswith(b"\x89PNG")

    content: dict[str, Any] = json.loads((tmp_path / "rivals.json").read_text())
    assert [one["name"] for one in content["contestants"]] == ["leasehold", "leasehold, without uvloop"]
    for one in content["contestants"]:
        assert one["medians"].keys() == HEADS.keys()
        assert "evalsha" in one["rounds"][0]["commands"]
    assert len(content["goals"]) == 2  # those that need nobody else
    assert result.stdout.count("\ngoal ") == 2
    assert "Where the time of a no-op job goes" in (tmp_path / "rivals.md").read_text()


@pytest.mark.parametrize("numbers", [[0, 1, 1], [0, 1], [0, 1, 2, 2], [0, 1, 3]])
def test_a_job_that_ran_twice_or_not_at_all_is_noticed(numbers: list[int]) -> None:
    with pytest.raises(AssertionError, match="3 jobs"):
        checked({"runs": [[number, 0] for number in numbers]}, 3, OURS)


def test_each_job_once_is_right() -> None:
    assert checked({"runs": [[2, 7], [0, 8], [1, 9]]}, 3, OURS) == {0: 8, 1: 9, 2: 7}


def test_goals_are_ratios_to_the_best() -> None:
    speeds = {"leasehold": 60_000.0, "bullmq": 20_000.0, "saq": 4_000.0, "dramatiq": 6_000.0}
    results = [
        Result(one, [Figures({"drain_per_s": speeds[one.name]})])
        for one in CONTESTANTS
        if one.name in speeds and not one.plain
    ]
    assert [(goal.measured, goal.reached) for goal in goals(results)] == [(3.0, True), (10.0, False)]


def test_every_contestant_names_what_it_runs_on() -> None:
    for one in CONTESTANTS:
        assert one.versions()
        assert (
            ROOT / "benchmarks" / "rivals" / "programs" / f"{one.name.replace('-', '_')}.py"
        ).exists() or (one.on_node)
