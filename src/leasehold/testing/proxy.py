"""A way to the server that misbehaves when told to."""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import urlsplit

from leasehold.errors import InvalidArgument
from leasehold.testing.resp import CommandReader

_PIECE = 65536


class Proxy:
    """Forwards connections to a server, and spoils them on demand. Everything may be changed at any time.

        async with Proxy("redis://localhost") as proxy:
            queue = AsyncWorkQueue.from_url(proxy.url, "emails")
            proxy.drop_replies = True

    It lives in the event loop that it was started in.

    Args:
        target: Where the server is: a `redis://` or `unix://` URL.

    Attributes:
        delay: Seconds by which each piece is held up, in both directions.
        drop_replies: Forward requests, drop what is answered: "applied, but nobody heard".
        commands: The name of each command that was forwarded, in order: `[b"HELLO", b"EVALSHA"]`.

    Raises:
        InvalidArgument: If the URL is another one.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        if self._target.scheme not in ("redis", "unix"):
            raise InvalidArgument("target", target, "a redis:// or unix:// URL")
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._readers: set[asyncio.StreamReader] = set()
        self._silent: set[asyncio.StreamReader] = set()
        self._healed = asyncio.Event()
        self._reply_bytes_left: int | None = None
        self.delay = 0.0
        self.drop_replies = False
        self.commands: list[bytes] = []

    @property
    def url(self) -> str:
        """What a client connects to instead of the server."""
        login, at, _ = self._target.netloc.rpartition("@")
        path = "" if self._target.scheme == "unix" else self._target.path
        ours = self._target._replace(scheme="redis", netloc=f"{login}{at}127.0.0.1:{self._port}", path=path)
        return ours.geturl()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        await self.cut()

    async def accept(self) -> None:
        """Take connections, again and on the same port after `refuse`."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
            self._port = self._listener.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Take no more connections; those that are there go on until `cut`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def stall(self) -> None:
        """Forward nothing and close nothing, as a silent network does, until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, beginning with what was held back."""
        self._flowing.set()

    def stall_connections(self) -> None:
        """Forward nothing on the connections that are there and close none, until `heal`; new ones work.

        So do balancers that have forgotten a connection.
        """
        self._silent |= self._readers
        self._healed.clear()

    async def cut(self) -> None:
        """Close all connections, on both sides, now."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def cut_after_bytes(self, replies: int) -> None:
        """Let so many more bytes of replies through, then cut that connection, once."""
        self._reply_bytes_left = replies

    async def fail(self) -> None:
        """Be a server that is down: cut all connections and refuse new ones, until `heal`."""
        self.refuse()
        await self.cut()

    async def heal(self) -> None:
        """Be an honest way to the server again, whatever was asked for before."""
        self.delay = 0.0
        self.drop_replies = False
        self._reply_bytes_left = None
        self.resume()
        self._silent.clear()
        self._healed.set()
        await self.accept()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await self._connect()
            try:
                self._readers |= {from_client, from_server}
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._forward_requests(from_client, to_server))
                    both.create_task(self._forward_replies(from_server, to_client))
            finally:
                self._readers -= {from_client, from_server}
                self._silent -= {from_client, from_server}
                to_server.transport.abort()
        except* (OSError, EOFError):
            pass  # one side has closed: close the other
        finally:
            to_client.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port or 6379)

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = CommandReader()
        while True:
            piece = await self._next_piece(reader)
            self.commands += names.feed(piece)
            writer.write(piece)
            await writer.drain()

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._reply_bytes_left != 0:
            piece = await self._next_piece(reader)
            if self.drop_replies:
                continue
            if self._reply_bytes_left is not None:
                piece = piece[: self._reply_bytes_left]
                self._reply_bytes_left -= len(piece)
            writer.write(piece)
            await writer.drain()
        self._reply_bytes_left = None
        raise EOFError

    async def _next_piece(self, reader: asyncio.StreamReader) -> bytes:
        piece = await reader.read(_PIECE)
        await asyncio.sleep(self.delay)
        await self._flowing.wait()
        if reader in self._silent:
            await self._healed.wait()
        if not piece:
            raise EOFError
        return piece
