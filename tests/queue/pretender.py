"""A fake server, for replies that no server of this machine gives on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import hiredis

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The INFO reply of the oldest supported server.
USUAL_INFO = "redis_version:7.2.4\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"


def bulk(text: str) -> bytes:
    """Encode a text as a bulk string."""
    return f"${len(text)}\r\n{text}\r\n".encode()


class Pretender:
    """Answers each command with the reply that is set for its name, and all others with +OK.

    Attributes:
        answers: What is sent for a command, as bytes of the protocol; None closes the connection instead.
        requests: The name of each command that came in, in order.
        connections: How many connections there are.
    """

    def __init__(self, answers: Mapping[bytes, bytes | None]) -> None:
        self.answers: dict[bytes, bytes | None] = {b"INFO": bulk(USUAL_INFO), **answers}
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        if self._listener is None:
            raise AssertionError("not started")
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        self.connections += 1
        try:
            while piece := await reader.read(65536):
                parser.feed(piece)
                while request := parser.gets():
                    command = request[0].upper()
                    self.requests.append(command)
                    answer = self.answers.get(command, b"+OK\r\n")
                    if answer is None:
                        return
                    writer.write(answer)
        except ConnectionError:
            pass  # the other side has gone
        finally:
            self.connections -= 1
            writer.close()
