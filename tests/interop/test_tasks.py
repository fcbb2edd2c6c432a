"""Foreign clients send tasks and read their results, and work on tasks that Leasequeue adds."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasequeue import Job, RetryPolicy, TaskQueue, Worker
from tests.docs.pages import DOCS, blocks
from tests.interop.foreign import program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.interop.foreign import Foreign


@dataclass
class Receipt:
    number: int
    to: str
    on: date


@pytest.fixture
async def tasks(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Return a task queue with two tasks."""
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        async def send_mail(to: str, subject: str = "Hi") -> Receipt:
            return Receipt(len(subject), to, date(2026, 11, 22))

        @tasks.task(retry=RetryPolicy(attempts=1))
        async def refuse(to: str) -> None:
            raise ValueError(f"refused: {to}")

        yield tasks


#: What the example of the page on sharing expects around it.
NODE_PROGRAM = """
const { Redis } = require("ioredis");
const { Item, KeyPrefix, WorkQueue } = require("@mevitae/redis-work-queue/dist/WorkQueue.js");
const [url, name] = process.argv.slice(1);
const db = new Redis(url);
const queue = new WorkQueue(new KeyPrefix(name));
(async () => { %s })().finally(() => db.disconnect());
"""


async def test_a_foreign_client_sends_a_task_and_reads_the_result(tasks: TaskQueue, foreign: Foreign) -> None:
    await foreign.add("mail-1", json.dumps({"task": "send_mail", "args": {"to": "Zoë"}}).encode())
    assert await foreign.result("mail-1") is None
    await Worker(tasks).drain()
    result = await foreign.result("mail-1")
    assert result is not None
    assert json.loads(result) == {"result": {"number": 2, "to": "Zoë", "on": "2026-11-22"}}
    job: Job[Receipt] = tasks.tasks[0].job("mail-1")
    assert await job.result(timeout=120) == Receipt(2, "Zoë", date(2026, 11, 22))


async def test_a_running_worker_gets_the_task_of_a_foreign_client(tasks: TaskQueue, foreign: Foreign) -> None:
    worker = Worker(tasks)
    running = asyncio.create_task(worker.run())
    try:
        data = {"task": "send_mail", "args": {"to": "ann", "subject": "Invoice"}}
        await foreign.add("mail-1", json.dumps(data).encode())
        job: Job[Receipt] = tasks.tasks[0].job("mail-1")
        assert (await job.result(timeout=120)).number == len("Invoice")
    finally:
        worker.stop()
        await running


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"task": "refuse", "args": {"to": "ann"}}', "ValueError: refused: ann"),
        (b'{"task": "send_mail", "args": {"to": 7}}', "Expected `str`, got `int`"),
        (b'{"task": "send_mail", "args": {}}', "missing required field `to`"),
        (b"welcome, ann", "it is not JSON of the form"),
    ],
)
async def test_a_foreign_client_reads_why_its_task_has_failed(
    tasks: TaskQueue, foreign: Foreign, data: bytes, error: str
) -> None:
    await foreign.add("mail-1", data)
    await Worker(tasks).drain()
    assert await foreign.result("mail-1") is None
    failure = await foreign.failure("mail-1")
    assert failure is not None
    assert error in failure.decode()


async def test_a_foreign_worker_runs_a_task_of_leasequeue(tasks: TaskQueue, foreign: Foreign) -> None:
    job = await tasks.tasks[0].add("ann", subject="Invoice")
    item = await foreign.lease(30)
    assert item is not None
    assert item.id == job.id
    call = json.loads(item.data)
    assert (call["task"], call["args"]) == ("send_mail", {"to": "ann", "subject": "Invoice"})
    assert await foreign.complete(job.id)


@pytest.mark.slow
async def test_the_example_for_node_on_the_page_runs(tasks: TaskQueue, redis_url: str, name: str) -> None:
    @tasks.task
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    (example,) = (block.code for block in blocks(DOCS / "how-to" / "share.md") if block.language == "js")
    code = NODE_PROGRAM % example.replace("emails:", f"{name}:")
    node, script = program("node")
    worker = Worker(tasks)
    running = asyncio.create_task(worker.run())
    try:
        process = await asyncio.create_subprocess_exec(
            node, "-e", code, redis_url, name, cwd=Path(script).parent, stdout=subprocess.PIPE
        )
        async with asyncio.timeout(120):
            printed, _ = await process.communicate()
    finally:
        worker.stop()
        await running
    assert printed.decode() == "Hello, Zoë!\n"
