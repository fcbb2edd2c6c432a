"""Progress: what a holder reports is kept, shown and sent to those who follow it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, Item, JobFailed, JobUnknown, QueueClosed
from leasequeue.queue.pushes import result_waits
from leasequeue.queue.queue import engines_of
from tests.eventually import eventually
from tests.queue.asking import Held, take, until
from tests.queue.keyspace import calls
from tests.queue.test_results import watched

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def shows(queue: AsyncWorkQueue, value: Any) -> None:
    """Wait until the item `a` has this progress."""

    async def is_so() -> bool:
        view = await queue.find("a")
        return view is not None and view.progress == value

    await until(f"the progress is {value!r}", is_so)


async def follow(queue: AsyncWorkQueue, item_id: str = "a") -> list[Any]:
    """Return the progress of an item until it ends."""
    return [value async for value in queue.results.progress(item_id)]


async def test_many_reports_take_few_calls_and_the_last_one_counts(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    lease.progress(0)
    await shows(queue, 0)
    before = await calls(redis, "hset")
    for number in range(10_000):
        lease.progress(number)
        if number % 1000 == 0:
            await asyncio.sleep(0)
    await shows(queue, 9999)
    assert await calls(redis, "hset") - before <= 3


async def test_a_thread_reports(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    thread = threading.Thread(target=lease.progress, args=("from a thread",))
    thread.start()
    await shows(queue, "from a thread")
    thread.join()
    await queue.close()
    with pytest.raises(QueueClosed):
        await asyncio.to_thread(lease.progress, 1)


async def test_those_who_follow_get_the_values_until_the_end(make_queue: MakeQueue, redis: Redis) -> None:
    queue, other = make_queue(), make_queue()
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    assert await queue.progress(lease, 0.1)
    following = [asyncio.create_task(follow(one)) for one in (other, other, queue)]

    async def both_wait() -> bool:
        sessions = str(await redis.hget(f"{queue.name}:watchers", "a"))
        return queue.session in sessions and other.session in sessions

    await until("the server knows both sessions", both_wait)
    seen: list[Any] = []
    async for value in other.results.progress("a"):
        seen.append(value)
        if value == 0.1:
            assert await queue.progress(lease, 0.2)
        else:
            break
    assert seen == [0.1, 0.2]
    await queue.complete(lease, result=b"done")
    for values in await asyncio.gather(*following):
        assert values in ([0.1, 0.2], [0.2])
    assert await follow(other) == []
    assert [engine.result_waits.count for engine in engines_of(other).all] == [0]


async def test_following_ends_with_a_failure_and_an_unknown_item_is_an_error(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    following = asyncio.create_task(follow(queue))
    await asyncio.sleep(0)
    assert await queue.fail(lease, "bad")
    assert await following == []
    with pytest.raises(JobFailed):
        await queue.results.wait("a")
    with pytest.raises(JobUnknown):
        await follow(queue, "none")


async def test_what_was_missed_is_asked_for(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waits, "ASK_SECONDS", 3600)
    queue, other = make_queue(), make_queue(url=proxy.url)
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    following = asyncio.create_task(follow(other))
    await watched(redis, queue, 1)
    [engine] = engines_of(other).all
    await eventually("the reply has come", lambda: b"a" in engine.result_waits._unfinished)
    await proxy.fail()
    assert await queue.progress(lease, "missed")
    await proxy.heal()

    async def is_asked() -> bool:
        return following.done() or any(
            one.text == b'"missed"'
            for engine in engines_of(other).all
            for one in engine.result_waits._followers.get(b"a", ())
        )

    await until("it was asked for", is_asked)
    await queue.complete(lease, result=b"done")
    assert await following == ["missed"]


async def test_any_client_may_publish_anything(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    following = asyncio.create_task(follow(queue))
    await watched(redis, queue, 1)
    for message in ("progress", "progress x", "progress 999999999 a", "progress 1 a{", "progress 1 b1"):
        await redis.publish(f"{queue.name}:push:{queue.session}", message)
    assert await queue.progress(lease, 1)
    await queue.complete(lease)
    assert await following in ([None, 1], [1])


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 999, b"\x00" * 800])
async def test_a_value_that_cannot_be_kept_is_refused(queue: AsyncWorkQueue, value: object) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    with pytest.raises(InvalidArgument, match="JSON of at most 1000 bytes"):
        await queue.progress(lease, value)
    with pytest.raises(InvalidArgument, match="JSON of at most 1000 bytes"):
        lease.progress(value)


async def test_a_reply_that_is_older_than_a_message_is_not_taken(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive on different connections."""
    queue, other = make_queue(), make_queue()
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    assert await queue.progress(lease, 1)
    following = asyncio.create_task(follow(other))
    await watched(redis, queue, 1)
    [engine] = engines_of(other).all
    held = Held(engine, monkeypatch)
    held.sent.set()
    engine.result_waits._ask_again()
    await held.answered.wait()
    assert await queue.progress(lease, 2)
    [follower] = engine.result_waits._followers[b"a"]
    await eventually("it came", lambda: follower.text == b"2")
    held.taken.set()
    await queue.complete(lease, result=b"done")
    assert await following in ([1, 2], [2])
