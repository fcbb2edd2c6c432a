"""Workers that start with an item waiting, one after the other and many at once: each works at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item

#: How many workers start, and how many of them at once; of the others, a few.
STARTS, AT_ONCE, FEW = 200, 50, 5
PROGRAM = """\
import os
from leasequeue import AsyncWorkQueue, Worker

worker = Worker()


@worker.handler(AsyncWorkQueue.from_url(os.environ["URL"], os.environ["QUEUE"]), keep_result=600)
async def handle(data: bytes) -> str:
    return data.decode()
"""


async def result_of(queue: AsyncWorkQueue) -> bytes | None:
    """Wait for the item's result, also where this process, which starts so many others, connects too late."""
    while True:
        try:
            return await queue.results.wait("a")
        except ConnectionLost:
            continue


async def start(url: str, name: str, folder: Path) -> str:
    """Start a worker on a queue with an item, stop it when the item is done, and return what is wrong."""
    async with AsyncWorkQueue.from_url(url, name, reply_timeout=300) as queue:
        await queue.add_item(Item(b"done", id="a"))
        process = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).with_name("leasequeue"), "worker", "program:worker"),
            cwd=folder,
            env={"URL": url, "QUEUE": name, "PATH": "/usr/bin:/bin"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        waiting = asyncio.create_task(result_of(queue))
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.send_signal(signal.SIGTERM)
        waiting.cancel()
        [result] = await asyncio.gather(waiting, return_exceptions=True)
        log, _ = await process.communicate()
    text = log.decode()
    wrong = [word for word in ("ERROR", "CRITICAL", "Traceback", "exception") if word in text]
    is_right = result == b'"done"' and await ended == 0 and not wrong
    return "" if is_right else f"{name}: {result!r}, exit code {ended.result()}\n{text}"


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_each_of_many_workers_does_the_item_that_waits(
    redis_url: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    sizes = [AT_ONCE, *[FEW] * ((STARTS - AT_ONCE) // FEW)]
    wrong: list[str] = []
    for turn, size in enumerate(sizes):
        names = [f"{name}-{turn}-{number}" for number in range(size)]
        wrong += filter(None, await asyncio.gather(*(start(redis_url, one, tmp_path) for one in names)))
    assert sum(sizes) == STARTS
    assert not wrong, f"{len(wrong)} of {STARTS} starts\n" + "\n".join(wrong[:3])
