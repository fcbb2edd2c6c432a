"""Sessions: what the queue objects of one client share in an event loop; connections and their names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel
from redis.credentials import UsernamePasswordCredentialProvider

from leasequeue import AsyncWorkQueue, Item, Worker, lease_from
from leasequeue.keys import session_origin
from leasequeue.queue.queue import engines_of
from leasequeue.wire.endpoints import same_server
from leasequeue.wire.session import SESSIONS
from leasequeue.wire.subscriptions import Subscription, Subscriptions
from tests.eventually import eventually
from tests.queue.asking import alone, blocked, engine_of, names_of, session, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from leasequeue.errors import LeasequeueError
    from leasequeue.queue.engine import Engine
    from leasequeue.testing import Proxy
    from leasequeue.views import Event
    from leasequeue.wire.connection import Connection
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def test_the_queues_of_one_client_share_a_session_and_its_connection(
    redis: Redis, redis_url: str, name: str
) -> None:
    host = f"{socket.gethostname()}:{os.getpid()}"
    async with Redis.from_url(redis_url) as client:
        queues = [AsyncWorkQueue(f"{name}-{n}", client) for n in range(20)]
        await asyncio.gather(*(queue.add_item(Item(b"x")) for queue in queues))
        assert len({queue.session for queue in queues}) == 1
        assert names_of(await redis.client_list()) == [f"leasequeue:commands:{host}"]
        mine = session(queues[0])
        assert (mine.pid, mine.host) == (os.getpid(), socket.gethostname())
        assert session_origin(queues[0].session) == (socket.gethostname(), os.getpid())
        [connection] = mine.connections
        ids = {client["name"]: int(client["id"]) for client in await redis.client_list()}
        assert connection.id == ids[f"leasequeue:commands:{host}"]
        for queue in queues[1:]:
            await queue.close()
        assert await queues[0].queue_len() == 1
        await queues[0].close()
    await alone(redis)
    assert mine not in list(SESSIONS)


@pytest.mark.slow
async def test_a_hundred_queues_of_one_url_need_three_connections_more_than_queues(
    redis: Redis, redis_url: str, name: str
) -> None:
    queues = [AsyncWorkQueue.from_url(redis_url, f"{name}-{n}") for n in range(100)]
    worker = Worker()
    for queue in queues:
        worker.handler(queue)(fail)
    running = asyncio.create_task(worker.run())
    await blocked(redis, 100)
    found = Counter(one.split(":")[1] for one in names_of(await redis.client_list()))
    assert found == {"waits": 100, "commands": 2, "pushes": 1}, "the second for scripts is that of the thread"
    worker.stop()
    await running
    for queue in queues:
        await queue.close()
    await alone(redis)


async def fail(_: bytes) -> None:
    """Handle an item of a queue that is empty."""
    raise AssertionError


async def test_queues_of_equal_urls_share_a_session_until_the_last_is_closed(
    redis: Redis, redis_url: str, name: str
) -> None:
    one, two, three = (AsyncWorkQueue.from_url(redis_url, f"{name}-{n}") for n in range(3))
    await one.add_item(Item(b"x"))
    assert one.session == two.session == three.session
    await one.close()
    assert await two.add_item(Item(b"x"))
    assert len(names_of(await redis.client_list())) == 1
    async with Redis.from_url(redis_url) as client, AsyncWorkQueue(f"{name}-0", client) as again:
        assert again.session == two.session, "so does a client of the same server"
        await two.close()
        await three.close()
        assert await again.queue_len() == 1
    await alone(redis)


async def test_another_login_another_database_or_another_provider_of_logins_is_another_session(
    redis: Redis, redis_url: str, name: str
) -> None:
    await redis.acl_setuser(
        "other", enabled=True, passwords=["+x"], keys=["*"], channels=["*"], categories=["+@all"]
    )
    urls = [redis_url, redis_url.replace("redis://", "redis://other:x@"), f"{redis_url.rstrip('/0')}/1"]
    queues = [AsyncWorkQueue.from_url(url, f"{name}-{at}") for at, url in enumerate(urls)]
    providers = [UsernamePasswordCredentialProvider("other", "x") for _ in range(2)]
    clients = [Redis.from_url(redis_url, credential_provider=one) for one in (*providers, providers[0])]
    queues += [AsyncWorkQueue(f"{name}-c{at}", client) for at, client in enumerate(clients)]
    try:
        sessions = [queue.session for queue in queues]
        assert len({*sessions}) == 5
        assert sessions[3] == sessions[5] != sessions[4]
        assert await queues[1].add_item(Item(b"x"))
    finally:
        for queue in queues:
            await queue.close()
        await redis.acl_deluser("other")


def sentinel(host: str, **options: Any) -> Any:
    """Return what makes clients that ask a Sentinel."""
    return Sentinel([(host, 26379)], **options)  # type: ignore[no-untyped-call]  # theirs has no types


def test_which_clients_lead_to_the_same_server() -> None:
    made: list[Callable[[], Redis | RedisCluster]] = [
        lambda: Redis.from_url("redis://h"),
        lambda: Redis.from_url("redis://h:6380"),
        lambda: Redis.from_url("rediss://h"),
        lambda: Redis.from_url("unix:///s"),
        lambda: Redis.from_url("redis://:x@h"),
        lambda: Redis(host="h"),
        lambda: Redis(host="h", ssl=True, ssl_ca_certs="/ca"),
        lambda: RedisCluster.from_url("redis://h"),
        lambda: RedisCluster.from_url("redis://:x@h"),
        lambda: RedisCluster(startup_nodes=[ClusterNode("h", 6379), ClusterNode("i", 6379)]),
        lambda: RedisCluster(host="h", address_remap=lambda address: ("i", address[1])),
        lambda: sentinel("h").master_for("m"),
        lambda: sentinel("h").master_for("n"),
        lambda: sentinel("i").master_for("m"),
        lambda: sentinel("h", sentinel_kwargs={"password": "x"}).master_for("m"),
        lambda: sentinel("h").master_for("m", db=2),
        lambda: sentinel("h").slave_for("m"),
    ]
    clients, others = [make() for make in made], [make() for make in made]
    for at, one in enumerate(clients):
        assert same_server(one, one)
        same = [number for number, other in enumerate(others) if same_server(one, other)]
        assert same == ([] if at == 10 else [at]), "a function of ours is another each time"
    assert same_server(Redis(host="h"), Redis(host="h", decode_responses=True, socket_timeout=1))


async def test_two_objects_of_a_queue_have_two_sessions(redis_url: str, name: str) -> None:
    """An inbox has one reader: if they shared it, one that closes would unregister the other."""
    async with (
        Redis.from_url(redis_url) as client,
        AsyncWorkQueue(name, client) as one,
        AsyncWorkQueue(name, client) as two,
    ):
        assert one.session != two.session
        await one.close()
        async with AsyncWorkQueue(name, client) as three:
            assert three.session != two.session


def look(engine: Engine) -> bool:
    """Do now what a timer would do later; return whether a session that was replaced is being closed."""
    timer = engine._unused_timer
    assert timer is not None
    timer._run()
    timer.cancel()
    return engine._closing is not None


async def test_calls_go_on_with_a_session_that_is_replaced_and_its_connection_is_closed_after_them(
    make_queue: MakeQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a worker was failed, and the program uses its queue object, too."""
    monkeypatch.setattr("leasequeue.queue.engine.UNUSED_SECONDS", 3600)
    queue = make_queue(url=proxy.url)
    await queue.add_item(Item(b"x", id="1"))
    before, engine = session(queue), engines_of(queue).running
    assert engine is not None

    proxy.stall()
    calls = [asyncio.create_task(queue.counts()) for _ in range(2)]
    await asyncio.sleep(0)
    replaced = await engines_of(queue).replace_session()
    assert replaced != before.id
    assert queue.session == replaced
    look(engine)
    proxy.resume()
    await asyncio.gather(*calls)
    look(engine)  # it begins again: the calls were in flight at the last look
    assert await engine.run("counts")
    look(engine)
    assert await engine.run("counts")
    look(engine)
    look(engine)
    await eventually("its connection is closed", lambda: not before.connections)
    assert before not in list(SESSIONS)
    await eventually("it is closed", lambda: engine.closed)
    await engines_of(queue).replace_session()
    assert engine not in engines_of(queue)._closing, (
        "what is closed is forgotten, however often it is replaced"
    )


@contextlib.asynccontextmanager
async def a_lease(queue: AsyncWorkQueue) -> AsyncIterator[None]:
    leasing = asyncio.create_task(queue.lease(30))
    await eventually("it waits", lambda: engine_of(queue).leasing.waits)
    yield
    await queue.add_item(Item(b"x"))
    lease = await leasing
    assert lease is not None
    assert await queue.complete(lease)


@contextlib.asynccontextmanager
async def a_lease_from_many(queue: AsyncWorkQueue) -> AsyncIterator[None]:
    leasing = asyncio.create_task(lease_from([queue], 1, 30))
    await eventually("it waits", lambda: engine_of(queue).leasing.waits)
    yield
    await queue.add_item(Item(b"x"))
    [lease] = await leasing
    assert await queue.complete(lease)


@contextlib.asynccontextmanager
async def a_reader_of_published_events(queue: AsyncWorkQueue) -> AsyncIterator[None]:
    await queue.events.publish()
    async with contextlib.aclosing(cast("AsyncGenerator[Event]", queue.events(live=True))) as events:
        reading = asyncio.ensure_future(anext(events))
        await eventually("it reads", lambda: engine_of(queue).live_events.in_use)
        yield
        await queue.add_item(Item(b"x", id="1"))
        assert (await reading).id == "1"


@contextlib.asynccontextmanager
async def a_held_limit(queue: AsyncWorkQueue) -> AsyncIterator[None]:
    await queue.limits.set(hold="api", concurrency=1)
    async with queue.limits.hold("api") as hold:
        yield
        assert await hold._asked(renews=True)
    assert (await queue.limits.holds())["api"].held == 0


@pytest.mark.parametrize("use", [a_lease, a_lease_from_many, a_reader_of_published_events, a_held_limit])
async def test_a_session_that_is_replaced_is_kept_for_what_lasts(
    make_queue: MakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[AsyncWorkQueue], AbstractAsyncContextManager[None]],
) -> None:
    monkeypatch.setattr("leasequeue.queue.engine.UNUSED_SECONDS", 3600)
    queue = make_queue()
    engine = engines_of(queue).here()
    async with use(queue):
        await engines_of(queue).replace_session()
        assert not any(look(engine) for _ in range(3))
    await eventually("it closes", lambda: look(engine))
    await eventually("it is closed", lambda: engine.closed)


@pytest.mark.parametrize("first", ["confirmed", "asked for"])
async def test_a_follower_of_kept_events_goes_to_the_next_session(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Without its channel, it would ask only now and then. The first one may not be confirmed yet."""
    monkeypatch.setattr("leasequeue.queue.engine.UNUSED_SECONDS", 3600)
    monkeypatch.setattr("leasequeue.queue.events.LONGEST_SLEEP", 3600)
    queue = make_queue()
    await queue.events.keep(count=10)
    engine, settle = engine_of(queue), Subscription._settle

    def settle_others(one: Subscription, error: LeasequeueError | None) -> None:
        if error is not None or one not in engine._subscriptions:
            settle(one, error)

    if first == "asked for":
        monkeypatch.setattr(Subscription, "_settle", settle_others)
    async with contextlib.aclosing(cast("AsyncGenerator[Event]", queue.events())) as events:
        reading = asyncio.ensure_future(anext(events))
        await eventually("it follows", lambda: any(one.ready for one in engine._subscriptions))
        await engines_of(queue).replace_session()
        assert any(look(engine) for _ in range(3))
        await eventually("it follows again", lambda: bool(engine_of(queue)._subscriptions))
        await queue.add_item(Item(b"x", id="1"))
        assert (await reading).id == "1"


async def test_queues_of_different_reply_timeouts_have_different_sessions(redis_url: str, name: str) -> None:
    async with (
        Redis.from_url(redis_url) as client,
        AsyncWorkQueue(f"{name}-1", client) as one,
        AsyncWorkQueue(f"{name}-2", client, reply_timeout=3) as two,
    ):
        assert one.session != two.session


async def test_names_and_ids_of_connections_are_not_required(redis: Redis, redis_url: str, name: str) -> None:
    await redis.acl_setuser(
        "plain", enabled=True, passwords=["+x"], keys=["*"], channels=["*"],
        categories=["+@all"], commands=["-client"],
    )  # fmt: skip
    try:
        url = redis_url.replace("redis://", "redis://plain:x@")
        async with AsyncWorkQueue.from_url(url, name) as queue:
            assert await queue.add_item(Item(b"x"))
            [connection] = session(queue).connections
            assert connection.id is None
    finally:
        await redis.acl_deluser("plain")


async def test_without_an_event_loop_there_is_no_session(queue: AsyncWorkQueue) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        await asyncio.to_thread(lambda: queue.session)


class Heard:
    """Counts what a subscriber receives."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


async def subscribe(queue: AsyncWorkQueue, channel: str, heard: Heard) -> Subscription:
    one = engine_of(queue).route.subscribe(channel.encode(), heard.messages.append, heard.end)
    await one.confirmed()
    return one


async def test_all_subscriptions_share_one_connection(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    queue = make_queue()
    await queue.counts()
    route, heard = engine_of(queue).route, [Heard() for _ in range(3)]
    channels = [f"{name}:a".encode(), f"{name}:a".encode(), f"{name}:b".encode()]
    first, second, third = [
        route.subscribe(channel, one.messages.append, one.end)
        for channel, one in zip(channels, heard, strict=True)
    ]
    await asyncio.gather(*(one.confirmed() for one in (first, second, third)))
    assert [name.split(":")[1] for name in names_of(await redis.client_list())] == ["commands", "pushes"]
    assert await redis.publish(f"{name}:a", "1") == 1
    assert await redis.publish(f"{name}:b", "2") == 1
    await eventually("both came", lambda: bool(heard[0].messages and heard[2].messages))
    assert [one.messages for one in heard] == [[b"1"], [b"1"], [b"2"]]
    first.close()
    first.close()
    assert await redis.publish(f"{name}:a", "3") == 1
    second.close()

    async def is_silent() -> bool:
        return await redis.publish(f"{name}:a", "4") == 0

    await until("the channel has no subscriber", is_silent)
    assert await redis.publish(f"{name}:b", "5") == 1
    await eventually("it came", lambda: len(heard[2].messages) == 2)
    assert heard[0].messages == [b"1"]
    third.close()


async def test_after_a_cut_all_channels_are_subscribed_again(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, opened, usual = make_queue(), -1, Subscriptions._opened

    async def counted(self: Subscriptions) -> Connection:
        nonlocal opened
        opened += 1
        return await usual(self)

    monkeypatch.setattr(Subscriptions, "_opened", counted)
    await queue.counts()
    heard = [Heard() for _ in range(3)]
    for number, one in enumerate(heard):
        await subscribe(queue, f"{name}:{number}", one)
    [pushes] = [one for one in session(queue).connections if one.purpose == "pushes"]
    assert pushes.id is not None
    await redis.client_kill_filter(_id=str(pushes.id))
    await eventually("each was notified twice", lambda: all(one.ends == 2 for one in heard))
    assert opened == 1, "one connection for all of them"
    for number in range(3):
        assert await redis.publish(f"{name}:{number}", "x") == 1
    await eventually("all came", lambda: all(one.messages == [b"x"] for one in heard))


async def test_a_cut_right_after_the_server_has_confirmed_is_repaired(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, heard = make_queue(url=proxy.url), Heard()
    await queue.counts()
    await subscribe(queue, f"{name}:a", heard)
    usual, cuts = Subscriptions._subscribe, asyncio.Event()

    async def confirmed(self: Subscriptions, connection: Connection, channel: bytes) -> bool:
        done = await usual(self, connection, channel)
        if not cuts.is_set():
            await proxy.cut()
            await eventually("its end is noticed", lambda: self._connection is None)
            cuts.set()
        return done

    monkeypatch.setattr(Subscriptions, "_subscribe", confirmed)
    await proxy.cut()
    await cuts.wait()

    async def came() -> bool:
        return bool(await redis.publish(f"{name}:a", "x"))

    await until("it is subscribed again", came)


async def test_a_channel_that_is_closed_and_wanted_again_before_the_server_has_confirmed_is_received(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    """Its UNSUBSCRIBE follows the SUBSCRIBE in flight."""
    queue, heard, channel = make_queue(url=proxy.url), Heard(), f"{name}:a"
    await queue.counts()
    await subscribe(queue, f"{name}:other", Heard())
    [pushes] = [one.connection for one in session(queue).connections if one.purpose == "pushes"]
    await eventually("all is confirmed", lambda: pushes.idle)
    proxy.stall()
    first = engine_of(queue).route.subscribe(channel.encode(), heard.messages.append, heard.end)
    await eventually("the SUBSCRIBE is in flight", lambda: not pushes.idle)
    first.close()
    again = asyncio.create_task(subscribe(queue, channel, heard))
    await asyncio.sleep(0)
    proxy.resume()
    await again
    await eventually("all is answered", lambda: pushes.idle)
    assert await redis.publish(channel, "x") == 1
    await eventually("it came", lambda: heard.messages == [b"x"])


async def test_a_channel_of_events_that_is_wanted_again_before_the_server_has_removed_it_is_received(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    """The reply to its SUNSUBSCRIBE looks like the notice that its slot has moved."""
    queue, heard, channel = make_queue(url=proxy.url), Heard(), f"{name}:a"
    await queue.counts()
    subscribe_to = partial(engine_of(queue).route.subscribe, on_missed=heard.end, events=True)
    other = subscribe_to(f"{name}:other".encode(), heard.messages.append)
    first = subscribe_to(channel.encode(), heard.messages.append)
    await asyncio.gather(other.confirmed(), first.confirmed())
    [events] = [one.connection for one in session(queue).connections if one.purpose == "events"]
    await eventually("all is confirmed", lambda: events.idle)
    proxy.stall()
    first.close()
    again = subscribe_to(channel.encode(), heard.messages.append)
    await eventually("the next SSUBSCRIBE is in flight, too", lambda: len(events._waiting) == 3)
    proxy.resume()
    await again.confirmed()
    await eventually("all is answered", lambda: events.idle)
    assert await redis.publish(channel, "x") == 1
    await eventually("it came", lambda: heard.messages == [b"x"])


async def test_a_push_connection_that_fell_silent_is_replaced(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.wire.subscriptions.PING_SECONDS", 0.05)
    queue = make_queue(url=proxy.url, reply_timeout=2)
    heard = Heard()
    await queue.counts()
    await subscribe(queue, f"{name}:a", heard)
    proxy.stall_connections()
    await eventually("it counts as lost", lambda: heard.ends > 0)
    await eventually("it is subscribed again", lambda: heard.ends > 1)

    async def came() -> bool:
        await redis.publish(f"{name}:a", "x")
        return bool(heard.messages)

    await until("a message came", came)
