"""Ports for servers that a test starts a moment later."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

# Hypothesis seeds the usual one.
_random = random.SystemRandom()
_given: set[int] = set()
#: The ports of this process, as another one of the tests would take those that are not bound for a while.
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_SIZE = 12_000 // _PROCESSES
_FIRST = 20_000 + _SIZE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES)


def free_port(count: int = 1) -> int:
    """Return the first of some ports in a row that are free, and that were not returned before.

    They are below those that systems give to other sockets, which could take one before it is used.
    """
    while True:
        first = _random.randrange(_FIRST, _FIRST + _SIZE - count)
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
