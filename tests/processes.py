"""Programs of the tests and servers in processes, and whether a process runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leasequeue.embedded.guardian import Guarded, private_folder
from tests import servers
from tests.eventually import LIMIT_SECONDS, eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator


@asynccontextmanager
async def program(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a module with pipes for its input and output; kill it at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def answering(kind: str, port: int, *words: object, folder: Path | None = None) -> AsyncIterator[Redis]:
    """Run a server, or a Sentinel, inside the block, and give a client when it answers.

    Args:
        kind: Its program, a name of `tests.servers`.
        port: A port of it without TLS.
        words: Its arguments.
        folder: A private folder, which is removed at the end.
    """
    folder = folder or private_folder()
    guarded = Guarded(folder, [str(servers.program(kind)), *map(str, words)], lock=None, grace=0)
    try:
        async with Redis(port=port) as client, Redis(port=port, protocol=2) as plain:

            async def answers() -> bool:
                assert guarded.running, f"the server has ended:\n{guarded.log_end()}"
                with contextlib.suppress(OSError, RedisError):
                    return bool(await plain.ping())
                return False

            await until("the server answers", answers)
            yield client
    finally:
        guarded.kill()


async def printed(process: Process, words: bytes, *, within: float = LIMIT_SECONDS) -> bytes:
    """Wait for a line of a program's output that begins so, and return it."""
    assert process.stdout is not None
    line = b""
    async with asyncio.timeout(within):
        while not line.startswith(words):
            line = await process.stdout.readline()
            assert line, f"it has ended without {words!r}"
    return line


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    if not Path("/proc/self").exists():
        listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
        return listed.stdout[:1] not in (b"", b"Z")
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def gone(*pids: int) -> None:
    """Wait until none of the processes runs."""
    await eventually(f"{pids} have ended", lambda: not any(map(lives, pids)), within=LIMIT_SECONDS)
