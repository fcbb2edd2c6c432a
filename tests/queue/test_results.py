"""Results: stored for a time by the accepted completion, and waited for over one connection."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import ConnectionLost, Item, JobExpired, JobFailed, JobUnknown, QueueClosed
from leasequeue.queue.pushes import result_waits
from leasequeue.queue.queue import engines_of
from tests.queue.asking import take, until
from tests.queue.keyspace import left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core

RESULTS = [b"done", b"", b"0", b"1", b":", b"1:2:3", b"\x00\xff\r\n", bytes(2 << 20)]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: repr(result[:9]))
@pytest.mark.seed("RWQ-T4", "WRQ-O6")
async def test_a_result_is_returned_as_it_was_stored(queue: AsyncWorkQueue, result: bytes) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    assert await queue.results.get("a") is None
    assert await queue.complete(lease, fenced=True, result=result) is True
    assert await queue.results.get("a") == result


@pytest.mark.parametrize(
    ("keep", "ms"), [(None, 3_600_000), (5, 5_000), (0.2, 200), (timedelta(days=1), 86_400_000)]
)
async def test_a_result_expires_after_keep_result(
    queue: AsyncWorkQueue, redis: Redis, name: str, keep: float | None, ms: int
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    if keep is None:
        await queue.complete(lease, result=b"r")
    else:
        await queue.complete(lease, result=b"r", keep_result=keep)
    assert ms - 60_000 < await redis.pttl(f"{name}:result:a") <= ms


async def test_many_results_take_few_trips(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(1000)])
    held = await queue.lease_many(1000, 60)
    results = [None if n % 3 == 0 else b"%d" % n for n in range(1000)]
    assert await queue.complete_many(held, results=results, keep_result=60) == [True] * 1000
    assert await asyncio.gather(*(queue.results.get(f"{n}") for n in range(1000))) == results
    assert await queue.complete_many([], results=[]) == []


async def watched(redis: Redis, queue: AsyncWorkQueue, count: int) -> None:
    """Wait until the server knows that the ends of so many items are waited for."""

    async def is_known() -> bool:
        return int(await redis.hlen(f"{queue.name}:watchers")) == count

    await until(f"{count} items are watched", is_known)


async def test_a_result_reaches_each_caller_that_waits(make_queue: MakeQueue, redis: Redis) -> None:
    queue, other = make_queue(), make_queue()
    await queue.add_item(Item(b"x", id="a"))
    waits = [asyncio.create_task(one.results.wait("a", timeout=120)) for one in (queue, queue, other)]
    await watched(redis, queue, 1)
    assert await queue.complete(await take(queue), result=b"done")
    assert await asyncio.gather(*waits) == [b"done"] * 3
    assert await other.results.wait("a") == b"done", "it has ended before"
    await queue.close()
    await other.close()
    assert await left_over(redis, queue.name) == {f"{queue.name}:result:a".encode()}


async def test_an_item_without_a_result_has_none(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x", id="a"))
    wait = asyncio.create_task(queue.results.wait("a"))
    await watched(redis, queue, 1)
    await queue.complete(await take(queue))
    assert await wait is None
    with pytest.raises(JobUnknown, match="neither an item 'a' nor a result"):
        await queue.results.wait("a")


async def test_an_item_that_has_expired_is_an_error(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    queue, other = make_queue(clock=clock), make_queue(clock=clock)
    await queue.add_item(Item(b"x", id="a"), expires_in=60)
    wait = asyncio.create_task(other.results.wait("a"))
    await watched(redis, queue, 1)
    clock.now += 60
    assert await queue.lease(30, block=False) is None
    with pytest.raises(JobExpired, match="'a' has expired"):
        await wait
    with pytest.raises(JobExpired):
        await queue.results.wait("a")
    assert await queue.find("a") is None
    assert await queue.add_item(Item(b"y", id="a"))


async def test_a_dead_letter_is_an_error(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x", id="a"))
    wait = asyncio.create_task(queue.results.wait("a"))
    await watched(redis, queue, 1)
    assert await queue.fail(await take(queue), "Traceback …\nValueError: bad")
    with pytest.raises(JobFailed, match="'a' has failed: ValueError: bad") as caught:
        await wait
    assert caught.value.error == "Traceback …\nValueError: bad"
    with pytest.raises(JobFailed):
        await queue.results.wait("a")


async def test_the_result_of_an_earlier_item_is_not_that_of_a_dead_letter(queue: AsyncWorkQueue) -> None:
    for attempt in range(2):
        await queue.add_item(Item(b"x", id="a"))
        lease = await take(queue)
        assert await (queue.fail(lease, "bad") if attempt else queue.complete(lease, result=b"earlier"))
    with pytest.raises(JobFailed):
        await queue.results.wait("a")


async def test_an_unfinished_item_is_a_timeout(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x", id="a"))
    with pytest.raises(TimeoutError, match=r"the item 'a' is still unfinished after 0\.05 s"):
        await queue.results.wait("a", timeout=0.05)
    await queue.complete(await take(queue), result=b"late")
    assert await queue.results.wait("a", timeout=120) == b"late"


async def test_what_another_client_completes_is_noticed(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waits, "ASK_SECONDS", 0.1)
    await queue.add_item(Item(b"x", id="a"))
    wait = asyncio.create_task(queue.results.wait("a"))
    await watched(redis, queue, 1)
    await redis.delete(f"{queue.name}:item:a")
    assert await wait is None


async def test_a_thousand_waits_take_few_trips(queue: AsyncWorkQueue, redis: Redis) -> None:
    ids = [f"{n}" for n in range(1000)]
    await queue.add_items(Item(b"x", id=one) for one in ids)
    waits = [asyncio.create_task(queue.results.wait(one)) for one in ids]
    await watched(redis, queue, 1000)
    calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    leases = await queue.lease_many(1000, 60)
    await queue.complete_many(leases, results=[lease.id.encode() for lease in leases])
    assert await asyncio.gather(*waits) == [one.encode() for one in ids]
    after = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert after - calls < 100


async def test_an_item_that_has_ended_is_asked_for_before_the_others(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    ids = [f"{n}" for n in range(1000)]
    await queue.add_items(Item(b"x", id=one) for one in ids)
    waits = [asyncio.create_task(queue.results.wait(one)) for one in ids]
    await watched(redis, queue, 1000)
    (engine,) = engines_of(queue).all
    async with redis.monitor() as monitor:
        engine.result_waits._ask_again()
        engine.result_waits._notified(b"999")
        async for command in monitor.listen():
            if command["command"].startswith("EVALSHA"):
                break
    assert " 999 " in command["command"]
    leases = await queue.lease_many(1000, 60)
    await queue.complete_many(leases, results=[b"done"] * 1000)
    assert await asyncio.gather(*waits) == [b"done"] * 1000


async def test_a_wait_outlives_its_connections(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waits, "ASK_SECONDS", 3600)  # it asks since the connection was lost
    queue, other = make_queue(url=proxy.url), make_queue()
    await other.add_items([Item(b"x", id="a"), Item(b"x", id="b")])
    waits = [asyncio.create_task(queue.results.wait(one)) for one in "ab"]
    await watched(redis, queue, 2)
    await queue.counts()  # the first reply, without which the waits would fail, has come before this one
    await proxy.cut()
    assert await other.complete(await take(other), result=b"1")
    assert await waits[0] == b"1"
    assert await other.complete(await take(other), result=b"2")
    assert await waits[1] == b"2"


async def test_a_wait_that_cannot_begin_fails(make_queue: MakeQueue, proxy: Proxy) -> None:
    queue = make_queue(url=proxy.url)
    proxy.refuse()
    await proxy.cut()
    with pytest.raises(ConnectionLost):
        await queue.results.wait("a", timeout=120)


async def test_closing_ends_all_waits(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x", id="a"))
    wait = asyncio.create_task(queue.results.wait("a"))
    await watched(redis, queue, 1)
    await queue.close()
    with pytest.raises(QueueClosed):
        await wait


async def test_a_cancelled_wait_leaves_nothing_behind(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x", id="a"))
    waits = [asyncio.create_task(queue.results.wait("a")) for _ in range(2)]
    await watched(redis, queue, 1)
    waits[0].cancel()
    await queue.complete(await take(queue), result=b"done")
    assert await waits[1] == b"done"
    (engine,) = engines_of(queue).all
    assert engine.result_waits.count == 0


async def test_those_who_wait_for_one_item_are_noted_up_to_a_number(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    """Processes that ask once and go leave their notes until the item ends; those that stay ask again."""
    await queue.add_item(Item(b"x", id="long"))
    wait = asyncio.create_task(queue.results.wait("long"))
    await watched(redis, queue, 1)
    gone = " ".join(f"{number:024}@lh:{number:030}" for number in range(5000))
    await redis.hset(f"{queue.name}:watchers", "long", gone)
    other = make_queue()
    assert not await other.results.is_cancelled("long")
    noted: Any = await redis.hget(f"{queue.name}:watchers", "long")
    notes = noted.decode().split()
    assert 900 < len(notes) < 1200
    assert notes[-2] == gone.split()[-1]
    await queue.complete(await take(other, block=False), result=b"done")
    assert await wait == b"done"
