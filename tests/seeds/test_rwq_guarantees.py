"""The guarantees of redis-work-queue and its keys, one small test for each row of the catalogue."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from leasehold import AsyncWorkQueue, Item
from tests.lua.space import Expiring, State, snapshot
from tests.seeds.family import SESSION, Clock, Family

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasehold import Lease

pytestmark = pytest.mark.core


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(redis: Redis, name: str, clock: Clock) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        yield queue


@pytest.fixture
def family(redis: Redis, name: str) -> Family:
    return Family(redis, name)


async def held(queue: AsyncWorkQueue, seconds: float = 30) -> Lease:
    """Lease the next item, which is there."""
    lease = await queue.lease(seconds, block=False)
    assert lease is not None
    return lease


def places(state: State, item_id: str) -> list[str]:
    """Name the states that an item is in, by the keys that say so."""
    named = {"queue": "ready", "deadlines": "leased", "scheduled": "scheduled"}
    return [place for key, place in named.items() for entry in state.get(key, []) if entry == item_id]


async def test_rwq_g01_an_item_exists_while_its_data_key_does(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"work", id="a"), Item(b"work", id="b")])
    lease = await held(queue)
    assert await redis.exists(f"{name}:item:a", f"{name}:item:b") == 2
    assert await queue.complete(lease)
    assert await redis.exists(f"{name}:item:a") == 0
    await redis.delete(f"{name}:item:b")
    assert await queue.lease(30, block=False) is None, "who deletes the data has completed it"


async def test_rwq_g02_the_queue_never_loses_track_of_an_item(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    async def where() -> list[str]:
        return places(await snapshot(redis, name), "a")

    await queue.add_item(Item(b"work", id="a"), delay=5)
    assert await where() == ["scheduled"]
    clock.advance(6)
    await queue.light_clean()
    assert await where() == ["ready"]
    lease = await held(queue, 1)
    assert await where() == ["leased"]
    clock.advance(2)
    await queue.light_clean()
    assert await where() == ["ready"]
    lease = await held(queue)
    await queue.release(lease, delay=5)
    assert await where() == ["scheduled"]
    clock.advance(6)
    lease = await held(queue)
    assert await where() == ["leased"]
    await queue.release(lease)
    assert await where() == ["ready"]
    assert await queue.complete(lease)
    assert await where() == []


async def test_rwq_g03_every_item_is_done_as_long_as_workers_go_on(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    """Two of three workers die each time."""
    chance = random.Random(1)
    ids = [f"i{n}" for n in range(100)]
    await queue.add_items(Item(b"work", id=item_id) for item_id in ids)
    done: list[str] = []
    while (await queue.counts()).total:
        leases = await queue.lease_many(10, 5, block=False)
        lucky = [lease for lease in leases if chance.random() < 1 / 3]
        assert await queue.complete_many(lucky) == [True] * len(lucky)
        done += [lease.id for lease in lucky]
        clock.advance(1)
    assert sorted(done) == sorted(ids)
    assert (await snapshot(redis, name)).keys() == {"fence"}


async def test_rwq_g04_add_item_never_queues_an_id_twice(
    queue: AsyncWorkQueue, redis: Redis, name: str, family: Family
) -> None:
    async with AsyncWorkQueue(name, redis) as other:
        adding = [each.add_item(Item(b"work", id="a")) for each in (queue, other) * 20]
        answers = await asyncio.gather(*adding, family.add("a"))
    assert sorted(answers) == [False] * 40 + [True]
    assert (await snapshot(redis, name))["queue"] == ["a"]


async def test_rwq_g05_a_waiting_worker_never_sees_an_id_without_data(
    queue: AsyncWorkQueue, family: Family
) -> None:
    for turn in range(20):
        taking = asyncio.ensure_future(family.take_blocking(5))
        await queue.add_item(Item(b"work", id=f"i{turn}"))
        assert await taking == f"i{turn}"
        assert await family.data(f"i{turn}") == b"work"


async def test_rwq_g06_complete_is_true_for_whoever_is_first(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_item(Item(b"work", id="a"))
    holders: list[Lease] = []
    while len(holders) < 5:
        holders += await queue.lease_many(1, 1, block=False)
        clock.advance(2)
    random.Random(5).shuffle(holders)
    assert [await queue.complete(lease) for lease in holders] == [True, False, False, False, False]


async def test_rwq_g07_what_was_completed_is_given_to_nobody(
    queue: AsyncWorkQueue, clock: Clock, family: Family
) -> None:
    await queue.add_item(Item(b"work", id="a"))
    late = await held(queue, 1)
    clock.advance(2)
    await queue.light_clean()
    assert await queue.complete(late)
    clock.advance(1000)
    await queue.deep_clean()
    assert await queue.lease(30, block=False) is None
    assert await family.lease() is None


@pytest.mark.parametrize("how", ["expired", "deleted"])
async def test_rwq_g08_a_failed_item_goes_to_the_end(
    queue: AsyncWorkQueue, clock: Clock, family: Family, redis: Redis, name: str, how: str
) -> None:
    await queue.add_items(Item(b"work", id=item_id) for item_id in "abc")
    if how == "expired":
        await held(queue, 1)
    else:
        await family.lease()
        await family.lose_lease("a")
        await queue.light_clean()
    clock.advance(5)
    await queue.light_clean()
    assert (await snapshot(redis, name))["queue"] == ["a", "c", "b"]


async def test_rwq_g09_first_in_first_out(queue: AsyncWorkQueue, family: Family) -> None:
    await queue.add_items(Item(b"work", id=item_id) for item_id in "ab")
    await family.add("c")
    await queue.add_item(Item(b"work", id="d"))
    assert [lease.id for lease in await queue.lease_many(2, 30)] == ["a", "b"]
    assert [await family.lease(), (await held(queue)).id] == ["c", "d"]


async def test_rwq_g10_a_lease_that_may_wait_for_ever_is_never_none(
    queue: AsyncWorkQueue, family: Family
) -> None:
    waiting = [asyncio.ensure_future(queue.lease(30)) for _ in range(10)]
    for turn in range(10):
        await family.send("RPUSH", family.key("queue"), f"ghost{turn}")
        await family.add(f"i{turn}")
    async with asyncio.timeout(10):
        leases = await asyncio.gather(*waiting)
    assert sorted(lease.id for lease in leases if lease is not None) == [f"i{n}" for n in range(10)]


async def test_rwq_g11_two_may_hold_an_item_if_the_lease_was_too_short(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.add_item(Item(b"work", id="a"))
    slow = await held(queue, 1)
    clock.advance(2)
    quick = await held(queue)
    assert (slow.id, slow.data) == (quick.id, quick.data)
    assert quick.token > slow.token, "whatever they write to can tell which one is newer"
    assert await queue.renew(slow, 30) is False, "the slow one can find out"
    assert await queue.complete(slow) is True
    assert await queue.complete(quick) is False


async def test_rwq_g12_an_id_without_data_is_removed_when_it_is_met(
    queue: AsyncWorkQueue, redis: Redis, name: str, family: Family
) -> None:
    await family.send("RPUSH", family.key("queue"), "ghost1", "ghost2")
    await family.send("LPUSH", family.key("processing"), "ghost3")
    assert await queue.lease(30, block=False) is None
    assert (await queue.light_clean()).dropped == 1
    assert await snapshot(redis, name) == {}


async def test_rwq_g13_a_clean_moves_what_exists_is_not_in_the_queue_and_has_no_lease(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock, family: Family
) -> None:
    for item_id in ("waits", "leased", "abandoned", "completed"):
        await family.add(item_id)
    for _ in range(4):
        await family.lease()
    await family.lose_lease("waits")
    await family.light_clean()
    await family.lose_lease("abandoned")
    await family.send("DEL", family.key("item:completed"))
    await queue.light_clean()
    clock.advance(5)
    await queue.light_clean()
    state = await snapshot(redis, name)
    assert (state["queue"], state["processing"]) == (["abandoned", "waits"], ["leased"])


@pytest.mark.parametrize("others", [0, 600])
async def test_rwq_g14_a_wrong_add_unique_item_costs_a_wrong_length_and_no_more(
    queue: AsyncWorkQueue, redis: Redis, name: str, others: int
) -> None:
    ids = [f"{number}" for number in range(others)]
    ids.insert(others // 2, "a")
    await queue.add_items(Item(b"work", id=one) for one in ids)
    await queue.add_unique_item(Item(b"work", id="a"))
    assert await queue.queue_len() == (602 if others else 1), "wrong only where it waits deep in a long queue"
    leases = await queue.lease_many(others + 2, 30, block=False)
    assert [lease.id for lease in leases] == ids, "it is given to one worker only"
    assert await queue.lease(30, block=False) is None
    assert await queue.complete_many(leases) == [True] * len(ids)
    assert await snapshot(redis, name) == {"fence": f"{len(ids)}"}


async def test_rwq_g15_foreign_clients_and_ours_share_a_queue(
    queue: AsyncWorkQueue, redis: Redis, name: str, family: Family
) -> None:
    """One written for the family and one of ours take turns. tests/interop has real ones."""
    for turn in range(20):
        assert await family.add(f"f{turn}")
        assert await queue.add_item(Item(b"work", id=f"l{turn}"))
    done: list[tuple[str, str]] = []
    while lease := await queue.lease(30, block=False):
        assert await queue.complete(lease)
        done.append(("ours", lease.id))
        if item_id := await family.lease():
            assert await family.complete(item_id)
            done.append(("theirs", item_id))
        await family.light_clean()
        await queue.light_clean()
    assert sorted(item_id for _, item_id in done) == sorted(f"{kind}{n}" for kind in "fl" for n in range(20))
    assert sum(worker == "ours" for worker, _ in done) == 20
    assert await snapshot(redis, name) == {"fence": "20"}


async def test_rwq_g16_the_session_of_a_queue_object_is_the_value_of_its_lease_keys(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    async with AsyncWorkQueue(name, redis, clock=clock) as other:
        assert queue.session != other.session
        await queue.add_items([Item(b"work", id="a"), Item(b"work", id="b")])
        await held(queue)
        await held(other)
        assert await redis.get(f"{name}:lease:a") == queue.session.encode()
        assert await redis.get(f"{name}:lease:b") == other.session.encode()


async def test_rwq_l01_waiting_ids_are_pushed_left(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.add_items(Item(b"work", id=item_id) for item_id in "abc")
    assert (await snapshot(redis, name))["queue"] == ["c", "b", "a"]


async def test_rwq_l02_leased_ids_are_pushed_left(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.add_items(Item(b"work", id=item_id) for item_id in "abc")
    await queue.lease_many(3, 30)
    assert (await snapshot(redis, name))["processing"] == ["c", "b", "a"]


async def test_rwq_l03_data_are_a_string_without_an_end(
    queue: AsyncWorkQueue, redis: Redis, name: str, family: Family
) -> None:
    raw = bytes(range(256))
    await queue.add_item(Item(raw, id="a"))
    assert await family.data("a") == raw
    assert (await snapshot(redis, name))["item:a"] == raw.decode(errors="backslashreplace")
    await held(queue, 600)
    assert await redis.ttl(f"{name}:item:a") == -1, "unfinished work has no time to live"


async def test_rwq_l04_a_lease_key_ends_with_the_lease(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"work", id="a"))
    lease = await held(queue, 600)
    assert (await snapshot(redis, name))["lease:a"] == Expiring(queue.session)
    assert 590_000 < await redis.pttl(f"{name}:lease:a") <= 600_000
    assert await queue.renew(lease, 60)
    assert 50_000 < await redis.pttl(f"{name}:lease:a") <= 60_000
    assert queue.session != SESSION
