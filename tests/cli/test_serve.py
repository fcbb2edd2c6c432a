"""`leasequeue serve` in a separate process, ended by a signal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.cli.program import run_process, started
from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Mapping
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
async def serving(
    *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[tuple[Process, str, str]]:
    """Run `leasequeue serve`; give the process, the URL and the output."""
    async with started("serve", *arguments, environment=environment) as process:
        assert process.stdout
        words = (await process.stdout.readuntil(b"to stop.")).decode()
        url = re.search(r"redis://(:\w+@)?[\d.]+:\d+/0", words)
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


async def test_without_a_password_it_says_that_all_is_open_to_every_user_of_the_machine() -> None:
    async with serving() as (_, url, words), Redis.from_url(url) as client:
        assert "every user of this machine can read and write all data: see --password" in words
        assert await client.ping()


async def test_with_a_password_only_the_url_that_is_printed_opens_the_server() -> None:
    async with serving("--password") as (process, url, words), Redis.from_url(url) as client:
        assert "whoever reaches 127.0.0.1 and has the password" in words
        assert await client.ping()
        password = urlsplit(url).password
        assert password
        assert len(password) == 32
        async with Redis.from_url(url.replace(f":{password}@", "")) as other:
            with pytest.raises(AuthenticationError):
                await other.ping()
        arguments = subprocess.check_output(["ps", "-ww", "-eo", "args"], text=True)  # noqa: ASYNC221 - quick
        assert "--unixsocket" in arguments
        assert password not in arguments
        process.terminate()
        assert await process.wait() == 0


async def test_a_chosen_password_is_taken_from_the_environment_and_not_shown(tmp_path: Path) -> None:
    async with serving("--dir", str(tmp_path), environment={"LEASEQUEUE_SERVE_PASSWORD": "my secret"}) as (
        _,
        url,
        words,
    ):
        assert ":PASSWORD@" in url
        async with Redis.from_url(url.replace("PASSWORD", "my%20secret")) as client:
            assert await client.ping()
        assert "secret" not in words
        code, out, err = await run_process(
            "serve",
            "--dir",
            str(tmp_path),
            LEASEQUEUE_SERVE_PASSWORD="my secret",  # noqa: S106 - of a server of this test
        )
        assert (code, out) == (1, "")
        assert "in use by another server" in err
        assert "secret" not in err


async def test_a_public_address_is_refused_without_a_password() -> None:
    public = ("--host", "0.0.0.0")  # noqa: S104 - with a password
    async with asyncio.timeout(LIMIT_SECONDS):
        code, out, err = await run_process("serve", *public)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "set a password (`leasequeue serve --password`), or listen on 127.0.0.1" in err
    loopback = ("--host", "127.0.0.2", "--password")
    async with serving(*loopback) as (_, url, words), Redis.from_url(url) as client:
        assert "@127.0.0.2:" in url
        assert "it is not encrypted" in words
        assert await client.ping()


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
    assert err == (
        f"port {port} of 127.0.0.1 is taken by another program: give another one with --port, "
        "or leave it out for a free one\n"
    )


def test_without_the_extra_the_error_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TYPER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert 'pip install "leasequeue[cli]"' in done.stderr
