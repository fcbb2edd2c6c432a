"""`leasequeue dashboard` in a separate process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys

import httpx
import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.cli.dashboard import PASSWORD_VARIABLE
from tests.eventually import LIMIT_SECONDS

COMMAND = (sys.executable, "-m", "leasequeue.cli", "dashboard")


@pytest.mark.slow
@pytest.mark.parametrize("password", ["", "sesame"])
async def test_it_shows_the_queues_of_a_server_until_sigterm_also_with_open_pages(
    redis_url: str, password: str
) -> None:
    async with AsyncWorkQueue.from_url(redis_url, "shown") as queue:
        await queue.add_item(Item(b"data"))
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, redis_url, "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, PASSWORD_VARIABLE: password},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            line = (await process.stdout.readline()).decode()
        found = re.match(r"(http://127\.0\.0\.1:\d+/) shows the queues", line)
        assert found, line
        async with httpx.AsyncClient(base_url=found[1], timeout=LIMIT_SECONDS) as client:
            if password:
                assert (await client.get("/")).status_code == 401
                assert (await client.get("/", auth=("ann", "wrong"))).status_code == 401
                client.auth = httpx.BasicAuth("ann", password)
            else:  # the browser of this machine, on the page of a site whose name leads here now
                rebound = await client.get("/", headers={"host": "rebound.example.org"})
                assert rebound.status_code == 400
            pages = await asyncio.gather(*(client.get("/") for _ in range(3)))
            assert all(">shown</a>" in page.text for page in pages)
            refused = await client.post("/queues/shown/pause")
            assert refused.status_code == 403
            process.send_signal(signal.SIGTERM)  # the connections of the pages are open
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await process.wait() in {0, -signal.SIGTERM}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])  # noqa: S104 - it is refused
async def test_an_address_that_others_may_reach_is_refused_without_a_password(host: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--host", host),
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE},
    )
    _, problem = await process.communicate()
    assert process.returncode == 2
    assert PASSWORD_VARIABLE in problem.decode()
