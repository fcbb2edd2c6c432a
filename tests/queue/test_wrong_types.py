"""A key of the wrong type is a `WrongKeyType` for the calls that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import WrongKeyType
from tests.queue.asking import take
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = pytest.mark.core


async def test_calls_that_need_a_key_of_another_type_raise_wrong_key_type(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x", id="leased"))
    lease = await take(queue)
    await redis.set(f"{queue.name}:queue", "something else")
    with pytest.raises(WrongKeyType, match="choose another name"):
        await queue.add_item(Item(b"x"))
    for call in (queue.add_items([Item(b"x")]), queue.release(lease), queue.inspect(), queue.deep_clean()):
        with pytest.raises(WrongKeyType):
            await call
    assert await queue.complete(lease), "it does not need the key"


async def test_the_other_items_are_leased_and_completed(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(10)])
    await redis.delete(f"{queue.name}:item:5")
    await redis.rpush(f"{queue.name}:item:5", "something", "else")
    leases = await queue.lease_many(10, 30, block=False)
    assert [lease.id for lease in leases] == [f"{n}" for n in range(10) if n != 5]
    with pytest.raises(WrongKeyType):
        await queue.lease_many(10, 30, block=False)
    with pytest.raises(WrongKeyType):
        await queue.lease(30, timeout=120)
    await redis.delete(f"{queue.name}:item:5")
    assert await queue.complete_many(leases) == [True] * 9
    assert await queue.lease(30, block=False) is None
    await audit(redis, queue.name)
