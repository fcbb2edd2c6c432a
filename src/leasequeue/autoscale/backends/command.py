"""The back end of commands: any program is given the number of units."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import DEVNULL
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from leasequeue.autoscale.backends.registered import RegisteredUnits
from leasequeue.errors import BackendError
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leasequeue.autoscale.config import CommandSettings, Config

#: How much of a program's output is kept (bytes), and how much of it an error quotes (characters).
MAX_OUTPUT, QUOTED = 1 << 16, 500
#: How long to read on after a program has ended (s).
READ_SECONDS = 1.0
#: After so many seconds the same number is asked for again, in case another client has changed it.
REPEAT_SECONDS = 300.0
#: A request after a gap of so many passes is the first one of a new leader.
GAP_PASSES = 3

log = Log("leasequeue.autoscale")


class CommandBackend(RegisteredUnits):
    """Asks for units by running a program, in a process group of its own.

    A program that takes longer than its time limit, or whose call is cancelled, is killed with all that it
    has started in its group.
    """

    def __init__(self, config: Config, deployment: str, tier: str, settings: CommandSettings) -> None:
        super().__init__(config, deployment, tier, settings)
        self._deployment, self._tier = deployment, tier
        self._settings = settings
        self._gap = GAP_PASSES * config.every
        #: When a request was made last, and when the program was run for one, by `time.monotonic()`.
        self._requested_at = self._ran_at = 0.0

    async def ready(self) -> int:
        """Return what the program `ready` prints; without that setting, see `RegisteredUnits`."""
        if self._settings.ready is None:
            return await super().ready()
        printed = await self._run(self._settings.ready, {})
        text = printed.strip()
        if not text.isascii() or not text.isdigit():
            raise self._error(f"`{self._settings.ready[0]}` printed {printed[:QUOTED]!r}, not a number")
        return int(text)

    async def request(self, units: int) -> None:
        """Run the program, unless it has been run for this number in the last five minutes."""
        now = time.monotonic()
        same = units == self._requested and now - self._requested_at < self._gap
        self._requested_at = now
        if same and now - self._ran_at < REPEAT_SECONDS:
            return
        self._requested = None
        await self._run(self._settings.request, {"units": str(units)})
        self._requested, self._ran_at = units, now

    async def _run(self, command: Sequence[str], values: dict[str, str]) -> str:
        """Run a program to its end; return what it printed."""
        values = {**values, "deployment": self._deployment, "tier": self._tier}
        arguments = [_filled(one, values) for one in command]
        async with _output() as (printed_to, printed), _output() as (errors_to, errors):
            try:
                process = await asyncio.create_subprocess_exec(
                    *arguments,
                    stdin=DEVNULL,
                    stdout=printed_to,
                    stderr=errors_to,
                    cwd=self._settings.directory,
                    env={**os.environ, **self._settings.env},
                    process_group=0,
                )
            except (OSError, ValueError) as error:
                raise self._error(f"`{arguments[0]}` cannot be started: {error}") from error
            try:
                async with asyncio.timeout(self._settings.timeout):
                    code = await process.wait()
            except TimeoutError:
                raise self._error(f"`{arguments[0]}` took longer than {self._settings.timeout:g} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return self._checked(arguments[0], code, _text(printed), _text(errors))

    def _checked(self, program: str, code: int, printed: str, errors: str) -> str:
        if code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            said = errors.strip() or printed.strip()
            raise self._error(f"`{program}` ended with {how}{said and f': {said[-QUOTED:]}'}")
        if errors.strip():
            log.info("%s: `%s` wrote: %s", self._target, program, errors.strip()[-QUOTED:])
        return printed

    def _error(self, problem: str) -> BackendError:
        return BackendError("command", self._target, problem)


def _filled(argument: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def _text(output: bytearray) -> str:
    return output.decode(errors="replace")


@asynccontextmanager
async def _output() -> AsyncIterator[tuple[int, bytearray]]:
    """Give a pipe for a program's output, and what arrives there: the last part of it.

    A pipe of asyncio's own would delay the end of a program until that of all that it has started. After the
    block, what is left in the pipe is read, but not longer than `READ_SECONDS`.
    """
    kept = bytearray()
    ours, theirs = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(ours, "rb", buffering=0)
    )

    async def read() -> None:
        while part := await stream.read(MAX_OUTPUT):
            kept.extend(part)
            del kept[:-MAX_OUTPUT]

    reading = asyncio.create_task(read())
    try:
        yield theirs, kept
    finally:
        os.close(theirs)
        await asyncio.wait([reading], timeout=READ_SECONDS)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        transport.close()
