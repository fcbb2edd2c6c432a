"""`leasehold worker` as one process: what it does, what it says, and how it comes to its end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasehold import AsyncWorkQueue, Item
from tests.cli.commanding import PROGRAM, Bench, gone

if TYPE_CHECKING:
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def back_at_the_front(queue: AsyncWorkQueue, id_: str) -> None:
    """Check that the item is waiting, before another one, and that its run was no attempt."""
    await queue.add_item(Item(b"sleep 0", id="another"))
    first, second = await queue.lease_many(2, 30, block=False)
    assert (first.id, second.id) == (id_, "another")
    assert first.attempt == 1
    assert (await queue.counts()).total == 2


# ---------------------------------------------------------------------------------------------------- working


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_it_works_until_a_signal(bench: Bench, queue: AsyncWorkQueue, how: signal.Signals) -> None:
    async with bench.working() as worker:
        for n in range(5):
            await queue.add_item(Item(b"sleep 0", id=f"{n}"))
        await bench.ended(5)
        worker.signal(how)
        assert await worker.code() == 0
    assert {id_ for id_, _ in bench.recorded("ended")} == {"0", "1", "2", "3", "4"}
    assert bench.recorded("over") == []
    assert bench.record.read_text().endswith(f"lifespan over {worker.process.pid}\n")
    assert (await queue.counts()).total == 0
    # A line for its beginning, one for the signal, one for its end; none for runs that succeed.
    assert len(worker.lines) == 3
    [names] = await worker.said(r"working on (.+), 10 runs at once")
    assert names == f"{queue.name}, {queue.name}-thread, {queue.name}-process"
    await worker.said("stopped: 5 completed")


async def test_each_run_is_logged_when_asked_for(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"sleep 0", id="x"))
    async with bench.working("--log-level", "debug") as worker:
        await worker.said("DEBUG .*'x'.* is done")
        assert await worker.stop() == 0


async def test_what_fails_is_a_warning_and_the_last_attempt_has_a_traceback(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"boom", id="x"))
    async with bench.working() as worker:
        await worker.said(r"WARNING.*'x'.* failed \(attempt 1\): ValueError: no such thing; retry in 0\.\d s")
        await worker.said(r"WARNING.*'x'.* failed \(attempt 2\): ValueError: .*; a dead letter now")
        await worker.said("raise ValueError")
        assert worker.log.index("Traceback") > worker.log.index("(attempt 2)")
        assert await worker.stop() == 0


async def test_log_lines_may_be_json(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"boom", id="x"))
    async with bench.working("--log-format", "json", "--concurrency", "3") as worker:
        await worker.said("a dead letter now")
        assert await worker.stop() == 0
    lines = [json.loads(line) for line in worker.lines]
    assert all(line.keys() >= {"time", "level", "logger", "process", "message"} for line in lines)
    assert "3 runs at once" in lines[0]["message"]
    failed = [line for line in lines if line["level"] == "warning"]
    assert [(line["queue"], line["item"], line["attempt"]) for line in failed] == [
        (queue.name, "x", 1),
        (queue.name, "x", 2),
    ]
    assert "traceback" not in failed[0]
    assert failed[1]["traceback"].startswith("Traceback")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", failed[1]["time"])


async def test_a_factory_and_a_module_name_a_worker_too(bench: Bench, queue: AsyncWorkQueue) -> None:
    (bench.folder / "app.py").write_text(PROGRAM.read_text())
    await queue.add_item(Item(b"sleep 0", id="x"))
    async with bench.worker(target="app:make") as worker:
        await bench.ended()
        assert await worker.stop() == 0


# ------------------------------------------------------------------------------------------- coming to an end


async def test_a_run_may_end_within_the_grace_time(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"hold", id="x"))
    async with bench.working() as worker:
        await bench.began()
        worker.signal()
        await worker.said("got a signal")
        await queue.add_item(Item(b"hold", id="later"))
        bench.release()
        assert await worker.code() == 0
    assert [id_ for id_, _ in bench.recorded("ended")] == ["x"]
    assert await queue.counts() == (1, 0, 0, 0)


@pytest.mark.parametrize("order", ["hold", "block", "query", "refuse"])
async def test_when_the_grace_time_is_over_what_runs_is_given_back(
    bench: Bench, queue: AsyncWorkQueue, order: str
) -> None:
    """It waits; blocks the event loop; does so where no signal is seen; refuses to be cancelled."""
    await queue.add_item(Item(order.encode(), id="x"))
    async with bench.working("--grace", "0.3") as worker:
        await bench.began()
        assert await worker.stop() == 3
    assert bench.recorded("ended") == []
    assert re.search("was interrupted|keeps running although|releasing 1 runs", worker.log)
    await back_at_the_front(queue, "x")


async def test_what_has_ended_when_the_event_loop_is_blocked_is_not_run_again(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    """They begin in one turn of the event loop, and the last one blocks it before the others are settled."""
    await queue.add_items([Item(b"pass", id="1"), Item(b"pass", id="2"), Item(b"block", id="x")])
    async with bench.working("--grace", "0.3") as worker:
        await bench.began(3)
        assert await queue.counts() == (0, 3, 0, 0)
        assert await worker.stop() == 3
    assert len(bench.recorded("ended")) == 2
    await back_at_the_front(queue, "x")


@pytest.mark.parametrize("order", ["hold", "block"])
async def test_a_second_signal_does_not_wait(bench: Bench, queue: AsyncWorkQueue, order: str) -> None:
    await queue.add_item(Item(order.encode(), id="x"))
    async with bench.working("--grace", "600") as worker:
        await bench.began()
        worker.signal()
        await worker.said("runs have 600 s to finish")
        assert await worker.stop() == 3
    await back_at_the_front(queue, "x")


async def test_a_third_signal_ends_the_process(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"refuse", id="x"))
    async with bench.working("--grace", "600") as worker:
        await bench.began()
        for said in ("got a signal", "got a second", "third"):
            worker.signal()
            await worker.said(said)
        assert await worker.code() == 3
    await back_at_the_front(queue, "x")


async def test_a_thread_that_is_stuck_does_not_keep_the_process(bench: Bench, make_queue: MakeQueue) -> None:
    queue = make_queue(name=f"{bench.environment['QUEUE']}-thread")
    await queue.add_item(Item(b"x", id="x"))
    async with bench.working("--grace", "0.3") as worker:
        await bench.began()
        assert await worker.stop() == 3
    await back_at_the_front(queue, "x")


async def test_a_thread_of_the_users_own_does_not_keep_the_process(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"leave", id="x"))
    async with bench.working() as worker:
        await bench.ended()
        assert await worker.stop() == 0
    await worker.said("the program goes on after the worker's end")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_process_of_a_handler_ends_with_the_worker(
    bench: Bench, make_queue: MakeQueue, how: signal.Signals
) -> None:
    queue = make_queue(name=f"{bench.environment['QUEUE']}-process")
    await queue.add_item(Item(b"x", id="x"))
    async with bench.working("--grace", "0.3") as worker:
        [(_, pid)] = await bench.began()
        assert pid != worker.process.pid
        worker.signal(how)
        assert await worker.code() == (3 if how == signal.SIGTERM else -signal.SIGKILL)
        await gone(pid)


async def test_a_lifespan_that_hangs_at_its_start_is_cancelled(bench: Bench) -> None:
    async with bench.worker(HANGS_AT="start") as worker:
        await worker.said("it hangs")
        assert await worker.stop() == 0


async def test_a_worker_is_not_unhealthy_while_its_lifespan_begins(bench: Bench) -> None:
    async with bench.worker("--exit-on-unhealthy", "100ms", HANGS_AT="start") as worker:
        await worker.said("it hangs")
        await asyncio.sleep(1)
        assert await worker.stop() == 0


async def test_a_lifespan_that_hangs_at_its_end_does_not_keep_the_process(bench: Bench) -> None:
    async with bench.working("--grace", "0", HANGS_AT="end") as worker:
        assert await worker.stop() == 3
    await worker.said("it hangs")
    await worker.said("the worker has not stopped in time")


async def test_a_signal_during_the_import_ends_it_at_once(bench: Bench) -> None:
    (bench.folder / "slow.py").write_text(
        "import sys, time\nsys.stderr.write('importing\\n')\nsys.stderr.flush()\ntime.sleep(600)\n"
    )
    async with bench.worker(target="slow:worker") as worker:
        await worker.said("importing")
        assert await worker.stop() == 0


# ------------------------------------------------------------------------------------------- without a server


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_it_comes_to_its_end_while_the_server_is_away(
    bench: Bench, make_server: MakeServer, name: str, how: signal.Signals
) -> None:
    """The run ends, but nobody can be told: its lease ends by itself, which the log says."""
    server = await make_server()
    async with AsyncWorkQueue.from_url(server.url, name) as queue:
        await queue.add_item(Item(b"hold", id="x"))
        async with bench.working("--grace", "0.5", REDIS_URL=server.url) as worker:
            await bench.began()
            pid = await server_pid(server.url)
            os.kill(pid, how)
            try:
                bench.release()
                await bench.ended()
                assert await worker.stop() == 3
            finally:
                if how == signal.SIGSTOP:
                    os.kill(pid, signal.SIGCONT)
        await worker.said("1 items were neither acknowledged nor released.*when their leases expire")


async def test_it_ends_when_it_has_been_unhealthy_for_too_long(bench: Bench, make_server: MakeServer) -> None:
    server = await make_server()
    async with bench.working("--exit-on-unhealthy", "1", REDIS_URL=server.url) as worker:
        await server.stop()
        assert await worker.code() == 4
    await worker.said(r"stopping: unhealthy for \d+ s: no items can be leased")


async def server_pid(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("server"))["process_id"])


# ------------------------------------------------------------------------------------------------ wrong usage

CRASHING = "def inner():\n    raise KeyError('missing')\n\n\ninner()\n"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app", "'app' names no worker: write module:worker"),
        ("nosuch:worker", "there is no module 'nosuch'"),
        ("nosuch.py:worker", "there is no file .*nosuch.py"),
        ("app:nosuch", "app has no 'nosuch'; it has worker, idle, needy"),
        ("app:not_a_worker", "app:not_a_worker is 5 .int., not a Worker"),
        ("app:idle", "app:idle has no handler"),
        ("app:needy", "does not provide database"),
        ("app:fails", "LookupError: no settings"),
        ("crashing:worker", "KeyError: 'missing'"),
        ("broken:worker", "SyntaxError"),
        ("needs:worker", "ModuleNotFoundError: No module named 'nosuch'"),
        ("json.py:worker", "has the name of a module that is loaded already"),
    ],
)
async def test_what_is_no_worker_is_told_with_the_users_own_traceback(
    bench: Bench, target: str, said: str
) -> None:
    for name, text in {
        "app": PROGRAM.read_text(),
        "crashing": CRASHING,
        "broken": "def f(:\n",
        "needs": "import nosuch\n",
        "json": "worker = 1\n",
    }.items():
        (bench.folder / f"{name}.py").write_text(text)
    async with bench.worker(target=target) as worker:
        assert await worker.code() == 2
    assert re.search(said, worker.log)
    frames = re.findall(r'File "(.+?)"', worker.log)
    assert all(frame.startswith(str(bench.folder)) for frame in frames)


@pytest.mark.parametrize(
    "options",
    [("--concurrency", "0"), ("--grace", "-1"), ("--exit-on-unhealthy", "50ms"), ("--log-level", "loud")],
)
async def test_options_out_of_range_are_wrong_usage(bench: Bench, options: tuple[str, str]) -> None:
    async with bench.worker(*options) as worker:
        assert await worker.code() == 2


# ---------------------------------------------------------------------------------------------------- --check


async def test_check_says_what_would_run(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"hold", id="x"))
    async with bench.worker("--check") as worker:
        assert await worker.code() == 0
    rows = [line.split() for line in worker.printed.splitlines()]
    assert rows[0][:2] == ["queue", "handler"]
    assert rows[1] == [queue.name, "do", "loop", "-", "30", "s", "-", "2", "1", "0", "0", "0"]
    assert rows[3][:3] == [f"{queue.name}-process", "in_process", "process"]
    assert await queue.counts() == (1, 0, 0, 0)


async def test_check_notices_what_a_lifespan_does_not_give(bench: Bench) -> None:
    async with bench.worker("--check", target=f"{PROGRAM}:needy") as worker:
        assert await worker.code() == 2
    assert "does not provide database" in worker.log


async def test_check_notices_that_a_lifespan_fails(bench: Bench) -> None:
    async with bench.worker("--check", HANGS_AT="nowhere") as worker:
        assert await worker.code() == 1
    assert "the lifespan fails" in worker.log
    assert "LookupError: no database" in worker.log
    assert re.findall(r'File "(.+?)"', worker.log) == [str(PROGRAM)]


async def test_check_notices_that_the_server_is_away(bench: Bench) -> None:
    async with bench.worker("--check", REDIS_URL="redis://127.0.0.1:1") as worker:
        assert await worker.code() == 1
    assert "127.0.0.1:1" in worker.log
