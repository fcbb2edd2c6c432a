"""`leasequeue worker` as a single process: its log, its exit codes, and how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, TaskQueue, Worker
from leasequeue.cli.worker import process
from leasequeue.cli.worker.settings import WorkerSettings
from leasequeue.cli.worker.target import Unusable, find_worker
from leasequeue.queue.lease import Failure
from tests.cli.program import usage_error
from tests.cli.worker_bench import LIMITS, PROGRAM, TARGET, Bench
from tests.docs.pages import DOCS, blocks
from tests.processes import gone
from tests.queue.asking import take

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.program import Leasequeue
    from tests.cli.worker_bench import Bench
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def are_at_the_front(queue: AsyncWorkQueue, *ids: str) -> None:
    """Check that items wait before a new one, and that their runs did not count as attempts."""
    await queue.add_item(Item(b"sleep 0", id="another"))
    *first, last = await queue.lease_many(len(ids) + 1, 30, block=False)
    assert ({one.id for one in first}, last.id) == ({*ids}, "another")
    assert {one.attempt for one in first} == {1}
    assert (await queue.counts()).total == len(ids) + 1


# ---------------------------------------------------------------------------------------------------- working


async def test_a_worker_runs_until_a_signal(bench: Bench, queue: AsyncWorkQueue) -> None:
    async with bench.working() as worker:
        for n in range(5):
            await queue.add_item(Item(b"sleep 0", id=f"{n}"))
        await bench.ended(5)
        assert await worker.stop() == 0
    assert {id_ for id_, _ in bench.recorded("ended")} == {"0", "1", "2", "3", "4"}
    assert bench.recorded("over") == []
    assert bench.record.read_text().endswith(f"lifespan over {worker.process.pid}\n")
    assert (await queue.counts()).total == 0
    # One line for the start, one for the signal and one for the end; none for successful runs.
    assert len(worker.lines) == 3
    [names] = await worker.logged(r"working on (.+), 10 runs at once")
    assert names == f"{queue.name}, {queue.name}-thread, {queue.name}-process"
    await worker.logged("stopped: 5 completed")


async def test_failures_are_logged_as_warnings_and_on_request_each_run_is(
    bench: Bench, queue: AsyncWorkQueue
) -> None:
    """Of the last failure there is a traceback. The target is a function in a module."""
    (bench.folder / "app.py").write_text(PROGRAM.read_text())
    await queue.add_items([Item(b"sleep 0", id="y"), Item(b"boom", id="x")])
    async with bench.worker("--log-level", "debug", target="app:make") as worker:
        await worker.logged("DEBUG .*'y'.* returned")
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
    failed = [line for line in lines if line["level"] == "warning" and "id" in line]
    assert [(line["queue"], line["id"], line["attempt"]) for line in failed] == [
        (queue.name, "x", 1),
        (queue.name, "x", 2),
    ]
    assert "traceback" not in failed[0]
    assert failed[1]["traceback"].startswith("Traceback")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", failed[1]["time"])


# --------------------------------------------------------------------------------------------------- stopping


async def test_a_run_can_end_within_the_grace_time(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"hold", id="x"))
    async with bench.working() as worker:
        await bench.began()
        worker.signal(signal.SIGINT)
        await worker.logged("got a signal")
        await queue.add_item(Item(b"hold", id="later"))
        bench.release()
        assert await worker.code() == 0
    assert [id_ for id_, _ in bench.recorded("ended")] == ["x"]
    assert await queue.counts() == (1, 0, 0, 0)


@LIMITS
async def test_items_of_runs_that_exceed_the_grace_time_are_released(
    bench: Bench, queue: AsyncWorkQueue, make_queue: MakeQueue, limits: str
) -> None:
    """A run waits, another refuses to be cancelled; a third is in a thread, a fourth in a process."""
    of_thread, of_process = (make_queue(name=f"{queue.name}-{place}") for place in ("thread", "process"))
    await queue.add_items([Item(b"hold", id="hold"), Item(b"refuse", id="refuse")])
    await of_thread.add_item(Item(b"x", id="thread"))
    await of_process.add_item(Item(b"process", id="process"))
    async with bench.working("--grace", "0.3", LIMITS=limits) as worker:
        pids = dict(await bench.began(4))
        assert pids["process"] != pids["thread"] == worker.process.pid
        assert await worker.stop() == 3
    await gone(pids["process"])
    assert bench.recorded("ended") == []
    assert "was interrupted" in worker.log
    assert "keeps running although" in worker.log
    await are_at_the_front(queue, "hold", "refuse")
    await are_at_the_front(of_thread, "thread")
    await are_at_the_front(of_process, "process")


@LIMITS
async def test_the_item_of_a_run_that_keeps_signal_handlers_from_running_is_released(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    await queue.add_item(Item(b"query", id="x"))
    async with bench.working("--grace", "0.3", LIMITS=limits) as worker:
        await bench.began()
        assert await worker.stop() == 3
    assert bench.recorded("ended") == []
    assert "the event loop is blocked: releasing 1 runs" in worker.log
    await are_at_the_front(queue, "x")


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
    assert "the event loop is blocked: releasing" in worker.log
    await are_at_the_front(queue, "x")


@LIMITS
async def test_a_second_signal_ends_a_process_whose_event_loop_is_blocked(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    await queue.add_item(Item(b"block", id="x"))
    async with bench.working("--grace", "600", LIMITS=limits) as worker:
        await bench.began()
        worker.signal()
        await worker.logged("runs have 600 s to finish")
        assert await worker.stop() == 3
    await are_at_the_front(queue, "x")


async def test_a_third_signal_ends_the_process(bench: Bench, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"refuse", id="x"))
    async with bench.working("--grace", "600") as worker:
        await bench.began()
        for logged in ("got a signal", "got a second", "third"):
            worker.signal()
            await worker.logged(logged)
        assert await worker.code() == 3
    await are_at_the_front(queue, "x")


@LIMITS
async def test_a_thread_of_the_users_code_does_not_keep_the_process(
    bench: Bench, queue: AsyncWorkQueue, limits: str
) -> None:
    await queue.add_item(Item(b"leave", id="x"))
    async with bench.working(LIMITS=limits) as worker:
        await bench.ended()
        assert await worker.stop() == 0
    await worker.logged("still runs after the worker has ended: ending the process")


async def test_a_process_of_a_handler_ends_with_a_worker_that_is_killed(
    bench: Bench, make_queue: MakeQueue
) -> None:
    queue = make_queue(name=f"{bench.environment['QUEUE']}-process")
    await queue.add_item(Item(b"x", id="x"))
    async with bench.working() as worker:
        [(_, pid)] = await bench.began()
        worker.signal(signal.SIGKILL)
        assert await worker.code() == -signal.SIGKILL
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
        options = ("--exit-on-unhealthy", "100ms")
        async with bench.working(*options, REDIS_URL=server.url, LIMITS="short") as worker:
            await bench.began()
            await asyncio.sleep(1)  # it looks every 0.1 s
            bench.release()
            await bench.ended()
            assert await worker.stop() == 0


async def server_pid(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("server"))["process_id"])


# ------------------------------------------------------------------------------------------------ wrong usage


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
        ("jobs:nothing", "jobs:nothing has no task or handler: see TaskQueue.task"),
        ("jobs:missing", "a module with tasks of jobs:missing cannot be imported"),
        ("mails:send", "mails:send is <task send> .AsyncTask., not a TaskQueue"),
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
        "jobs": JOBS,
        "mails": MAILS,
    }.items():
        (user_code / f"{name}.py").write_text(text)
    with pytest.raises(Unusable, match=message) as caught:
        find_worker(target)
    frames = re.findall(r'File "(.+?)"', str(caught.value))
    assert all(frame.startswith(str(user_code)) for frame in frames)
    assert bool(frames) == (target in {"app:fails", "crashing:worker", "broken:worker", "needs:worker"})


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


# ---------------------------------------------------------------------------------- workers that cannot start


async def test_a_process_that_is_refused_ends_with_its_supervisor(
    bench: Bench, make_server: MakeServer
) -> None:
    server = await make_server()
    wrong = server.url.removesuffix("0") + "99"
    async with bench.worker("--max-runs", "9", REDIS_URL=wrong) as worker:
        assert await worker.code() == 5
    assert len([line for line in worker.lines if "the worker cannot start: ERR DB index" in line]) == 1
    assert not bench.record.exists(), "its lifespan was not run"
    assert "cannot start: stopping" in worker.log
    assert "Traceback" not in worker.log


async def test_a_lifespan_that_raises_is_one_line_and_its_own_traceback(bench: Bench) -> None:
    async with bench.worker(HANGS_AT="nowhere") as worker:
        assert await worker.code() == 1
    assert "CRITICAL" in worker.lines[0]
    assert worker.lines[0].endswith("the lifespan has failed:\n")
    assert worker.lines[-1] == "  LookupError: no database\n"
    assert re.findall(r'File "(.+?)"', worker.log) == [str(PROGRAM)]


# --------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("says", "options", "has"),
    [
        (None, {"processes": 3}, 2),
        (None, {"processes": 8}, 1),
        (None, {"processes": 100}, 1),
        (None, {"processes": 1}, None),  # one for each core
        (6, {"processes": 4}, 6),
        (6, {"processes": 4, "handler_processes": 5}, 5),
    ],
)
def test_worker_processes_share_the_cores_for_the_processes_of_handlers(
    monkeypatch: pytest.MonkeyPatch,
    says: int | None,
    options: dict[str, int],
    has: int | None,
) -> None:
    """Unless the program or an option says how many each of them has."""
    monkeypatch.setattr(process, "usable_cores", lambda: 8)
    monkeypatch.setattr(process, "find_worker", lambda _: Worker(handler_processes=says))
    settings = WorkerSettings(target="program:worker", **options)  # type: ignore[arg-type]  # numbers
    assert process.prepare(settings).handler_processes == has


# ------------------------------------------------------------------ the program and the manifest of the pages


HOW_TO = DOCS / "how-to"


def titled(page: Path, title: str) -> str:
    """Return the block of a page with this title."""
    [found] = [block.code for block in blocks(page) if block.title == title]
    return found


async def test_the_program_on_the_page_can_run(
    leasequeue: Leasequeue, user_code: Path, redis_url: str
) -> None:
    (user_code / "app.py").write_text(titled(HOW_TO / "worker.md", "app.py"))
    outcome = await leasequeue("worker", "app:worker", "--check", REDIS_URL=redis_url)
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(r"^letters +send +loop", outcome.out, re.MULTILINE)
    assert "50 runs at once, grace 30 s" in outcome.out


async def test_the_pages_name_only_options_that_exist(leasequeue: Leasequeue) -> None:
    known = set(re.findall(r"--[a-z-]+", (await leasequeue("worker", "--help")).out))
    for name in ("shutdown.md", "worker.md"):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (HOW_TO / name).read_text())) <= known


# ------------------------------------------------------------------------------------------------------ tasks


JOBS = """
import os
from leasequeue import TaskQueue

tasks = TaskQueue.from_url(os.environ["REDIS_URL"], os.environ["QUEUE"], include=["mails"])
nothing = TaskQueue.from_url(os.environ["REDIS_URL"], "nothing")
missing = TaskQueue.from_url(os.environ["REDIS_URL"], "missing", include=["nosuch"])
"""
MAILS = """
from jobs import tasks

@tasks.task
async def send(to: str) -> str:
    return f"to {to}"
"""


async def test_show_names_the_task(leasequeue: Leasequeue, queue: AsyncWorkQueue, redis_url: str) -> None:
    async with TaskQueue.from_url(redis_url, queue.name) as tasks:

        @tasks.task
        async def send_mail(to: str) -> None: ...

        await send_mail.options(id="m1").add("ann")
        await send_mail.options(id="m2").add("bob")
    outcome = await leasequeue("show", queue.name)
    assert [row[-2:] for row in outcome.table[1:]] == [
        ["send_mail", '{"to":"ann"}'],
        ["send_mail", '{"to":"bob"}'],
    ]
    assert "task     send_mail" in (await leasequeue("show", queue.name, "m1")).out
    (document,) = (await leasequeue("show", queue.name, "m1", "--json")).documents
    assert document["item"]["task"] == "send_mail"
    await queue.fail_many([Failure(await take(queue), "it failed")])
    (document,) = (await leasequeue("dead", "ls", queue.name, "--json")).documents
    assert (document["id"], document["task"]) == ("m1", "send_mail")


@pytest.mark.slow
async def test_a_worker_runs_the_tasks_of_a_task_queue(bench: Bench) -> None:
    (bench.folder / "jobs.py").write_text(JOBS)
    (bench.folder / "mails.py").write_text(MAILS)
    environment = {"PYTHONPATH": f"{bench.folder}:{bench.environment['PYTHONPATH']}"}
    async with (
        bench.worker(target="jobs:tasks", **environment) as worker,
        TaskQueue.from_url(bench.environment["REDIS_URL"], bench.environment["QUEUE"]) as tasks,
    ):

        @tasks.task
        async def send(to: str) -> str:
            raise NotImplementedError

        assert await (await send.add("ann")).result(timeout=120) == "to ann"
        assert await worker.stop() == 0
