"""A worker in a separate process, whose task logs.

python -m tests.tasks.logging_program URL QUEUE

The first attempt waits until the process is killed; a later one returns.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from leasequeue import TaskQueue, current_run
from leasequeue.worker import Worker

log = logging.getLogger("tests.logging_program")


async def wait() -> None:
    """Log, and wait in the first attempt."""
    attempt = current_run().attempt
    log.warning("attempt %d begins", attempt)
    if attempt == 1:
        await asyncio.sleep(600)
    log.warning("attempt %d ends", attempt)


async def main(url: str, name: str) -> int:
    """Work until stopped by a signal."""
    tasks = TaskQueue.from_url(url, name)
    tasks.task(keep_logs="16KiB")(wait)
    return await Worker(tasks, clean_every=None).serve()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
