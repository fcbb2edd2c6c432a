"""Adds an item for which this process has too little memory, and then a small one."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import ProcessOutOfMemory

LARGE, LEFT = 60 << 20, 40 << 20


async def main(url: str, name: str) -> None:
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.add_item(Item(b"x"))
        large = Item(bytes(LARGE))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])  # noqa: ASYNC240 - no file
        resource.setrlimit(
            resource.RLIMIT_AS, (pages * resource.getpagesize() + LEFT, resource.RLIM_INFINITY)
        )
        try:
            await queue.add_item(large)
        except ProcessOutOfMemory as error:
            print(f"{type(error).__name__} of {error.size >> 20} MiB")  # noqa: T201 - the test reads it
        print(await queue.add_item(Item(b"x")))  # noqa: T201 - the same


asyncio.run(main(*sys.argv[1:]))
