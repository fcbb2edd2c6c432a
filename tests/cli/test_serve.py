"""`leasehold serve` in a separate process, ended by a signal."""

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

# As on a machine without the extra: importing typer fails.
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
    """Run `leasehold serve`; give the process, the URL and the output."""
    process = await leasehold("serve", *arguments)
    assert process.stdout
    try:
        words = (await process.stdout.readuntil(b"to stop.")).decode()
        url = re.search(r"redis://127\.0\.0\.1:\d+/0", words)
        assert url, words
        yield process, url[0], words
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_the_server_runs_until_ctrl_c() -> None:
    async with serving() as (process, url, words), Redis.from_url(url) as client:
        assert await client.ping()
        assert f'AsyncWorkQueue.from_url("{url}"' in words
        process.send_signal(signal.SIGINT)
        code, _, err = await outcome(process)
        assert (code, err) == (0, "")
        with pytest.raises(RedisConnectionError):
            await client.ping()


async def test_the_data_is_in_the_folder_and_the_port_is_used_until_sigterm(tmp_path: Path) -> None:
    async with serving("--dir", str(tmp_path)) as (process, url, words), Redis.from_url(url) as client:
        assert str(tmp_path) in words
        await client.set("key", "value")
        process.terminate()
        assert await process.wait() == 0
    port = url.rpartition(":")[2].removesuffix("/0")
    async with serving("--dir", str(tmp_path), "--port", port) as (_, same, _), Redis.from_url(url) as client:
        assert same == url
        assert await client.get("key") == b"value"


async def test_a_server_that_ends_unexpectedly_is_reported() -> None:
    async with serving() as (process, url, _):
        async with Redis.from_url(url) as client:
            os.kill((await client.info("server"))["process_id"], signal.SIGKILL)
        code, _, err = await outcome(process)
        assert code == 1
        assert "ended unexpectedly" in err


async def test_the_reason_why_a_server_does_not_start_is_reported(make_server: MakeServer) -> None:
    port = (await make_server()).port
    code, out, err = await outcome(await leasehold("serve", "--port", str(port)))
    assert (code, out) == (1, "")
    assert "in use" in err


async def test_the_version_is_printed() -> None:
    code, out, _ = await outcome(await leasehold("--version"))
    assert code == 0
    assert re.fullmatch(r"leasehold \S+\n", out)


async def test_without_the_extra_the_error_names_it() -> None:
    code, out, err = await outcome(await leasehold(program=("-c", WITHOUT_TYPER)))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert 'pip install "leasehold[cli]"' in err
