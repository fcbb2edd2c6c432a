"""Hold a client between two of its commands, where a crash or a race does its damage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import hiredis

from leasequeue.testing import Proxy
from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Gate(Proxy):
    """A proxy that holds a client right before a chosen command.

    Example:
        doing = await gate.stop(worker.lease(30), before="SETEX jobs:leased_by_session:a")
        await worker.kill(doing)        # it dies between taking the id and writing its lease key
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._before: list[bytes] | None = None
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    async def stop(self, doing: Coroutine[object, object, _T], *, before: str) -> asyncio.Task[_T]:
        """Start a call, and return when it is about to send a command that begins with these words.

        Raises:
            AssertionError: If the call ends before, or does not reach the command in time.
        """
        self._before = before.encode().split(b" ")
        self._reached.clear()
        self._open.clear()
        task = asyncio.ensure_future(doing)
        reached = asyncio.ensure_future(self._reached.wait())
        await asyncio.wait({task, reached}, timeout=LIMIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        assert self._reached.is_set(), f"the client never sent {before!r}"
        return task

    def let_go(self) -> None:
        """Forward the held command, and all that follow."""
        self._open.set()

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while True:
            parser.feed(await self._next_chunk(reader))
            while request := parser.gets():
                self.commands.append(request[0].upper())
                await self._hold(request)
                writer.write(hiredis.pack_command(tuple(request)))
                await writer.drain()

    async def _hold(self, request: list[bytes]) -> None:
        words = [request[0].upper(), *request[1:]]
        if self._before is not None and words[: len(self._before)] == self._before:
            self._before = None
            self._reached.set()
            await self._open.wait()
