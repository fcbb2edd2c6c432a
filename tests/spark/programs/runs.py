"""Runs of programs with injected faults, one after the other, until one succeeds."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from tests.faults.test_killed_server import start
from tests.queue.asking import until
from tests.spark.programs.faults import is_there

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer


class Runs:
    """Runs of one program, as a module, on one folder and one server.

    Args:
        folder: For the notes of `faults`, and the log of all runs.
        server: What they all talk to.
        program: The module.
        arguments: Its arguments, after the url of the server.
    """

    def __init__(self, folder: Path, server: EmbeddedServer, program: str, *arguments: str) -> None:
        self.folder = folder
        self.server = server
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._command = (sys.executable, "-m", program, server.url, *arguments)

    async def run(self, victim: str, faults: Sequence[str]) -> int:
        """Run it, and wait for its JVM to end as well."""
        process = await self._start(victim, faults)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        jvm = int((self.notes / "pid-jvm").read_text())

        async def has_ended() -> bool:
            return not is_there(jvm)

        await until("the JVM has ended", has_ended)
        return code

    async def run_while_the_server_dies(self, faults: Sequence[str], make_server: MakeServer) -> int:
        """Run it; restart the server with its data whenever it was killed."""
        run = asyncio.create_task(self.run("server", faults))
        try:
            for number in range(1, len(faults) + 1):

                async def was_killed(number: int = number) -> bool:
                    return run.done() or (len(self.done) == number and not self.server.running)

                await until("the server was killed", was_killed, within=900)
                assert not run.done(), self.log
                assert self.server.dir
                self.server = await start(make_server, self.server.dir, self.server.port)
                self._note_server()
            return await run
        finally:
            run.cancel()

    @property
    def done(self) -> list[str]:
        """Return the faults that were injected."""
        return sorted(path.name for path in self.notes.glob("done-*"))

    @property
    def log(self) -> str:
        """Return the log of the runs."""
        return (self.folder / "log").read_text()

    async def _start(self, victim: str, faults: Sequence[str]) -> asyncio.subprocess.Process:
        self._note_server()
        environment = {
            "FAULT_VICTIM": victim,
            "FAULT_AT": ",".join(faults),
            "FAULT_FOLDER": str(self.notes),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        log = (self.folder / "log").open("a")
        with log:
            return await asyncio.create_subprocess_exec(
                *self._command, env=os.environ | environment, stdout=log, stderr=log
            )

    def _note_server(self) -> None:
        draft = self.notes / "pid-server.draft"
        draft.write_text(str(self.server.pid))
        draft.rename(self.notes / "pid-server")  # the program may read it at any time


def names_of(faults: Sequence[str]) -> list[str]:
    """Return the value of `Runs.done` after these faults."""
    return sorted(f"done-{fault.replace(':', '-')}" for fault in faults)
