"""A worker process of the soak; it logs each call and each run.

python -m tests.soak.worker_program URL FOLDER NAME SEED KIND [gentle]

It exits with the code of `Worker.serve`, or when its standard input ends.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue import Lease, RetryPolicy
from leasequeue.worker import Worker
from tests.history.events import Event, HistoryLog
from tests.history.recording import record_calls, record_runs
from tests.soak.jobs import QUEUES, job_of, open_queue
from tests.soak.parent import exit_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasequeue import AsyncWorkQueue

#: The lease time, and the grace time after SIGTERM (s).
LEASE_SECONDS = 2.0
GRACE_SECONDS = 0.7
ATTEMPTS = 4
LIMIT_SECONDS = 5.0


def make_worker(
    queues: Mapping[str, AsyncWorkQueue], log: HistoryLog, chance: random.Random, *, gentle: bool
) -> Worker:
    """Return a worker with a handler of each kind."""
    worker = Worker(
        concurrency=6,
        lease_time=LEASE_SECONDS,
        grace=GRACE_SECONDS,
        retry=RetryPolicy(attempts=ATTEMPTS, first=0.05, longest=0.5),
        middleware=[record_runs(log)],
        clean_every=3.0,
        keep_dead=None,  # the history has no event for letters dropped by their age
    )

    @worker.handler(queues["coroutines"], timeout=LIMIT_SECONDS, keep_result=5.0)
    async def coroutine(lease: Lease) -> str:
        job = job_of(lease)
        job.before(lease, chance, gentle=gentle)
        await asyncio.sleep(0.0 if job.blocks else job.seconds)
        job.after(lease, chance)
        return lease.id

    @worker.handler(queues["threads"])
    def thread(lease: Lease) -> None:
        job = job_of(lease)
        job.before(lease, chance, gentle=gentle)
        time.sleep(min(job.seconds, 0.5))
        job.after(lease, chance)

    @worker.handler(queues["batches"], batch=5, timeout=LIMIT_SECONDS)
    async def several(leases: list[Lease]) -> list[Exception | None]:
        answers: list[Exception | None] = []
        for lease in leases:
            job = job_of(lease)
            try:
                job.before(lease, chance, gentle=gentle)
                await asyncio.sleep(0.0 if job.blocks else min(job.seconds, 0.8))
                job.after(lease, chance)
            except Exception as error:  # noqa: BLE001 - the answer for this item
                answers.append(error)
            else:
                answers.append(None)
        return answers

    return worker


async def main(url: str, folder: str, name: str, seed: str, kind: str, *options: str) -> int:
    """Work until SIGTERM."""
    log = HistoryLog(Path(folder) / f"{name}.jsonl")
    queues = {queue: record_calls(open_queue(url, queue, kind), log) for queue in QUEUES}
    worker = make_worker(queues, log, random.Random(seed), gentle="gentle" in options)
    code = await worker.serve()
    for queue in queues.values():
        await queue.close()
    log.write(Event(time.monotonic_ns(), "exit"))
    return code


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(asyncio.run(main(*sys.argv[1:])))
