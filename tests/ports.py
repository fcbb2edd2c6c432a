"""Ports for servers that a test starts a moment later."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack


def free_port(count: int = 1) -> int:
    """Return the first of some ports in a row that are free.

    They are below those that systems give to other sockets, which could take one before it is used.
    """
    while True:
        first = random.randrange(20_000, 32_000)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
