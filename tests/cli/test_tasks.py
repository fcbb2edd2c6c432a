"""Tasks on the command line: `leasequeue worker app:tasks`, and `leasequeue show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from leasequeue.queue.lease import Failure
from tests.queue.asking import take

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.cli.worker_bench import Bench

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("jobs:nothing", "jobs:nothing has no task or handler: see TaskQueue.task"),
        ("jobs:missing", "a module with tasks of jobs:missing cannot be imported"),
        ("mails:send", "mails:send is <task send> (AsyncTask), not a TaskQueue"),
    ],
)
async def test_what_has_no_tasks_is_no_target(bench: Bench, target: str, problem: str) -> None:
    (bench.folder / "jobs.py").write_text(JOBS)
    (bench.folder / "mails.py").write_text(MAILS)
    async with bench.worker(target=target) as worker:
        assert await worker.code() == 2
    assert problem in worker.log
