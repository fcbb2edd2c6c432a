"""The statistics of a queue: ages that lie within what is said of them, what falls due, and dead workers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.queue.queue import engine_of
from leasequeue.views import Counts, QueueStats, WaitTimes

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock, MakeQueue


def items(first: int, count: int) -> list[Item]:
    return [Item(b"x", id=f"{first + n:06}") for n in range(count)]


async def lease_and_complete(queue: AsyncWorkQueue, count: int) -> list[str]:
    leases = await queue.lease_many(count, 60, block=False) if count else []
    await queue.complete_many(leases)
    return [lease.id for lease in leases]


async def lanes_noted(redis: Redis, queue: AsyncWorkQueue) -> dict[str, dict[str, list[int]]]:
    text = await redis.get(f"{queue.name}:sample")
    assert text is not None
    found: dict[str, dict[str, list[int]]] = json.loads(text)["by_lane"]
    return found


def bounds(stats: QueueStats) -> tuple[float, float]:
    error = stats.oldest_age_error
    return stats.oldest_age, float("inf") if error is None else stats.oldest_age + error


@pytest.mark.core
async def test_the_statistics_of_an_empty_queue(queue: AsyncWorkQueue) -> None:
    stats = await queue.stats()
    assert (stats.queue, stats.counts, stats.leases) == (queue.name, Counts(0, 0, 0, 0), 0)
    assert (stats.oldest_age, stats.oldest_age_error, stats.wait) == (0, 0, WaitTimes())
    assert (stats.paused, stats.workers, stats.workers_alive) == (None, (), 0)


async def test_the_age_of_the_oldest_item_is_known_up_to_the_time_between_two_calls(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.stats()
    clock.now += 2
    await queue.add_item(Item(b"x"))
    clock.now += 3
    assert bounds(await queue.stats()) == (0, 5)
    clock.now += 60
    assert bounds(await queue.stats()) == (60, 65), "it is 63"
    await lease_and_complete(queue, 1)
    clock.now += 1
    stats = await queue.stats()
    assert bounds(stats) == (0, 0)
    assert stats.wait.samples == 1
    assert 60 <= stats.wait.longest <= 61, (
        "from when it was noted until it was leased, which is between two calls"
    )


async def test_what_waited_before_the_first_call_is_of_unknown_age(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.add_items(items(0, 2))
    clock.now += 100
    stats = await queue.stats()
    assert (stats.oldest_age, stats.oldest_age_error) == (0, None)
    await queue.add_item(Item(b"x"))
    clock.now += 5
    stats = await queue.stats()
    assert (stats.oldest_age, stats.oldest_age_error) == (5, None)
    await lease_and_complete(queue, 2)
    clock.now += 5
    assert bounds(await queue.stats()) == (5, 10), "the one that was added between the two calls"


@pytest.mark.core
@pytest.mark.parametrize("kind", ["plain", "levels", "paused"])
async def test_the_age_of_the_oldest_item_lies_within_the_bounds(
    queue: AsyncWorkQueue, clock: Clock, kind: str, redis: Redis
) -> None:
    """Items are added, completed, returned and cancelled at random, and sampled at random times."""
    draw = random.Random(kind)
    since: dict[str, float] = {}
    number, known, noted = 0, 0, 0
    await queue.stats()
    for _ in range(80):
        clock.now += draw.choice([0.1, 1, 5, 20])
        for item in items(number, draw.choice([0, 1, draw.randint(0, 9)])):
            number += 1
            await queue.add_item(item, priority=draw.choice([0, 3, -2]) if kind == "levels" else 0)
            since[item.id] = clock.now
        clock.now += draw.choice([0, 0.1, 2])
        if kind == "paused" and draw.random() < 0.1:
            await (queue.resume() if (await queue.stats()).paused else queue.pause())
        leases = await queue.lease_many(draw.randint(1, 12 if draw.random() < 0.3 else 3), 60, block=False)
        for lease in leases:
            del since[lease.id]
            if draw.random() < 0.8:
                await queue.complete(lease)
            else:
                await queue.release(lease, front=draw.random() < 0.7)
                since[lease.id] = clock.now
        if since and draw.random() < 0.2:
            await queue.cancel(cancelled := draw.choice([*since]))
            del since[cancelled]
        clock.now += draw.choice([0, 0.1, 2])
        stats = await queue.stats()
        low, high = bounds(stats)
        truth = clock.now - min(since.values(), default=clock.now)
        assert low - 0.002 <= truth <= high + 0.002, (kind, low, truth, high)
        known += stats.oldest_age_error is not None
        noted = max(noted, sum(len(one["ids"]) for one in (await lanes_noted(redis, queue)).values()))
    assert known == 80
    assert 3 < noted <= 128


async def test_at_most_128_ids_are_noted_and_the_older_ones_are_further_apart(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis
) -> None:
    stats = await queue.stats()
    start = clock.now
    for item in items(0, 300):
        clock.now += 5
        await queue.add_item(item)
        stats = await queue.stats()
    assert bounds(stats)[0] == clock.now - start - 5, "the oldest is never forgotten"
    noted = (await lanes_noted(redis, queue))[""]
    assert 64 <= len(noted["ids"]) <= 128
    gaps = [after - before for before, after in zip(noted["times"], noted["times"][1:], strict=False)]
    assert gaps[0] > gaps[-1] == 5000
    await lease_and_complete(queue, 251)
    stats = await queue.stats()
    truth = 49 * 5
    low, high = bounds(stats)
    assert low <= truth <= high
    assert high - low <= max(gaps) / 1000
    assert await redis.pttl(f"{queue.name}:sample") > 3_000_000


async def test_how_long_items_waited_follows_from_the_ledger_or_from_the_tokens(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.stats()
    await queue.add_items(items(0, 100))
    await queue.stats()
    clock.now += 7
    await queue.lease_many(100, 60)
    clock.now += 3
    wait = (await queue.stats()).wait
    assert (wait.samples, wait.mean) == (1, 7), "the ledger says when it was leased"
    await queue.add_items(items(100, 10))
    await queue.stats()
    clock.now += 1
    await lease_and_complete(queue, 10)
    await queue.add_items(items(200, 90))
    await lease_and_complete(queue, 90)
    wait = (await queue.stats()).wait
    assert (wait.samples, wait.longest) == (2, 7)
    assert wait.mean == pytest.approx((7 + 0.1) / 2), "it had the 10th of 100 tokens of that second"
    clock.now += 301
    assert (await queue.stats()).wait == WaitTimes(), "those of the last 5 minutes"


async def test_items_that_no_call_saw_waiting_did_not_wait(queue: AsyncWorkQueue) -> None:
    await queue.stats()
    await queue.add_item(Item(b"x"))
    await lease_and_complete(queue, 1)
    assert (await queue.stats()).wait == WaitTimes(samples=1)
    assert (await queue.stats()).wait == WaitTimes(samples=1), "nothing was leased since"


async def test_what_is_due_or_has_expired_counts_as_waiting(queue: AsyncWorkQueue, clock: Clock) -> None:
    """No worker is there that would reclaim it."""
    await queue.stats()
    await queue.add_item(Item(b"x"), delay=10)
    await queue.add_item(Item(b"x"))
    await queue.lease(20)
    clock.now += 9
    assert bounds(await queue.stats()) == (0, 0)
    clock.now += 5
    assert bounds(await queue.stats()) == (4, 4)
    await queue.cancel((await queue.inspect("scheduled"))[0].id)
    clock.now += 10
    assert bounds(await queue.stats()) == (4, 4), "of the lease"


async def test_a_call_that_notes_nothing_changes_nothing(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis
) -> None:
    await queue.stats()
    await queue.add_item(Item(b"x"))
    await queue.stats()
    noted = await redis.get(f"{queue.name}:sample")
    await redis.expire(f"{queue.name}:sample", 50)
    clock.now += 7
    for _ in range(2):
        assert bounds(await queue.stats(note=False)) == (7, 7)
        assert await redis.get(f"{queue.name}:sample") == noted
    assert await redis.ttl(f"{queue.name}:sample") <= 50


async def test_an_id_that_is_added_again_waits_anew(queue: AsyncWorkQueue, clock: Clock) -> None:
    """No call has seen it absent, so it may be the same item, returned to the front by another lease."""
    await queue.stats()
    await queue.add_item(Item(b"x", id="nightly"))
    await queue.stats()
    for number in range(1, 4):
        clock.now += 10
        await lease_and_complete(queue, 1)
        await queue.add_item(Item(b"x", id="nightly"))
        assert bounds(await queue.stats()) == (0, 10 * number)
    clock.now += 60
    assert bounds(await queue.stats()) == (60, 90), "it is 60"


async def test_cancelled_items_are_no_sign_that_those_before_were_leased(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.stats()
    for item in items(0, 4):
        clock.now += 10
        await queue.add_item(item)
        await queue.stats()
    await queue.cancel("000001")
    assert bounds(await queue.stats()) == (30, 40)
    await queue.cancel("000000")
    assert bounds(await queue.stats()) == (10, 40), "what was added between two calls may still wait"
    stats = await queue.stats()
    assert stats.wait == WaitTimes(), "they were not leased"


async def test_the_ages_stay_when_the_clock_of_the_server_goes_back(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.stats()
    clock.now += 5
    await queue.add_item(Item(b"x"))
    assert bounds(await queue.stats()) == (0, 5)
    clock.now += 20
    assert bounds(await queue.stats()) == (20, 25)
    clock.now -= 3600
    assert bounds(await queue.stats()) == (20, 25)
    clock.now += 10
    assert bounds(await queue.stats()) == (30, 35)
    assert await lease_and_complete(queue, 1)
    stats = await queue.stats()
    assert (stats.oldest_age, stats.oldest_age_error, stats.wait.samples) == (0, 0, 1)
    assert 30 <= stats.wait.longest <= 35


async def test_a_key_that_another_client_has_written_counts_as_none(
    queue: AsyncWorkQueue, redis: Redis, clock: Clock
) -> None:
    await queue.add_item(Item(b"x"))
    lane = {"ids": ["a"], "times": [1], "tokens": [""], "floor": -1}
    kept = {"at": 1, "fence": "0", "all": True, "by_lane": {}, "waits": [], "found": []}
    spoiled: list[dict[str, object]] = [
        {"at": "x"},
        {"by_lane": {"": {**lane, "floor": "x"}}},
        {"by_lane": {"": {**lane, "times": [-1e18]}}},
        {"waits": ["a"], "found": [1e15]},
        {"waits": [{}], "found": [1]},
        {"waits": [-1], "found": [1]},
        {"waits": [1e300], "found": [1]},
    ]
    texts = ["", "[]", "{", '{"by_lane":{"":{"ids":["a"]}}}', '{"at":"x","by_lane":7}', "null"]
    texts.append(json.dumps({**kept, "all": 1}).replace("1,", "1e400,", 1))
    for text in (*texts, *(json.dumps({**kept, **one}) for one in spoiled)):
        await redis.set(f"{queue.name}:sample", text)
        stats = await queue.stats()
        assert (stats.counts.waiting, stats.oldest_age, stats.oldest_age_error) == (1, 0, None), text
    clock.now += 5
    assert (await queue.stats()).oldest_age == 5


async def test_the_pause_the_limits_and_the_workers_of_a_queue(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.limits.set(rate="10/s", concurrency=4)
    await queue.pause(reason="why", for_=60)
    about = {
        "name": "web/1",
        "worker": "lh:1",
        "runs": 9,
        "failures": 2,
        "run_seconds": 1.5,
        "active": 3,
        "concurrency": 5,
    }
    await engine_of(queue).registry.beat(about, alive_ms=30_000, first=True)
    stats = await queue.stats()
    assert stats.paused is not None
    assert (stats.paused.reason, stats.limit.rate, stats.limit.concurrency) == ("why", "10/s", 4)
    [worker] = stats.workers
    assert (worker.name, worker.id, worker.dead, stats.workers_alive) == ("web/1", "lh:1", False, 1)
    assert (worker.runs, worker.failures, worker.run_seconds) == (9, 2, 1.5)
    assert (worker.running, worker.concurrency) == (3, 5)
    clock.now += 61
    stats = await queue.stats()
    assert (stats.paused, stats.workers_alive, stats.workers[0].dead) == (None, 0, True)


@pytest.mark.parametrize("many", [1, 60])
async def test_the_lanes_of_a_limited_queue_are_sampled(
    queue: AsyncWorkQueue, clock: Clock, many: int
) -> None:
    await queue.stats()
    await queue.limits.set(concurrency=1, group="*")
    for group in range(many):
        clock.now += 1
        await queue.add_item(Item(b"x"), group=f"g{group}")
        await queue.add_item(Item(b"x"), group=f"g{group}", priority=2)
    clock.now += 1
    stats = await queue.stats()
    assert (stats.oldest_age, stats.oldest_age_error) == (0, None if many > 33 else 2)
    clock.now += 9
    stats = await queue.stats()
    assert (stats.oldest_age, stats.oldest_age_error) == (9, None if many > 33 else 2)


async def test_in_a_limited_queue_the_ids_that_are_gone_were_leased_if_any_was(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.stats()
    await queue.limits.set(concurrency=100)
    for item in items(0, 20):
        clock.now += 5
        await queue.add_item(item)
        await queue.stats()
        clock.now += 5
        await queue.add_item(Item(b"x"))
        await lease_and_complete(queue, 2 if item.id > "000001" else 1)
        low, high = bounds(await queue.stats())
        assert high - low <= 10


@pytest.mark.core
async def test_what_is_due_soon_is_counted_up_to_a_horizon(queue: AsyncWorkQueue, clock: Clock) -> None:
    for delay in (5, 10, 10, 60):
        await queue.add_item(Item(b"x"), delay=delay)
    for horizon, due_soon in ((None, 0), (0, 0), (4.9, 0), (10, 3), (3600, 4)):
        stats = await queue.stats(horizon=horizon)
        assert (stats.due, stats.due_soon, stats.counts.scheduled) == (0, due_soon, 4), horizon
        assert stats.at == clock.now
    clock.now += 10
    stats = await queue.stats(horizon=55)
    assert (stats.due, stats.due_soon, stats.counts.scheduled) == (3, 1, 4)


@pytest.mark.core
async def test_expired_leases_and_those_of_dead_workers_are_told_apart(
    queue: AsyncWorkQueue, clock: Clock, make_queue: MakeQueue
) -> None:
    dead, unregistered = make_queue(clock=clock), make_queue(clock=clock)
    await engine_of(queue).registry.beat({}, alive_ms=1_000_000, first=True)
    await engine_of(dead).registry.beat({}, alive_ms=30_000, first=True)
    await queue.add_items([Item(b"x") for _ in range(6)])
    await queue.lease(600)
    await dead.lease(40)
    await dead.lease_many(2, 600)
    await unregistered.lease(600)
    for later, expired, orphaned in ((29, 0, 0), (1, 0, 3), (9, 0, 3), (1, 1, 2), (560, 5, 0)):
        clock.now += later
        stats = await queue.stats()
        assert (stats.expired, stats.orphaned, stats.counts.leased) == (expired, orphaned, 5), clock.now


async def test_the_runs_of_a_worker_are_as_old_as_by_its_own_clock(queue: AsyncWorkQueue) -> None:
    """That clock may differ from the server's, and any client may write what is in a registration."""
    running: object
    for at, running, ages in (
        (9_500, [["a", "handle", 8_000], ["b", "handle", 9_500], ["c", "handle", 9_501]], (1.5, 0)),
        ("x", [["a", "handle", 8_000]], ()),
        (9_500, [["a", "handle", "x"], ["a"], 7, None], ()),
        (9_500, "x", ()),
    ):
        about = {"at": at, "running": running, "quiet": 1, "items": -1, "item_seconds": "x"}
        await engine_of(queue).registry.beat(about, alive_ms=30_000, first=True)
        [worker] = (await queue.stats()).workers
        assert (worker.ages, worker.quiet, worker.items, worker.item_seconds) == (ages, False, 0, 0)
