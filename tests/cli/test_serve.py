"""`leasehold serve` as people run it: in a process of its own, ended by a signal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conftest import MakeServer

# Stands in for a machine without the extra: importing typer fails as if it were not installed.
WITHOUT_TYPER = """
import sys
sys.modules["typer"] = None
from leasehold.cli import main
main()
"""


async def leasehold(*arguments: str, program: tuple[str, ...] = ("-m", "leasehold.cli")) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def outcome(process: Process) -> tuple[int | None, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[Process, str, str]]:
    """Run `leasehold serve` until it has said all: the process, the url, the words."""
    process = await leasehold("serve", *arguments)
    assert process.stdout
    try:
        words = (await process.stdout.readuntil(b"stops it.")).decode()
        url = re.search(r"redis://127\.0\.0\.1:\d+/0", words)
        assert url, words
        yield process, url[0], words
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_serves_until_a_signal(how: signal.Signals) -> None:
    async with serving() as (process, url, words), Redis.from_url(url) as client:
        assert await client.ping()
        assert f'AsyncWorkQueue.from_url("{url}"' in words
        process.send_signal(how)
        code, _, err = await outcome(process)
        assert (code, err) == (0, "")
        with pytest.raises(RedisConnectionError):
            await client.ping()


async def test_keeps_data_in_the_folder_and_takes_the_port(tmp_path: Path) -> None:
    async with serving("--dir", str(tmp_path)) as (process, url, words), Redis.from_url(url) as client:
        assert str(tmp_path) in words
        await client.set("key", "value")
        process.terminate()
        await process.wait()
    port = url.rpartition(":")[2].removesuffix("/0")
    async with serving("--dir", str(tmp_path), "--port", port) as (_, same, _), Redis.from_url(url) as client:
        assert same == url
        assert await client.get("key") == b"value"


async def test_says_when_the_server_ended_by_itself() -> None:
    async with serving() as (process, url, _):
        async with Redis.from_url(url) as client:
            os.kill((await client.info("server"))["process_id"], signal.SIGKILL)
        code, _, err = await outcome(process)
        assert code == 1
        assert "ended by itself" in err


async def test_says_why_it_does_not_start(make_server: MakeServer) -> None:
    port = (await make_server()).port
    code, out, err = await outcome(await leasehold("serve", "--port", str(port)))
    assert (code, out) == (1, "")
    assert "in use" in err


async def test_prints_the_version() -> None:
    code, out, _ = await outcome(await leasehold("--version"))
    assert code == 0
    assert re.fullmatch(r"leasehold \S+\n", out)


async def test_without_the_extra_says_how_to_get_it() -> None:
    code, out, err = await outcome(await leasehold(program=("-c", WITHOUT_TYPER)))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert 'pip install "leasehold[cli]"' in err
