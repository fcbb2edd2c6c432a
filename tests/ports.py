"""Ports for servers that a test starts a moment later."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# Hypothesis seeds the usual one, so that all processes would try the same ports.
_random = random.SystemRandom()
_given: set[int] = set()


def free_port(count: int = 1) -> int:
    """Return the first of some ports in a row that are free, and that were not returned before.

    They are below those that systems give to other sockets, which could take one before it is used.
    """
    while True:
        first = _random.randrange(20_000, 32_000)
        ports = range(first, first + count)
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        if _given.isdisjoint(ports):
            _given.update(ports)
            return first
