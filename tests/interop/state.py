"""What a queue's keys hold, and that nothing but the expected is in them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue


async def finish(queue: AsyncWorkQueue, *item_ids: str) -> None:
    """Assert that these items can be leased, each once, and no others, and complete them."""
    leases = await queue.lease_many(100, 30, block=False)
    assert [lease.id for lease in leases] == list(item_ids)
    assert await queue.lease(30, block=False) is None
    assert await queue.complete_many(leases) == [True] * len(leases)


def as_bytes(value: bytes | str | None) -> bytes | None:
    """Tell mypy what it cannot know of a client that decodes nothing."""
    assert not isinstance(value, str)
    return value


async def list_of(redis: Redis, key: str) -> list[bytes]:
    """Return a list as it is."""
    return [entry for value in await redis.lrange(key, 0, -1) if (entry := as_bytes(value)) is not None]


async def until_waiting(redis: Redis, count: int) -> None:
    """Return when so many clients of the server wait in a blocking command.

    Raises:
        TimeoutError: If there are not as many after some seconds.
    """
    async with asyncio.timeout(5):
        while (await redis.info("clients"))["blocked_clients"] < count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def keys_of(redis: Redis, name: str) -> set[str]:
    """Return the keys of a queue, without its name."""
    keys = [key for found in await redis.keys(f"{name}:*") if (key := as_bytes(found))]
    return {key.decode().removeprefix(f"{name}:") for key in keys}


async def ids_in(redis: Redis, key: str) -> list[str]:
    """Return the ids in a list, the next one to be taken first."""
    return [item_id.decode() for item_id in reversed(await list_of(redis, key))]


async def contents(redis: Redis, name: str) -> dict[str, Any]:
    """Return all keys of a queue: the type, whether they expire, and, of texts and lists, the value."""
    found = {}
    for short in await keys_of(redis, name):
        key = f"{name}:{short}"
        kind = await redis.type(key)
        value: bytes | list[bytes] | None = None
        if kind == b"string":
            value = as_bytes(await redis.get(key))
        elif kind == b"list":
            value = await list_of(redis, key)
        found[short] = (kind, await redis.pttl(key) > 0, value)
    return found
