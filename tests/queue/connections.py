"""Reads which connections Leasequeue has, in tests that run their own event loops, too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from leasequeue.queue.queue import engines_of

if TYPE_CHECKING:
    import redis as redis_py

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue.engine import Engine
    from leasequeue.wire.session import Session


def names_of(clients: list[dict[str, str]]) -> list[str]:
    """Return the names of Leasequeue's connections."""
    return sorted(client["name"] for client in clients if client["name"].startswith("leasequeue:"))


def connections(plain: redis_py.Redis) -> list[str]:
    """Return the names of Leasequeue's connections."""
    return names_of(plain.client_list())


def until_gone(plain: redis_py.Redis, left: int = 0) -> None:
    """Wait until the server has closed all connections of Leasequeue but so many."""
    deadline = time.monotonic() + 20
    while len(names := connections(plain)) > left:
        assert time.monotonic() < deadline, names
        time.sleep(0.005)
    assert len(names) == left


def session(queue: AsyncWorkQueue) -> Session:
    """Return the session of a queue in the running event loop."""
    return engine_of(queue).session


def engine_of(queue: AsyncWorkQueue) -> Engine:
    """Return the engine of a queue in the running event loop."""
    engine = engines_of(queue).running
    assert engine is not None
    return engine


async def work_through(queue: AsyncWorkQueue) -> list[str]:
    """Lease and complete items until none is left, and return their ids."""
    ids: list[str] = []
    while leases := await queue.lease_many(3, 30, block=False):
        assert all(await queue.complete_many(leases))
        ids += [lease.id for lease in leases]
    return ids
