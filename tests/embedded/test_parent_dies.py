"""A server ends with the process that started it, however that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from tests.eventually import eventually

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from tests.embedded.conftest import Traces

FROM_THE_MAIN_THREAD = """
import asyncio
from leasequeue.embedded import EmbeddedServer
server = asyncio.run(EmbeddedServer.start())
print(server.url, flush=True)
input()
"""
# The thread has ended when the url is printed: a server tied to its thread would be gone by then.
FROM_ANOTHER_THREAD = """
import asyncio, threading
from leasequeue.embedded import EmbeddedServer
started = []
thread = threading.Thread(target=lambda: started.append(asyncio.run(EmbeddedServer.start())))
thread.start()
thread.join()
print(started[0].url, flush=True)
input()
"""
# The fork has copies of all files, and survives its parent until the test ends.
WITH_A_FORK = """
import asyncio, os, sys
from leasequeue.embedded import EmbeddedServer
server = asyncio.run(EmbeddedServer.start())
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(server.url, flush=True)
input()
"""


@asynccontextmanager
async def parent(program: str) -> AsyncIterator[tuple[Process, str]]:
    """Run a program that starts a server and prints its url."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    "program",
    [FROM_THE_MAIN_THREAD, FROM_ANOTHER_THREAD, WITH_A_FORK],
    ids=["main-thread", "other-thread", "with-a-fork"],
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_ends_when_its_parent_is_killed(
    traces: Traces, program: str, how: signal.Signals
) -> None:
    async with parent(program) as (process, url):
        async with Redis.from_url(url) as client:
            assert await client.ping()
        process.send_signal(how)
        await eventually("server and folder are gone", traces.gone)


async def test_a_server_ends_when_its_parent_exits_without_stopping_it(traces: Traces) -> None:
    async with parent(FROM_THE_MAIN_THREAD) as (process, _):
        assert not traces.gone()
        await process.communicate(b"\n")
        await eventually("server and folder are gone", traces.gone)


async def test_a_server_survives_its_guardian_but_not_its_parent(traces: Traces) -> None:
    """If the guardian is killed, the server still ends with the parent."""
    async with parent(FROM_THE_MAIN_THREAD) as (process, url):
        async with Redis.from_url(url) as client:
            server = (await client.info("server"))["process_id"]
            os.kill(os.getpgid(server), signal.SIGKILL)
            assert await client.ping()
        process.kill()
        await eventually("the server is gone", lambda: not traces.processes())
