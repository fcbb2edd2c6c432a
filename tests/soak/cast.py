"""The processes of the soak, and what can be done to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leasehold.embedded import EmbeddedServer

if TYPE_CHECKING:
    from asyncio.subprocess import Process

ROOT = Path(__file__).parents[2]


class Child:
    """A process of ours.

    Attributes:
        name: That of its log, too.
        going: Set unless it stands still.
        doomed: Whether we have told it to end, or ended it.
    """

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.going = asyncio.Event()
        self.going.set()
        self.doomed = False
        self._log = log

    @classmethod
    async def start(cls, program: str, name: str, url: str, folder: Path, *arguments: str) -> Child:
        """Start a program of this folder; what it says goes to a file that bears its name."""
        with (folder / f"{name}.log").open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"tests.soak.{program}", url, str(folder), name, *arguments,
                cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=said, stderr=said, process_group=0,
            )  # fmt: skip
        return cls(name, process, folder / f"{name}.jsonl")

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def at_work(self) -> bool:
        """Whether it is there, has begun, goes on and is to go on."""
        ready = self.alive and not self.doomed and self.going.is_set()
        return ready and self._log.exists() and self._log.stat().st_size > 0

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if number == signal.SIGSTOP:
            self.going.clear()
        elif number == signal.SIGCONT:
            self.going.set()
        # Not with `send_signal`, which would take the exit code of one that has just ended from asyncio.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def ended(self, within: float) -> int | None:
        """Wait until it has ended; None if it does not. Then it says where it hangs, and is ended."""
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
        """How many bytes of memory it has; None if nobody can tell."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None


class Server:
    """A server that is restarted now and then, with all that it has acknowledged.

    It writes down each step before it answers (`appendfsync always`); with `everysec`, what an embedded
    server does by itself, a server that is killed may forget its last second, and nothing could be proven.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: EmbeddedServer | None = None

    @property
    def url(self) -> str:
        return self._running.url

    @property
    def _running(self) -> EmbeddedServer:
        if self._server is None:
            raise AssertionError("it was started")
        return self._server

    async def start(self) -> None:
        """Start it, again at the same port."""
        port = self._server.port if self._server else None
        self._server = await EmbeddedServer.start(dir=self._folder, port=port)
        async with Redis.from_url(self._server.url) as admin:
            await admin.config_set("appendfsync", "always")
            # Small enough that the file is written anew now and then.
            await admin.config_set("auto-aof-rewrite-min-size", "4mb")

    async def kill(self) -> None:
        """End it with SIGKILL."""
        os.kill(self._running.pid, signal.SIGKILL)
        while self._running.running:  # noqa: ASYNC110 - it is a process of somebody else
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End it well."""
        await self._running.stop()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._running.pid, number)

    async def cut(self, chance: float, draw: list[float]) -> int:
        """Cut each connection with this chance, by these numbers; returns how many."""
        cut = 0
        async with Redis.from_url(self.url) as admin:
            for client, drawn in zip(await admin.client_list(), draw, strict=False):
                if drawn < chance and client.get("cmd") != "client|list":
                    with contextlib.suppress(RedisError):
                        cut += await admin.client_kill_filter(_id=client["id"])
        return cut

    async def memory(self) -> int:
        """Bytes that it uses."""
        async with Redis.from_url(self.url) as admin:
            return int((await admin.info("memory"))["used_memory"])
