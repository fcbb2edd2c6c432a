"""Free the sockets of connections whose event loop cannot: it is closed, or belongs to another process."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def release(transport: asyncio.WriteTransport) -> None:
    """Close the socket of a transport whose event loop is closed, without a ResourceWarning.

    Every method of the transport raises there. uvloop has closed its sockets with the event loop.
    """
    plain: Any = transport
    if hasattr(plain, "_ssl_protocol"):
        encrypted = plain._ssl_protocol  # noqa: SLF001 - there is no public way
        plain._closed = True  # noqa: SLF001 - as above
        plain = None if encrypted is None else encrypted._transport  # noqa: SLF001 - as above
    if getattr(plain, "_sock", None) is not None:
        plain._closing, plain._protocol_connected = True, False  # noqa: SLF001 - as above
        plain._call_connection_lost(None)  # noqa: SLF001 - as above


def detach(transport: asyncio.WriteTransport) -> None:
    """Detach an inherited transport from the socket of the parent process, and send nothing.

    The socket would stay open on the server until both processes have ended, and an event loop that the child
    continues would read what the server sends to the parent. So the child's descriptor leads nowhere.
    """
    socket = transport.get_extra_info("socket")
    if socket is not None and (descriptor := socket.fileno()) >= 0:
        os.dup2(_nowhere(), descriptor, inheritable=False)


@cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
