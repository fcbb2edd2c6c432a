"""An item counts for a rate as many times as its weight says."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item, TaskQueue
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def add(queue: AsyncWorkQueue, item_id: str, weight: int = 1, **options: Any) -> None:
    assert await queue.add_item(Item(b"", id=item_id), weight=weight, **options)


async def now(queue: AsyncWorkQueue, count: int = 10) -> list[str]:
    """Return the ids of what can be leased now."""
    return [lease.id for lease in await queue.lease_many(count, 600, block=False)]


async def test_a_weight_uses_as_much_of_the_rate_of_the_queue(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.limits.set(rate="1/s", burst=5)
    for again in ("", "2"):
        for item_id, weight in (("a", 2), ("b", 4), ("c", 1)):
            await add(queue, item_id + again, weight)
        assert await now(queue) == [f"a{again}", f"b{again}"]  # together 6, so that the next one waits for 2
        assert await now(queue) == []
        clock.now += 1.999
        assert await now(queue) == []
        clock.now += 0.001
        assert await now(queue) == [f"c{again}"]
        clock.now += 10


async def test_a_rate_that_is_removed_leaves_nothing(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.limits.set(rate="1/s", burst=5, concurrency=9)
    await add(queue, "a", 5)
    assert await now(queue) == ["a"]
    assert await queue.limits.remove("rate")
    assert not await redis.exists(f"{queue.name}:rates")


async def test_a_weight_above_the_burst_counts_as_the_burst(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.limits.set(rate="1/s", burst=3)
    await add(queue, "huge", 1_000_000)
    await add(queue, "next")
    assert await now(queue) == ["huge"]
    clock.now += 1
    assert await now(queue) == ["next"]
    await queue.limits.set(rate="1/s")  # a burst of 1
    clock.now += 3
    await add(queue, "again", 7)
    assert await now(queue) == ["again"]


@pytest.mark.parametrize("group", [None, "g"])
async def test_what_waits_behind_a_heavy_item_that_has_expired_keeps_its_order(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, group: str | None
) -> None:
    """It is dropped after others were left out for its weight."""
    await queue.limits.set(group="*" if group else None, rate="1/s", burst=5)
    await add(queue, "heavy", 5, group=group, expires_in=1)
    for number in range(8):
        await add(queue, f"{number}", group=group)
    clock.now += 2
    assert (await now(queue), await now(queue)) == ([*"01234"], [])
    clock.now += 10
    assert await now(queue) == [*"567"]
    assert (await queue.counts()).waiting == 0
    assert not await redis.exists(f"{queue.name}:held", f"{queue.name}:lanes")


async def test_a_heavy_item_has_its_group_wait_and_no_other(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.limits.set(group="*", rate="1/s", burst=4)
    for item_id, weight, group, level in (
        *[("a1", 2, "a", 0), ("a2", 3, "a", 0), ("a3", 1, "a", 0), ("a4", 1, "a", -1)],
        *[("b1", 1, "b", 0), ("b2", 1, "b", 0)],
    ):
        await add(queue, item_id, weight, group=group, priority=level)
    assert await now(queue) == ["a1", "b1", "a2", "b2"]
    clock.now += 1.999
    assert await now(queue) == []
    clock.now += 0.001
    assert await now(queue) == ["a3"]
    clock.now += 1
    assert await now(queue) == ["a4"]


async def test_a_heavy_item_comes_before_what_is_added_later(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.limits.set(rate="1/s", burst=3)
    await add(queue, "first", 3, group="a")
    await add(queue, "heavy", 3, group="a")
    assert await now(queue) == ["first"]
    clock.now += 1
    await add(queue, "light", group="b")
    assert await now(queue, 1) == ["heavy"]
    clock.now += 2.999
    assert await now(queue) == []
    clock.now += 0.001
    assert await now(queue) == ["light"]


async def test_what_comes_after_a_heavy_item_in_one_call_waits(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.limits.set(rate="1/s", burst=3)
    for item_id, weight, group in (("heavy", 3, "a"), ("b", 1, "b"), ("c", 1, "c"), ("a", 1, "a")):
        await add(queue, item_id, weight, group=group)
    for expected in ("heavy", "b", "c", "a"):
        assert await now(queue) == [expected]
        clock.now += 1


async def test_a_concurrency_counts_items(queue: AsyncWorkQueue) -> None:
    await queue.limits.set(concurrency=2, rate="1/s", burst=100)
    for number in range(3):
        await add(queue, f"{number}", 10)
    assert await now(queue) == ["0", "1"]


async def test_a_lane_that_was_passed_over_for_an_item_that_waits_has_its_turn(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.limits.set(rate="1/s", burst=3)
    await queue.limits.set(group="*", concurrency=1)
    await add(queue, "heavy", 3)
    await add(queue, "a1", group="a")
    await add(queue, "a2", group="a", priority=-1)
    assert await now(queue) == ["heavy"]
    assert await queue.cancel("a1")
    clock.now += 1
    assert await now(queue) == ["a2"]


async def test_shared_rates_have_the_weights_of_all_queues(make_queue: MakeQueue, clock: Clock) -> None:
    first, second = (make_queue(name=f"{{shop}}:{one}", clock=clock) for one in "ab")
    for queue in (first, second):
        await queue.limits.set(shared="{shop}:all", rate="1/s", burst=5)
        await add(queue, queue.name, 3)
        assert await now(queue) == [queue.name]
    await add(first, "light")
    clock.now += 1.999
    assert await now(first) == []
    clock.now += 0.001
    assert await now(first) == ["light"]


async def test_a_retry_and_a_requeued_dead_letter_keep_their_weight(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.limits.set(rate="1/s", burst=3)
    await add(queue, "a", 3)
    for retry_in in (0, None):
        [lease] = await queue.lease_many(9, 30, block=False)
        assert await queue.fail(lease, "no", retry_in=retry_in)
        clock.now += 100
    assert await queue.dead_letters.requeue("a")
    await add(queue, "b")
    assert await now(queue) == ["a"]
    clock.now += 0.999
    assert await now(queue) == []


async def test_random_weights_exceed_the_rate_by_one_item_at_most(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    """Of each limit, what was leased in any time is at most its burst, what the rate gives, and one item."""
    dice = random.Random(7)
    await queue.limits.set(rate="2/s", burst=8)
    await queue.limits.set(group="*", rate="1/s", burst=4)
    weights = {f"{number}": dice.randint(1, 4) for number in range(60)}
    groups_of = {number: dice.choice(["a", "b", None]) for number in weights}
    for number, weight in weights.items():
        await add(queue, number, weight, group=groups_of[number], priority=dice.choice([0, 0, 1]))
    used: list[tuple[float, str | None, int]] = []
    waits = 0
    while len(used) < len(weights):
        leases = await queue.lease_many(dice.randint(1, 6), 600, block=False)
        used += [(clock.now, groups_of[lease.id], weights[lease.id]) for lease in leases]
        await queue.complete_many(leases)
        waits = 0 if leases else waits + 1
        assert waits < 40, "nothing is leased for 10 s"
        clock.now += 0.25
    for groups, rate, burst in (({"a", "b", None}, 2, 8), ({"a"}, 1, 4), ({"b"}, 1, 4)):
        mine = [(at, weight) for at, group, weight in used if group in groups]
        for start, (began, _) in enumerate(mine):
            total = 0
            for at, weight in mine[start:]:
                total += weight
                most = burst + rate * (at - began) + max(weights.values()) - 1
                assert total <= most + 1e-6, (groups, began, at)


async def test_a_waiting_worker_gets_a_heavy_item_without_asking_in_vain(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.limits.set(rate="20/s", burst=10)
    await add(queue, "a", 10)
    await add(queue, "b", 10, group="g")
    await add(queue, "c", 10)
    await redis.config_resetstat()
    for _ in range(3):
        lease = await asyncio.wait_for(queue.lease(30), 60)
        assert await queue.complete(lease)
    calls = (await redis.info("commandstats")).get("cmdstat_evalsha", {})["calls"]
    assert calls < 40, "it asks again when time permits, not all the time"


async def test_weights_that_cannot_be_used_are_refused(queue: AsyncWorkQueue, redis: Redis) -> None:
    for weight in (0, -1, 1_000_001, 1.5, True):
        with pytest.raises(InvalidArgument, match="weight"):
            await queue.add_item(Item(b""), weight=weight)  # type: ignore[arg-type] # what is refused
    tasks = TaskQueue(queue.name, redis)

    @tasks.task(rate="10/s")
    async def limited() -> None: ...

    with pytest.raises(InvalidArgument, match="whose burst is 1"):
        limited.options(weight=2)
    limited.options(weight=1)


async def test_items_without_a_weight_cost_no_command_more(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.limits.set(rate="1/s", burst=1000)  # no use of it is over soon, which would be forgotten

    async def commands_of(**options: Any) -> dict[str, int]:
        await redis.config_resetstat()
        await queue.add_item(Item(b"", id="x"), **options)
        [lease] = await queue.lease_many(1, 30, block=False)
        await queue.complete(lease)
        return {name: stats["calls"] for name, stats in (await redis.info("commandstats")).items()}

    await commands_of(group="g")
    plain = await commands_of(group="g")
    assert await commands_of(group="g", weight=2) == plain
