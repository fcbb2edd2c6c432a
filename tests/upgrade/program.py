"""A worker in a process, of the version that PYTHONPATH names. It also does what it reads from its input.

An item whose data is `bad` fails for good. Each line is the name of a method, with its arguments, and has one
answer, a line that begins with that name.
"""

from __future__ import annotations

import asyncio
import sys

from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, Lease, RetryPolicy, Worker
from leasequeue.queue.formats import check_formats, read_format, upgrade
from leasequeue.queue.queue import engine_of


class Program:
    """What one process does on a queue. Its items are called by a prefix and a number."""

    def __init__(self, queue: AsyncWorkQueue, redis: Redis, prefix: str) -> None:
        self.queue, self.redis, self.prefix = queue, redis, prefix
        self.begun = asyncio.Event()
        self.adding: asyncio.Task[None] | None = None
        self.added, self.holds = 0, False

    async def run(self, data: bytes, lease: Lease) -> None:
        """Run an item."""
        await self.redis.sadd(f"ran-{self.queue.name}", lease.id)
        self.begun.set()
        if data == b"bad":
            raise ValueError("it is bad")

    async def _add(self) -> None:
        while not self.holds:
            number = self.added
            data = b"bad" if number % 20 == 19 else b"x"
            await self.queue.add_item(Item(data, id=f"{self.prefix}{number}"))
            self.added += 1
            await asyncio.sleep(0.001)

    async def add(self) -> None:
        """Add items from now on."""
        self.adding = asyncio.create_task(self._add())

    async def hold(self) -> int:
        """Add no more; return how many were added."""
        assert self.adding is not None
        self.holds = True
        await self.adding
        return self.added

    async def worked(self) -> None:
        """Wait until a run begins."""
        self.begun.clear()
        await self.begun.wait()

    async def upgrade(self, to: str) -> str:
        """Change the format."""
        done = await upgrade(self.queue, int(to))
        held_by = ",".join(one.name for one in done.held_by)
        return f"{done.now[0].format} {done.now[0].floor} held={held_by} left={','.join(done.left)}"

    async def park(self, what: str) -> None:
        """Add an item that is parked, or end that of all: see `newer`."""
        await engine_of(self.queue).run("park", what=what.encode())

    async def fsck(self) -> str:
        """Check the queue; return its format, how many items were restored, and what is to be said of it."""
        restored = (await self.queue.admin.fsck()).restored
        return " ".join(
            map(str, [*await read_format(self.queue), restored, *await check_formats(self.queue)])
        )

    async def letters(self) -> list[str]:
        """Return the dead letters without an error."""
        return [one.id for one in await self.queue.dead_letters.list(count=1000) if not one.error]

    async def drop(self) -> None:
        """Drop the dead letters."""
        await self.queue.dead_letters.drop_all()


async def main(url: str, name: str, prefix: str) -> None:
    """Work and obey until standard input ends."""
    async with AsyncWorkQueue.from_url(url, name) as queue, Redis.from_url(url) as redis:
        program = Program(queue, redis, prefix)
        worker = Worker(name=prefix, concurrency=4, clean_every=None, retry=RetryPolicy(attempts=1))
        worker.handler(queue)(program.run)
        working = asyncio.create_task(worker.run())
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while words := (await lines.readline()).decode().split():
            answer = await getattr(program, words[0])(*words[1:])
            sys.stdout.write(f"{words[0]} {answer}\n")
            sys.stdout.flush()
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
