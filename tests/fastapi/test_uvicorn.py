"""Real processes of uvicorn, with a worker in each."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[2]


class Uvicorn:
    """A process of uvicorn that listens on a socket in a folder.

    Attributes:
        process: The process.
        output: The file that its output is written to.
    """

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self.output = folder / "output"
        self._socket = folder / "socket"

    async def get(self, path: str, *, method: str = "GET") -> httpx.Response | None:
        """Return the response to a request over a new connection; None if there is none."""
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as client:
            try:
                return await client.request(method, path)
            except httpx.TransportError:
                return None

    async def is_ready(self) -> bool:
        """Return whether it answers that it is ready."""
        assert self.process.returncode is None, self.output.read_text()
        answer = await self.get("/tasks/ready")
        return answer is not None and answer.status_code == 200


@asynccontextmanager
async def uvicorn(
    folder: Path, url: str, name: str, *options: str, cwd: Path = ROOT
) -> AsyncIterator[Uvicorn]:
    """Run uvicorn until the end of the block."""
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", "--uds", str(folder / "socket"), *options),
            cwd=cwd,
            env={**os.environ, "SERVED_URL": url, "SERVED_QUEUE": name},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            served = Uvicorn(process, folder)
            await until("uvicorn is ready", served.is_ready)
            yield served
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


@pytest.mark.long
async def test_several_processes_each_have_a_worker(tmp_path: Path, redis_url: str, name: str) -> None:
    # The supervisor replaces a process that does not answer in time.
    options = ("--workers", "2", "--timeout-worker-healthcheck", "120")
    async with uvicorn(tmp_path, redis_url, name, *options, "tests.fastapi.served:app") as served:
        answered: set[int] = set()
        worked: set[int] = set()

        async def both_have() -> bool:
            for answer in await asyncio.gather(*(served.get("/pid") for _ in range(8))):
                if answer is not None and answer.status_code == 200:
                    _, request, run = answer.json()
                    answered.add(request)
                    worked.add(run)
            return len(answered) == 2 and answered == worked

        await until("both processes have answered and worked", both_have)
        workers = await served.get("/tasks/workers")
        assert workers is not None
        assert {one["pid"] for one in workers.json()} == answered
        served.process.send_signal(signal.SIGTERM)
        await served.process.wait()
        assert served.output.read_text().count("Application shutdown complete") == 2


@pytest.mark.slow
async def test_a_crash_of_the_worker_ends_the_process(tmp_path: Path, redis_url: str, name: str) -> None:
    async with uvicorn(tmp_path, redis_url, name, "tests.fastapi.served:app") as served:
        answer = await served.get("/crash", method="POST")
        assert answer is not None
        assert answer.status_code == 200, "requests in progress are answered"
        assert await served.process.wait() == 1
        output = served.output.read_text()
        assert "the embedded worker has crashed: QueueClosed" in output
        assert "Traceback" in output


@pytest.mark.long
async def test_a_change_of_the_program_reloads_it(tmp_path: Path, redis_url: str, name: str) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    program = folder / "served_here.py"
    shutil.copy(ROOT / "tests/fastapi/served.py", program)
    async with uvicorn(tmp_path, redis_url, name, "--reload", "served_here:app", cwd=folder) as served:
        text = program.read_text().replace("VERSION = 1", "VERSION = 2")

        async def is_reloaded() -> bool:
            answer = await served.get("/pid")
            version = answer.json()[0] if answer is not None and answer.status_code == 200 else None
            if version == 1:  # a change is not seen before uvicorn has looked at the files once
                program.write_text(text)
            return version == 2

        await until("the new program answers", is_reloaded)
        served.process.send_signal(signal.SIGTERM)
        await served.process.wait()
