"""Payloads are not changed, from 0 bytes to 64 MiB."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.item import MAX_DATA_BYTES
from tests.queue.asking import take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

pytestmark = pytest.mark.core

MIB = 2**20
SIZES = [0, 1, 2, 127, 128, 4095, 16384, 65536, MIB - 128, MIB - 127, MIB, MIB + 1, 8 * MIB - 1, 8 * MIB + 1]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
async def test_data_is_leased_as_it_was_added(queue: AsyncWorkQueue, redis: Redis, size: int) -> None:
    data = noise(size)
    assert await queue.add_item(Item(data, id="x"))
    assert await redis.get(f"{queue.name}:item:x") == data
    lease = await take(queue)
    assert lease.data == data
    assert await queue.complete(lease)


@pytest.mark.slow
async def test_an_item_of_64_mib(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    data = noise(MIB) * 64
    assert len(data) == MAX_DATA_BYTES
    assert await queue.add_item(Item(data, id="big"))
    assert not await queue.add_item(Item(data, id="big"))
    await queue.add_item(Item(b"", id="small"))
    first, second = await queue.lease(30), await queue.lease(30)
    assert first is not None
    assert second is not None
    assert first.data == data
    assert second.data == b""
    assert await queue.complete_many([first, second]) == [True, True]
    await queue.close()
    assert not await left_over(redis, name)


@pytest.mark.seed("RWQ-O6")
async def test_text_is_utf8_and_json_is_compact(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item("é\n🙂"), Item.from_json_data({"a": [1, None], "b": "é"})])
    text, json = await queue.lease_many(2, 30)
    assert text.data == "é\n🙂".encode()
    assert json.data == b'{"a":[1,null],"b":"\\u00e9"}'
    assert json.data_json() == {"a": [1, None], "b": "é"}


async def test_large_items_are_leased_in_several_trips_and_keep_their_order(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    items = [Item(noise(n) + bytes(MIB), id=f"{n:02}") for n in range(20)]
    assert await queue.add_items(items) == [True] * 20
    leased = []
    while got := await queue.lease_many(20, 30, block=False):
        assert sum(len(lease.data) for lease in got) <= 8 * MIB
        leased += [(lease.id, lease.data) for lease in got]
    assert leased == [(item.id, item.data) for item in items]
    assert len((await audit(redis, name)).leased) == 20
