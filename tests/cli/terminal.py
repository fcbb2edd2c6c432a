"""A terminal for programs that draw on one: tmux, which reads what they draw as a user's terminal does."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Terminal:
    """A window of tmux in which one program runs."""

    def __init__(self, server: str) -> None:
        self._server = server

    async def tmux(self, *arguments: str) -> str:
        """Call tmux, and return what it prints."""
        process = await asyncio.create_subprocess_exec(
            *("tmux", "-u", "-L", self._server, "-f", "/dev/null", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def press(self, *keys: str) -> None:
        """Press keys, by the names that tmux has for them."""
        await self.tmux("send-keys", *keys)

    async def send(self, text: str) -> None:
        """Send what a terminal sends without a key."""
        await self.tmux("send-keys", "-H", *(f"{byte:02x}" for byte in text.encode()))

    async def lines(self) -> list[str]:
        """Return the lines of the screen."""
        return [line.rstrip() for line in (await self.tmux("capture-pane", "-p")).splitlines()]

    async def shows(self, *patterns: str) -> list[str]:
        """Wait until the screen shows all of them; return its lines."""
        found: list[str] = []

        async def does() -> bool:
            found[:] = await self.lines()
            is_whole = found == await self.lines()  # lines come one after the other
            return is_whole and all(
                re.search(pattern, "\n".join(found), re.MULTILINE) for pattern in patterns
            )

        try:
            await until(f"the screen shows {patterns}", does)
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from error
        return found


@asynccontextmanager
async def on_terminal(name: str, *arguments: str, url: str, drawn: Path) -> AsyncIterator[Terminal]:
    """Run `leasequeue` in a window with 16 lines of 100 characters, which shows the exit code at the end.

    What the program writes is in the file `drawn`, byte for byte.
    """
    terminal = Terminal(f"leasequeue-{os.getpid()}-{name}")
    program = shlex.join([sys.executable, "-m", "leasequeue.cli", *arguments])
    # It waits until its output is recorded.
    script = f'read -r _; {program}; echo "ended with $?"; stty -a | grep -ow -e -icanon -e -echo; cat'
    # Variables that a shell may export do not keep the size from changing.
    environment = (
        "-e",
        "LINES=50",
        "-e",
        "COLUMNS=70",
        "-e",
        f"LEASEQUEUE_URL={url}",
        "-e",
        "LC_ALL=C.UTF-8",
    )
    size = ("-x", "100", "-y", "16")
    await terminal.tmux("new-session", "-d", *size, *environment, f"bash -c {shlex.quote(script)}")
    try:
        await terminal.tmux("pipe-pane", "-O", f"cat >{shlex.quote(str(drawn))}")
        await terminal.press("Enter")
        yield terminal
    finally:
        await terminal.tmux("kill-server")
