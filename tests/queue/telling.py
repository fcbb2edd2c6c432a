"""What the tests of kept events share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue, Event


async def kept(queue: AsyncWorkQueue, since: int | None = None) -> list[Event]:
    """All events there are now."""
    return [event async for event in queue.events(since, follow=False)]


async def what(queue: AsyncWorkQueue) -> list[str]:
    """What all events say, and of which item."""
    return [f"{event.what} {event.id}" for event in await kept(queue)]
