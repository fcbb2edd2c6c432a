"""One worker process of the demo: it leases, reads, writes and completes, and takes orders on the way.

    REDIS_URL=... python -m leasehold.cli.demo.worker OUTPUT NUMBER QUEUE FOLDER LEASE_SECONDS

Its orders come line by line on standard input; the end of it, also by its parent's death, ends the worker.
`work 12` is to finish 12 items, `work` to go on for ever, `hold` to lease an item and do nothing until told
to `go`. What happens is told on standard output, as `Event`s.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from leasehold import AsyncWorkQueue, Lease, LeaseholdError
from leasehold.cli.demo.describe import describe, dump
from leasehold.cli.demo.events import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Worker:
    """Works on the files of a queue.

    Args:
        queue: Where the items come from: an item's data is the path of a file.
        number: The worker's name in the events.
        folder: Where the paths begin.
        output: This worker's own file, open for appending, unbuffered.
        lease_seconds: How long an item is leased before the lease is renewed or lost.
    """

    def __init__(
        self, queue: AsyncWorkQueue, *, number: int, folder: Path, output: IO[bytes], lease_seconds: float
    ) -> None:
        self._queue = queue
        self._number = number
        self._folder = folder
        self._output = output
        self._lease_seconds = lease_seconds
        self._orders: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> None:
        """Take orders until standard input ends."""
        stdin = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin
        )
        self._tell(Event(kind="ready", worker=self._number))
        obeying = asyncio.create_task(self._obey())
        listening = asyncio.create_task(self._listen(stdin))
        await asyncio.wait((obeying, listening), return_when=asyncio.FIRST_COMPLETED)
        if obeying.done():
            await obeying  # raises: it does not end by itself
        obeying.cancel()
        await asyncio.gather(obeying, return_exceptions=True)

    async def _listen(self, stdin: asyncio.StreamReader) -> None:
        while order := await stdin.readline():
            self._orders.put_nowait(order.decode().strip())

    async def _obey(self) -> None:
        while True:
            verb, _, number = (await self._orders.get()).partition(" ")
            for _ in range(int(number)) if number else itertools.count():
                await self._one_item(holds=verb == "hold")
                if verb == "hold":
                    break

    async def _one_item(self, *, holds: bool) -> None:
        """Work on the next item. The order of the steps is the pattern to imitate.

        First write, then complete. The other way round, a worker that is killed between the two loses the
        line, since nobody gets a completed item again. This way round, it may be written twice, by a worker
        that was too slow and by the next one; so each line carries its id and the token of its lease, and
        whoever reads the lines keeps the one with the highest token (`check.merge`). As `fenced` lets the
        current holder alone complete, that is the line whose completion counted. With a database it is the
        same: write under the item's id, and let no lower token overwrite a higher one.

        A line survives the death of this process, as the system has it. To survive that of the machine, it
        would have to be `fsync`ed before the item is completed.
        """
        [lease] = await self._queue.lease_many(1, self._lease_seconds)
        self._tell(Event.leased(self._number, lease, seconds=self._lease_seconds, holds=holds))
        if holds:
            await self._orders.get()
        async with self._kept(lease):
            line = await asyncio.to_thread(describe, self._folder, lease.data)
        self._write(dump({"token": lease.token, "line": line}))
        counted = await self._queue.complete(lease, fenced=True)
        self._tell(
            Event(kind="answered", worker=self._number, id=lease.id, token=lease.token, counted=counted)
        )

    @asynccontextmanager
    async def _kept(self, lease: Lease) -> AsyncIterator[None]:
        """Renew the lease while the work lasts, so that it can be short and large files still be read."""
        renewing = asyncio.create_task(self._renew(lease))
        try:
            yield
        finally:
            renewing.cancel()
            # Has the server gone, `complete` will say so.
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew(self, lease: Lease) -> None:
        renewed = True
        while renewed:
            await asyncio.sleep(self._lease_seconds / 3)
            renewed = await self._queue.renew(lease, self._lease_seconds)
            self._tell(Event(kind="renewed", worker=self._number, id=lease.id, token=lease.token))

    def _write(self, line: bytes) -> None:
        """Append a line in one write. If that was cut short, so is the demo: the disk is full."""
        if self._output.write(line) != len(line):
            raise OSError("the line was written in part only")

    @staticmethod
    def _tell(event: Event) -> None:
        sys.stdout.buffer.write(event.line())
        sys.stdout.buffer.flush()


async def _work(file: IO[bytes], number: str, queue_name: str, folder: str, lease_seconds: str) -> None:
    # Items whose lease has ended go to the front: a file whose worker died is the next, not the last.
    async with AsyncWorkQueue.from_url(os.environ["REDIS_URL"], queue_name, return_to="front") as queue:
        worker = Worker(
            queue,
            number=int(number),
            folder=Path(folder),
            output=file,
            lease_seconds=float(lease_seconds),
        )
        await worker.run()
    # Not `return`, which would wait for the thread that still reads a file if the item has become another
    # worker's, and nobody waits for it any more.
    os._exit(0)


def _main() -> None:
    output, *arguments = sys.argv[1:]
    try:
        with Path(output).open("ab", buffering=0) as file:
            asyncio.run(_work(file, *arguments))
    except (LeaseholdError, OSError) as error:
        sys.exit(f"worker {arguments[0]}: {error}")


if __name__ == "__main__":
    _main()
