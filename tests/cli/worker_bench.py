"""`leasequeue worker` in a separate process, for tests."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Iterator

PROGRAM = Path(__file__).with_name("worker_program.py")
TARGET = f"{PROGRAM}:worker"
#: Far longer than any step takes, also on a slow machine.
TIMEOUT = 120.0
#: For tests that reach the time limits of a stop: shorter limits, and the real ones among the long tests.
LIMITS = pytest.mark.parametrize("limits", ["short", pytest.param("real", marks=pytest.mark.long)])


class Running:
    """A process that runs `leasequeue worker`, and its log."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @property
    def log(self) -> str:
        """The log so far."""
        return "".join(self.lines)

    async def logged(self, pattern: str, *, times: int = 1) -> list[str]:
        """Wait until the log has this many lines that match; return what the last group matches."""
        await eventually(
            f"it logs {pattern!r} {times} times", lambda: len(self._found(pattern)) >= times, within=TIMEOUT
        )
        return self._found(pattern)

    def _found(self, pattern: str) -> list[str]:
        found = [re.search(pattern, line) for line in self.lines]
        return [match[match.lastindex or 0] for match in found if match]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def code(self) -> int:
        """Wait for the end of the process and of its log; return the exit code."""
        async with asyncio.timeout(TIMEOUT):
            code = await self.process.wait()
            await self._reading
        return code

    async def stop(self) -> int:
        """Send SIGTERM and wait for the exit code."""
        self.signal()
        return await self.code()

    async def end(self) -> None:
        """Kill the process if it still runs."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        # Its child processes may run for a moment longer, and keep the pipe open.
        await asyncio.wait([self._reading], timeout=TIMEOUT)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.process._transport.close()  # type: ignore[attr-defined]  # else asyncio warns of an open pipe

    async def _read(self) -> None:
        assert self.process.stderr, "it is a pipe"
        async for line in self.process.stderr:
            self.lines.append(line.decode())


class Bench:
    """A folder, a queue's name and a server, for the worker processes of one test."""

    def __init__(self, folder: Path, url: str, queue: str) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.environment = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "QUEUE": queue,
            "RECORD": str(self.record),
            "REDIS_URL": url,
        }

    @asynccontextmanager
    async def worker(self, *options: str, target: str = TARGET, **environment: str) -> AsyncIterator[Running]:
        """Run a worker process; kill it at the end of the block if it still runs."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "leasequeue.cli", "worker", target, *options),
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "200", **self.environment, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        running = Running(process)
        try:
            yield running
        finally:
            await running.end()

    @asynccontextmanager
    async def working(self, *options: str, **environment: str) -> AsyncIterator[Running]:
        """Run a worker process, and wait until it leases items."""
        async with self.worker(*options, **environment) as running:
            await running.logged("working on")
            yield running

    def release(self) -> None:
        """Let the runs continue that hold."""
        (self.folder / "release").touch()

    def recorded(self, event: str) -> list[tuple[str, int]]:
        """Return the item ids of the runs with this event in the record, and their processes."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        words = [line.split() for line in lines]
        return [(id_, int(pid)) for verb, id_, pid, *_ in words if verb == event]

    async def began(self, count: int = 1) -> list[tuple[str, int]]:
        """Wait until this many runs have started."""
        return await self._recorded(count, "began")

    async def ended(self, count: int = 1) -> list[tuple[str, int]]:
        """Wait until this many runs have ended."""
        return await self._recorded(count, "ended")

    async def _recorded(self, count: int, event: str) -> list[tuple[str, int]]:
        await eventually(
            f"{count} runs have {event}", lambda: len(self.recorded(event)) >= count, within=TIMEOUT
        )
        return self.recorded(event)


@pytest.fixture
def bench(tmp_path: Path, redis_url: str, name: str) -> Bench:
    """Give a place where `leasequeue worker` runs."""
    return Bench(tmp_path, redis_url, name)


@pytest.fixture
def user_code(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder whose modules this process can import. It forgets them at the end of the test."""
    monkeypatch.chdir(bench.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("QUEUE", "RECORD", "REDIS_URL"):
        monkeypatch.setenv(name, bench.environment[name])
    yield bench.folder
    folders = (bench.folder, PROGRAM.parent)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and Path(file).parent in folders and "tests" not in name:
            del sys.modules[name]
