"""The back end of processes, with real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from leasequeue import Fleet, Item, Worker
from leasequeue.autoscale.backends import processes
from leasequeue.worker import supervision
from leasequeue.worker.supervision import SupervisedProcess
from tests.autoscale.backend_bench import SLEEP, bench, refusal
from tests.cli.program import leasequeue
from tests.eventually import eventually
from tests.processes import lives
from tests.queue.asking import until
from tests.queue.fixtures import make_queue, queue

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.autoscale.backends import Backend
    from tests.autoscale.backend_bench import ProcessBench
    from tests.cli.program import Leasequeue

__all__ = ["bench", "leasequeue", "make_queue", "queue"]
pytestmark = pytest.mark.slow


async def runs_of(queue: AsyncWorkQueue) -> list[str]:
    """Return the items that run, as the workers' last heartbeats say."""
    return [run.item_id for worker in await Fleet(queue).workers() for run in worker.running]


@pytest.mark.seed("RWQ-O24", "RWQ-K6", "RWQ-B17")
async def test_units_live_on_are_adopted_at_once_and_replaced_when_killed(bench: ProcessBench) -> None:
    first = bench.open()
    assert (await first.ready(), await first.requested()) == (0, 0)
    await first.request(2)
    await eventually("both have their environment", lambda: len(bench.pids()) == 2)
    started = bench.pids()
    await first.close()

    second = bench.open()
    assert await second.requested() == 2, "also those that have not registered yet"
    await bench.settled(second, 2)
    assert bench.pids() == started, "asking again changes nothing"

    os.kill(started[0], signal.SIGKILL)
    await eventually("it leaves no zombie", lambda: bench.pids() == started[1:])
    await until("its end is noticed", lambda: noticed(second, 1))
    await bench.settled(second, 2)
    assert started[1] in bench.pids()


async def noticed(backend: Backend, requested: int) -> bool:
    """Return whether a back end says that so many units were requested."""
    return await backend.requested() == requested


async def test_scaling_in_takes_idle_units_first_and_interrupts_no_run(
    bench: ProcessBench, queue: AsyncWorkQueue
) -> None:
    backend = bench.open([*bench.command, "--grace", "0"])
    await bench.settled(backend, 2)
    await queue.add_item(Item(b"hold", id="long"))
    await eventually("it runs", lambda: bench.recorded("began") == ["long"])

    async def says_so() -> bool:
        return await runs_of(queue) == ["long"]

    async def is_quiet() -> bool:
        return all(worker.quiet for worker in await Fleet(queue).workers())

    await until("its worker says so", says_so)
    await bench.settled(backend, 1)
    [busy] = bench.pids()

    await backend.request(0)
    for _ in range(3):
        await backend.request(0)
        assert (await backend.ready(), await backend.requested()) == (0, 0)
    assert bench.pids() == [busy], "it finishes its run, though its grace time is 0 s"
    await backend.request(1)
    await bench.settled(backend, 1)
    assert bench.pids() == [busy], "it works on"

    await backend.request(0)
    await until("its worker is quiet", is_quiet)
    restarted = bench.open()
    assert await restarted.requested() == 0, "that it is to leave is known after a restart"
    bench.release()
    await bench.settled(restarted, 0)
    assert bench.recorded("began") == bench.recorded("ended") == ["long"]
    assert (await queue.counts()).total == 0


@pytest.mark.long
async def test_a_supervisor_is_stopped_with_its_workers(bench: ProcessBench) -> None:
    """It would start another worker for one that only the server has stopped."""
    backend = bench.open([*bench.command, "--max-runs", "1000"])
    await bench.settled(backend, 1)
    await bench.settled(backend, 0)
    assert await backend.requested() == 0


async def test_a_unit_that_does_not_stop_is_reported_and_only_killed_if_that_is_wished(
    bench: ProcessBench,
) -> None:
    stubborn = [sys.executable, "-S", "-c", STUBBORN, str(bench.folder / "up")]
    patient = bench.open(stubborn, stop_within=0.0)
    await patient.request(1)
    await eventually("it ignores signals", (bench.folder / "up").exists)
    [pid] = bench.pids()
    assert f"work.t1-1, process {pid}, was ordered to stop 0 s ago" in await refusal(patient, 0)
    assert bench.pids() == [pid]
    await patient.close()

    killing = bench.open(stubborn, stop_within=0.0, kill_after=0.0)
    assert "was ordered to stop" in await refusal(killing, 0)
    await eventually("it is killed", lambda: not bench.pids())
    assert await refusal(killing, 0) == ""


STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""


async def test_a_worker_whose_launcher_was_killed_is_still_a_unit(
    bench: ProcessBench, queue: AsyncWorkQueue
) -> None:
    program = [sys.executable, "-P", "-m", "leasequeue.cli", *bench.command[1:], "--name", "{name}"]
    backend = bench.open(["sh", "-c", '"$@"; true', "sh", *program])
    await bench.settled(backend, 1)
    [worker] = await Fleet(queue).workers()
    launcher = os.getsid(worker.pid)
    assert launcher != worker.pid
    os.kill(launcher, signal.SIGKILL)

    async def is_adopted() -> bool:
        return await backend.ready() == await backend.requested() == 1 and lives(worker.pid)

    await until("its worker counts", is_adopted)
    await backend.request(1)
    assert [one.pid for one in await Fleet(queue).workers()] == [worker.pid], "no other was started"

    async def is_scaled_in() -> bool:
        await backend.request(0)
        return not lives(worker.pid)

    await until("it is scaled in", is_scaled_in)


async def test_a_unit_is_killed_with_what_it_has_started(bench: ProcessBench) -> None:
    script = "trap '' TERM; sleep 60 & echo $! > child; wait; wait"
    backend = bench.open(["sh", "-c", script], directory=str(bench.folder), stop_within=0.0, kill_after=0.0)
    await backend.request(1)
    child = bench.folder / "child"
    await eventually("it has started a program", lambda: child.exists() and child.read_text() != "")
    assert "was ordered to stop" in await refusal(backend, 0)
    await eventually("the program has ended, too", lambda: not lives(int(child.read_text())))


async def test_what_a_unit_has_started_is_no_unit(bench: ProcessBench) -> None:
    """It has the same environment, and leads a session, too."""
    script = "trap 'exit' TERM; setsid sh -c 'echo $$ > child; exec sleep 60' & wait"
    backend = bench.open(["sh", "-c", script], directory=str(bench.folder))
    await backend.request(1)
    child = bench.folder / "child"
    await eventually("it has started a program", lambda: child.exists() and child.read_text() != "")
    again = bench.open(["sh", "-c", script])
    assert await again.requested() == 1
    await until("it ends", lambda: noticed_after(again, 0))
    os.kill(int(child.read_text()), signal.SIGKILL)


async def noticed_after(backend: Backend, units: int) -> bool:
    """Request a number of units; return whether so many are left."""
    await backend.request(units)
    return await noticed(backend, units)


async def test_workers_that_only_have_such_a_name_are_left_alone(
    bench: ProcessBench, queue: AsyncWorkQueue
) -> None:
    """This process is no unit, though a worker of it is called like one."""
    worker = Worker(name=f"{bench.prefix}1")

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        raise AssertionError

    running = asyncio.create_task(worker.run())
    await until("it is registered", lambda: are_registered(queue, 1))
    backend = bench.open(SLEEP)
    assert (await backend.ready(), await backend.requested()) == (0, 0)
    await backend.request(1)
    await eventually("a unit has started", lambda: len(bench.pids()) == 1)
    mark = processes.mark_of(bench.url, bench.prefix)
    assert [processes.unit_name(pid, mark) for pid in bench.pids()] == [f"{bench.prefix}2"], "1 is taken"
    await bench.settled(backend, 0)
    assert not worker.stopping
    worker.stop()
    await running


async def test_a_unit_that_was_killed_and_not_reaped_is_not_adopted(
    bench: ProcessBench, queue: AsyncWorkQueue, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As after the end of the autoscaler that has started it, where no process reaps orphans."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "QUEUE": queue.name,
                   "LEASEQUEUE_URL": redis_url, "RECORD": str(bench.record)}  # fmt: skip
    command = [sys.executable, "-P", "-m", "leasequeue.cli", *bench.command[1:], "--name", f"{bench.prefix}1"]
    unit = await asyncio.to_thread(lambda: subprocess.Popen(command, env=environment, start_new_session=True))
    await until("it is registered", lambda: are_registered(queue, 1))
    unit.kill()
    await eventually("it has ended", lambda: not SupervisedProcess(unit.pid).alive())
    assert await bench.open().requested() == 0
    unit.wait()
    assert "ended after" not in caplog.text


async def are_registered(queue: AsyncWorkQueue, count: int) -> bool:
    """Return whether so many workers are registered."""
    return len(await Fleet(queue).workers()) == count


@pytest.mark.parametrize(
    ("on_exit", "terminal", "left"),
    [("stop", False, 0), ("leave", True, 1), (None, False, 1), (None, True, 0)],
)
async def test_closing_stops_the_units_only_where_that_is_wished_and_says_which_go_on(
    bench: ProcessBench,
    queue: AsyncWorkQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    on_exit: str | None,
    *,
    terminal: bool,
    left: int,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(os, "isatty", lambda _: terminal)
    idle = bench.open(SLEEP, on_exit="stop")
    backend = bench.open(SLEEP, on_exit=on_exit)
    await backend.request(1)
    await idle.ready()
    await idle.close()
    await eventually("it is left: the other one has requested", lambda: len(bench.pids()) == 1)
    await backend.close()
    assert len(bench.pids()) == left
    says = f"1 units go on: `leasequeue workers ls {queue.name}` lists them"
    assert caplog.text.count("go on: ") == caplog.text.count(says) == left


async def test_what_a_single_pass_in_a_terminal_has_started_is_left(
    bench: ProcessBench, queue: AsyncWorkQueue, leasequeue: Leasequeue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    await queue.add_item(Item(b"0"))
    config = bench.folder / "autoscale.toml"
    await asyncio.to_thread(
        config.write_text,
        f"""
        name = "scale-{queue.name}"
        [jobs.{queue.name}]
        [deployments.work]
        jobs = ["{queue.name}"]
        backend = "processes"
        processes = {{ command = {SLEEP} }}
        tiers = [{{ name = "t1", min_units = 1 }}]
        """,
    )
    outcome = await leasequeue("autoscale", str(config), "--once")
    assert outcome.code == 0, outcome.err
    await eventually("it is left", lambda: len(bench.pids()) == 1)


# -------------------------------------------------------------------------- units that fail


async def test_units_that_fail_are_started_one_by_one_and_never_at_once(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 20.0)
    backend = bench.open(["sh", "-c", "exit 3"])
    assert await refusal(backend, 3) == ""
    await bench.ended(backend)
    text = await refusal(backend, 3)
    assert text.startswith("the unit scale-")
    assert "with exit code 3 (failures in a row: 1; the next start is 20 s later)" in text
    assert await refusal(backend, 3) == text, "it is logged once"
    assert not bench.pids(), "there is a pause"
    assert await backend.requested() == 3, "they are still wanted"

    monkeypatch.setattr(supervision, "MAX_PAUSE", 0.0)
    again = bench.open(["sh", "-c", "exit 3"])
    texts = []
    for _ in range(4):
        texts.append(await refusal(again, 3))
        assert len(bench.pids()) <= (3 if len(texts) < 3 else 1), "from the third on, one at a time"
        await bench.ended(again)
    for count in (1, 2, 3):
        assert f"exit code 3 (failures in a row: {count};" in texts[count]


async def test_a_failure_at_the_start_stands_until_a_unit_is_at_work(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "MAX_PAUSE", 0.0)
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
    assert await refusal(backend, 0) == ""
    await eventually("it has ended", lambda: not bench.pids())
    worker.touch()
    ready.touch()
    assert "exit code 3 (failures in a row: 1;" in await refusal(backend, 1)
    await bench.settled(backend, 1)


async def test_each_end_is_logged(bench: ProcessBench, caplog: pytest.LogCaptureFixture) -> None:
    backend = bench.open(["sh", "-c", "echo began $$ >> record; exit 3"], directory=str(bench.folder))
    assert await refusal(backend, 2) == ""
    await eventually("both have begun", lambda: len(bench.recorded("began")) == 2)
    await bench.ended(backend)
    assert await refusal(backend, 0) == "", "none is wanted any more"
    assert caplog.text.count("exit code 3") == 2


async def test_units_that_do_not_register_within_twice_the_spin_up_are_reported(
    bench: ProcessBench, name: str
) -> None:
    backend = bench.open(SLEEP, spin_up=0.01)
    await refusal(backend, 2)
    await asyncio.sleep(0.02)
    text = f"{bench.prefix}1 and 1 more are not registered on any of the deployment's queues after 0.02 s"
    assert await refusal(backend, 2) == f"the unit {text}: {name}"
    assert await refusal(bench.open(SLEEP), 2) == "", "there is time left"


async def test_a_program_that_is_missing_is_an_error_with_its_name(bench: ProcessBench) -> None:
    text = await refusal(bench.open(["./no-such-program"]), 1)
    assert text.startswith(
        "a unit cannot be started: [Errno 2] No such file or directory: './no-such-program'"
    )
