"""Taking over what others have under lease: recover, clear_leases; and what is leased next: peek."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, Item, list_queues
from tests.queue.asking import take
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Lease
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def fill(queue: AsyncWorkQueue, count: int) -> list[str]:
    ids = [f"{n}" for n in range(count)]
    assert all(await queue.add_items([Item(f"data {item_id}".encode(), id=item_id) for item_id in ids]))
    return ids


@pytest.mark.seed("RRQ-B4", "RRQ-O5")
async def test_an_item_is_recovered_once_in_one_call(queue: AsyncWorkQueue) -> None:
    ids = await fill(queue, 300)
    await queue.lease_many(300, 30)
    again = await queue.admin.recover(1000, 0, 30)
    assert [lease.id for lease in again] == ids
    assert {lease.attempt for lease in again} == {2}
    more = await queue.admin.recover(1000, 0, 30)
    assert {(lease.attempt) for lease in more} == {3}
    assert len({lease.token for lease in (*again, *more)}) == 600


async def test_data_is_bounded_in_a_step_and_not_in_a_call(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(bytes(3 << 20), id=f"{n}") for n in range(5)])
    leases: list[Lease] = []
    while len(leases) < 5:
        leases += await queue.lease_many(5 - len(leases), 30)
    assert [lease.id for lease in await queue.admin.recover(5, 0, 30)] == ["0", "1", "2", "3", "4"]


async def test_the_lease_of_a_foreign_client_is_not_recovered(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await fill(queue, 1)
    await redis.rpoplpush(f"{name}:queue", f"{name}:processing")
    await redis.set(f"{name}:lease:0", "another", ex=60)
    await queue.light_clean()
    assert (await queue.counts()).leased == 1
    assert await queue.admin.recover(1, 0, 30) == []
    assert await redis.get(f"{name}:lease:0") == b"another"


@pytest.mark.seed("RWQ-O20")
async def test_all_leases_are_ended_and_items_return_to_the_front_in_order(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    ids = await fill(queue, 603)
    leases = await queue.lease_many(602, 30)
    assert await queue.admin.clear_leases() == ids[:602]
    assert await queue.counts() == (603, 0, 0, 0)
    assert (await audit(redis, name)).waiting == [item_id.encode() for item_id in ids]
    assert not await queue.renew(leases[0], 30)
    assert await queue.complete(leases[5])  # as after the end of a lease
    [again] = await queue.lease_many(1, 30)
    assert (again.id, again.attempt) == ("0", 2)
    assert await queue.admin.clear_leases() == ["0"]
    assert await queue.admin.clear_leases() == []


@pytest.mark.seed("RWQ-O20")
async def test_leases_of_foreign_clients_are_ended_too(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await fill(queue, 2)
    for key in ("lease", "leased_by_session"):
        await redis.rpoplpush(f"{name}:queue", f"{name}:processing")
        await redis.set(f"{name}:{key}:{0 if key == 'lease' else 1}", "another", ex=60)
    assert sorted(await queue.admin.clear_leases()) == ["0", "1"]
    assert await queue.counts() == (2, 0, 0, 0)
    assert not await redis.exists(f"{name}:lease:0", f"{name}:leased_by_session:1", f"{name}:processing")


async def test_only_leases_that_began_long_ago_are_ended(queue: AsyncWorkQueue, clock: Clock) -> None:
    await fill(queue, 3)
    for _ in range(3):
        await queue.lease(600)
        clock.now += 10
    assert await queue.admin.clear_leases(elapsed=20, count=1) == ["0"]
    assert await queue.admin.clear_leases(elapsed=20) == ["1"]
    assert await queue.counts() == (2, 1, 0, 0)


async def test_an_item_that_another_client_has_completed_does_not_return(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await fill(queue, 1)
    await queue.lease(30)
    await redis.delete(f"{name}:item:0")
    assert await queue.admin.clear_leases() == []
    assert await queue.counts() == (0, 0, 0, 0)


@pytest.mark.seed("WRQ-O18")
async def test_peek_shows_what_is_leased_next_and_leases_nothing(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    assert await queue.peek() == []
    await fill(queue, 5)
    await queue.lease(30)
    await redis.rpush(f"{name}:queue", "0", "ghost")
    [view] = await queue.peek()
    assert (view.id, view.data, view.state, view.attempt) == ("1", b"data 1", "waiting", 0)
    assert [(view.id, view.data) for view in await queue.peek(3, data=False)] == [
        ("1", None),
        ("2", None),
        ("3", None),
    ]
    assert [lease.id for lease in await queue.lease_many(9, 30)] == ["1", "2", "3", "4"]


@pytest.mark.seed("WRQ-O17", "WRQ-B12")
async def test_the_queues_of_a_server_are_listed(make_queue: MakeQueue, redis: Redis, redis_url: str) -> None:
    for one in ("shop-a", "shop-b:c", "shop*d", "other"):
        await make_queue(name=one).add_item(Item(b"x"))
    used = make_queue(name="shop-used")
    await used.add_item(Item(b"x"))
    assert await used.complete(await take(used))
    # Its only items have a level or a group: no lease was taken, and nothing is limited.
    await make_queue(name="shop-lanes").add_item(Item(b"x"), group="a")
    names = ["shop*d", "shop-a", "shop-b:c", "shop-lanes", "shop-used"]
    assert await list_queues(redis_url, prefix="shop") == names
    assert await list_queues(redis, prefix="shop") == names
    assert await list_queues(redis, prefix="shop*") == ["shop*d"]
    assert {*names, "other"} <= {*await list_queues(redis)}
    assert await redis.ping()  # the client is still open


async def test_what_is_no_server_and_no_prefix_is_refused() -> None:
    for server, prefix, argument in ((None, "", "redis"), ("redis://localhost", None, "prefix")):
        with pytest.raises(InvalidArgument, match=argument):
            await list_queues(server, prefix=prefix)  # type: ignore[arg-type]  # that is what is tested
