"""The benchmarks run, check what they count and write all their results; no test asserts a speed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import FILES, SPARK, names
from benchmarks.bench import SERVER_CORE, start_server
from benchmarks.goals import GOALS
from benchmarks.report import read
from benchmarks.rivals.suite import COSTS, FIGURES, Figures, Result, checked
from benchmarks.rivals.targets import FLOWS, HERE, LIBRARIES

ROOT = Path(__file__).parents[2]
PLOTS = {f"{name}.png" for name in ("backlog", "cost", "flight", "kill", "latency", "memory", "payload")}
WORKER_FIGURES = {
    *("jobs that do nothing", "whole cycle", "Python", "server", "server: all scripts"),
    *("jobs of 50 ms, time over ideal", "add_item to handler", "due to handler", "CPU of an idle worker"),
    *("commands of an idle worker", "server back to handler"),
}
CORE_FIGURES = {
    *("work in one queue", "work in all queues", "add to handler", "lone add", "add many", "whole cycle"),
    *("worker", "add", "lease", "complete", "script lease_many", "script complete_many", "idle job"),
    *("idle job: add called to server", "idle job: handler to completed"),
}

TASK_FIGURES = {
    *("jobs that do nothing", "add to result", "trips of both processes", "connections", "trips to begin"),
    *("memory of this process", "memory of the server", "one at a time, to wake-up"),
    *("all at once, to wake-up", "trips while nothing happens", "CPU while nothing happens"),
}
FLOW_FIGURES = {
    *("hand-overs of chains", "children and their joins", "last child to next stage", "runs started"),
    *("fan-out and join", "longest script call"),
}


def run(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def written(folder: Path, name: str, *plots: str) -> dict[str, Any]:
    for plot in plots:
        assert (folder / plot).read_bytes().startswith(b"\x89PNG")
    assert (folder / f"{name}.md").read_text().startswith("# ")
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return content


def goals_of(name: str) -> list[str]:
    """Return the goals of a result file, without those beside libraries that are not installed."""
    away = [library.name for library in FLOWS if not (library.ours or library.installed)]
    return [
        goal.sentence
        for goal in GOALS[name]
        if name != "flows" or not any(one in goal.sentence for one in away)
    ]


def test_one_scenario_runs_and_only_its_results_are_written(tmp_path: Path) -> None:
    output = run("--quick", "--only", "latency", "--out", str(tmp_path))

    assert {path.name for path in tmp_path.iterdir()} == {"queue.json", "queue.md", "latency.png"}
    content = written(tmp_path, "queue", "latency.png")
    assert [(row["scenario"], row["what"], row["who"]) for row in content["rows"]] == [
        ("latency", "add to leased", "leasequeue"),
        ("latency", "add, then lease", "bare"),
    ]
    assert content["rows"][0]["command"] == "make bench ARGS='--only latency'"
    assert "\nlatency (" in output


@pytest.mark.parametrize("name", ["queue", "worker", "kills", "flows", "spark", "autoscale"])
def test_every_goal_finds_its_rows_in_the_committed_results(name: str) -> None:
    path = ROOT / "benchmarks" / "results" / f"{name}.md"
    rows, lines = read(path), [line for line in path.read_text().splitlines() if "… measured" in line]
    assert [said.split(" … ")[0] for said in lines] == [f"- {goal.sentence}" for goal in GOALS[name]]
    measured = [goal.measure(rows) for goal in GOALS[name]]
    shown = [float(said.split(" … measured ")[1].split()[0]) for said in lines]
    assert measured == pytest.approx(shown, rel=0.02)  # the tables have three digits


@pytest.mark.parametrize("numbers", [[0, 1, 1], [0, 1], [0, 1, 2, 2], [0, 1, 3]])
def test_a_job_that_ran_twice_or_not_at_all_is_an_error(numbers: list[int]) -> None:
    with pytest.raises(AssertionError, match="3 jobs"):
        checked({"runs": [[number, 0] for number in numbers]}, 3, LIBRARIES[0])


def test_one_run_of_each_job_is_accepted() -> None:
    assert checked({"runs": [[2, 7], [0, 8], [1, 9]]}, 3, LIBRARIES[0]) == {0: 8, 1: 9, 2: 7}


def test_goals_are_ratios_to_the_best_library() -> None:
    speeds = {
        "leasequeue": 60_000.0,
        "bullmq": 20_000.0,
        "saq": 4_000.0,
        "dramatiq": 6_000.0,
        "NATS JetStream, push": 40_000.0,
    }
    rows = [
        row
        for library in LIBRARIES
        if library.label in speeds
        for row in Result(library, [Figures({"drain_per_s": speeds[library.label]})]).rows()
    ]
    measured = [(goal, goal.measure(rows)) for goal in GOALS["rivals"]]
    found = [(value, goal.reached(value)) for goal, value in measured if value is not None]
    assert found == [(3.0, True), (10.0, False), (1.5, True)]


def test_a_check_compares_ratios_and_counts_but_no_times() -> None:
    goals = [goal for its in GOALS.values() for goal in its]
    assert {goal.unit for goal in goals if not goal.checked} == {"ms", "µs"}
    assert {goal.unit for goal in goals if goal.checked} == {
        "x",
        "wakes",
        "commands/s",
        "EVALSHA",
        "connections",
        "%",
        "requests/h",
        "scripts/item",
    }


async def test_servers_that_start_together_leave_this_process_on_its_cores() -> None:
    before = os.sched_getaffinity(0)
    servers = await asyncio.gather(*(start_server() for _ in range(4)))
    try:
        assert os.sched_getaffinity(0) == before
        assert [os.sched_getaffinity(one.pid) for one in servers] == 4 * [set(SERVER_CORE)]
    finally:
        for one in servers:
            await one.stop()


def test_every_library_has_a_program_and_pinned_versions() -> None:
    for library in (*LIBRARIES, *FLOWS):
        assert library.versions()
        suffix = ".cjs" if library.on_node else ".py"
        name = (library.program_name or library.name).replace("-", "_")
        assert (HERE / "programs" / f"{name}{suffix}").exists()


@pytest.mark.long
def test_a_quick_run_measures_every_scenario_and_goal(tmp_path: Path) -> None:
    output = run("--quick", "--out", str(tmp_path))

    texts = {f"{name}.{suffix}" for name in FILES for suffix in ("json", "md")}
    plots = PLOTS | {"throughput.png", "worker.png", "core.png", "tasks.png", "flows.png", "autoscale.png"}
    assert {path.name for path in tmp_path.iterdir()} == texts | plots
    found: set[str] = set()
    for name in FILES:
        content, scenarios = written(tmp_path, name, *plots), names(FILES[name])
        found |= {row["what"] for row in content["rows"]}
        assert {row["scenario"] for row in content["rows"]} == set(scenarios)
        assert all(row["command"] == f"make bench ARGS='--only {row['scenario']}'" for row in content["rows"])
        assert [goal["goal"] for goal in content["goals"]] == goals_of(name)
        for scenario in scenarios:
            assert f"## {scenario}\n" in (tmp_path / f"{name}.md").read_text()
            assert f"\n{scenario} (" in output
    assert found >= WORKER_FIGURES | CORE_FIGURES | TASK_FIGURES | FLOW_FIGURES
    assert found >= {"SIGKILL to running again", "requests"}
    assert output.count("\ngoal ") == sum(len(goals_of(name)) for name in FILES)


@pytest.mark.long
def test_the_profile_names_the_scripts_and_their_commands() -> None:
    output = run("--quick", "--profile", "--seconds", "0.1")
    for name in ("add_items", "lease_many", "complete_many", "lrange", "py-spy"):
        assert name in output


@pytest.mark.long
def test_a_quick_run_beside_other_libraries_measures_everything(tmp_path: Path) -> None:
    """Only Leasequeue runs: the other libraries are installed by `make bench-rivals`."""
    output = run(
        *("rivals", "--quick", "--rounds", "1", "--here", "--only", "leasequeue", "--out", str(tmp_path))
    )

    assert {path.name for path in tmp_path.iterdir()} == {"rivals.json", "rivals.md", "rivals.png"}
    content = written(tmp_path, "rivals", "rivals.png")
    assert [one["name"] for one in content["targets"]] == [
        *("leasequeue", "leasequeue, without uvloop", "leasequeue, plain items")
    ]
    for one in content["targets"]:
        assert one["medians"].keys() == {*FIGURES, *COSTS}
        assert "evalsha" in one["rounds"][0]["commands"]
    assert len(content["goals"]) == 4  # those without another library
    assert output.count("\ngoal ") == 4
    assert "Where the time of a no-op job goes" in (tmp_path / "rivals.md").read_text()


@pytest.mark.long
def test_a_quick_run_with_spark_measures_everything(tmp_path: Path) -> None:
    run("spark", "--quick", "--out", str(tmp_path))

    assert {path.name for path in tmp_path.iterdir()} == {"spark.json", "spark.md", "spark.png"}
    content = written(tmp_path, "spark", "spark.png")
    assert {row["scenario"] for row in content["rows"]} == set(SPARK)
    assert all(
        row["command"] == f"make bench-spark ARGS='--only {row['scenario']}'" for row in content["rows"]
    )
    assert [goal["goal"] for goal in content["goals"]] == [goal.sentence for goal in GOALS["spark"]]
    assert "## growth\n" in (tmp_path / "spark.md").read_text()
