"""Stops a client between two of its commands: the moments that a crash or a race would have to hit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import hiredis

from leasehold.testing import Proxy

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Gate(Proxy):
    """A way to the server that holds up a client right before it sends a certain command.

    Example:
        doing = await gate.stop(worker.lease(30), before="SETEX jobs:leased_by_session:a")
        await worker.kill(doing)        # it has taken the id and died before it wrote its lease key
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._before: list[bytes] | None = None
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    async def stop(
        self, doing: Coroutine[object, object, _T], *, before: str, within: float = 10
    ) -> asyncio.Task[_T]:
        """Begin something, and return when it stands before a command that begins with these words.

        Raises:
            AssertionError: If it ends without having come there, or does not come there `within` seconds.
        """
        self._before = before.encode().split(b" ")
        self._reached.clear()
        self._open.clear()
        task = asyncio.ensure_future(doing)
        reached = asyncio.ensure_future(self._reached.wait())
        await asyncio.wait({task, reached}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        assert self._reached.is_set(), f"never came to {before!r}"
        return task

    def let_go(self) -> None:
        """Forward the command that is held, and everything from now on."""
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
