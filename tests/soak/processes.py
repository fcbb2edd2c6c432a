"""The processes of the soak, and signals and cuts for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leasequeue.embedded import EmbeddedServer
from tests import servers

if TYPE_CHECKING:
    from asyncio.subprocess import Process

ROOT = Path(__file__).parents[2]


class Child:
    """A worker or producer process.

    Attributes:
        name: The name of the process and of its log.
        running: Clear while it is stopped by SIGSTOP.
        ending: Whether the soak has ended it, or has sent it SIGTERM.
    """

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.running = asyncio.Event()
        self.running.set()
        self.ending = False
        self._log = log

    @classmethod
    async def start(cls, program: str, name: str, url: str, folder: Path, *arguments: str) -> Child:
        """Start a program of this folder; its output goes to `<name>.log`."""
        with (folder / f"{name}.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"tests.soak.{program}", url, str(folder), name, *arguments,
                cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, process_group=0,
            )  # fmt: skip
        return cls(name, process, folder / f"{name}.jsonl")

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def working(self) -> bool:
        """Whether it runs, has written to its log, and is neither stopped nor ending."""
        ready = self.alive and not self.ending and self.running.is_set()
        return ready and self._log.exists() and self._log.stat().st_size > 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is alive."""
        if number == signal.SIGSTOP:
            self.running.clear()
        elif number == signal.SIGCONT:
            self.running.set()
        # `send_signal` would take the exit code of a process that has just ended away from asyncio.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def wait(self, within: float) -> int | None:
        """Return the exit code; after `within` seconds, log its stacks, kill it and return None."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await self.process.wait()
        self.send(signal.SIGABRT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self.process.wait()
        self.send(signal.SIGKILL)
        await self.process.wait()
        return None

    def resident(self) -> int | None:
        """Return its resident memory in bytes, or None where the system has no /proc."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None


class Server:
    """A server that keeps all acknowledged data over restarts, and whose clock can be set.

    It syncs each step to disk before it replies (`appendfsync always`). With `everysec`, the default of an
    embedded server, a killed server may lose its last second, and lost items would prove nothing.

    Args:
        folder: For its data, and for the offset of its clock.
        name: Which server program: see tests/servers.py.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._offset = folder / "offset"
        self.set_clock(0)
        self._program = _with_clock(servers.program(name), folder, self._offset)
        self._server: EmbeddedServer | None = None

    @property
    def url(self) -> str:
        return self._running.url

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _running(self) -> EmbeddedServer:
        if self._server is None:
            raise AssertionError("the server was not started")
        return self._server

    async def start(self) -> None:
        """Start the server, after the first time at the same port."""
        port = self._server.port if self._server else 0
        self._server = await EmbeddedServer.start(
            dir=self._data, port=port, binary=self._program, password=""
        )
        async with Redis.from_url(self._server.url) as admin:
            await admin.config_set("appendfsync", "always")
            # Small, so that the server rewrites the file during a soak.
            await admin.config_set("auto-aof-rewrite-min-size", "4mb")

    async def kill(self) -> None:
        """Kill the server with SIGKILL."""
        os.kill(self._running.pid, signal.SIGKILL)
        await self._running.stop()

    async def stop(self) -> None:
        """Stop the server with SIGTERM."""
        await self._running.stop()

    def forget(self) -> None:
        """Remove the data of a server that does not run."""
        shutil.rmtree(self._data)

    def set_clock(self, seconds: int) -> None:
        """Let the clock of the server differ from that of the machine from now on."""
        # In place: the server has mapped the file. Four bytes are written at once.
        with self._offset.open("r+b" if self._offset.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=i", seconds))

    def send(self, number: signal.Signals) -> None:
        os.kill(self._running.pid, number)

    async def cut(self, chance: float, draw: list[float]) -> int:
        """Cut each connection whose number in `draw` is below `chance`; return how many."""
        async with Redis.from_url(self.url) as admin:
            return await cut_off(admin, chance, draw)

    async def memory(self) -> int:
        """Return the memory that the server uses, in bytes."""
        async with Redis.from_url(self.url) as admin:
            return int((await admin.info("memory"))["used_memory"])


async def cut_off(admin: Redis, chance: float, draw: list[float]) -> int:
    """Cut each connection of clients whose number in `draw` is below `chance`; return how many."""
    cut = 0
    for client, drawn in zip(await admin.client_list(), draw, strict=False):
        if drawn < chance and client.get("cmd") != "client|list":
            with contextlib.suppress(RedisError):
                cut += await admin.client_kill_filter(_id=client["id"])
    return cut


def _with_clock(program: Path, folder: Path, offset: Path) -> Path:
    """Return a program that starts a server whose clock differs from the machine's by `offset`."""
    library, script = folder / "clock.so", folder / "server"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    script.write_text(
        f"#!/bin/sh\nexport CLOCK_OFFSET='{offset.resolve()}' LD_PRELOAD='{library.resolve()}'\n"
        f"exec '{program}' \"$@\"\n"
    )
    script.chmod(0o755)
    return script
