"""`leasequeue worker` as a single process: its log, its exit codes, and how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.cli.worker.target import Unusable, find_worker
from tests.cli.program import usage_error
from tests.cli.worker_bench import LIMITS, PROGRAM, TARGET, Bench, gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def is_at_the_front(queue: AsyncWorkQueue, id_: str) -> None:
    """Check that an item waits before a new one, and that its run did not count as an attempt."""
    await queue.add_item(Item(b"sleep 0", id="another"))
    first, second = await queue.lease_many(2, 30, block=False)
    assert (first.id, second.id) == (id_, "another")
    assert first.attempt == 1
    assert (await queue.counts()).total == 2


# ---------------------------------------------------------------------------------------------------- working


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_runs_until_a_signal(
    bench: Bench, queue: AsyncWorkQueue, number: signal.Signals
) -> None:
    async with bench.working() as worker:
        for n in range(5):
            await queue.add_item(Item(b"sleep 0", id=f"{n}"))
        await bench.ended(5)
        worker.signal(number)
        assert await worker.code() == 0
    assert {id_ for id_, _ in bench.recorded("ended")} == {"0", "1", "2", "3", "4"}
    assert bench.recorded("over") == []
    assert bench.record.read_text().endswith(f"lifespan over {worker.process.pid}\n")
    assert (await queue.counts()).total == 0
    # One line for the start, one for the signal and one for the end; none for successful runs.
    assert len(worker.lines) == 3
    [names] = await worker.logged(r"working on (.+), 10 runs at once")
    assert names == f"{queue.name}, {queue.name}-thread, {queue.name}-process"
    await worker.logged("stopped: 5 completed")


async def test_failures_are_logged_as_warnings_and_the_last_one_with_a_traceback(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"boom", id="x"))
    async with bench.working() as worker:
        await worker.logged(
            r"WARNING.*'x'.* failed \(attempt 1\): ValueError: no such thing; retry in 0\.\d s"
        )
        await worker.logged(r"WARNING.*'x'.* failed \(attempt 2\): ValueError: .*; a dead letter now")
        await worker.logged("raise ValueError")
        assert worker.log.index("Traceback") > worker.log.index("(attempt 2)")
        assert await worker.stop() == 0


async def test_log_lines_can_be_json(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"boom", id="x"))
    async with bench.working("--log-format", "json", "--concurrency", "3") as worker:
        await worker.logged("a dead letter now")
        assert await worker.stop() == 0
    lines = [json.loads(line) for line in worker.lines]
    assert all(line.keys() >= {"time", "level", "logger", "process", "message"} for line in lines)
    assert "3 runs at once" in lines[0]["message"]
    failed = [line for line in lines if line["level"] == "warning" and "item" in line]
    assert [(line["queue"], line["item"], line["attempt"]) for line in failed] == [
        (queue.name, "x", 1),
        (queue.name, "x", 2),
    ]
    assert "traceback" not in failed[0]
    assert failed[1]["traceback"].startswith("Traceback")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", failed[1]["time"])


async def test_the_target_can_be_a_function_in_a_module_and_each_run_can_be_logged(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    (bench.folder / "app.py").write_text(PROGRAM.read_text())
    await queue.add_item(Item(b"sleep 0", id="x"))
    async with bench.worker("--log-level", "debug", target="app:make") as worker:
        await bench.ended()
        await worker.logged("DEBUG .*'x'.* returned")
        assert await worker.stop() == 0


# --------------------------------------------------------------------------------------------------- stopping


async def test_a_run_can_end_within_the_grace_time(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"hold", id="x"))
    async with bench.working() as worker:
        await bench.began()
        worker.signal()
        await worker.logged("got a signal")
        await queue.add_item(Item(b"hold", id="later"))
        bench.release()
        assert await worker.code() == 0
    assert [id_ for id_, _ in bench.recorded("ended")] == ["x"]
    assert await queue.counts() == (1, 0, 0, 0)


@LIMITS
@pytest.mark.parametrize("order", ["hold", "block", "query", "refuse", "thread"])
async def test_items_of_runs_that_exceed_the_grace_time_are_released(
    bench: Bench, make_queue: MakeQueue, order: str, limits: str
) -> None:
    """The run waits, blocks the loop, blocks signal handlers too, refuses to be cancelled, or is a thread."""
    queue = make_queue(name=bench.environment["QUEUE"] + "-thread" * (order == "thread"))
    await queue.add_item(Item(order.encode(), id="x"))
    async with bench.working("--grace", "0.3", LIMITS=limits) as worker:
        await bench.began()
        assert await worker.stop() == 3
    assert bench.recorded("ended") == []
    assert re.search("was interrupted|keeps running although|releasing 1 runs", worker.log)
    await is_at_the_front(queue, "x")


@LIMITS
async def test_runs_that_ended_before_the_event_loop_was_blocked_are_not_run_again(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    """All start in one turn of the event loop; the last one blocks it before the others are completed."""
    await queue.add_items([Item(b"pass", id="1"), Item(b"pass", id="2"), Item(b"block", id="x")])
    async with bench.working("--grace", "0.3", LIMITS=limits) as worker:
        await bench.began(3)
        assert await queue.counts() == (0, 3, 0, 0)
        assert await worker.stop() == 3
    assert len(bench.recorded("ended")) == 2
    await is_at_the_front(queue, "x")


@LIMITS
@pytest.mark.parametrize("order", ["hold", "block"])
async def test_a_second_signal_interrupts_the_runs(
    bench: Bench, queue: AsyncWorkQueue, order: str, limits: str
) -> None:
    await queue.add_item(Item(order.encode(), id="x"))
    async with bench.working("--grace", "600", LIMITS=limits) as worker:
        await bench.began()
        worker.signal()
        await worker.logged("runs have 600 s to finish")
        assert await worker.stop() == 3
    await is_at_the_front(queue, "x")


async def test_a_third_signal_ends_the_process(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"refuse", id="x"))
    async with bench.working("--grace", "600") as worker:
        await bench.began()
        for logged in ("got a signal", "got a second", "third"):
            worker.signal()
            await worker.logged(logged)
        assert await worker.code() == 3
    await is_at_the_front(queue, "x")


@LIMITS
async def test_a_thread_of_the_users_code_does_not_keep_the_process(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    await queue.add_item(Item(b"leave", id="x"))
    async with bench.working(LIMITS=limits) as worker:
        await bench.ended()
        assert await worker.stop() == 0
    await worker.logged("still runs after the worker has ended: ending the process")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_process_of_a_handler_ends_with_the_worker(
    bench: Bench, make_queue: MakeQueue, number: signal.Signals
) -> None:
    queue = make_queue(name=f"{bench.environment['QUEUE']}-process")
    await queue.add_item(Item(b"x", id="x"))
    async with bench.working("--grace", "0.3") as worker:
        [(_, pid)] = await bench.began()
        assert pid != worker.process.pid
        worker.signal(number)
        assert await worker.code() == (3 if number == signal.SIGTERM else -signal.SIGKILL)
        await gone(pid)


async def test_a_lifespan_that_hangs_at_its_start_is_cancelled_and_is_not_unhealthy(bench: Bench) -> None:
    async with bench.worker("--exit-on-unhealthy", "100ms", HANGS_AT="start") as worker:
        await worker.logged("it hangs")
        await asyncio.sleep(0.5)
        assert await worker.stop() == 0


@LIMITS
async def test_a_lifespan_that_hangs_at_its_end_does_not_keep_the_process(bench: Bench, limits: str) -> None:
    async with bench.working("--grace", "0", HANGS_AT="end", LIMITS=limits) as worker:
        assert await worker.stop() == 3
    await worker.logged("it hangs")
    await worker.logged("the worker has not stopped in time")


async def test_a_signal_during_the_import_ends_the_process_at_once(bench: Bench) -> None:
    (bench.folder / "slow.py").write_text(
        "import sys, time\nsys.stderr.write('importing\\n')\nsys.stderr.flush()\ntime.sleep(600)\n"
    )
    async with bench.worker(target="slow:worker") as worker:
        await worker.logged("importing")
        assert await worker.stop() == 0


# ------------------------------------------------------------------------------------------- without a server


@LIMITS
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
async def test_a_worker_stops_while_the_server_is_away(
    bench: Bench, make_server: MakeServer, name: str, number: signal.Signals, limits: str
) -> None:
    """The run ends, but its completion cannot be sent: the lease expires, and the log says so."""
    server = await make_server()
    async with AsyncWorkQueue.from_url(server.url, name) as queue:
        await queue.add_item(Item(b"hold", id="x"))
        async with bench.working("--grace", "0.5", REDIS_URL=server.url, LIMITS=limits) as worker:
            await bench.began()
            pid = await server_pid(server.url)
            os.kill(pid, number)
            try:
                bench.release()
                await bench.ended()
                assert await worker.stop() == 3
            finally:
                if number == signal.SIGSTOP:
                    os.kill(pid, signal.SIGCONT)
        await worker.logged("1 items were neither acknowledged nor released.*when their leases expire")


async def test_a_worker_ends_when_it_has_been_unhealthy_for_too_long(
    bench: Bench, make_server: MakeServer
) -> None:
    server = await make_server()
    async with bench.working("--exit-on-unhealthy", "1", REDIS_URL=server.url) as worker:
        await server.stop()
        assert await worker.code() == 4
    await worker.logged(r"stopping: unhealthy for \d+ s: no items can be leased")


@pytest.mark.slow
async def test_a_worker_whose_server_is_full_goes_on(
    bench: Bench, make_server: MakeServer, name: str
) -> None:
    """What it completes frees memory; another process could not do more."""
    server = await make_server()
    async with AsyncWorkQueue.from_url(server.url, name) as queue, Redis.from_url(server.url) as client:
        await queue.add_item(Item(b"hold", id="x"))
        await client.config_set("maxmemory", 1)
        async with bench.working("--exit-on-unhealthy", "100ms", REDIS_URL=server.url) as worker:
            await bench.began()
            await asyncio.sleep(3)  # it looks every 1.3 s
            bench.release()
            await bench.ended()
            assert await worker.stop() == 0


async def server_pid(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("server"))["process_id"])


# ------------------------------------------------------------------------------------------------ wrong usage


@pytest.fixture
def user_code(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder whose modules this process can import. It forgets them at the end of the test."""
    monkeypatch.chdir(bench.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("QUEUE", "RECORD", "REDIS_URL"):
        monkeypatch.setenv(name, bench.environment[name])
    yield bench.folder
    folders = (bench.folder, PROGRAM.parent)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and Path(file).parent in folders and "tests" not in name:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("app", "'app' is not a target: write module:tasks, module:worker or"),
        ("nosuch:worker", "there is no module 'nosuch'"),
        ("nosuch.py:worker", "there is no file .*nosuch.py"),
        ("app:nosuch", "app has no 'nosuch'; it has worker, idle, needy"),
        ("app:not_a_worker", "app:not_a_worker is 5 .int., not a TaskQueue, a Worker or a f"),
        ("app:idle", "app:idle has no task or handler"),
        ("app:fails", "LookupError: no settings"),
        ("crashing:worker", "KeyError: 'missing'"),
        ("broken:worker", "SyntaxError"),
        ("needs:worker", "ModuleNotFoundError: No module named 'nosuch'"),
        ("json.py:worker", "has the name of another module"),
    ],
)
def test_an_unusable_target_is_reported_with_the_users_part_of_the_traceback(
    user_code: Path, target: str, message: str
) -> None:
    for name, text in {
        "app": PROGRAM.read_text(),
        "crashing": "def inner():\n    raise KeyError('missing')\n\n\ninner()\n",
        "broken": "def f(:\n",
        "needs": "import nosuch\n",
        "json": "worker = 1\n",
    }.items():
        (user_code / f"{name}.py").write_text(text)
    with pytest.raises(Unusable, match=message) as caught:
        find_worker(target)
    frames = re.findall(r'File "(.+?)"', str(caught.value))
    assert all(frame.startswith(str(user_code)) for frame in frames)
    assert bool(frames) == (target in {"app:fails", "crashing:worker", "broken:worker", "needs:worker"})


@pytest.mark.parametrize(
    ("name", "problem"), [("fails", "LookupError: no settings"), ("needy", "does not provide database")]
)
async def test_an_unusable_target_is_exit_code_2(bench: Bench, name: str, problem: str) -> None:
    async with bench.worker(target=f"{PROGRAM}:{name}") as worker:
        assert await worker.code() == 2
    assert problem in worker.log


@pytest.mark.parametrize(
    "options",
    [("--concurrency", "0"), ("--grace", "-1"), ("--exit-on-unhealthy", "50ms"), ("--log-level", "loud")],
)
async def test_options_out_of_range_are_refused(leasequeue: Leasequeue, options: tuple[str, str]) -> None:
    assert options[0] in usage_error(await leasequeue("worker", "nosuch:worker", *options))


# ---------------------------------------------------------------------------------------------------- --check


@pytest.mark.usefixtures("user_code")
async def test_check_prints_the_handlers(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis_url: str
) -> None:
    await queue.add_item(Item(b"hold", id="x"))
    outcome = await leasequeue("worker", TARGET, "--check", REDIS_URL=redis_url)
    assert (outcome.code, outcome.err) == (0, "")
    rows = outcome.table
    assert rows[0][:2] == ["queue", "handler"]
    assert rows[1] == [queue.name, "do", "loop", "-", "30", "s", "-", "2", "1", "0", "0", "0"]
    assert rows[3][:3] == [f"{queue.name}-process", "in_process", "process"]
    assert await queue.counts() == (1, 0, 0, 0)


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize(
    ("name", "environment", "code", "problem"),
    [
        ("needy", {}, 2, "does not provide database"),
        ("worker", {"HANGS_AT": "nowhere"}, 1, "the lifespan fails(.|\n)*LookupError: no database"),
        ("worker", {"REDIS_URL": "redis://127.0.0.1:1"}, 5, "the server cannot be reached: .*127.0.0.1:1"),
    ],
)
async def test_check_reports_why_the_worker_cannot_run(
    leasequeue: Leasequeue, redis_url: str, name: str, environment: dict[str, str], code: int, problem: str
) -> None:
    target, environment = f"{PROGRAM}:{name}", {"REDIS_URL": redis_url, **environment}
    outcome = await leasequeue("worker", target, "--check", "--lifespan", stdin=b"", **environment)
    assert (outcome.code, outcome.out) == (code, "")
    assert re.search(problem, outcome.err)
    assert re.findall(r'File "(.+?)"', outcome.err) == [str(PROGRAM)] * ("lifespan fails" in problem)


@pytest.mark.usefixtures("user_code")
async def test_check_runs_no_lifespan_unless_it_is_asked_to(leasequeue: Leasequeue, redis_url: str) -> None:
    environment = {"REDIS_URL": redis_url, "HANGS_AT": "nowhere"}
    outcome = await leasequeue("worker", TARGET, "--check", stdin=b"", **environment)
    assert (outcome.code, outcome.err) == (0, "")
    assert "Its lifespan was not run" in outcome.out
    assert "no database" not in outcome.out
    assert "--lifespan" in usage_error(
        await leasequeue("worker", TARGET, "--lifespan", stdin=b"", **environment)
    )
