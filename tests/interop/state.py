"""Read and assert the keys of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis


def as_bytes(value: bytes | str | None) -> bytes | None:
    """Narrow a reply for mypy: the client decodes nothing."""
    assert not isinstance(value, str)
    return value


async def list_of(redis: Redis, key: str) -> list[bytes]:
    """Return the entries of a list."""
    return [entry for value in await redis.lrange(key, 0, -1) if (entry := as_bytes(value)) is not None]


async def keys_of(redis: Redis, name: str) -> set[str]:
    """Return the keys of a queue without its prefix."""
    keys = [key for found in await redis.keys(f"{name}:*") if (key := as_bytes(found))]
    return {key.decode().removeprefix(f"{name}:") for key in keys}


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
