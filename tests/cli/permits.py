"""Users with the rules that `leasequeue acl` prints."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.queue.queue import engine_of
from leasequeue.wire.access import ServerFacts, questions
from tests.queue.asking import command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from leasequeue.embedded import EmbeddedServer
    from tests.cli.program import Leasequeue

#: A name with all signs that have a meaning in the patterns of rules, and with white space.
NAME = r"{q}*?[é-\x]" + " \t\"'y"


class Permit(Protocol):
    """Permit a user what `leasequeue acl` prints for some queues, and return the URL of this user."""

    async def __call__(self, *queues: str, role: str = "worker") -> str: ...


@pytest.fixture
def permit(leasequeue: Leasequeue, own: EmbeddedServer, admin: Redis) -> Permit:
    """Give a function that permits the user bob what the command prints."""

    async def permit(*queues: str, role: str = "worker") -> str:
        printed = await leasequeue(
            "acl", *queues, "--user", "bob", "--role", role, "--json", LEASEQUEUE_URL=own.url
        )
        assert printed.code == 0
        await command(admin, "ACL", "SETUSER", "bob", ">pw")
        await command(admin, *printed.document["command"])
        await command(admin, "ACL", "LOG", "RESET")
        return own.url.replace("redis://", "redis://bob:pw@")

    return permit


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[str, str], AsyncWorkQueue]]:
    """Give a function that opens a queue object, which is closed after the test."""
    async with AsyncExitStack() as stack:

        def open_queue(url: str, name: str) -> AsyncWorkQueue:
            queue = AsyncWorkQueue.from_url(url, name)
            stack.push_async_exit(queue)
            return queue

        yield open_queue


async def refused(admin: Redis) -> set[str]:
    """Return what the server has refused since its log was emptied."""
    entries: list[dict[bytes, bytes]] = await command(admin, "ACL", "LOG", "128")
    return {f"{one[b'reason'].decode()} {one[b'object'].decode()}" for one in entries}


async def facts(url: str) -> ServerFacts:
    """Return what the server knows."""
    async with AsyncWorkQueue.from_url(url, "q") as queue:
        info, commands = await engine_of(queue).runner.ask(*questions())
        return ServerFacts.read(info, commands)
