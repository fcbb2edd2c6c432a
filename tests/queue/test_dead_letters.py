"""Dead letters: listed, requeued, dropped."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import Failure, Item
from leasequeue.queue import dead_letters
from leasequeue.queue.bulk import Bulk
from leasequeue.views import DeadLetter
from tests.queue.asking import take
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core


async def bury(queue: AsyncWorkQueue, *item_ids: str) -> None:
    await queue.add_items([Item(f"data of {item_id}", id=item_id) for item_id in item_ids])
    held = await queue.lease_many(len(item_ids), 60)
    assert all(await queue.fail_many([Failure(lease, f"error of {lease.id}") for lease in held]))


async def ids(queue: AsyncWorkQueue) -> list[str]:
    return [letter.id for letter in await queue.dead_letters.list(count=1000)]


async def test_a_dead_letter_shows_data_error_and_attempts(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_item(Item(b"\x00\xff", id="a"))
    await queue.fail(await take(queue), "first", retry_in=0)
    lease = await take(queue)
    await queue.fail(lease, "second ü")
    died_at = clock.now
    clock.now += 100
    expected = DeadLetter(
        id="a", data=b"\x00\xff", size=2, error="second ü", died_at=died_at, attempt=2, token=lease.token
    )
    assert await queue.dead_letters.list() == [expected]
    assert await queue.dead_letters.get("a") == expected
    assert await queue.dead_letters.get("b") is None
    [bare] = await queue.dead_letters.list(data=False)
    assert (bare.data, bare.size) == (None, 2)
    [whole], [large] = [await queue.dead_letters.list(max_bytes=room) for room in (2, 1)]
    assert (whole.data, large.data, large.size) == (b"\x00\xff", None, 2)
    assert await queue.dead_letters.get("a", max_bytes=1) == large
    assert await queue.dead_letters.count() == (await queue.counts()).dead == 1


async def test_a_queue_without_dead_letters(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    letters = queue.dead_letters
    assert await letters.list() == []
    assert await letters.requeue("a", "b") == [False, False]
    assert await letters.requeue() == await letters.drop() == []
    assert await letters.drop("a") == [False]
    assert (await letters.requeue_all(), await letters.drop_all(), await letters.count()) == (0, 0, 0)
    assert not await redis.keys(f"{name}*")


async def test_any_start_and_count(queue: AsyncWorkQueue, clock: Clock) -> None:
    for n in range(7):
        await bury(queue, f"{n}")
        clock.now += 1
    newest_first = [f"{n}" for n in reversed(range(7))]
    for start in range(-9, 9):
        for count in (1, 3, 100):
            found = [one.id for one in await queue.dead_letters.list(start=start, count=count)]
            begin = max(0, start + 7) if start < 0 else start
            end = start + 7 + count if start < 0 else start + count
            assert found == newest_first[begin : max(0, end)], (start, count)


async def test_a_start_from_the_end_may_be_before_the_list(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pages are short then, or empty."""
    monkeypatch.setattr(dead_letters, "_PAGE", 3)
    for n in range(7):
        await bury(queue, f"{n}")
    newest_first = [one.id for one in await queue.dead_letters.list()]
    for start in (-9, -10, -20):
        found = [one.id for one in await queue.dead_letters.list(start=start, count=-start)]
        assert found == newest_first, start
        found = [one.id for one in await queue.dead_letters.list(start=start, count=-start - 2)]
        assert found == newest_first[:-2], start


async def test_requeue_all_begins_with_the_oldest_and_skips_taken_ids(
    queue: AsyncWorkQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "SLOW_ROWS", 3)
    names = [f"{n:02}" for n in range(20)]
    for item_id in names:
        await bury(queue, item_id)
        clock.now += 1
    taken = [item_id for item_id in names if int(item_id) % 3 != 1]
    await queue.add_items([Item(b"", id=item_id) for item_id in taken])
    assert await queue.dead_letters.requeue_all() == 20 - len(taken)
    assert [*reversed(await ids(queue))] == taken
    leased = [lease.id for lease in await queue.lease_many(100, 60)]
    assert leased == taken + [item_id for item_id in names if item_id not in taken]


async def test_requeue_all_ends_although_all_items_fail_again(
    queue: AsyncWorkQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "SLOW_ROWS", 2)
    await bury(queue, *"abcdef")
    usual = Bulk.requeue
    rounds = 0

    async def requeue_and_die(self: Bulk, some: list[bytes]) -> object:
        nonlocal rounds
        rounds += 1
        clock.now += 1
        answers = await usual(self, some)
        await queue.fail_many([Failure(lease, "again") for lease in await queue.lease_many(9, 60)])
        return answers

    monkeypatch.setattr(Bulk, "requeue", requeue_and_die)
    assert await queue.dead_letters.requeue_all() == 6
    assert rounds == 3
    assert await queue.dead_letters.count() == 6


async def test_many_and_large_letters_are_requeued_in_several_steps(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    """A step moves no more than 8 MiB, but always one."""
    sizes = [3, 3, 3, 9, 9, 1]
    for n, mebibytes in enumerate(sizes):
        await queue.add_item(Item(bytes(mebibytes << 20), id=f"{n}"))
        await queue.fail(await take(queue), "why")
    shown = await queue.dead_letters.list()
    assert {letter.size >> 20 for letter in shown if letter.data is None} >= {9}
    whole = await queue.dead_letters.get("3")
    assert whole
    assert whole.data == bytes(9 << 20)
    assert await queue.dead_letters.requeue(*(f"{n}" for n in range(6))) == [True] * 6
    assert (await audit(redis, name)).waiting == [b"%d" % n for n in range(6)]


async def test_dropped_letters_are_removed(queue: AsyncWorkQueue, clock: Clock, redis: Redis) -> None:
    for item_id in "abcd":
        await bury(queue, item_id)
        clock.now += 10
    assert await queue.dead_letters.drop("c", "unknown", "c") == [True, False, False]
    assert await queue.dead_letters.drop_older_than(timedelta(days=3_650)) == 0
    assert await queue.dead_letters.drop_older_than(40.001) == 0
    assert await queue.dead_letters.drop_older_than(timedelta(seconds=30)) == 2
    assert (await audit(redis, queue.name)).dead == [b"d"]
    assert await queue.dead_letters.drop_older_than(0) == 1


async def test_a_letter_whose_hash_was_removed_is_not_listed(queue: AsyncWorkQueue, redis: Redis) -> None:
    await bury(queue, "a", "b")
    await redis.delete(f"{queue.name}:dead:a")
    assert await ids(queue) == ["b"]
    assert await queue.dead_letters.get("a") is None
    assert await queue.dead_letters.requeue_all() == 1
    assert (await audit(redis, queue.name)).dead == []
