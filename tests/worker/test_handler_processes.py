"""The processes of handlers: how many there are, and when they start and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.worker import RetryPolicy, Worker
from leasequeue.worker.handler_process import HandlerProcess
from leasequeue.worker.processes import usable_cores
from tests.eventually import eventually
from tests.worker.models import hold, note_pid, own_pid
from tests.worker.starters import both_return, leave_behind, survive, terminate
from tests.worker.working import add, counted, finished, new_worker, work, working

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


ONCE = RetryPolicy(attempts=1)


def processes_of(worker: Worker) -> set[HandlerProcess]:
    runtime = worker._runtime
    assert runtime is not None
    return runtime.parking.processes._all


def begun(folder: Path) -> list[int]:
    """Return the processes of the runs of `hold` that have begun."""
    return [int(path.stem.partition("-")[0]) for path in folder.glob("*.begun")]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids_of(worker: Worker) -> set[int]:
    return {one._process.pid for one in processes_of(worker) if one._process is not None}


async def test_runs_share_a_process_for_each_core_whatever_the_concurrency(queue: AsyncWorkQueue) -> None:
    worker = new_worker(concurrency=100)
    worker.handler(queue, run_in="process", keep_result=60)(own_pid)
    await add(queue, *[b"x"] * 40)
    async with working(worker):
        await finished(queue)
        pids = pids_of(worker)
    results = {int(await queue.results.get(str(number)) or 0) for number in range(1, 41)}
    assert results <= pids
    assert len(pids) <= usable_cores()


async def test_there_are_as_many_processes_as_the_worker_is_told(
    queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    """One more than is needed, up to the limit; and all of them end with the worker."""
    worker = new_worker(concurrency=10, handler_processes=3)
    worker.handler(queue, run_in="process")(hold)
    async with working(worker):
        await worker.started()
        await eventually("one is ready", lambda: [one.usable for one in processes_of(worker)] == [True])
        await add(queue, *[str(tmp_path)] * 5)
        await eventually("three runs have begun", lambda: len(begun(tmp_path)) == 3)
        pids = pids_of(worker)
        assert len(pids) == 3
        assert {*begun(tmp_path)} == pids
        (tmp_path / "open").touch()
        await finished(queue)
        assert pids_of(worker) == pids
    assert not [pid for pid in pids if is_there(pid)], "when `run` returns, not soon after"
    assert "leasequeue process" not in {one.name for one in threading.enumerate()}


async def test_the_module_of_a_handler_is_imported_before_its_first_run(
    queue: AsyncWorkQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import takes longer than the time limit: that is for the run of the function alone."""
    (tmp_path / "imported_slowly.py").write_text(
        "import time, pathlib\n"
        "if not pathlib.Path(__file__).with_name('quick').exists():\n"
        "    time.sleep(3)\n"
        "def handle(payload: bytes) -> None: pass\n"
    )
    (tmp_path / "quick").touch()
    monkeypatch.syspath_prepend(tmp_path)
    from imported_slowly import handle  # type: ignore[import-not-found]

    (tmp_path / "quick").unlink()
    worker = new_worker(concurrency=1, retry=ONCE)
    worker.handler(queue, run_in="process", timeout=2)(handle)
    await add(queue, b"x")
    async with working(worker):
        await finished(queue)
    assert not await queue.dead_letters.list()


@pytest.mark.seed("WRQ-T3")
async def test_a_process_that_is_killed_is_replaced_and_harms_no_other_run(
    make_queue: MakeQueue, queue: AsyncWorkQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By its time limit, again and again, or from outside while it is idle. Nothing is logged of it."""
    held, limited = make_queue(name=f"{queue.name}-held"), make_queue(name=f"{queue.name}-limited")
    worker = new_worker(concurrency=10, handler_processes=2, retry=ONCE)
    worker.handler(held, run_in="process", timeout=None)(hold)
    worker.handler(queue, run_in="process", timeout=None)(note_pid)
    worker.handler(limited, run_in="process", timeout=0.5)(note_pid)
    await add(held, str(tmp_path))
    async with working(worker):
        await worker.started()
        await eventually("it runs", lambda: len(begun(tmp_path)) == 1)
        (mine,) = pids_of(worker) & {*begun(tmp_path)}
        for _ in range(2):
            await limited.add_item(Item(f"3600 {tmp_path}/out", id="slow"))
            await counted(limited, "it has exceeded its limit", lambda counts: counts.dead == 1)
            (letter,) = await limited.dead_letters.list()
            assert "TimeLimitExceeded" in letter.error
            await limited.dead_letters.drop("slow")
            await queue.add_item(Item(f"0 {tmp_path}/out", id="quick"))
            await finished(queue)
        assert await queue.dead_letters.count() == 0
        await eventually("both are ready", lambda: all(one.usable for one in processes_of(worker)))
        (idle,) = [one._process for one in processes_of(worker) if not one.is_lent]
        assert idle is not None
        os.kill(idle.pid, signal.SIGKILL)
        await eventually("it is dead", lambda: idle.poll() is not None)
        await queue.add_item(Item(f"0 {tmp_path}/out", id="after"))
        await finished(queue)
        assert await queue.dead_letters.count() == 0
        assert mine in pids_of(worker)
        (tmp_path / "open").touch()
        await finished(held)
    assert await held.dead_letters.count() == 0
    assert not [record for record in caplog.records if record.name == "asyncio"]
    assert not [record for record in caplog.records if "does not start" in record.message]


async def test_a_process_that_cannot_be_started_is_started_later(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problems = (OSError("too many open files"), MemoryError())
    left = [*problems]

    def pipe() -> tuple[Connection, Connection]:
        if left:
            raise left.pop()
        return Pipe()

    monkeypatch.setattr("leasequeue.worker.handler_process.Pipe", pipe)
    worker = new_worker(handler_processes=1, retry=ONCE)
    await work(queue, own_pid, b"x", worker=worker, run_in="process")
    assert await queue.dead_letters.count() == 0
    for problem in problems:
        assert f"does not start (it raised {problem!r})" in caplog.text


async def test_an_answer_that_this_process_cannot_hold_fails_its_run_alone(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_ever, answers = HandlerProcess._receive, []

    def receive(self: HandlerProcess, connection: Connection) -> bytes:
        answers.append(as_ever(self, connection))
        if len(answers) == 2:  # the first one says that it is ready
            raise MemoryError
        return answers[-1]

    monkeypatch.setattr(HandlerProcess, "_receive", receive)
    worker = new_worker(handler_processes=1, retry=ONCE)
    await work(queue, own_pid, *[b"x"] * 3, worker=worker, run_in="process")
    (letter,) = await queue.dead_letters.list()
    assert "MemoryError" in letter.error


PROGRAM = """
import asyncio, sys
from leasequeue import TaskQueue, Worker

tasks = TaskQueue.from_url(sys.argv[1], sys.argv[2])

@tasks.task(run_in="process", keep_result=60)
def where(text: str) -> str:
    print("printed by a task")
    return f"{text} {__name__}"

async def main() -> None:
    async with tasks:
        worker = Worker(tasks, concurrency=8, handler_processes=1)
        running = asyncio.create_task(worker.run())
        jobs = await tasks.add_many([where.call("in") for _ in range(8)])
        print({await job.result(timeout=120) for job in jobs})
        worker.stop()
        await running

%s
"""


GUARDED = 'if __name__ == "__main__": asyncio.run(main())'


@pytest.mark.slow
@pytest.mark.parametrize(
    "started", ["as a file", pytest.param("as a module", marks=pytest.mark.long), "unguarded"]
)
async def test_functions_of_the_main_module_run_in_processes(
    redis_url: str, name: str, tmp_path: Path, started: str
) -> None:
    """As multiprocessing has it: under `if __name__ == "__main__"`, or not at all."""
    last = "asyncio.run(Worker(tasks).serve())" if started == "unguarded" else GUARDED
    folder = tmp_path / "package"
    folder.mkdir()
    program = folder / "started.py"
    program.write_text(PROGRAM % last)
    how = ["-m", "package.started"] if started == "as a module" else [str(program)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *how, redis_url, name),
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if started == "unguarded":
        assert process.stderr is not None
        while b"only below `if __name__" not in (line := await process.stderr.readline()):
            assert line
        process.kill()
        await process.communicate()
        return
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    assert "printed by a task" in out.decode()
    assert out.decode().endswith("{'in __mp_main__'}\n")


# -------------------------------------------------------------------------- what functions in processes start


#: What lives on; a fork in C calls no hook of Python.
WAYS = ("thread", "program", "fork-in-C")


async def test_the_end_of_a_process_is_seen_although_what_it_started_lives_on(
    make_queue: MakeQueue, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    """It may have inherited every descriptor of the process."""
    others = make_queue(name=f"{queue.name}-others")
    worker = new_worker(handler_processes=1, retry=ONCE)
    worker.handler(queue, run_in="process")(leave_behind)
    worker.handler(others, run_in="process")(own_pid)
    await queue.add_items(Item(f"{how} {tmp_path}/{how}", id=how) for how in WAYS)
    try:
        async with working(worker):
            await counted(queue, "all are dead letters", lambda counts: counts.dead == len(WAYS))
            for letter in await queue.dead_letters.list():
                assert "the process of the handler ended with exit code 3" in letter.error, letter.id
            await others.add_item(Item(b"x"))
            await finished(others)
        left = noted(tmp_path)
        assert len(left) == len(WAYS)
        assert all(not pid or is_there(pid) for pid in left)
    finally:
        for pid in {*noted(tmp_path)} - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def noted(folder: Path) -> list[int]:
    """Return the process ids in the files of a folder."""
    return [int(file.read_text() or 0) for file in folder.iterdir()]


async def test_what_a_function_starts_answers_no_call_and_can_be_terminated(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    """The process itself survives the signals that are meant for the worker."""
    names = ("both", "terminated", "survived")
    both, terminated, survived = (make_queue(name=f"{queue.name}-{name}") for name in names)
    worker = new_worker(handler_processes=1, retry=ONCE)
    for one, function in ((both, both_return), (terminated, terminate), (survived, survive)):
        worker.handler(one, run_in="process", keep_result=60)(function)
    await add(both, *[b"x"] * 5)
    await add(terminated, "program", "multiprocessing")
    await add(survived, b"x")
    async with working(worker):
        for one in (both, terminated, survived):
            await finished(one)
    results = {int(await both.results.get(str(number)) or 0) for number in range(1, 6)}
    assert 0 not in results
    assert len(results) == 5
    assert {await terminated.results.get(one) for one in "12"} == {b"%d" % -signal.SIGTERM}
    assert await survived.results.get("1") == b'"alive"'


async def test_a_worker_that_stops_while_a_process_starts_leaves_none(
    queue: AsyncWorkQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_imported.py").write_text(
        "import time, pathlib\n"
        "if not (it := pathlib.Path(__file__).with_name('quick')).exists():\n"
        "    it.with_name('begun').touch()\n"
        "    time.sleep(3600)\n"
        "def handle(payload: bytes) -> None: pass\n"
    )
    (tmp_path / "quick").touch()
    monkeypatch.syspath_prepend(tmp_path)
    from never_imported import handle  # type: ignore[import-not-found]

    (tmp_path / "quick").unlink()
    worker = new_worker(retry=ONCE)
    worker.handler(queue, run_in="process")(handle)
    await add(queue, b"x")
    async with working(worker):
        await eventually("it starts", (tmp_path / "begun").exists)
        pids = pids_of(worker)
        assert not any(one.usable for one in processes_of(worker))
    assert not [pid for pid in pids if is_there(pid)]
    assert (await queue.counts()).waiting == 1
