"""Failures: retried or made dead letters, for the current holder only."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import Failure, Item
from leasequeue.queue.encoding import MAX_ERROR_BYTES, error_text
from leasequeue.queue.pushes import listener
from tests.queue.asking import blocked, take, taken
from tests.queue.keyspace import audit, calls

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.durations import Duration
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


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


@pytest.mark.parametrize("retry_in", [10, 10.0, timedelta(seconds=10)])
@pytest.mark.seed("GLD-O18")
async def test_a_failed_item_is_retried_later(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str, retry_in: Duration
) -> None:
    [lease] = await leases(queue, 1)
    assert await queue.fail(lease, "why", retry_in=retry_in) is True
    assert (await audit(redis, name)).scheduled == [b"0"]
    assert await queue.lease(10, block=False) is None
    clock.now += 10
    again = await take(queue, 60, block=False)
    assert (again.id, again.data, again.attempt) == ("0", b"0", 2)
    assert again.token > lease.token
    assert await queue.fail(lease, "why", retry_in=0) is False
    assert await queue.fail(lease, "why") is False
    assert await queue.complete(again) is True


async def test_an_idle_waiter_leases_a_retried_item_when_it_is_due(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 3600)  # it does not ask again by itself
    waiter, worker = make_queue(), make_queue()
    [lease] = await leases(worker, 1)
    waiting = asyncio.create_task(taken(waiter.lease(60)))
    await blocked(redis, 1)
    assert await worker.fail(lease, "why", retry_in=0.2)
    async with asyncio.timeout(120):
        assert (await waiting).attempt == 2


async def test_many_failures_of_every_kind_take_few_trips(queue: AsyncWorkQueue, redis: Redis) -> None:
    held = await leases(queue, 1000)
    waits: list[Duration | None] = [None, 0, 60]
    failures = [Failure(lease, f"error {lease.id}", waits[n % 3]) for n, lease in enumerate(held)]
    assert await queue.fail_many(failures) == [True] * 1000
    places = await audit(redis, queue.name)
    assert (len(places.dead), len(places.waiting), len(places.scheduled)) == (334, 333, 333)
    assert await queue.fail_many(failures) == [False] * 1000
    assert await queue.fail_many([]) == []


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


async def test_each_of_many_concurrent_failures_gets_its_answer(queue: AsyncWorkQueue) -> None:
    held = await leases(queue, 200)
    assert await queue.complete_many(held[::2]) == [True] * 100
    answers = await asyncio.gather(*(queue.fail(lease, "why") for lease in held))
    assert answers == [False, True] * 100


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
