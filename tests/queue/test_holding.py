"""What the holder of a lease does: completing, renewing, releasing and failing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Failure, Item, Lease
from leasequeue.queue.encoding import MAX_ERROR_BYTES, error_text
from tests.queue.asking import take
from tests.queue.keyspace import audit, calls, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


@pytest.mark.seed("RRQ-O4")
async def test_complete_many_returns_results_in_order_and_false_for_doubles(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(1300)])
    leases = [*await queue.lease_many(1000, 30), *await queue.lease_many(300, 30)]
    assert await queue.complete_many(leases[::2]) == [True] * 650
    await audit(redis, name)
    assert await queue.complete_many(leases) == [False, True] * 650
    assert await queue.complete_many([]) == []
    assert not await left_over(redis, name)

    await queue.add_item(Item(b"x"))
    lease = await take(queue, 10)
    assert await queue.complete_many([lease, lease, lease]) == [True, False, False]


@pytest.mark.seed("RWQ-O12", "RWQ-G6", "RRQ-T3")
async def test_of_all_concurrent_completions_one_returns_true(
    make_queue: MakeQueue, clock: Clock, redis: Redis, name: str
) -> None:
    queues = [make_queue(clock=clock) for _ in range(4)]
    await queues[0].add_items([Item(b"x", id=f"{n}") for n in range(50)])
    holders = []
    for queue in queues:
        holders.append(await queue.lease_many(50, 10, block=False))
        clock.now += 11
    calls = [
        queue.complete(lease, fenced=n % 3 == 0)
        for queue, leases in zip(queues, holders, strict=True)
        for n, lease in enumerate(sorted(leases, key=lambda lease: int(lease.id)))
    ]
    answers = await asyncio.gather(*calls)
    # Item n is at n, n + 50, n + 100 and n + 150; the last is the current holder.
    for n in range(50):
        assert answers[n::50].count(True) == 1
    assert not await left_over(redis, name)


async def fail(lease: Lease) -> None:
    async with lease:
        raise ZeroDivisionError


async def test_the_context_manager_completes_on_success_and_leaves_the_item_on_an_error(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id="good"), Item(b"x", id="bad")])
    async with await take(queue, 10) as good:
        assert good.data == b"x"
        before = good.completed
    assert (before, good.completed) == (None, True)
    bad = await take(queue, 10)
    with pytest.raises(ZeroDivisionError):
        await fail(bad)
    assert (await audit(redis, name)).leased == [b"bad"]
    before = bad.completed
    async with bad:
        await queue.complete(bad)
    assert (before, bad.completed) == (None, False)


async def test_a_cancelled_block_leaves_the_item(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x"))
    lease = await take(queue, 10)

    async def work() -> None:
        async with lease:
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert lease.completed is None
    assert await queue.processing() == 1


async def fill(queue: AsyncWorkQueue, count: int) -> None:
    assert all(await queue.add_items([Item(b"x", id=f"{n}") for n in range(count)]))


async def test_renew_many_returns_results_in_order_and_moves_the_deadlines(queue: AsyncWorkQueue) -> None:
    await fill(queue, 1200)
    leases = [*await queue.lease_many(1000, 10), *await queue.lease_many(200, 10)]
    await queue.complete_many(leases[::3])
    assert await queue.renew_many(leases, 1000) == [n % 3 != 0 for n in range(1200)]
    for n, lease in enumerate(leases):
        assert (lease.remaining() > 500) == (n % 3 != 0)
    assert await queue.renew_many([], 10) == []


async def test_concurrent_release_and_complete_agree(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await fill(queue, 100)
    leases = await queue.lease_many(100, 10)
    calls = [call(lease) for lease in leases for call in (queue.release, queue.complete)]
    answers = await asyncio.gather(*calls)
    # A release does not prevent the completion by its holder; a completion prevents the release.
    assert all(answers[1::2])
    assert not await left_over(redis, name)


async def test_many_trips_to_the_front_keep_their_order(queue: AsyncWorkQueue) -> None:
    """They do not fit into one trip: the trip with the last of them has to go first."""
    await queue.add_items(Item(b"x", id=f"{number}") for number in range(1200))
    leases = [*await queue.lease_many(1000, 30), *await queue.lease_many(200, 30)]
    answers = await queue.release_many(leases[:1100])
    assert answers == [True] * 1100
    assert await queue.release_many(leases[:1100]) == [False] * 1100
    again = [*await queue.lease_many(1000, 30), *await queue.lease_many(200, 30)]
    assert [lease.id for lease in again] == [lease.id for lease in leases[:1100]]


def raised(error: BaseException) -> BaseException:
    """Give an exception a traceback."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    return caught.value


async def leases(queue: AsyncWorkQueue, count: int) -> list[Lease]:
    await queue.add_items([Item(f"{n}", id=f"{n}") for n in range(count)])
    return await queue.lease_many(count, 60)


async def test_large_items_become_dead_letters_in_several_steps(queue: AsyncWorkQueue, redis: Redis) -> None:
    data = bytes(400_000)
    await queue.add_items([Item(data, id=f"{n}") for n in range(6)])
    held = await queue.lease_many(6, 60)
    before = await calls(redis, "evalsha")
    assert await queue.fail_many([Failure(lease, "why") for lease in held]) == [True] * 6
    assert await calls(redis, "evalsha", "eval") - before >= 3
    letters = await queue.dead_letters.list()
    assert {letter.id: letter.data for letter in letters} == {f"{n}": data for n in range(6)}
    assert len((await audit(redis, queue.name)).dead) == 6


async def test_an_exception_is_kept_as_its_traceback(queue: AsyncWorkQueue) -> None:
    [lease] = await leases(queue, 1)
    cause = raised(KeyError("the cause"))
    error = ValueError("too bad: ü\n\x00")
    error.__cause__ = cause
    await queue.fail(lease, raised(error))
    letter = await queue.dead_letters.get("0")
    assert letter
    assert letter.error.startswith("Traceback (most recent call last):\n")
    assert "KeyError: 'the cause'" in letter.error
    assert letter.error.endswith("ValueError: too bad: ü\n\x00\n")


def test_a_long_error_loses_its_middle() -> None:
    for text in ("x" * MAX_ERROR_BYTES, "é" * (MAX_ERROR_BYTES // 2), "", "why"):
        assert error_text(text) == text.encode()
    for text in ("begin" + "x" * MAX_ERROR_BYTES + "end", "begin" + "🙂é" * 99_999 + "end"):
        kept = error_text(text)
        assert MAX_ERROR_BYTES - 100 < len(kept) <= MAX_ERROR_BYTES
        head, between, tail = kept.decode().split("\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        left_out = len(text.encode()) - len(head.encode()) - len(tail.encode())
        assert between == f"... {left_out} bytes left out ..."


def test_an_error_that_cannot_be_encoded_is_escaped() -> None:
    assert error_text("bad \ud800") == b"bad \\ud800"
