"""A slow, cut or silent connection: each caller learns what may have been applied, and nothing is twice."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, Lease, LeasequeueError
from leasequeue.wire import connection
from tests.eventually import eventually
from tests.queue.asking import expect_no_reply, take, until
from tests.queue.keyspace import audit, left_over, places

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = [pytest.mark.core, pytest.mark.slow]

NEVER = datetime(9999, 1, 1, tzinfo=UTC)

#: A call, and the ids that are then waiting, leased, delayed and dead if it was applied.
Expected = tuple[list[bytes], list[bytes], list[bytes], list[bytes]]
CALLS: dict[str, tuple[Callable[[AsyncWorkQueue, Lease], Awaitable[Any]], Expected]] = {
    "add_item": (lambda q, _: q.add_item(new()), ([b"b", b"new"], [b"a"], [], [b"d"])),
    "add_unique_item": (lambda q, _: q.add_unique_item(new()), ([b"b", b"new"], [b"a"], [], [b"d"])),
    "add_items": (lambda q, _: q.add_items([new()]), ([b"b", b"new"], [b"a"], [], [b"d"])),
    "delayed": (lambda q, _: q.add_item(new(), delay=60), ([b"b"], [b"a"], [b"new"], [b"d"])),
    "at": (lambda q, _: q.add_item(new(), at=NEVER), ([b"b"], [b"a"], [b"new"], [b"d"])),
    "lease": (lambda q, _: q.lease(60), ([], [b"a", b"b"], [], [b"d"])),
    "lease_many": (lambda q, _: q.lease_many(5, 60, block=False), ([], [b"a", b"b"], [], [b"d"])),
    "complete": (lambda q, lease: q.complete(lease), ([b"b"], [], [], [b"d"])),
    "complete, result": (lambda q, lease: q.complete(lease, result=b"r"), ([b"b"], [], [], [b"d"])),
    "renew": (lambda q, lease: q.renew(lease, 90), ([b"b"], [b"a"], [], [b"d"])),
    "release": (lambda q, lease: q.release(lease), ([b"a", b"b"], [], [], [b"d"])),
    "fail": (lambda q, lease: q.fail(lease, "why"), ([b"b"], [], [], [b"a", b"d"])),
    "fail, retry": (lambda q, lease: q.fail(lease, "", retry_in=60), ([b"b"], [], [b"a"], [b"d"])),
    "requeue": (lambda q, _: q.dead_letters.requeue("d"), ([b"b", b"d"], [b"a"], [], [])),
    "drop": (lambda q, _: q.dead_letters.drop("d"), ([b"b"], [b"a"], [], [])),
    "drop_all": (lambda q, _: q.dead_letters.drop_all(), ([b"b"], [b"a"], [], [])),
    "dead letters": (lambda q, _: q.dead_letters.list(), ([b"b"], [b"a"], [], [b"d"])),
    "result": (lambda q, _: q.results.get("a"), ([b"b"], [b"a"], [], [b"d"])),
    "counts": (lambda q, _: q.counts(), ([b"b"], [b"a"], [], [b"d"])),
    "inspect": (lambda q, _: q.inspect(), ([b"b"], [b"a"], [], [b"d"])),
}
BEFORE: Expected = ([b"b"], [b"a"], [], [b"d"])


def new() -> Item:
    return Item(b"x", id="new")


async def start(make_queue: MakeQueue, proxy: Proxy) -> tuple[AsyncWorkQueue, Lease]:
    """Return a queue behind the proxy, connected, with `a` leased, `b` waiting and `d` dead."""
    queue = make_queue(url=proxy.url)
    # Every script is known to the server from here on: a call is one request.
    await queue.add_item(Item(b"x", id="warm"))
    lease = await take(queue, 60)
    await queue.renew(lease, 60)
    await queue.counts()
    await queue.inspect()
    await queue.release(lease)
    await queue.complete(lease)
    await queue.add_item(Item(b"x", id="d"))
    await queue.fail(await take(queue, 60), "why")
    await queue.dead_letters.list()
    await queue.dead_letters.requeue("d")
    await queue.fail(await take(queue, 60), "why")
    await queue.dead_letters.drop("unknown")
    await queue.dead_letters.drop_older_than(60)
    await queue.results.get("d")
    await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b")])
    return queue, await take(queue, 60)


async def state(redis: Redis, name: str) -> Expected:
    found = await places(redis, name)
    return found.waiting, sorted(found.leased), found.scheduled, sorted(found.dead)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.seed("WRQ-B5")
async def test_a_lost_reply_means_that_the_call_was_applied_once(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, call: str
) -> None:
    """The call is applied, once, and the caller learns that it may have been."""
    queue, lease = await start(make_queue, proxy)
    make_call, applied = CALLS[call]
    sent = proxy.commands.count(b"EVALSHA")
    proxy.drop_replies = True
    expect_no_reply(queue._engine())
    with pytest.raises(ConnectionLost, match=r"may have been applied\. Repeating is safe") as caught:
        await make_call(queue, lease)
    assert caught.value.maybe_applied is True
    await eventually("the server has the call", lambda: proxy.commands.count(b"EVALSHA") > sent)
    proxy.drop_replies = False

    async def is_applied() -> bool:
        return await state(redis, name) == applied

    await until("it is applied", is_applied)
    assert proxy.commands.count(b"EVALSHA") == sent + 1
    assert (await queue.counts()).total >= 1, "the next call works"
    await audit(redis, name)


@pytest.mark.parametrize("call", CALLS)
async def test_a_silent_server_raises_connection_lost(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, call: str
) -> None:
    """The call does not reach the server, which the client cannot know."""
    queue, lease = await start(make_queue, proxy)
    proxy.stall()
    expect_no_reply(queue._engine())
    with pytest.raises(ConnectionLost, match=r"did not answer within 0\.1 s") as caught:
        await CALLS[call][0](queue, lease)
    assert caught.value.maybe_applied is True
    await proxy.cut()
    proxy.resume()
    assert await state(redis, name) == BEFORE
    assert await queue.counts() == (1, 1, 0, 1)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.seed("WRQ-E5")
async def test_a_missing_server_applies_nothing(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, call: str
) -> None:
    queue, lease = await start(make_queue, proxy)
    proxy.refuse()
    await proxy.cut()
    await asyncio.sleep(0.02)  # long enough to notice the cut; noticed or not, nothing is applied
    for attempt in range(3):
        with pytest.raises(ConnectionLost) as caught:
            await CALLS[call][0](queue, lease)
        assert caught.value.maybe_applied is False, attempt
    assert await state(redis, name) == BEFORE
    await proxy.accept()
    await CALLS[call][0](queue, lease)
    assert await state(redis, name) == CALLS[call][1]


@pytest.mark.parametrize("reply_bytes", range(0, 40, 3))
async def test_a_reply_cut_at_any_byte_misleads_no_caller(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, reply_bytes: int
) -> None:
    queue, lease = await start(make_queue, proxy)
    proxy.cut_after_bytes(reply_bytes)
    calls: list[Awaitable[Any]] = [
        queue.add_item(Item(b"x", id="new")),
        queue.complete(lease),
        queue.lease(60, block=False),
        queue.counts(),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            assert isinstance(answer, ConnectionLost)
            assert answer.maybe_applied is True
    assert any(isinstance(answer, ConnectionLost) for answer in answers)
    found = await audit(redis, name)
    # The answers are true.
    if answers[0] is True:
        assert b"new" in found.all
    if answers[1] is True:
        assert b"a" not in found.all
    assert await queue.add_item(Item(b"x", id="new")) is (b"new" not in found.all)
    assert await queue.complete(lease) is (b"a" in found.all)


@pytest.mark.parametrize("handshake_bytes", [0, 1, 10, 100, 1000, 4000])
async def test_a_handshake_that_is_cut_applies_nothing(
    make_queue: MakeQueue, proxy: Proxy, handshake_bytes: int
) -> None:
    queue = make_queue(url=proxy.url)
    proxy.cut_after_bytes(handshake_bytes)
    with pytest.raises(ConnectionLost) as caught:
        await queue.add_item(Item(b"x", id="x"))
    assert caught.value.maybe_applied is False
    assert await queue.add_item(Item(b"x", id="x"))


async def test_a_connection_that_ends_right_after_the_handshake(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to INFO arrives together with the end of the connection."""
    opened: list[connection.Connection] = []
    usual = connection.Connection.__init__

    def note(self: connection.Connection, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        opened.append(self)
        usual_post = self.post

        def post(command: tuple[bytes, ...], on_reply: connection.OnReply, **options: Any) -> None:
            def answered(reply: Any, error: BaseException | None) -> None:
                on_reply(reply, error)
                if len(opened) == 1:
                    self._end("the end")

            usual_post(command, answered, **options)

        monkeypatch.setattr(self, "post", post)

    monkeypatch.setattr(connection.Connection, "__init__", note)
    queue = make_queue(url=proxy.url)
    async with asyncio.timeout(120):
        with pytest.raises(ConnectionLost):
            await queue.add_item(Item(b"x", id="x"))
        assert await queue.add_item(Item(b"x", id="x"))
    assert len(opened) == 2
    await queue.close()
    assert await redis.ping()


async def test_a_server_that_accepts_connections_and_never_answers(
    make_queue: MakeQueue, proxy: Proxy
) -> None:
    queue = make_queue(url=proxy.url, reply_timeout=1)
    proxy.stall()
    async with asyncio.timeout(120):
        calls = (queue.add_item(Item(b"x")), queue.lease(30))
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ConnectionLost)
            assert error.maybe_applied is False
    await proxy.cut()
    proxy.resume()
    assert await queue.add_item(Item(b"x"))


async def test_a_reply_that_arrived_while_the_event_loop_was_blocked_is_read(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply timeout has passed when the loop continues, and the reply has arrived but is not read yet."""
    queue = make_queue(reply_timeout=1)
    await queue.counts()
    usual = connection.Connection.post

    def post(*args: Any, **options: Any) -> None:
        usual(*args, **options)
        time.sleep(1.5)

    monkeypatch.setattr(connection.Connection, "post", post)
    assert await queue.add_item(Item(b"x", id="x"))


async def test_all_callers_of_many_trips_are_answered(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    """Some trips are applied, some not sent: no caller waits for ever, and repeated calls add the rest."""
    queue = make_queue(url=proxy.url)
    await queue.counts()
    total = 5000
    adding = [asyncio.create_task(queue.add_item(Item(b"x", id=f"{n}"))) for n in range(total)]
    await eventually("the first have been answered", lambda: any(task.done() for task in adding))
    await proxy.cut()
    answers = await asyncio.gather(*adding, return_exceptions=True)
    lost = [n for n, answer in enumerate(answers) if isinstance(answer, LeasequeueError)]
    assert [answer for answer in answers if not isinstance(answer, LeasequeueError)] == [True] * (
        total - len(lost)
    )
    await asyncio.gather(*(queue.add_item(Item(b"x", id=f"{n}")) for n in lost))
    assert len((await audit(redis, name)).waiting) == total


async def test_an_item_leased_by_a_lost_call_is_reclaimed_when_the_lease_expires(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    queue, later = make_queue(url=proxy.url), make_queue(clock=lambda: time.time() + 60)
    await later.add_item(Item(b"x", id="x"))
    await queue.counts()
    proxy.drop_replies = True
    expect_no_reply(queue._engine())
    with pytest.raises(ConnectionLost):
        await queue.lease(30)

    async def is_leased() -> bool:
        return (await audit(redis, name)).leased == [b"x"]

    await until("it is leased", is_leased)
    proxy.drop_replies = False
    assert (await take(later)).attempt == 2


async def test_an_item_leased_for_a_cancelled_caller_is_released(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    """The item returns to the front as soon as the reply arrives."""
    queue, other = make_queue(url=proxy.url), make_queue()
    await other.add_items([Item(b"x", id=f"{n}") for n in range(3)])
    await queue.counts()
    proxy.stall()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.lease(600)
    proxy.resume()

    async def is_back() -> bool:
        return await redis.get(f"{name}:fence") == b"1" and await other.queue_len() == 3

    await until("it was leased and released", is_back)
    assert (await audit(redis, name)).waiting == [b"0", b"1", b"2"]
    lease = await take(other)
    assert (lease.id, lease.attempt) == ("0", 1)


@pytest.mark.parametrize("fault", ["cut", "cut and gone for a moment"])
@pytest.mark.seed("WRQ-B10")
async def test_a_waiter_survives_a_cut_of_its_connection_or_gets_an_error(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, fault: str
) -> None:
    waiter, adder = make_queue(url=proxy.url), make_queue()
    got = 0
    for number in range(5):
        waiting = asyncio.create_task(waiter.lease(30))
        await eventually("it waits", lambda: proxy.commands[-1:] == [b"BLMOVE"])
        if fault != "cut":
            proxy.refuse()
        await proxy.cut()
        if fault != "cut":
            await proxy.accept()
        await adder.add_item(Item(b"x", id=f"{number}"))
        async with asyncio.timeout(120):
            try:
                lease = await waiting
            except ConnectionLost:
                lease = await take(waiter)
        assert await waiter.complete(lease)
        got += 1
    await waiter.close()
    assert got == 5

    # The server may not have noticed each cut: the session stays until its last blocking move has ended.
    later = make_queue(clock=lambda: time.time() + 60)
    await later.light_clean()
    assert await redis.zcard(f"{name}:sessions") == 0
    await later.close()
    await adder.close()
    assert not await left_over(redis, name)
