"""A client that may only publish, and reads no key, changes nothing: what it sends is dropped and counted."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from hashlib import sha1
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.alive import Fleet
from leasequeue.queue.pushes.seals import Unverified
from leasequeue.queue.queue import engine_of, engines_of
from tests.eventually import eventually
from tests.queue.asking import command, registered, take, until
from tests.worker.working import Gate, add, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

DELIVERY = "1 1 30000 1900000000000 1 aforged"
#: Secrets that are no secret of the session, with what has their form.
SEAL, WORD = "0" * 40, "0" * 16


@pytest.fixture(params=[0, 5])
async def publish(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Any]:
    """Publish messages, from the queue's database or from another one."""
    async with Redis.from_url(redis_url, db=request.param) as attacker:

        async def send(channel: str, *messages: str | bytes) -> None:
            for message in messages:
                assert await attacker.publish(channel, message) >= 1, "it is received"

        yield send


def push_channel(queue: AsyncWorkQueue) -> str:
    """Return the channel of a session, as PUBSUB CHANNELS shows it."""
    return f"{queue.name}:push:{queue.session}"


def dropped(queue: AsyncWorkQueue) -> int:
    """Return how many messages were dropped."""
    return engines_of(queue).unverified.count


async def has_dropped(queue: AsyncWorkQueue, count: int) -> None:
    """Wait until so many messages were dropped."""
    await eventually(f"{count} messages are dropped", lambda: dropped(queue) >= count)
    assert dropped(queue) == count


async def receives(redis: Redis, channel: str) -> None:
    """Wait until a channel has a subscriber."""

    async def is_so() -> bool:
        [(_, count)] = await redis.pubsub_numsub(channel)
        return int(count) > 0

    await until(f"{channel} is received", is_so)


@asynccontextmanager
async def waiting_worker(queue: AsyncWorkQueue, redis: Redis) -> AsyncIterator[tuple[Any, Gate]]:
    """Run a worker that waits for items and lets each run end."""
    worker = new_worker(dead_after=3600)
    gate = Gate(worker, queue)
    gate.opened.set()
    async with working(worker):
        await registered(redis, queue)
        yield worker, gate


async def test_a_forged_delivery_runs_nothing(
    queue: AsyncWorkQueue, redis: Redis, publish: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with waiting_worker(queue, redis) as (worker, gate):
        await publish(
            push_channel(queue), DELIVERY, f"item {DELIVERY}", f"item {WORD} {DELIVERY}", f"{WORD} {DELIVERY}"
        )
        await has_dropped(queue, 4)
        assert worker.health().unverified_messages == 4
        await add(queue, b"x")
        await finished(queue)
    assert gate.begun == ["1"], "only the item that was added has run"
    lines = [one for one in caplog.records if "no script of this queue has published them" in one.message]
    assert [one.levelno for one in lines] == [logging.WARNING], "one line in a minute"


async def test_what_was_sent_before_cannot_be_sent_again(
    make_queue: MakeQueue, redis: Redis, publish: Any
) -> None:
    """By one who has listened, to the same session and to the next one."""
    queue, again = make_queue(), make_queue()
    async with redis.pubsub() as listening, waiting_worker(queue, redis) as (_, gate):
        await listening.psubscribe(f"{queue.name}:push:*")
        await add(queue, b"x")
        await finished(queue)
        heard: list[bytes] = []
        while not heard:
            message = await listening.get_message(ignore_subscribe_messages=True, timeout=0.1)
            heard.extend([message["data"]] if message else [])
        assert heard[0].startswith(b"item ")
        await publish(push_channel(queue), heard[0])
        await has_dropped(queue, 1)
    async with waiting_worker(again, redis) as (_, later):
        await publish(push_channel(again), heard[0])
        await has_dropped(again, 1)
    assert (gate.begun, later.begun) == (["1"], [])


async def test_a_forged_order_is_not_obeyed(queue: AsyncWorkQueue, redis: Redis, publish: Any) -> None:
    async with waiting_worker(queue, redis) as (worker, gate):
        await publish(push_channel(queue), "stop", "quiet", "told stop", "told 7", f"{SEAL} stop")
        await has_dropped(queue, 5)
        assert not worker.stopping
        [one] = await Fleet(queue).workers()
        assert not one.quiet
        await Fleet(queue).quiet(one)

        async def is_quiet() -> bool:
            return [one.quiet for one in await Fleet(queue).workers()] == [True]

        await until("it obeys what was ordered", is_quiet)
        await Fleet(queue).resume(one)
        await add(queue, b"x")
        await finished(queue)
    assert gate.begun == ["1"]


async def test_a_forged_cancel_cancels_no_run(queue: AsyncWorkQueue, redis: Redis, publish: Any) -> None:
    worker = new_worker(dead_after=3600)
    gate = Gate(worker, queue)
    async with working(worker):
        await receives(redis, push_channel(queue))
        await add(queue, b"x", b"y")
        await gate.reached(2)
        # One that runs, one that will be leased, one that names another item, and what is no token.
        await publish(push_channel(queue), "cancel 1 1", "cancel 3 3", "cancel what", "cancel 1 ")
        await publish(push_channel(queue), "cancel 2 nothing")
        await has_dropped(queue, 3)
        assert await queue.cancel("2")
        await eventually("what was cancelled ends", lambda: worker.health().running == 1)
        gate.opened.set()
        await queue.add_item(Item(b"z", id="3"))
        await finished(queue)
    assert sorted(gate.done) == ["1", "3"]


async def watched(redis: Redis, queue: AsyncWorkQueue) -> None:
    """Wait until the server knows that a caller waits."""

    async def is_so() -> bool:
        return int(await redis.hlen(f"{queue.name}:watchers")) > 0

    await until("the server knows that a caller waits", is_so)


async def test_callers_get_no_forged_result_or_progress(
    make_queue: MakeQueue, redis: Redis, publish: Any
) -> None:
    queue, other = make_queue(), make_queue()
    await add(other, b"x")
    lease = await take(other)
    seen: list[Any] = []

    async def follow() -> None:
        seen.extend([value async for value in queue.results.progress("1")])

    waiting, following = asyncio.create_task(queue.results.wait("1")), asyncio.create_task(follow())
    await watched(redis, queue)
    [engine] = engines_of(queue).all
    await eventually("the reply has come", lambda: b"1" in engine.result_waits._unfinished)
    texts = ["ended 1", "cancelled 1", "expired 1", 'progress 1 1"forged"']
    forged = [*texts, *(f"{SEAL} {text}" for text in texts), "ended 000000 1", f"{SEAL} ended {SEAL[:6]} 1"]
    await publish(push_channel(queue), *forged)
    await has_dropped(queue, len(forged))
    assert await other.progress(lease, 1)
    assert await other.complete(lease)
    assert await waiting is None, "it was completed, without a result"
    await following
    assert seen in ([1], [])
    assert dropped(queue) == len(forged), "what scripts publish is not dropped"


async def test_a_forged_event_is_not_read(make_queue: MakeQueue, redis: Redis, publish: Any) -> None:
    queue, other = make_queue(), make_queue()
    begin = await other.events.publish()
    live = await redis.hget(f"{queue.name}:events:keep", "live")
    text = f'{{"first":{begin + 1},"events":[{{"what":"completed","id":"a","time":1,"result":"forged"}}]}}'
    events = queue.events(live=True)
    ahead = asyncio.ensure_future(anext(events))
    live_events = engine_of(queue).live_events

    def is_connected() -> bool:
        return live_events._subscription is not None and live_events._subscription.ready

    await eventually("it has subscribed", is_connected)
    forged = [text, f"{SEAL} {text}", '{"off":true}', f'{SEAL} {{"off":true}}', "{", b"\xff" * 50]
    # Who may read the secret can seal any text.
    for text in ("{", "[]", '{"first":1}', '{"first":"1","events":[1]}', "[" * 100_000):
        secret = live_events._secret
        forged.append(sha1(text.encode() + secret, usedforsecurity=False).hexdigest() + f" {text}")
    await publish(f"{queue.name}:live", *forged)
    await has_dropped(queue, len(forged))
    await other.add_item(Item(b"x", id="b"))
    assert (await ahead).id == "b"
    ahead = asyncio.ensure_future(anext(events))
    await other.events.stop()
    with pytest.raises(Exception, match="publish"):
        await ahead
    await other.events.publish()
    assert await redis.hget(f"{queue.name}:events:keep", "live") != live, "each time another secret"


async def test_what_only_says_to_look_does_no_harm(make_queue: MakeQueue, redis: Redis, publish: Any) -> None:
    queue, other = make_queue(), make_queue()
    await other.events.keep(count=100)
    events = queue.events()
    ahead = asyncio.ensure_future(anext(events))
    waiting = asyncio.create_task(take(queue))
    for channel in ("due", "events"):
        await receives(redis, f"{queue.name}:{channel}")
        await publish(f"{queue.name}:{channel}", "0", "99", "stop", '{"off":true}', "")
    await has_dropped(queue, 6)
    await other.add_item(Item(b"x", id="a"))
    assert ((await ahead).id, (await waiting).id) == ("a", "a")


async def test_a_worker_that_is_flooded_still_works(
    make_queue: MakeQueue, redis: Redis, publish: Any
) -> None:
    queue, other = make_queue(), make_queue()
    async with waiting_worker(queue, redis) as (worker, gate):
        for number in range(100):
            await publish(push_channel(queue), f"item {WORD} {DELIVERY}", f"told {number + 9}", "cancel 1 a")
            await publish(f"{queue.name}:due", "0")
            if number % 10 == 0:
                await other.add_item(Item(b"x", id=f"{number}"))
        await finished(other)
        await eventually("all are counted", lambda: dropped(queue) >= 200)
        await eventually("it is healthy", lambda: worker.health().ok)
    assert sorted(gate.begun) == sorted(f"{number}" for number in range(0, 100, 10))


async def test_a_delivery_whose_word_was_forgotten_is_recalled_at_once(
    make_queue: MakeQueue, redis: Redis
) -> None:
    """As when it was sent while the session took its connection for lost."""
    queue, other = make_queue(), make_queue()
    waiting = asyncio.create_task(take(queue, 30))
    await registered(redis, queue)
    engine_of(queue).deliveries.forget_words()
    await other.add_item(Item(b"x", id="a"))
    lease = await waiting
    assert (lease.id, lease.attempt) == ("a", 1)
    assert dropped(queue) == 1


async def test_no_name_that_others_see_has_a_secret(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue()
    async with waiting_worker(queue, redis):
        await queue.add_item(Item(b"x", id="later"), delay=1000)
        waiting = asyncio.create_task(queue.results.wait("later"))
        await watched(redis, queue)
        secrets = [engine_of(queue).keys.secret, *engine_of(queue).deliveries._words]
        assert len(secrets) > 1
        shown = [
            await command(redis, "PUBSUB", "CHANNELS"),
            await redis.keys("*"),
            await redis.client_list(),
            [one.__dict__ for one in await Fleet(queue).workers()],
            queue.session,
        ]
        assert [one for one in secrets if one.decode() in repr(shown)] == []
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


def test_it_is_logged_once_in_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    one = Unverified("q\n")
    for _ in range(5):
        one.add()
    now += 61
    one.add()
    assert [line.getMessage().partition(":")[0] for line in caplog.records] == [
        "1 messages on the channels of 'q\\n' were dropped",
        "5 messages on the channels of 'q\\n' were dropped",
    ]
