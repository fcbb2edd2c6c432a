"""Cleaning repairs what other clients leave behind, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import ConnectionLost, Item, KeyPrefix
from leasequeue.queue.engine import Engine
from leasequeue.views import CleanReport
from tests.queue.asking import take
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core


@pytest.mark.seed("RWQ-O19")
async def test_cleaning_leaves_a_result_under_a_derived_key_alone(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    result = KeyPrefix(name).concat(":sums:").of("a")
    await queue.add_item(Item.from_json_data([1, 2, 3], id="a"))
    lease = await take(queue)
    await redis.set(result, str(sum(lease.data_json())), ex=600)
    assert await queue.complete(lease)
    assert await queue.deep_clean() == CleanReport()
    assert await redis.get(result) == b"6"
    assert (await queue.counts()).total == 0


@pytest.mark.seed("RWQ-O20")
async def test_deleting_all_lease_keys_ends_foreign_leases_and_none_of_ours(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    await queue.add_items([Item(b"ours", id="a"), Item(b"theirs", id="b")])
    ours = await take(queue)
    await redis.rpoplpush(f"{name}:queue", f"{name}:processing")
    await redis.set(f"{name}:lease:b", "foreign", ex=600)
    await queue.light_clean()

    leases = [key async for key in redis.scan_iter(match=f"{name}:lease*")]
    assert len(leases) == 3
    await redis.delete(*leases)

    clock.now += 20
    await queue.renew(ours, 1000)
    clock.now += 600  # the end of the foreign lease, which the clean has read
    [theirs] = await queue.lease_many(2, 30, block=False)
    assert theirs.id == "b"
    assert await queue.complete(ours) is True
    assert await queue.complete(theirs) is True
    assert (await queue.counts()).total == 0


@pytest.mark.seed("RWQ-B11")
async def test_a_deep_clean_that_cannot_read_the_queue_changes_nothing(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_run = Engine.run

    async def without_walks(engine: Engine, script: str, *rest: Any, **arguments: Any) -> Any:
        if script == "deep_clean_walk":
            raise ConnectionLost("cut", maybe_applied=True)
        return await plain_run(engine, script, *rest, **arguments)

    await queue.add_items(Item(b"work") for _ in range(10))
    before = await snapshot(redis)
    monkeypatch.setattr(Engine, "run", without_walks)
    with pytest.raises(ConnectionLost):
        await queue.deep_clean()
    assert await snapshot(redis) == before
