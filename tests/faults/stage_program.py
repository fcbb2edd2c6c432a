"""A worker for the stages of a flow run, in a separate process that is killed at a step.

python -m tests.faults.stage_program URL QUEUE STEP [SHARDS]

The run is that of `plan_of`: a stage that fans out to more children than one call adds, their join, and a
last stage. The process kills itself with SIGKILL at the step: `read` (before it reads the run), `handler`, or
`before:<kind>` and `after:<kind>`: before a call for stages of a kind is sent, and when its reply has come.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from leasequeue import FanOut, TaskQueue, Worker
from leasequeue.queue.plans import stages
from leasequeue.queue.plans.plan import FlowPlan
from leasequeue.worker import executor
from leasequeue.worker import stages as worker_stages
from tests.plans.flows import call, child, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.errors import FormatTooNew
    from leasequeue.queue.engine import Engine
    from leasequeue.queue.plans.stages import FinishRow
    from leasequeue.worker.run import ActiveRun
    from leasequeue.worker.stages import EntryReader

#: More than one call adds.
CHILDREN = 300
STEPS = (
    *(
        "read",
        "handler",
        "before:stage",
        "after:stage",
        "before:fan",
        "after:fan",
        "before:more",
        "after:more",
    ),
    *("before:done", "after:done", "before:finish", "after:finish"),
)


def plan_of(queue: AsyncWorkQueue) -> FlowPlan:
    """Return the plan of the run."""
    needs = {"numbers": "plan/*"}
    return FlowPlan(
        (stage(queue, "plan"), stage(queue, "finish", call("finish", needs), after=("plan",))),
        result="finish",
    )


def worker_for(url: str, name: str, step: str = "", shards: int | None = None) -> Worker:
    """Return a worker for the run, whose process is killed at a step; with shards, it is on a cluster."""
    tasks = TaskQueue.from_url(url, name, cluster=shards is not None, shards=shards)

    @tasks.task
    async def plan() -> FanOut[int]:
        kill_at(step, "handler")
        return FanOut([child(tasks.queue, "echo", numbers=n) for n in range(CHILDREN)])

    @tasks.task(batch=100)
    async def echo(numbers: list[int]) -> list[int]:
        return numbers

    @tasks.task
    async def finish(numbers: list[int]) -> int:
        return len(numbers)

    return Worker(tasks, lease_time=3600, clean_every=None)


def kill_at(step: str, here: str) -> None:
    """Kill this process if this is the step."""
    if step == here:
        os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, name: str, step: str, shards: str | None = None) -> None:
    """Work until killed."""
    prepare, send = worker_stages.prepare, stages._send

    async def prepare_and_die(run: ActiveRun, reader: EntryReader) -> bool:
        kill_at(step, "read")
        return await prepare(run, reader)

    async def send_and_die(engine: Engine, rows: Sequence[FinishRow]) -> list[int | FormatTooNew]:
        kind = "finish" if rows[0].lease.id.endswith("/finish") else rows[0].kind
        kill_at(step, f"before:{kind}")
        answers = await send(engine, rows)
        kill_at(step, f"after:{kind}")
        return answers

    vars(executor)["prepare"], stages._send = prepare_and_die, send_and_die
    await worker_for(url, name, step, None if shards is None else int(shards)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
