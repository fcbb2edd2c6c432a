"""Payloads are not changed, from 0 bytes to 64 MiB; any text can be an id or a name."""

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

    from leasequeue import AsyncWorkQueue, Lease
    from tests.queue.fixtures import MakeQueue

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


ODD = [
    *(":", "*", "?", "[", "]", "[a-z]", "{", "}", "{}", "{a}", "\\", "\\*", "^", "%", "%s", "%d%00", "{0}"),
    *(" ", "a b", "\n", "\r\n", "\t", "\0", "a\0b", "\x7f", "\ufeff", "\u202e", "\U0010ffff"),
    *("é", "e\u0301", "日本語", "🙂", "x" * 512, "é" * 256, "🙂" * 128),
    *("-1", "0", "1e3", "nil", "false", "None", "queue", ":queue", "item:a", "a:item:b", "lease:", "lh:x"),
    *("' OR 1=1 --", '"]]', "]]--", "$(reboot)", "../../x", "EVAL", "*1\r\n$4\r\nPING\r\n", "unique"),
]


async def test_items_with_odd_ids_are_added_leased_and_completed(queue: AsyncWorkQueue, redis: Redis) -> None:
    assert await queue.add_items([Item(item_id.encode(), id=item_id) for item_id in ODD]) == [True] * len(ODD)
    assert await queue.add_items([Item(b"again", id=item_id) for item_id in ODD]) == [False] * len(ODD)
    assert [view.id for view in await queue.inspect()] == ODD

    leases = await queue.lease_many(100, 30)
    assert [(lease.id, lease.data) for lease in leases] == [(odd, odd.encode()) for odd in ODD]
    assert await queue.renew_many(leases, 60) == [True] * len(ODD)
    assert {view.id for view in await queue.inspect("leased")} == set(ODD)
    await audit(redis, queue.name)

    assert await queue.release_many(leases, delay=0.001) == [True] * len(ODD)
    again: list[Lease] = []
    while len(again) < len(ODD):
        again += await queue.lease_many(100, 30, timeout=120)
    assert {lease.id for lease in again} == set(ODD)
    assert await queue.complete_many(again) == [True] * len(ODD)
    await queue.close()
    assert not await left_over(redis, queue.name)


async def test_a_deep_clean_finds_odd_ids(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.add_items([Item(b"x", id=odd) for odd in ODD])
    await redis.delete(f"{name}:queue")
    assert (await queue.deep_clean()).restored == len(ODD)
    assert {*(await audit(redis, name)).waiting} == {odd.encode() for odd in ODD}


@pytest.mark.seed("WRQ-B12")
async def test_queues_with_odd_names_share_no_keys(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    names = [f"{name}{odd}" for odd in ODD if len(odd.encode()) < 100 and ":item:" not in odd]
    queues = [make_queue(name=odd) for odd in names]
    for queue in queues:
        assert await queue.add_item(Item(queue.name.encode(), id="the same"))
    for queue in queues:
        assert await queue.counts() == (1, 0, 0, 0)
        lease = await take(queue, 30, block=False)
        assert lease.data == queue.name.encode()
        assert await queue.lease(30, block=False) is None
        assert await queue.complete(lease)
        await queue.close()
        assert not await left_over(redis, queue.name)


@pytest.mark.seed("RWQ-B12")
async def test_a_deep_clean_examines_only_its_queue(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    # Each name, read as a pattern, matches the other ones.
    names = [f"{name}[ab]", f"{name}a", f"{name}?", f"{name}*", f"{name}:x", f"{name}\\*"]
    queues = [make_queue(name=odd) for odd in names]
    for queue in queues:
        await queue.add_item(Item(b"x", id=f"of {queue.name}"))
        await redis.delete(f"{queue.name}:queue")
    for queue in queues:
        report = await queue.deep_clean()
        assert (report.examined, report.restored) == (1, 1), queue.name
        assert (await audit(redis, queue.name)).waiting == [f"of {queue.name}".encode()]


async def test_each_call_takes_the_foreign_ids_that_another_call_has_returned(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    """They need not be UTF-8; one is empty, and one is a lone surrogate in another encoding."""
    foreign = [b"\xff\xfe", b"a\x80", b"\xed\xa0\x80", b"", b"x" * 600]
    for raw in foreign:
        await redis.set(b"%b:item:%b" % (name.encode(), raw), b"foreign")
        await redis.lpush(f"{name}:queue", raw)

    ids = [view.id for view in await queue.inspect()]
    assert len(set(ids)) == len(foreign)
    for item_id in ids:
        view = await queue.find(item_id)
        assert view is not None
        assert (view.id, view.state, view.data) == (item_id, "waiting", b"foreign")

    for lease in await queue.lease_many(10, 30):
        assert lease.id in ids
        assert await queue.renew(lease, 30)
        assert await queue.release(lease)
    for lease in await queue.lease_many(10, 30):
        assert await queue.fail(lease, "bad")
    listed = await queue.dead_letters.list()
    assert {letter.id for letter in listed} == set(ids)
    for letter in listed:
        assert await queue.dead_letters.get(letter.id) == letter
    assert await queue.dead_letters.requeue(*ids[:-1]) == [True] * (len(ids) - 1)
    assert await queue.dead_letters.drop(ids[-1]) == [True]

    for lease in await queue.lease_many(10, 30):
        assert await queue.complete(lease, result=lease.id.encode(errors="surrogateescape"))
    assert [await queue.results.get(item_id) for item_id in ids] == [*foreign[:-1], None]
