"""Processes under supervision: how they are watched, found and killed, and when the next one starts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leasequeue.worker import supervision
from leasequeue.worker.supervision import Restarts, SupervisedProcess
from tests.eventually import eventually
from tests.processes import gone

SLEEP = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


def test_pauses_grow_until_a_process_has_lived_for_long() -> None:
    restarts = Restarts()
    assert [restarts.ended(1.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert restarts.waits
    assert [restarts.ended(31.0), restarts.ended(0.1)] == [0.5, 1.0]


def test_the_first_end_of_a_row_may_be_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts = Restarts()
    assert [restarts.ended(1.0, pause=False) for _ in range(3)] == [0.0, 1.0, 2.0]
    began = time.monotonic()
    restarts.lives(began)
    assert restarts.count == 3, "it has not lived for long yet"
    monkeypatch.setattr(supervision, "LONG_LIFE", 0.0)
    restarts.lives(began - 60.0)
    assert restarts.count == 3, "it began before the row"
    restarts.lives(began)
    assert not restarts.waits


async def test_an_end_is_told_to_all_that_wait_also_after_one_was_cancelled() -> None:
    process = SupervisedProcess.run(SLEEP)
    assert (process.alive(), process.returncode) == (True, None)
    waiting = [asyncio.create_task(process.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    process.signal(signal.SIGTERM)
    assert await waiting[1] == await process.wait() == -signal.SIGTERM
    assert (process.alive(), process.how()) == (False, "SIGTERM")
    assert 0 < process.lived() < 30
    process.kill()  # nothing happens


async def test_what_does_not_end_in_time_is_killed() -> None:
    said: list[str] = []
    process = SupervisedProcess.run(SLEEP)
    await process.kill_after(0.01, lambda: said.append("killing it"))
    assert (await process.wait(), said) == (-signal.SIGKILL, ["killing it"])
    quick = SupervisedProcess.run(["sh", "-c", "exit 3"])
    await quick.kill_after(30.0, lambda: said.append("killing it"))
    assert (quick.how(), len(said)) == ("exit code 3", 1)


async def test_the_end_of_a_found_process_is_noticed_and_its_exit_code_is_not_known() -> None:
    started = SupervisedProcess.run(SLEEP)
    found = SupervisedProcess(started.pid)
    assert (found.alive(), found.is_child) == (True, False)
    found.kill()
    assert await started.wait() == -signal.SIGKILL
    assert (found.alive(), found.how()) == (False, "an unknown exit code")


def test_a_process_with_the_id_of_a_former_one_is_not_touched() -> None:
    with subprocess.Popen(SLEEP) as other:
        former = SupervisedProcess(other.pid)
        assert former.start is not None
        former.start -= 1
        assert not former.alive()
        former.signal(signal.SIGKILL)
        former.kill(group=True)
        other.terminate()
        assert other.wait() == -signal.SIGTERM, "it was not killed before"


async def test_what_ends_after_it_was_looked_at_is_not_signalled_by_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By then, the id may be that of another process, or of another group."""
    started = SupervisedProcess.run(SLEEP, session=True)
    found = SupervisedProcess(started.pid)

    def ends_now(pid: int, _: int | None) -> bool:
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.001)
        used.clear()
        return True

    used: list[int] = []
    kill = os.kill

    def noted(pid: int, number: int) -> None:
        used.append(pid)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", noted)
    monkeypatch.setattr(os, "killpg", lambda pid, _: used.append(pid))
    monkeypatch.setattr(supervision, "_is", ends_now)
    found.kill(group=True)
    assert used == []
    assert await started.wait() == -signal.SIGKILL


@pytest.mark.parametrize("lacking", ["descriptors", "groups"])
async def test_a_group_is_killed_on_systems_that_know_processes_only_by_their_ids(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacking: str
) -> None:
    if lacking == "descriptors":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(supervision, "_PROCESS_GROUP", 1 << 30)  # as Linux 6.8 answers to the right one
    script = f"sleep 600 & echo $! > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; wait"
    process = SupervisedProcess.run(["sh", "-c", script], session=True)
    await eventually("it has started a program", (tmp_path / "child").exists)
    process.kill(group=True)
    assert await process.wait() == -signal.SIGKILL
    await gone(int((tmp_path / "child").read_text()))
