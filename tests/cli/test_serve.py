"""`leasequeue serve` in a separate process, ended by a signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.cli.program import run_process, started

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conftest import MakeServer

# As on a machine without the extra: importing typer fails.
WITHOUT_TYPER = """
import sys
sys.modules["typer"] = None
from leasequeue.cli import main
main()
"""


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[Process, str, str]]:
    """Run `leasequeue serve`; give the process, the URL and the output."""
    async with started("serve", *arguments) as process:
        assert process.stdout
        words = (await process.stdout.readuntil(b"to stop.")).decode()
        url = re.search(r"redis://127\.0\.0\.1:\d+/0", words)
        assert url, words
        yield process, url[0], words


async def test_the_data_is_in_the_folder_and_the_port_is_used_until_sigterm_or_ctrl_c(tmp_path: Path) -> None:
    async with serving("--dir", str(tmp_path)) as (process, url, words), Redis.from_url(url) as client:
        assert str(tmp_path) in words
        assert f'AsyncWorkQueue.from_url("{url}"' in words
        assert f"\n  export LEASEQUEUE_URL={url}\n" in words
        await client.set("key", "value")
        process.terminate()
        assert await process.wait() == 0
    port = url.rpartition(":")[2].removesuffix("/0")
    again = ("--dir", str(tmp_path), "--port", port)
    async with serving(*again) as (process, same, _), Redis.from_url(url) as client:
        assert same == url
        assert await client.get("key") == b"value"
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        with pytest.raises(RedisConnectionError):
            await client.ping()


async def test_a_server_that_ends_unexpectedly_is_reported() -> None:
    async with serving() as (process, url, _):
        async with Redis.from_url(url) as client:
            os.kill((await client.info("server"))["process_id"], signal.SIGKILL)
        _, err = await process.communicate()
        assert process.returncode == 1
        assert b"ended unexpectedly" in err


async def test_the_reason_why_a_server_does_not_start_is_reported(make_server: MakeServer) -> None:
    port = (await make_server()).port
    code, out, err = await run_process("serve", "--port", str(port))
    assert (code, out) == (1, "")
    assert "in use" in err


def test_without_the_extra_the_error_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TYPER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert 'pip install "leasequeue[cli]"' in done.stderr
