"""The operations of redis-work-queue that are about the queue, one small test for each row of the catalogue.

Its guarantees and its keys are in `test_rwq_guarantees.py`, its bugs in `test_rwq_bugs.py`.
"""

from __future__ import annotations

import asyncio
import json
import string
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasehold import AsyncWorkQueue, Item, KeyPrefix
from tests.lua.space import snapshot
from tests.seeds.family import Clock, Family

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

pytestmark = pytest.mark.core


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(redis: Redis, name: str, clock: Clock) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        yield queue


def test_rwq_o01_a_key_prefix_makes_keys_and_longer_prefixes() -> None:
    prefix = KeyPrefix("emails")
    assert prefix.of(":queue") == "emails:queue"
    assert prefix.concat(":result:").of("42") == "emails:result:42"
    assert prefix.prefix == "emails"


def test_rwq_o02_an_item_of_bytes_gets_a_random_id_of_32_hex_digits() -> None:
    ids = {Item(b"work").id for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(len(item_id) == 32 and set(item_id) <= set(string.hexdigits.lower()) for item_id in ids)


def test_rwq_o03_an_item_of_text_holds_utf_8() -> None:
    assert Item("größer").data == "größer".encode()


def test_rwq_o04_an_item_of_json_is_compact() -> None:
    assert Item.from_json_data({"to": ["ann", "bob"], "n": 1}).data == b'{"to":["ann","bob"],"n":1}'


def test_rwq_o05_an_item_is_parsed_from_what_other_clients_write() -> None:
    assert Item.parse('{"data": "work", "id": "42"}') == Item(b"work", id="42")
    assert Item.from_dict({"data": b"\x00", "id": "42"}) == Item(b"\x00", id="42")
    assert len(Item.from_dict({"data": "work"}).id) == 32


async def test_rwq_o06_data_as_bytes_as_json_and_the_id(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item.from_json_data({"n": 1}, id="a"))
    lease = await queue.lease(30)
    assert lease is not None
    assert (lease.id, lease.data, lease.data_json()) == ("a", b'{"n":1}', {"n": 1})


async def test_rwq_o07_equal_jobs_can_have_equal_ids(queue: AsyncWorkQueue) -> None:
    assert await queue.add_item(Item.with_content_id(b"equal")) is True
    assert await queue.add_item(Item.with_content_id(b"equal")) is False
    assert await queue.add_item(Item.with_content_id(b"different")) is True
    assert await queue.queue_len() == 2


async def test_rwq_o08_add_item_says_whether_the_id_was_new(queue: AsyncWorkQueue) -> None:
    assert await queue.add_item(Item(b"first", id="a")) is True
    assert await queue.add_item(Item(b"second", id="a")) is False
    lease = await queue.lease(30)
    assert lease is not None
    assert lease.data == b"first"
    assert await queue.add_item(Item(b"third", id="a")) is False, "also while it is leased"


async def test_rwq_o09_add_unique_item_does_not_look(queue: AsyncWorkQueue) -> None:
    await queue.add_unique_item(Item(b"first", id="a"))
    await queue.add_unique_item(Item(b"second", id="a"))
    [lease] = await queue.lease_many(10, 30)
    assert lease.data == b"second"


async def test_rwq_o10_items_are_added_with_the_caller_s_own_commands(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    async with redis.pipeline(transaction=True) as pipe:
        pipe.set(f"{name}:mine", "written")
        queue.add_unique_item_to_pipeline(pipe, Item(b"one", id="a"))
        queue.add_item_to_pipeline(pipe, Item(b"two", id="a"))
        queue.add_item_to_pipeline(pipe, Item(b"three", id="b"), delay=5)
        assert await pipe.execute() == [True, [1], [0], [1]]
    state = await snapshot(redis, name)
    assert (state["mine"], state["queue"], state["item:a"]) == ("written", ["a"], "one")
    assert (await queue.counts())[:] == (1, 0, 1, 0)


async def test_rwq_o10_items_are_not_added_when_the_caller_s_transaction_is_given_up(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    async with redis.pipeline(transaction=True) as pipe:
        queue.add_item_to_pipeline(pipe, Item(b"one", id="a"))
    assert await snapshot(redis, name) == {}


async def test_rwq_o11_lease_does_not_wait_if_told_so(queue: AsyncWorkQueue) -> None:
    assert await queue.lease(30, block=False) is None
    assert await queue.lease(timedelta(seconds=30), block=False, timeout=60) is None


async def test_rwq_o11_lease_waits_for_as_long_as_it_is_told(queue: AsyncWorkQueue) -> None:
    started = asyncio.get_running_loop().time()
    assert await queue.lease(30, timeout=0.05) is None
    assert 0.05 <= asyncio.get_running_loop().time() - started < 2


async def test_rwq_o11_lease_waits_for_an_item(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    waiting = asyncio.ensure_future(queue.lease(30))
    await asyncio.sleep(0)
    assert not waiting.done()
    await Family(redis, name).add("a")
    async with asyncio.timeout(5):
        lease = await waiting
    assert lease is not None
    assert lease.id == "a"


async def test_rwq_o12_complete_is_true_for_one_caller(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"work", id="a"))
    lease = await queue.lease(30)
    assert lease is not None
    answers = await asyncio.gather(*(queue.complete(lease) for _ in range(20)))
    assert sorted(answers) == [False] * 19 + [True]
    assert await snapshot(redis, name) == {"fence": "1"}


async def test_rwq_o13_light_clean_returns_what_lapsed(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_items([Item(b"work", id="a"), Item(b"work", id="b")])
    await queue.lease(1)
    await queue.lease(60)
    clock.advance(2)
    report = await queue.light_clean()
    assert (report.reclaimed, report.dropped, report.examined) == (1, 0, 1)
    assert (await queue.counts())[:] == (1, 1, 0, 0)


async def test_rwq_o14_deep_clean_returns_what_is_in_no_list(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items(Item(b"work", id=f"i{n}") for n in range(3))
    await queue.lease(60)
    await redis.set(f"{name}:item:orphan", "its client died between two commands")
    assert (await queue.deep_clean()).restored == 1
    assert (await snapshot(redis, name))["queue"] == ["orphan", "i2", "i1"]
    assert (await queue.deep_clean()).restored == 0


async def test_rwq_o15_queue_len_leaves_out_what_is_leased(queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"work") for _ in range(5))
    await queue.lease_many(2, 60)
    assert await queue.queue_len() == 3


async def test_rwq_o16_processing_counts_what_is_abandoned(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_items(Item(b"work") for _ in range(5))
    await queue.lease_many(2, 1)
    clock.advance(100)
    assert await queue.processing() == 2, "nobody has taken them back yet"
    await queue.light_clean()
    assert await queue.processing() == 0


async def test_rwq_o17_retry_is_to_drop_the_item_and_lease_the_next(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.add_items([Item(b"fails at first", id="a"), Item(b"work", id="b")])
    done: list[tuple[str, int]] = []
    while lease := await queue.lease(10, block=False):
        if lease.id == "a" and lease.attempt == 1:
            clock.advance(11)
            continue
        assert await queue.complete(lease)
        done.append((lease.id, lease.attempt))
    assert done == [("b", 1), ("a", 2)]


async def test_rwq_o18_at_most_once_is_to_complete_first(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_item(Item(b"charge the card", id="a"))
    one = await queue.lease(1)
    clock.advance(2)
    two = await queue.lease(30)
    assert one is not None
    assert two is not None
    assert [await queue.complete(two), await queue.complete(one)] == [True, False]


async def test_rwq_o19_results_are_kept_under_a_derived_key(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    results = KeyPrefix(name).concat(":result:")
    await queue.add_item(Item.from_json_data([1, 2, 3], id="sum"))
    async with asyncio.timeout(5):
        lease = await queue.lease(30)
    assert lease is not None
    await redis.set(results.of(lease.id), json.dumps(sum(lease.data_json())), ex=600)
    assert await queue.complete(lease)
    assert await redis.get(results.of("sum")) == b"6"
    assert (await queue.deep_clean()) == (await queue.deep_clean()), "it is no item, and nothing to clean"


async def test_rwq_o20_deleting_every_lease_key_does_our_leases_no_harm(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    """The script `clear-leases` ends the leases of foreign clients. Ours end by a clock that it cannot reach.

    Who wants ours to end stops the workers, which give back what they hold, or waits until they expire.
    """
    await queue.add_items([Item(b"ours", id="a"), Item(b"theirs", id="b")])
    ours = await queue.lease(30)
    family = Family(redis, name)
    assert await family.lease() == "b"
    await queue.light_clean()

    leases = [key async for key in redis.scan_iter(match=f"{name}:lease*")]
    assert len(leases) == 3
    await redis.delete(*leases)

    theirs = await queue.lease(30, block=False)
    if theirs is None:  # its end was known; it is looked at again when that has come
        clock.advance(700)
        assert ours is not None
        theirs = next(lease for lease in await queue.lease_many(2, 30) if lease.id == "b")
    assert theirs.id == "b"
    assert ours is not None
    assert await queue.complete(ours) is True
    assert await queue.complete(theirs) is True
    assert (await queue.counts()).total == 0


async def test_rwq_o20_our_own_leases_are_given_up_by_releasing_them(queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"work", id=f"i{n}") for n in range(3))
    leases = await queue.lease_many(3, 30)
    assert await queue.release_many(leases) == [True] * 3
    assert [lease.id for lease in await queue.lease_many(3, 30)] == ["i0", "i1", "i2"]
