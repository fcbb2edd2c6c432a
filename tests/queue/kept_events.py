"""Helpers of the tests of kept events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue, Event


async def kept(queue: AsyncWorkQueue, since: int | None = None) -> list[Event]:
    """Return all kept events."""
    return [event async for event in queue.events(since, follow=False)]


async def what(queue: AsyncWorkQueue) -> list[str]:
    """Return the kind and the item of all kept events."""
    return [f"{event.what} {event.id}" for event in await kept(queue)]
