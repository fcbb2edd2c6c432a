"""What the functions in handler processes start: it must not matter to the worker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.worker import RetryPolicy
from tests.eventually import eventually
from tests.worker.models import own_pid
from tests.worker.starters import both_return, leave_behind, survive, terminate
from tests.worker.test_handler_processes import is_there, pids_of, processes_of
from tests.worker.working import add, finished, new_worker, the_dead, work, working

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

ONCE = RetryPolicy(attempts=1)


@pytest.mark.parametrize("how", ["thread", "program", "multiprocessing", "fork", "fork in C"])
async def test_the_end_of_a_process_is_seen_although_what_it_started_lives_on(
    make_queue: MakeQueue, queue: AsyncWorkQueue, tmp_path: Path, how: str
) -> None:
    """It may have inherited every descriptor of the process."""
    others = make_queue(name=f"{queue.name}-others")
    worker = new_worker(handler_processes=1, retry=ONCE)
    worker.handler(queue, run_in="process")(leave_behind)
    worker.handler(others, run_in="process")(own_pid)
    await add(queue, f"{how.replace(' ', '-')} {tmp_path}/pid")
    try:
        async with working(worker):
            letter = await the_dead(queue)
            assert "the process of the handler ended with exit code 3" in letter.error
            await others.add_item(Item(b"x"))
            await finished(others)
        left = int((tmp_path / "pid").read_text())
        assert not left or is_there(left)
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if left := int((tmp_path / "pid").read_text()):
                os.kill(left, signal.SIGKILL)


async def test_a_forked_process_that_returns_from_the_function_answers_no_call(queue: AsyncWorkQueue) -> None:
    worker = new_worker(handler_processes=1, retry=ONCE)
    await work(queue, both_return, *[b"x"] * 5, worker=worker, run_in="process", keep_result=60)
    results = {int(await queue.results.get(str(number)) or 0) for number in range(1, 6)}
    assert 0 not in results
    assert len(results) == 5


@pytest.mark.parametrize("how", ["program", "multiprocessing"])
async def test_what_a_function_starts_can_be_terminated(queue: AsyncWorkQueue, how: str) -> None:
    """Though its own process ignores signals that are meant for the worker."""
    await work(queue, terminate, how, run_in="process", keep_result=60)
    assert await queue.results.get("1") == b"%d" % -signal.SIGTERM


async def test_a_process_survives_the_signals_of_its_group(queue: AsyncWorkQueue) -> None:
    await work(queue, survive, b"x", run_in="process", keep_result=60)
    assert await queue.results.get("1") == b'"alive"'


async def test_no_process_is_left_when_the_worker_has_ended(queue: AsyncWorkQueue) -> None:
    """Nor a thread of one: they have ended when `run` returns, not soon after."""
    worker = new_worker(concurrency=20, handler_processes=4)
    worker.handler(queue, run_in="process")(own_pid)
    await add(queue, *[b"x"] * 20)
    async with working(worker):
        await finished(queue)
        pids = pids_of(worker)
    assert not [pid for pid in pids if is_there(pid)]
    assert "leasequeue process" not in {one.name for one in threading.enumerate()}


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
