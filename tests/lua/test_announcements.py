"""The channel `:due`: waiting processes are notified of leases and delays that end soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import NOW, Held, Space, data_of, new, picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio.client import PubSub

pytestmark = pytest.mark.core


@pytest.fixture
async def channel(space: Space) -> AsyncIterator[PubSub]:
    """Subscribe as a waiting process does."""
    async with space.redis.pubsub() as channel:
        await channel.subscribe(space.key("due"))
        await channel.get_message(timeout=5)
        yield channel


async def messages(space: Space, channel: PubSub) -> list[bytes]:
    """Return all messages up to now: the last is one that this function publishes."""
    await space.redis.publish(space.key("due"), "end")
    found: list[bytes] = []
    while (message := await channel.get_message(timeout=5)) is not None and message["data"] != b"end":
        found.append(message["data"])
    return found


async def test_a_short_lease_is_announced(space: Space, channel: PubSub) -> None:
    await space.seed(picture(waiting=["a", "b"]))
    await space.run("lease_many", [(1, 6_000), (1, 250)])
    assert await messages(space, channel) == [b"250"]


async def test_a_long_lease_is_not_announced(space: Space, channel: PubSub) -> None:
    await space.seed(picture(waiting=["a"]))
    await space.run("lease_many", [(1, 6_001)])
    assert await messages(space, channel) == []


async def test_a_lease_that_ends_after_another_is_not_announced(space: Space, channel: PubSub) -> None:
    await space.seed(picture(waiting=["a"], leased={"b": Held(1, ends=NOW + 100)}, fence=1))
    await space.run("lease_many", [(1, 250)])
    assert await messages(space, channel) == []


async def test_a_short_delay_is_announced(space: Space, channel: PubSub) -> None:
    await space.run("add_items", [new("a", delay=900), new("b", delay=300), new("c")])
    assert await messages(space, channel) == [b"300"]


async def test_a_short_delay_of_a_release_is_announced(space: Space, channel: PubSub) -> None:
    await space.seed(picture(leased={"a": Held(7)}, fence=7) | {"item:a": data_of("a")})
    assert await space.run("release_many", [("a", 7, 400, 0)]) == [1]
    assert await messages(space, channel) == [b"400"]


async def test_a_renewal_to_a_shorter_time_is_announced(space: Space, channel: PubSub) -> None:
    held = {"a": Held(7, ends=NOW + 60_000), "b": Held(8, ends=NOW + 60_000)}
    await space.seed(picture(leased=held, fence=8) | {"item:a": data_of("a"), "item:b": data_of("b")})
    assert await space.run("renew_many", [("a", 7, 400), ("b", 8, 300)]) == [NOW + 400, NOW + 300]
    assert await messages(space, channel) == [b"300"]


async def test_a_renewal_to_a_longer_time_is_not_announced(space: Space, channel: PubSub) -> None:
    await space.seed(picture(leased={"a": Held(7, ends=NOW + 100)}, fence=7) | {"item:a": data_of("a")})
    assert await space.run("renew_many", [("a", 7, 400)]) == [NOW + 400]
    assert await messages(space, channel) == []
