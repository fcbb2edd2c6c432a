"""The fixtures of this folder: a database, an outbox in a new table of it, and the tasks that go into it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from leasequeue import TaskQueue
from leasequeue.outbox import Outbox
from tests.queue.fixtures import tidy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue import Call
    from tests.postgres import Postgres

__all__ = ["tidy"]

_numbers = itertools.count(1)


@pytest.fixture
def database(server_of_rows: Postgres) -> str:
    """Return where the database is."""
    return server_of_rows.location


class Mails:
    """A task queue with one task, and its outbox.

    Attributes:
        database: Where that is.

    `table` is one that exists; empty: a new one.
    """

    def __init__(self, tasks: TaskQueue, database: str, table: str = "") -> None:
        self.tasks = tasks
        self.database = database
        self.outbox = Outbox(tasks, table=table or f"outbox_{next(_numbers)}")
        self.send = tasks.task(send_mail)
        if not table:
            with psycopg.connect(database) as connection:
                connection.execute(self.outbox.ddl.encode())

    def insert(self, *calls: Call[Any]) -> None:
        """Add calls in a transaction, and commit it."""
        with psycopg.connect(self.database) as connection:
            for call in calls:
                self.outbox.add(connection, call)

    def rows(self, what: str = "id") -> list[Any]:
        """Return a column of the rows that are left."""
        with psycopg.connect(self.database) as connection:
            statement = f"SELECT {what} FROM {self.outbox.table} ORDER BY number"  # noqa: S608 - our own names
            found = connection.execute(statement.encode())
            return [value for (value,) in found]

    async def drain(self) -> int:
        """Relay what is there."""
        return await self.outbox.relay(self.database, interval=0.05).drain()

    async def waiting(self) -> list[str]:
        """Return the ids of the items that wait, the next first."""
        return [view.id for view in await self.tasks.queue.peek(1000)]

    async def complete_all(self) -> list[str]:
        """Complete all items that wait, and return their ids in order."""
        done: list[str] = []
        while leases := await self.tasks.queue.lease_many(1000, 60, block=False):
            assert all(await self.tasks.queue.complete_many(leases))
            done += [lease.id for lease in leases]
        return done


async def send_mail(to: str) -> str:
    return f"sent to {to}"


@pytest.fixture
async def mails(redis_url: str, name: str, database: str) -> AsyncIterator[Mails]:
    """Return a task queue with an outbox in a new table."""
    async with TaskQueue.from_url(redis_url, name) as tasks:
        yield Mails(tasks, database)
