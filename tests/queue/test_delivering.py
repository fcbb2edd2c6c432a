"""Deliveries of items to a caller that waits, and other messages to its session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, QueueClosed
from leasequeue.queue.pushes.deliveries import Deliveries, Delivery, read_delivery
from leasequeue.queue.queue import engine_of, engines_of
from tests.eventually import eventually
from tests.queue.asking import blocked, command, registered, take, until
from tests.queue.keyspace import audit, calls, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.embedded import EmbeddedServer
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def waiting_caller(queue: AsyncWorkQueue, redis: Redis, lease_time: float = 30) -> asyncio.Task[object]:
    """Start a call that waits, and return when the session has registered for a delivery."""
    waiting: asyncio.Task[object] = asyncio.create_task(queue.lease(lease_time))
    await registered(redis, queue)
    await blocked(redis, 1)
    return waiting


def push_connection(queue: AsyncWorkQueue) -> int:
    """Return the server's number for the connection that receives deliveries."""
    [number] = [one.id for one in queue._engine().session.connections if one.purpose == "pushes"]
    assert number is not None
    return number


async def test_a_waiting_caller_gets_an_item_without_a_trip_of_its_own(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    waiter, adder = make_queue(), make_queue()
    waiting = asyncio.create_task(take(waiter, 25))
    await registered(redis, waiter)
    await adder.counts()
    moved = await calls(redis, "lrange")
    await adder.add_item(Item(b"data", id="a"))
    lease = await waiting
    assert (lease.id, lease.data, lease.token, lease.attempt) == ("a", b"data", 1, 1)
    assert 20 < lease.remaining() <= 25
    assert await calls(redis, "lrange") == moved, "no lease script has run"
    assert await waiter.complete(lease)
    await waiter.close()
    await audit(redis, name)
    assert await left_over(redis, name) == set()


@pytest.mark.parametrize("ends", ["timeout", "cancelled"])
async def test_what_is_added_after_the_last_caller_has_gone_waits_and_can_be_replaced(
    make_queue: MakeQueue, redis: Redis, name: str, ends: str
) -> None:
    waiter, adder = make_queue(), make_queue()
    if ends == "timeout":
        assert await waiter.lease(30, timeout=0.05) is None
    else:
        waiting = await waiting_caller(waiter, redis)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await waiter.counts()  # comes after all that the session has sent
    assert not await redis.exists(f"{name}:idle")
    assert [await adder.add_item(Item(b"%d" % n, id="a"), replace=True) for n in range(5)] == [True] * 5
    assert (await take(adder)).data == b"4"


async def test_another_caller_that_waits_still_gets_deliveries(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    waiter, adder = make_queue(), make_queue()
    first, second = await waiting_caller(waiter, redis), asyncio.create_task(take(waiter))
    await waiter.counts()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await waiter.counts()
    assert waiter.session in str(await redis.zrange(f"{name}:idle", 0, -1))
    await adder.add_item(Item(b"x", id="a"))
    assert (await second).id == "a"


async def test_an_item_that_is_delivered_to_a_cancelled_caller_goes_back_to_the_front(
    make_queue: MakeQueue, redis: Redis
) -> None:
    waiter, adder = make_queue(), make_queue()
    waiting = await waiting_caller(waiter, redis)
    waiting.cancel()
    await adder.add_item(Item(b"data", id="a"))
    lease = await take(adder)
    assert (lease.id, lease.attempt) == ("a", 1)


async def test_each_of_many_waiting_callers_gets_an_item(make_queue: MakeQueue, redis: Redis) -> None:
    waiter, adder = make_queue(), make_queue()
    waiting = [asyncio.create_task(take(waiter)) for _ in range(20)]
    await registered(redis, waiter)
    for number in range(20):
        await adder.add_item(Item(b"data", id=f"{number}"))
    leases = await asyncio.gather(*waiting)
    assert {lease.id for lease in leases} == {f"{number}" for number in range(20)}
    assert len({lease.token for lease in leases}) == 20


async def test_only_a_caller_with_the_same_lease_time_gets_the_delivery(
    make_queue: MakeQueue, redis: Redis
) -> None:
    waiter, adder = make_queue(), make_queue()
    first = await waiting_caller(waiter, redis, 30)
    second = asyncio.create_task(take(waiter, 20))
    await asyncio.sleep(0)
    first.cancel()
    await adder.add_item(Item(b"data", id="a"))
    assert 15 < (await second).remaining() <= 20


async def test_a_delivery_that_was_not_accepted_is_recalled(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    waiter, adder = make_queue(), make_queue()
    waiting = asyncio.create_task(take(waiter))
    await registered(redis, waiter)
    deliveries = waiter._engine().deliveries
    deliveries._recalls += 1  # the event loop decides nothing while a recall is in flight
    await adder.add_item(Item(b"data", id="a"))
    assert await engines_of(waiter).release_arrivals() == 0, "no id was in the inbox"
    lease = await waiting  # it was in the queue again
    assert (lease.id, lease.token, lease.attempt) == ("a", 2, 1)
    deliveries._recalls -= 1
    await audit(redis, name)
    assert await waiter.complete(lease)


async def test_an_item_that_is_delivered_while_a_caller_leases_is_given_to_that_caller(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue()
    await queue.add_item(Item(b"data", id="a"))
    held = await take(queue, 30)
    now_ms = int((await queue.stats()).at * 1000)
    dispatcher = queue._engine().leasing
    caller = asyncio.create_task(take(queue, 30))
    for _ in range(1_000):
        if dispatcher._gate.in_flight:
            break
        await asyncio.sleep(0)
    # As if the server had sent it before it found the queue empty.
    dispatcher.delivered(Delivery(held.token, 1, 30_000, now_ms, b"a", b"data"))
    lease = await caller
    assert (lease.id, lease.data, lease.token) == ("a", b"data", held.token)
    assert (await queue.stats()).leases == 1, "it was not released and leased again"
    assert await queue.complete(lease)
    await queue.close()
    await audit(redis, name)


@pytest.mark.parametrize("first", ["the item is added", "the connection is lost"])
async def test_a_delivery_whose_connection_is_lost_is_recalled(
    make_queue: MakeQueue, redis: Redis, name: str, first: str
) -> None:
    waiter, adder = make_queue(), make_queue()
    waiting = asyncio.create_task(take(waiter))
    await registered(redis, waiter)
    async with redis.pubsub() as other, redis.pipeline(transaction=True) as step:
        await other.psubscribe("*")  # receives the delivery, too
        await other.get_message(timeout=120)
        kill = ("CLIENT", "KILL", "ID", push_connection(waiter))
        if first == "the item is added":
            adder.add_item_to_pipeline(step, Item(b"data", id="a"))
            step.execute_command(*kill)
        else:
            step.execute_command(*kill)
            adder.add_item_to_pipeline(step, Item(b"data", id="a"))
        await step.execute()
        lease = await waiting
    assert (lease.id, lease.attempt) == ("a", 1)
    assert await waiter.complete(lease)
    await audit(redis, name)


def test_what_was_recalled_is_not_accepted_later() -> None:
    deliveries, delivery = Deliveries(), Delivery(7, 1, 30_000, 0, b"a", b"data")

    async def leave(accepted: list[bytes]) -> list[int]:
        assert accepted == [b"6 b"]
        assert deliveries.accept(delivery) is None, "undecided while a recall is in flight"
        return [3, 7]

    assert deliveries.accept(delivery._replace(token=6, id=b"b")) is True
    assert asyncio.run(deliveries.recall(leave)) == 3
    assert deliveries.accept(delivery) is False
    deliveries.acknowledged([b"6 b"])
    assert deliveries._accepted == set()


def test_after_a_recall_whose_reply_is_lost_nothing_is_accepted_until_one_succeeds() -> None:
    """The server may have given the item to another worker."""
    deliveries, delivery = Deliveries(), Delivery(7, 1, 30_000, 0, b"a", b"data")

    async def lost(_: list[bytes]) -> list[int]:
        raise ConnectionLost("no reply", maybe_applied=True)

    async def leave(_: list[bytes]) -> list[int]:
        return [0]

    with pytest.raises(ConnectionLost):
        asyncio.run(deliveries.recall(lost))
    assert deliveries.accept(delivery) is False
    assert asyncio.run(deliveries.recall(leave)) == 0
    assert deliveries.accept(delivery) is True


async def test_a_registration_ends_with_the_next_that_asks_for_none(
    make_queue: MakeQueue, redis: Redis
) -> None:
    waiter = make_queue()
    waiting = asyncio.create_task(take(waiter, 30))
    await registered(redis, waiter)
    await waiter.add_items([Item(b"data", id="a"), Item(b"data", id="b")])  # two: none is delivered
    assert (await waiting).id == "a"
    assert (await take(waiter, 31)).id == "b"
    waiting = asyncio.create_task(take(waiter, 31))
    await blocked(redis, 1)
    assert not await redis.exists(f"{waiter.name}:idle")
    await waiter.close()
    assert not await redis.exists(f"{waiter.name}:idle")
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"hello",
        b"1 2 3",
        b"1 2 3 4 9 short",
        b"1 2 3 4 -1 text",
        b"a b c d e f",
        b"1" * 99 + b" 2 3 4 1 text",
        b"1 2 3 4 1;" + b"1" * 65 + b" text",
    ],
)
def test_any_client_may_publish_anything(message: bytes) -> None:
    assert read_delivery(message) is None


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
        for kind in ("cancel", "told", "cancel")
    ]
    await received_by(redis, queue, 1)
    for message in ("cancel 7 an id", "told", "stop", "", "cancellation 1", "1 2 3", "cancel 8 "):
        assert await redis.publish(channel_of(queue), message) == 1
    await eventually("all came", lambda: len(heard) == 5)
    assert heard == [*[("cancel", b"7 an id")] * 2, ("told", b""), *[("cancel", b"8 ")] * 2]
    ends[0]()
    ends[0]()
    await redis.publish(channel_of(queue), "cancel 9")
    await eventually("one came", lambda: heard[-1] == ("cancel", b"9"))
    assert len(heard) == 6
    for end in ends[1:]:
        end()
    await received_by(redis, queue, 0)


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
    [member] = await command(redis, "ZRANGE", f"{name}:idle", 0, -1)
    score = await redis.zscore(f"{name}:idle", member)
    assert score is not None
    await adder.add_items([Item(b"1", id="a"), Item(b"2", id="b")])
    assert await waiter.complete(await waiting)
    assert await waiter.complete(await take(waiter))
    await waiter._engine().stop_listening()
    word = engine_of(waiter).deliveries.new_word().decode()
    await redis.zadd(f"{name}:idle", {f"{word}@{waiter.session}": score})
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
