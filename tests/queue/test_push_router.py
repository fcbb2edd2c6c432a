"""Messages to a session: one subscription for each queue, and a handler for each kind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, QueueClosed
from leasequeue.queue.queue import engine_of, engines_of
from tests.eventually import eventually
from tests.queue.asking import command, registered, take, until
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.embedded import EmbeddedServer
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


def channel_of(queue: AsyncWorkQueue) -> str:
    """Return the channel of the session for a queue."""
    return f"{queue.name}:push:{queue.session}"


async def received_by(redis: Redis, queue: AsyncWorkQueue, count: int) -> None:
    """Wait until so many connections receive the channel."""
    channel = channel_of(queue)

    async def is_so() -> bool:
        [(_, number)] = await redis.pubsub_numsub(channel)
        return int(number) == count

    await until(f"{count} connections receive {channel}", is_so)


async def test_a_message_reaches_the_handlers_of_its_kind_while_the_queue_waits_for_nothing(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    heard: list[tuple[str, bytes]] = []
    ends = [
        engine_of(queue).pushes.follow(kind, lambda rest, kind=kind: heard.append((kind, rest)))  # type: ignore[misc]  # mypy 17372
        for kind in ("cancel", "quiet", "cancel")
    ]
    await received_by(redis, queue, 1)
    for message in ("cancel 7 an id", "quiet", "stop", "", "cancellation 1", "1 2 3", "cancel 8 "):
        assert await redis.publish(channel_of(queue), message) == 1
    await eventually("all came", lambda: len(heard) == 5)
    assert heard == [*[("cancel", b"7 an id")] * 2, ("quiet", b""), *[("cancel", b"8 ")] * 2]
    ends[0]()
    ends[0]()
    await redis.publish(channel_of(queue), "cancel 9")
    await eventually("one came", lambda: heard[-1] == ("cancel", b"9"))
    assert len(heard) == 6
    for end in ends[1:]:
        end()
    await received_by(redis, queue, 0)


async def test_all_that_receive_share_one_subscription(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queues = [make_queue(), make_queue(name=f"{name}2")]
    for queue in queues:
        for kind in ("cancel", "quiet"):
            engine_of(queue).pushes.follow(kind, lambda _: None)
        await received_by(redis, queue, 1)
        await queue.add_item(Item(b"x", id="a"))
    waits = [asyncio.create_task(queue.results.wait("a")) for queue in queues]
    for queue in queues:
        assert await queue.complete(await take(queue), result=b"done")
    assert await asyncio.gather(*waits) == [b"done"] * 2
    for queue in queues:
        await received_by(redis, queue, 1)


async def test_a_handler_is_told_when_messages_may_have_been_missed(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy
) -> None:
    queue = make_queue(url=proxy.url)
    missed: list[None] = []
    heard: list[bytes] = []
    await proxy.fail()
    engine_of(queue).pushes.follow("cancel", heard.append, missed=lambda: missed.append(None))
    await asyncio.sleep(0)
    await proxy.heal()
    await eventually("it has begun, though the server was away", lambda: len(missed) == 1)
    await proxy.cut()
    await eventually("it has ended and begun again", lambda: len(missed) == 3)
    await received_by(redis, queue, 1)
    await redis.publish(channel_of(queue), "cancel 1 a")
    await eventually("it came", lambda: heard == [b"1 a"])
    await queue.close()
    assert len(missed) == 4
    with pytest.raises(QueueClosed):
        engine_of(queue).pushes.follow("cancel", heard.append)


async def test_where_the_channel_is_forbidden_no_message_arrives(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str
) -> None:
    rules = (f"~{name}:*", "+@all", "resetchannels")
    await command(admin, "ACL", "SETUSER", "deaf", "on", ">pw", *rules)
    queue = make_queue(url=own.url.replace("redis://", "redis://deaf:pw@"))
    begun = asyncio.Event()
    engine_of(queue).pushes.follow("cancel", lambda _: None, missed=begun.set)
    async with asyncio.timeout(120):
        await begun.wait()
    assert await admin.publish(channel_of(queue), "cancel 1 a") == 0
    assert await queue.add_item(Item(b"x"))
    await take(queue)


async def test_an_item_that_is_delivered_though_no_caller_waits_returns_to_the_front(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """As when it is added while the session is about to leave."""
    waiter, adder = make_queue(), make_queue()
    engine_of(waiter).pushes.follow("cancel", lambda _: None)
    waiting = asyncio.create_task(take(waiter))
    await registered(redis, waiter)
    score = await redis.zscore(f"{name}:idle", waiter.session)
    await adder.add_items([Item(b"1", id="a"), Item(b"2", id="b")])
    assert await waiter.complete(await waiting)
    assert await waiter.complete(await take(waiter))
    await waiter._engine().stop_listening()
    assert score is not None
    await redis.zadd(f"{name}:idle", {waiter.session: score})
    await adder.add_item(Item(b"3", id="c"))
    lease = await take(adder)
    assert (lease.id, lease.attempt) == ("c", 1)
    assert lease.token > 3, "it was delivered before"
    await audit(redis, name)


async def test_an_event_loop_that_assists_receives_no_pushes(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    engines_of(queue).assist(other.session, reply_timeout=5)
    with pytest.raises(RuntimeError, match="assists another"):
        engine_of(queue).pushes.follow("cancel", lambda _: None)
