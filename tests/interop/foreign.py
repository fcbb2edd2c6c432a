"""Run clients of other libraries of the redis-work-queue family, each in a separate process."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from tests.eventually import LIMIT_SECONDS

Library = Literal["python", "node"]

_HERE = Path(__file__).parent
_NODE_CLIENT = _HERE / "node_modules" / "@mevitae" / "redis-work-queue" / "dist" / "WorkQueue.js"
#: The longest reply of a client: a mebibyte of data is 1.4 MiB in base64.
_LONGEST_LINE = 4 << 20


class ForeignMissing(Exception):
    """A foreign client is not installed; the message names the command that installs it."""


class ForeignFailed(Exception):
    """A foreign client replied with an error, or ended before it replied."""


class ForeignItem(NamedTuple):
    """The result of a foreign lease. A ghost (an id without an item) has empty data."""

    id: str
    data: bytes


def program(library: Library) -> list[str]:
    """Return the command that starts a client, without its arguments.

    Raises:
        ForeignMissing: If the client or its runtime is not installed.
    """
    if library == "python":
        return [sys.executable, str(_HERE / "python_client.py")]
    node = shutil.which("node")
    if node is None or not _NODE_CLIENT.is_file():
        raise ForeignMissing(
            "the Node client of redis-work-queue is missing; try: "
            "tests/setup-machine.sh node && npm ci --prefix tests/interop"
        )
    return [node, str(_HERE / "node_client.js")]


class Foreign:
    """A client of another library, for one request at a time.

    Example:
        async with await Foreign.start("node", redis_url, "emails") as node:
            await node.add("a", b"data")
    """

    def __init__(self, library: Library, process: asyncio.subprocess.Process) -> None:
        self.library = library
        self._process = process

    @classmethod
    async def start(cls, library: Library, url: str, name: str) -> Self:
        """Start a client for the queue of that name.

        Raises:
            ForeignMissing: If it is not installed.
        """
        process = await asyncio.create_subprocess_exec(
            *program(library),
            url,
            name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=_LONGEST_LINE,
        )
        return cls(library, process)

    async def add(self, item_id: str, data: bytes) -> None:
        """Add an item. This version of the family does not check whether the id is taken."""
        await self._ask("add", item_id, base64.b64encode(data).decode())

    async def lease(self, seconds: int, *, timeout: float = 0) -> ForeignItem | None:
        """Lease the next item; with a `timeout` of 0, do not wait."""
        answer = await self._ask("lease", seconds, timeout)
        return answer and ForeignItem(answer[0], base64.b64decode(answer[1]))

    async def complete(self, item_id: str) -> bool:
        """Complete an item; True if its id was in the processing list."""
        return bool(await self._ask("complete", item_id))

    async def result(self, item_id: str) -> bytes | None:
        """Return the result of a task; None if there is none."""
        answer = await self._ask("result", item_id)
        return answer and base64.b64decode(answer)

    async def failure(self, item_id: str) -> bytes | None:
        """Return the error of a task that has failed for the last time; None if it has not."""
        answer = await self._ask("failure", item_id)
        return answer and base64.b64decode(answer)

    async def light_clean(self) -> None:
        """Requeue the items that are in the processing list without a lease key."""
        await self._ask("light_clean")

    async def queue_len(self) -> int:
        """Return the number of waiting items."""
        return int(await self._ask("queue_len"))

    async def processing(self) -> int:
        """Return the number of leased items."""
        return int(await self._ask("processing"))

    async def kill(self, doing: asyncio.Task[Any] | None = None) -> None:
        """Kill the process, even in the middle of a request."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if doing is not None:
            await asyncio.gather(doing, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the process between two requests."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _ask(self, verb: str, *arguments: Any) -> Any:
        request = json.dumps([verb, *arguments]).encode() + b"\n"
        ends = self._process.stdin, self._process.stdout
        assert ends[0] is not None
        assert ends[1] is not None
        try:
            ends[0].write(request)
            await ends[0].drain()
            line = await ends[1].readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            raise ForeignFailed(f"the {self.library} client ended during {request!r}")
        reply = json.loads(line)
        if "error" in reply:
            raise ForeignFailed(f"{self.library}: {request!r}: {reply['error']}")
        return reply["answer"]
