"""The channel `:due`: waiting processes are notified of leases and delays that end soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import ME, NOW, Call, Held, Space, State, new, picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio.client import PubSub

pytestmark = pytest.mark.core


@pytest.fixture
async def channel(space: Space) -> AsyncIterator[PubSub]:
    """Subscribe as a waiting process does."""
    async with space.redis.pubsub() as channel:
        await channel.subscribe(space.key("due"))
        await channel.get_message(timeout=120)
        yield channel


HELD = picture(leased={"a": Held(7), "b": Held(8)}, fence=8)
CALLS: dict[str, tuple[State, Call, list[bytes]]] = {
    "the shorter of two leases": (
        picture(waiting=["a", "b"]),
        Call("lease_many", [(1, 6_000), (1, 250)]),
        [b"250"],
    ),
    "not a long lease": (picture(waiting=["a"]), Call("lease_many", [(1, 6_001)]), []),
    "not a lease that ends after another": (
        picture(waiting=["a"], leased={"b": Held(1, ends=NOW + 100)}, fence=1),
        Call("lease_many", [(1, 250)]),
        [],
    ),
    "the shorter of two delays": (
        {},
        Call("add_items", [new("a", delay=900), new("b", delay=300), new("c")]),
        [b"300"],
    ),
    "the delay of a release": (HELD, Call("release_many", [("a", 7, 400, 0)]), [b"400"]),
    "the delay of a retry": (HELD, Call("fail_many", [("a", 7, 70, "")]), [b"70"]),
    "a renewal to a shorter time": (HELD, Call("renew_many", [("a", 7, 400), ("b", 8, 300)]), [b"300"]),
    "not a renewal to a longer time": (
        picture(leased={"a": Held(7, ends=NOW + 100)}, fence=7),
        Call("renew_many", [("a", 7, 400)]),
        [],
    ),
}


@pytest.mark.parametrize(("before", "call", "announced"), CALLS.values(), ids=CALLS.keys())
async def test_what_ends_soon_and_before_all_others_is_announced(
    space: Space, channel: PubSub, before: State, call: Call, announced: list[bytes]
) -> None:
    await space.seed(before)
    await space.run_all([call])
    # All messages up to now: the last is one that this test publishes.
    await space.redis.publish(space.key("due"), "end")
    for expected in (*announced, b"end"):
        message = await channel.get_message(timeout=120)
        assert message is not None
        assert message["data"] == expected


async def test_a_delivery_that_ends_soon_is_announced(space: Space, channel: PubSub) -> None:
    """Its process may be gone: another one that waits leases the item then."""
    await channel.subscribe(space.key(f"push:{ME}"))
    await channel.get_message(timeout=120)
    await space.seed({"idle": {ME: (NOW + 10_000) // 100 * 32_768 + 400.0}})
    assert await space.run("add_items", [new("a")]) == [1]
    await space.redis.publish(space.key("due"), "end")
    messages = [await channel.get_message(timeout=120) for _ in range(3)]
    found = [message["data"] for message in messages if message is not None]
    assert found[0].startswith(b"1 1 400 ")
    assert found[1:] == [b"400", b"end"]
