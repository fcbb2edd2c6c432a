"""A proxy in front of the server that injects network faults."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

import hiredis

from leasequeue.errors import InvalidArgument

_CHUNK_SIZE = 65536


class Proxy:
    """A proxy that forwards connections to a server, and injects faults. Each fault may be set at any time.

        async with Proxy("redis://localhost") as proxy:
            queue = AsyncWorkQueue.from_url(proxy.url, "emails")
            proxy.drop_replies = True  # steps are applied, and their replies lost

    It belongs to the event loop that it was started in.

    Args:
        target: The URL of the server: `redis://` or `unix://`.

    Attributes:
        delay: Seconds by which to delay data, in both directions.
        drop_replies: Whether to forward requests and drop their replies.
        commands: The names of the forwarded commands, in order: `[b"HELLO", b"EVALSHA"]`.

    Raises:
        InvalidArgument: If the URL has another scheme.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        if self._target.scheme not in ("redis", "unix"):
            raise InvalidArgument("target", target, "a redis:// or unix:// URL")
        self._port = 0
        # No `asyncio.Server`: one that is closed forgets the connections that it is just accepting.
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._readers: set[asyncio.StreamReader] = set()
        self._stalled: set[asyncio.StreamReader] = set()
        self._healed = asyncio.Event()
        self._reply_bytes_left: int | None = None
        self.delay = 0.0
        self.drop_replies = False
        self.commands: list[bytes] = []

    @property
    def url(self) -> str:
        """The URL for clients to connect to instead of the server's."""
        login, at, _ = self._target.netloc.rpartition("@")
        path = "" if self._target.scheme == "unix" else self._target.path
        proxied = self._target._replace(
            scheme="redis", netloc=f"{login}{at}127.0.0.1:{self._port}", path=path
        )
        return proxied.geturl()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        await self.cut()

    async def accept(self) -> None:
        """Accept connections; after `refuse`, again on the same port."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port), backlog=100)
            self._listener.setblocking(False)
            self._port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listener, self._connected, self._listener)

    def refuse(self) -> None:
        """Refuse new connections. Existing ones continue until `cut`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    def stall(self) -> None:
        """Stop forwarding on all connections, without closing them, until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, starting with the data that was held back."""
        self._flowing.set()

    def stall_connections(self) -> None:
        """Stop forwarding on the existing connections, without closing them, until `heal`. New ones work.

        A load balancer that has dropped a connection from its table behaves like this.
        """
        self._stalled |= self._readers
        self._healed.clear()

    async def cut(self) -> None:
        """Close all connections on both sides."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the event loop

    def cut_after_bytes(self, replies: int) -> None:
        """Forward this number of further bytes of replies, then close that connection, once."""
        self._reply_bytes_left = replies

    async def fail(self) -> None:
        """Behave like a server that is down: close all connections and refuse new ones, until `heal`."""
        self.refuse()
        await self.cut()

    async def heal(self) -> None:
        """Remove all faults."""
        self.delay = 0.0
        self.drop_replies = False
        self._reply_bytes_left = None
        self.resume()
        self._stalled.clear()
        self._healed.set()
        await self.accept()

    def _connected(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client has gone
        accepted.setblocking(False)

        def ended(connection: asyncio.Task[None]) -> None:
            # Not in the task: one that is cancelled before its first step runs nothing.
            accepted.close()
            self._connections.discard(connection)

        connection = asyncio.create_task(self._serve(accepted))
        self._connections.add(connection)
        connection.add_done_callback(ended)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            from_client, to_client = await asyncio.open_connection(sock=accepted)
            try:
                await self._forward(from_client, to_client)
            finally:
                to_client.transport.abort()
        except* (OSError, EOFError):
            pass  # one side has closed, so close the other

    async def _forward(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await self._connect()
        try:
            self._readers |= {from_client, from_server}
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward_requests(from_client, to_server))
                tasks.create_task(self._forward_replies(from_server, to_client))
        finally:
            self._readers -= {from_client, from_server}
            self._stalled -= {from_client, from_server}
            to_server.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port or 6379)

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        while True:
            chunk = await self._next_chunk(reader)
            commands.feed(chunk)
            with suppress(hiredis.ProtocolError):  # what is no array of strings is forwarded, too
                while (command := commands.gets()) is not False:
                    self.commands.append(command[0].upper())
            writer.write(chunk)
            await writer.drain()

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._reply_bytes_left != 0:
            chunk = await self._next_chunk(reader)
            if self.drop_replies:
                continue
            if self._reply_bytes_left is not None:
                chunk = chunk[: self._reply_bytes_left]
                self._reply_bytes_left -= len(chunk)
            writer.write(chunk)
            await writer.drain()
        self._reply_bytes_left = None
        raise EOFError

    async def _next_chunk(self, reader: asyncio.StreamReader) -> bytes:
        chunk = await reader.read(_CHUNK_SIZE)
        await asyncio.sleep(self.delay)
        await self._flowing.wait()
        if reader in self._stalled:
            await self._healed.wait()
        if not chunk:
            raise EOFError
        return chunk
