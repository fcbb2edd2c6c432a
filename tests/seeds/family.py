"""A client of the redis-work-queue family, one command at a time, and a clock that is moved by hand.

It does what the family's own clients do (0.3 and later), but it can be stopped between any two of its
commands, which is where their bugs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: The value of its lease keys.
SESSION = "5d3a0c6f-family"


class Clock:
    """The time, for `AsyncWorkQueue(clock=…)`; it stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the time on."""
        self.now += seconds


class Family:
    """A foreign client of one queue."""

    def __init__(self, redis: Redis, name: str) -> None:
        self._redis = redis
        self._name = name

    def key(self, name: str) -> str:
        """Give a key's full name."""
        return f"{self._name}:{name}"

    async def send(self, *command: str | bytes | int) -> Any:
        """Send one command."""
        return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]  # theirs has no types

    async def add(self, item_id: str, data: bytes = b"work") -> bool:
        """Add an item in two trips, as its `add_item` does."""
        added = await self.send("SETNX", self.key(f"item:{item_id}"), data)
        if added:
            await self.send("LPUSH", self.key("queue"), item_id)
        return bool(added)

    async def take(self) -> str | None:
        """Do the first trip of its `lease`: the id is in `processing`, and there is no lease key yet."""
        taken = await self.send("RPOPLPUSH", self.key("queue"), self.key("processing"))
        return None if taken is None else taken.decode()

    async def take_blocking(self, seconds: int) -> str | None:
        """Do the same, and wait for an id."""
        taken = await self.send("BRPOPLPUSH", self.key("queue"), self.key("processing"), seconds)
        return None if taken is None else taken.decode()

    async def data(self, item_id: str) -> bytes | None:
        """Do the second trip of its `lease`."""
        data: bytes | None = await self.send("GET", self.key(f"item:{item_id}"))
        return data

    async def write_lease(self, item_id: str, seconds: int = 600) -> None:
        """Do the last trip of its `lease`."""
        await self.send("SETEX", self.key(f"lease:{item_id}"), seconds, SESSION)

    async def lease(self) -> str | None:
        """Do its whole `lease`, not blocking."""
        item_id = await self.take()
        if item_id is None or await self.data(item_id) is None:
            return None
        await self.write_lease(item_id)
        return item_id

    async def lose_lease(self, item_id: str) -> None:
        """Let the time of its lease pass."""
        await self.send("DEL", self.key(f"lease:{item_id}"))

    async def complete(self, item_id: str) -> bool:
        """Complete an item, as its `complete` does: whoever removes the data is the first."""
        removed = await self.send("DEL", self.key(f"item:{item_id}"))
        await self.send("LREM", self.key("processing"), 0, item_id)
        await self.send("DEL", self.key(f"lease:{item_id}"))
        return bool(removed)

    async def light_clean(self) -> None:
        """Return what is in `processing` without a lease key."""
        for item_id in await self.send("LRANGE", self.key("processing"), 0, -1):
            if not await self.send("EXISTS", self.key(f"lease:{item_id.decode()}")):
                await self.send("LREM", self.key("processing"), 0, item_id)
                await self.send("LPUSH", self.key("queue"), item_id)
