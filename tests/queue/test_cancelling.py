"""Cancelling items: by ids and by data, the race with completions, and those who wait for a result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, JobCancelled, JobUnknown
from tests.queue.asking import take
from tests.queue.test_results import watched

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


@pytest.mark.seed("WRQ-B14")
async def test_of_concurrent_cancellations_and_completions_exactly_one_is_true(make_queue: MakeQueue) -> None:
    queues = [make_queue() for _ in range(3)]
    for number in range(40):
        await queues[0].add_item(Item(b"x", id=f"{number}"))
        lease = await take(queues[0])
        calls = [queues[0].complete(lease), *(one.cancel(lease.id) for one in queues)]
        answers = await asyncio.gather(*(calls if number % 2 else calls[::-1]))
        assert sum(answers) == 1
    assert (await queues[0].counts()).total == 0


async def test_a_holder_learns_it_when_it_renews(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b")])
    first, second = await queue.lease_many(2, 30)
    assert await other.cancel("a")
    assert not first.cancelled
    assert await queue.renew_many([first, second], 30) == [False, True]
    assert (first.cancelled, second.cancelled) == (True, False)
    assert first.remaining() < 0


@pytest.mark.seed("WRQ-O7")
async def test_items_with_equal_data_are_cancelled_in_all_states(queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"same" if n % 2 else b"else", id=f"{n}") for n in range(1400))
    await queue.add_items([Item(b"same", id="later"), Item(b"s", id="near")], delay=100)
    await queue.lease_many(10, 60)
    assert await queue.cancel_data(b"same", limit=3) != []
    found = await queue.cancel_data("same")
    assert len(found) == 701 - 3
    assert "later" in found
    assert await queue.cancel_data(b"same") == []
    assert (await queue.counts()).scheduled == 1
    rest = [lease.id for _ in range(4) for lease in await queue.lease_many(500, 60, block=False)]
    assert len(rest) == 700 - 5
    assert all(int(one) % 2 == 0 for one in rest)


async def test_items_with_equal_data_are_all_cancelled_in_a_paused_queue(queue: AsyncWorkQueue) -> None:
    """Each step moves the others towards the start of what is held."""
    await queue.pause()
    await queue.add_items(Item(b"same" if n % 7 else b"else", id=f"{n}") for n in range(1400))
    assert len(await queue.cancel_data(b"same")) == 1200
    assert await queue.resume()
    rest = [lease.id for _ in range(4) for lease in await queue.lease_many(500, 60, block=False)]
    assert sorted(rest, key=int) == [f"{n}" for n in range(0, 1400, 7)]


@pytest.mark.parametrize("state", ["scheduled", "leased"])
async def test_all_items_with_large_data_are_cancelled(queue: AsyncWorkQueue, state: str) -> None:
    """The server returns more of them in a page than a step cancels."""
    data = b"x" * 65536
    await queue.add_items([Item(data, id=f"{n}") for n in range(100)], delay=60 * (state == "scheduled"))
    if state == "leased":
        assert len(await queue.lease_many(100, 60)) == 100
    assert len(await queue.cancel_data(data, limit=5)) == 5
    assert len(await queue.cancel_data(data)) == 95


async def test_those_who_wait_get_an_error_at_once_and_later(make_queue: MakeQueue, redis: Redis) -> None:
    queue, other = make_queue(), make_queue()
    await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b")])
    waits = [asyncio.create_task(queue.results.wait(one)) for one in "ab"]
    await watched(redis, queue, 2)
    assert await other.cancel_many(["a", "b"], keep=0) == [True, True]
    for wait in waits:
        with pytest.raises(JobCancelled, match=r"'[ab]' was cancelled"):
            await wait
    with pytest.raises(JobUnknown):
        await queue.results.wait("a")
    await queue.add_item(Item(b"x", id="c"))
    assert await other.cancel("c")
    with pytest.raises(JobCancelled) as caught:
        await queue.results.wait("c")
    assert caught.value.item_id == "c"
    assert await queue.results.is_cancelled("c")
    await queue.add_item(Item(b"x", id="c"))
    assert not await queue.results.is_cancelled("c")
    with pytest.raises(TimeoutError):
        await queue.results.wait("c", timeout=0.05)


async def test_a_message_about_an_earlier_item_does_not_end_a_wait(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    wait = asyncio.create_task(queue.results.wait("a"))
    await watched(redis, queue, 1)
    for word in ("cancelled", "expired", "ended"):
        assert await redis.publish(f"{queue.name}:push:{queue.session}", f"{word} a") == 1
    assert await queue.find("a")
    await queue.complete(await take(queue), result=b"done")
    assert await wait == b"done"
