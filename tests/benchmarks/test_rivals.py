"""The comparison with other queues checks what it counts, and compares with the best."""

from __future__ import annotations

import pytest

from benchmarks.goals import GOALS
from benchmarks.rivals.results import Result
from benchmarks.rivals.scenarios import Figures, checked
from benchmarks.rivals.targets import HERE, LIBRARIES


@pytest.mark.parametrize("numbers", [[0, 1, 1], [0, 1], [0, 1, 2, 2], [0, 1, 3]])
def test_a_job_that_ran_twice_or_not_at_all_is_an_error(numbers: list[int]) -> None:
    with pytest.raises(AssertionError, match="3 jobs"):
        checked({"runs": [[number, 0] for number in numbers]}, 3, LIBRARIES[0])


def test_one_run_of_each_job_is_accepted() -> None:
    assert checked({"runs": [[2, 7], [0, 8], [1, 9]]}, 3, LIBRARIES[0]) == {0: 8, 1: 9, 2: 7}


def test_goals_are_ratios_to_the_best_library() -> None:
    speeds = {"leasehold": 60_000.0, "bullmq": 20_000.0, "saq": 4_000.0, "dramatiq": 6_000.0}
    rows = [
        row
        for library in LIBRARIES
        if library.name in speeds and not library.plain
        for row in Result(library, [Figures({"drain_per_s": speeds[library.name]})]).rows()
    ]
    measured = [(goal, goal.measure(rows)) for goal in GOALS["rivals"]]
    found = [(value, goal.reached(value)) for goal, value in measured if value is not None]
    assert found == [(3.0, True), (10.0, False)]


def test_every_library_has_a_program_and_pinned_versions() -> None:
    for library in LIBRARIES:
        assert library.versions()
        suffix = ".cjs" if library.on_node else ".py"
        assert (HERE / "programs" / f"{library.name.replace('-', '_')}{suffix}").exists()
