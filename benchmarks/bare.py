"""The least that a queue on this server needs: an asyncio protocol with hiredis, and small scripts.

It loses items when a process dies, retries nothing and handles no error: it shows what the event loop, the
kernel and the server take for the same trips.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable

ADD = """
redis.call('SET', KEYS[2] .. ARGV[1], ARGV[2])
redis.call('LPUSH', KEYS[1], ARGV[1])
return 1
"""
LEASE = """
local id = redis.call('RPOP', KEYS[1])
local token = redis.call('INCR', KEYS[2])
redis.call('ZADD', KEYS[3], ARGV[1], id)
return {id, redis.call('GET', KEYS[4] .. id), token}
"""
COMPLETE = """
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('DEL', KEYS[2] .. ARGV[1])
"""
QUEUE, INBOX, ITEM = "bare:queue", "bare:inbox", "bare:item:"
FENCE, DEADLINES = "bare:fence", "bare:deadlines"


class Connection(asyncio.Protocol):
    """Sends commands as they are called, and returns their replies in order."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect, and load the scripts."""
        at = urlsplit(url)
        assert at.hostname is not None
        assert at.port is not None
        _, its = await asyncio.get_running_loop().create_connection(cls, at.hostname, at.port)
        await its.call("SELECT", at.path.strip("/") or "0")
        for script in (ADD, LEASE, COMPLETE):
            await its.call("SCRIPT", "LOAD", script)
        return its

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand out the replies."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            future = self._replies.popleft()
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def call(self, *words: str | bytes | int) -> asyncio.Future[Any]:
        """Send a command; the future has its reply."""
        future = self._loop.create_future()
        self._replies.append(future)
        command: Any = words  # typed for a tuple of one
        self._transport.write(hiredis.pack_command(command))
        return future

    def script(self, text: str, keys: tuple[str, ...], *arguments: str | bytes | int) -> asyncio.Future[Any]:
        """Call a script by its hash."""
        return self.call("EVALSHA", SHA[text], len(keys), *keys, *arguments)

    def add(self, item_id: str, data: str | bytes) -> asyncio.Future[Any]:
        """Add an item: two writes."""
        return self.script(ADD, (QUEUE, ITEM), item_id, data)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


SHA = {text: hashlib.sha1(text.encode()).hexdigest() for text in (ADD, LEASE, COMPLETE)}  # noqa: S324 - the server's own


async def work(waiting: Connection, commands: Connection, handle: Callable[[bytes], None]) -> None:
    """Wait for items, lease and handle each, and complete it; two trips lie before the handler."""
    while True:
        await waiting.call("BLMOVE", QUEUE, INBOX, "RIGHT", "LEFT", 0)
        deadline = int(time.time() * 1000) + 30_000
        item_id, data, _ = await commands.script(LEASE, (INBOX, FENCE, DEADLINES, ITEM), deadline)
        handle(data)
        await commands.script(COMPLETE, (DEADLINES, ITEM), item_id)
