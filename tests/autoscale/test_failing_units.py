"""The back end of processes: units that fail, or that do not get to work."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale.backends import elsewhere, failures, processes
from tests.autoscale.backend_bench import SLEEP, bench, refusal
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from tests.autoscale.backend_bench import ProcessBench

__all__ = ["bench"]

pytestmark = pytest.mark.slow


async def test_units_that_fail_are_started_one_by_one_and_each_error_quotes_them(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "FIRST_PAUSE", 60.0)
    backend = bench.open(["sh", "-c", "echo no database >&2; exit 3"])
    assert await refusal(backend, 3) == ""
    await eventually("they end", lambda: not bench.pids())
    text = await refusal(backend, 3)
    assert text.startswith("the unit scale-")
    assert "with exit code 3: no database (failures in a row: 1; the next start is 60 s later)" in text
    assert await refusal(backend, 3) == text, "it is logged once"
    assert not bench.pids(), "there is a pause"
    assert await backend.requested() == 3, "they are still wanted"

    monkeypatch.setattr(failures, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(failures, "MAX_PAUSE", 0.0)
    again = bench.open(["sh", "-c", "echo no database >&2; exit 3"])
    texts = []
    for _ in range(4):
        texts.append(await refusal(again, 3))
        assert len(bench.pids()) <= (3 if len(texts) < 3 else 1), "from the third on, one at a time"
        await eventually("they end", lambda: not bench.pids())
    assert "exit code 3: no database (failures in a row: 1;" in texts[1], "though others have been started"
    assert "exit code 3: no database (failures in a row: 2;" in texts[2]
    assert "exit code 3: no database (failures in a row: 3;" in texts[3]


async def test_a_failure_at_the_start_stands_until_a_unit_is_at_work_and_is_not_logged_twice(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "MAX_PAUSE", 0.0)
    monkeypatch.setattr(processes, "LONGEST_TRIAL", 0.0)
    ready, worker = bench.folder / "ready", bench.folder / "worker"
    script = f'until test -e {ready}; do sleep 0.02; done; test -e {worker} || exit 3; exec "$0" "$@"'
    backend = bench.open(["sh", "-c", script, *bench.leasequeue])
    assert await refusal(backend, 1) == ""
    ready.touch()
    await eventually("it ends", lambda: not bench.pids())
    ready.unlink()

    async def is_noticed() -> bool:
        return await refusal(backend, 1) != ""

    await until("its end is noticed", is_noticed)
    for _ in range(3):
        assert "exit code 3 (failures in a row: 1;" in await refusal(backend, 1)
        assert await backend.requested() == 1
    assert len(bench.pids()) == 1, "the next one runs, and is not at work"
    assert "exit code 3" not in caplog.text, "the loop logs what it is told"
    assert await refusal(backend, 0) == ""
    await eventually("it has ended", lambda: not bench.pids())
    worker.touch()
    ready.touch()
    assert "exit code 3 (failures in a row: 1;" in await refusal(backend, 1)
    await bench.settled(backend, 1)


async def test_a_failure_that_is_not_reported_is_logged(
    bench: ProcessBench, caplog: pytest.LogCaptureFixture
) -> None:
    backend = bench.open(["sh", "-c", "exit 3"])
    assert await refusal(backend, 2) == ""
    await eventually("they end", lambda: not bench.pids())
    assert await refusal(backend, 0) == "", "none is wanted any more"
    assert caplog.text.count("exit code 3") == 2


async def test_a_unit_that_serves_none_of_the_queues_is_reported_with_those_it_serves(
    bench: ProcessBench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "LOOK_AFTER", 0.0)
    monkeypatch.setattr(elsewhere, "LOOK_EVERY", 0.0)
    backend = bench.open(["env", f"QUEUE=other-{name}", *bench.leasequeue])
    expected = f"it serves other-{name}, and should serve {name}"

    async def is_reported() -> bool:
        return expected in await refusal(backend, 1)

    await until("it is reported", is_reported)
    assert (await refusal(backend, 1)).startswith(f"the unit {bench.prefix}1 is at work for none")
    assert await refusal(backend, 0) == ""


async def test_units_that_do_not_register_within_twice_the_spin_up_are_reported(
    bench: ProcessBench, name: str
) -> None:
    backend = bench.open(SLEEP, spin_up=0.01)
    await refusal(backend, 2)
    await asyncio.sleep(0.02)
    text = f"{bench.prefix}1 and 1 more are not registered on any of the deployment's queues after 0.02 s"
    assert await refusal(backend, 2) == f"the unit {text}: {name}"
    assert await refusal(bench.open(SLEEP), 2) == "", "there is time left"


@pytest.mark.long
async def test_after_a_trial_that_works_all_units_are_started_with_the_usual_output(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MAX_PAUSE", 0.0)
    fails = bench.folder / "database"
    backend = bench.open(
        [
            "sh",
            "-c",
            f'test -e {fails} || exit 3; exec "$0" "$@"',
            sys.executable,
            "-P",
            "-m",
            "leasequeue.cli",
            *bench.command[1:],
        ]
    )
    for _ in range(2):
        await refusal(backend, 1)
        await eventually("it ends", lambda: not bench.pids())
    fails.touch()
    await bench.settled(backend, 1)

    async def writes_as_usual() -> bool:
        await backend.request(1)
        pids = bench.pids()
        return [error_file(pid) for pid in pids] == [error_file(os.getpid())]

    await until("its output is not captured", writes_as_usual)
    await bench.settled(backend, 1)


async def test_a_program_that_is_missing_is_an_error_with_its_name(bench: ProcessBench) -> None:
    text = await refusal(bench.open(["./no-such-program"]), 1)
    assert text.startswith(
        "a unit cannot be started: [Errno 2] No such file or directory: './no-such-program'"
    )


def error_file(pid: int) -> Path:
    """Return where the standard error of a process goes."""
    return Path(f"/proc/{pid}/fd/2").readlink()
