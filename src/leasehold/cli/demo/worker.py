"""One worker process of the demo: a `Worker` with one handler, which reads a file and writes a line.

    REDIS_URL=... python -m leasehold.cli.demo.worker OUTPUT QUEUE FOLDER LEASE_SECONDS HOLD_AFTER

The item after HOLD_AFTER others it holds, and does nothing, until a line comes on standard input. With
"never" it begins with that line. SIGTERM stops it, and so does the end of standard input, by its parent's
death. What happens is told on standard output, as `Event`s.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from leasehold import AsyncWorkQueue, Lease, LeaseholdError, RetryPolicy, Worker
from leasehold.cli.demo.describe import describe, dump
from leasehold.cli.demo.events import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.cli.demo.events import Kind


class TellingQueue(AsyncWorkQueue):
    """A queue that tells what the server answers to its worker."""

    async def complete_many(self, leases: Sequence[Lease], **options: Any) -> list[bool]:
        """See `AsyncWorkQueue.complete_many`."""
        answers = await super().complete_many(leases, **options)
        for lease, answer in zip(leases, answers, strict=True):
            _tell("completed", lease, answer=answer)
        return answers

    async def renew_many(self, leases: Sequence[Lease], lease_time: Any) -> list[bool]:
        """See `AsyncWorkQueue.renew_many`."""
        answers = await super().renew_many(leases, lease_time)
        for lease, answer in zip(leases, answers, strict=True):
            _tell("renewed", lease, answer=answer)
        return answers


async def _work(output: IO[bytes], name: str, folder: str, lease_seconds: str, hold_after: str) -> None:
    # Items whose lease has ended go to the front: a file whose worker died is the next, not the last.
    queue = TellingQueue.from_url(os.environ["REDIS_URL"], name, return_to="front")
    # What cannot be written is not tried again: the disk is full.
    worker = Worker(
        concurrency=1, lease_time=float(lease_seconds), retry=RetryPolicy(rules={OSError: "never"})
    )
    numbers, go_on = itertools.count(), threading.Event()

    @worker.handler(queue)
    def work(lease: Lease) -> None:
        """Work on one item. The order of the steps is the pattern to imitate.

        First write, then return, which completes the item. The other way round, a worker that is killed
        between the two loses the line, since nobody gets a completed item again. This way round, it may be
        written twice, by a worker that was too slow and by the next one; so each line carries its id and the
        token of its lease, and whoever reads the lines keeps the one with the highest token (`check.merge`).
        With a database it is the same: write under the item's id, and let no lower token overwrite a higher
        one.

        A line survives the death of this process, as the system has it. To survive that of the machine, it
        would have to be `fsync`ed before this returns.
        """
        _tell("leased", lease, given=lease.deadline - float(lease_seconds))
        if str(next(numbers)) == hold_after:
            while worker.health().waiting:
                time.sleep(0.01)  # what was taken ahead goes back after a moment, to those who are free
            _tell("holds", lease)
            go_on.wait()
        line = dump({"token": lease.token, "line": describe(Path(folder), lease.data)})
        if output.write(line) != len(line):
            raise OSError("the line was written in part only")

    threading.Thread(target=_listen, args=(go_on,), daemon=True).start()
    if hold_after == "never":
        await asyncio.to_thread(go_on.wait)
    async with queue:
        await worker.serve()


def _listen(go_on: threading.Event) -> None:
    for _ in sys.stdin:
        go_on.set()
    os._exit(0)


def _tell(kind: Kind, lease: Lease, **more: Any) -> None:
    event = Event(
        kind=kind,
        id=lease.id,
        token=lease.token,
        attempt=lease.attempt,
        deadline=lease.deadline,
        **more,
    )
    sys.stdout.buffer.write(event.line())
    sys.stdout.buffer.flush()


def _main() -> None:
    output, *arguments = sys.argv[1:]
    try:
        with Path(output).open("ab", buffering=0) as file:
            asyncio.run(_work(file, *arguments))
    except (LeaseholdError, OSError) as error:
        sys.exit(f"{Path(output).stem}: {error}")
    # Not `return`, which would wait for the thread that still reads a file if the item has become another
    # worker's, and nobody waits for it any more.
    os._exit(0)


if __name__ == "__main__":
    _main()
