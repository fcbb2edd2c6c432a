"""Sessions: a queue object in several event loops, threads and processes; connections and their names."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis as redis_py
from anyio.from_thread import start_blocking_portal
from redis.asyncio import Redis

from leasehold import AsyncWorkQueue, Item, QueueClosed
from leasehold.queue.internals import running_engine
from leasehold.scripting.session import SESSIONS
from tests.eventually import eventually
from tests.queue.asking import alone, blocked, keys_like, take, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.scripting.session import Session
    from tests.queue.fixtures import MakeQueue

pytestmark = [
    pytest.mark.core,
    # Python warns of a fork in a process with threads, as pytest-xdist's are.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def plain(redis_url: str) -> Iterator[redis_py.Redis]:
    """Return a client for tests that run their own event loops."""
    with redis_py.Redis.from_url(redis_url) as client:
        yield client


def names_of(clients: list[dict[str, str]]) -> list[str]:
    """Return the names of Leasehold's connections."""
    return sorted(client["name"] for client in clients if client["name"].startswith("leasehold:"))


def connections(plain: redis_py.Redis) -> list[str]:
    """Return the names of Leasehold's connections."""
    return names_of(plain.client_list())


def until_gone(plain: redis_py.Redis, left: int = 0) -> None:
    """Wait until the server has closed all connections of Leasehold but so many."""
    deadline = time.monotonic() + 20
    while len(names := connections(plain)) > left:
        assert time.monotonic() < deadline, names
        time.sleep(0.005)
    assert len(names) == left


def fork(work: Callable[[], None]) -> int:
    """Run a function in a forked process, and return its number."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - the parent sees the status
        traceback.print_exc()
    finally:
        os._exit(status)


def expect_success(*pids: int) -> None:
    """Wait for the end of forked processes."""
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def session(queue: AsyncWorkQueue) -> Session:
    """Return the session of a queue in the running event loop."""
    engine = running_engine(queue)
    assert engine is not None
    return engine.session


async def work_through(queue: AsyncWorkQueue) -> list[str]:
    """Lease and complete items until none is left, and return their ids."""
    ids: list[str] = []
    while leases := await queue.lease_many(3, 30, block=False):
        assert all(await queue.complete_many(leases))
        ids += [lease.id for lease in leases]
    return ids


# ------------------------------------------------------------------ one event loop


async def test_the_queues_of_one_client_share_a_session_and_its_connection(
    redis: Redis, redis_url: str, name: str
) -> None:
    host = f"{socket.gethostname()}:{os.getpid()}"
    async with Redis.from_url(redis_url) as client:
        queues = [AsyncWorkQueue(f"{name}-{n}", client) for n in range(20)]
        await asyncio.gather(*(queue.add_item(Item(b"x")) for queue in queues))
        assert len({queue.session for queue in queues}) == 1
        assert names_of(await redis.client_list()) == [f"leasehold:commands:{host}"]
        mine = session(queues[0])
        assert (mine.pid, mine.host, mine.worker) == (os.getpid(), socket.gethostname(), None)
        [connection] = mine.connections
        ids = {client["name"]: int(client["id"]) for client in await redis.client_list()}
        assert connection.id == ids[f"leasehold:commands:{host}"]
        for queue in queues[1:]:
            await queue.close()
        assert await queues[0].queue_len() == 1
        await queues[0].close()
    await alone(redis)
    assert mine not in list(SESSIONS)


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


# ------------------------------------------------------------------ several event loops


def test_a_queue_of_a_module_works_in_one_event_loop_after_the_other(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)
    sessions = set()

    async def use() -> None:
        assert await queue.add_item(Item(b"x"))
        assert await queue.complete(await take(queue))
        sessions.add(queue.session)

    for _ in range(3):
        asyncio.run(use())
        until_gone(plain)
    assert len(sessions) == 3
    asyncio.run(queue.close())
    with pytest.raises(QueueClosed):
        asyncio.run(queue.counts())


def test_a_queue_of_a_module_works_in_portals_as_of_a_test_client(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    """FastAPI's TestClient has a portal for each `with` block, and outside of them one for each request."""
    queue = AsyncWorkQueue.from_url(redis_url, name)

    async def request(data: bytes) -> bool:
        return await queue.add_item(Item(data))

    for _ in range(2):
        with start_blocking_portal() as portal:
            assert portal.call(request, b"1")
            assert portal.call(request, b"2")
        until_gone(plain)
    with start_blocking_portal() as portal, start_blocking_portal() as other:
        assert portal.call(queue.queue_len) == other.call(queue.queue_len) == 4
        portal.call(queue.close)
        with pytest.raises(QueueClosed):
            other.call(queue.counts)
        until_gone(plain)


def test_threads_use_a_queue_at_the_same_time(plain: redis_py.Redis, redis_url: str, name: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)
    ready = threading.Barrier(4)

    async def use(number: int) -> list[str]:
        await queue.add_items([Item(b"x", id=f"{number}-{n}") for n in range(60)])
        ready.wait(20)
        return await work_through(queue)

    with ThreadPoolExecutor(4) as threads:
        done = [*threads.map(lambda number: asyncio.run(use(number)), range(4))]
    assert sorted(item_id for ids in done for item_id in ids) == sorted(
        f"{number}-{n}" for number in range(4) for n in range(60)
    )
    until_gone(plain)
    assert not [*SESSIONS]


def test_a_lease_is_completed_in_another_event_loop(redis_url: str, name: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)

    async def begin() -> Any:
        await queue.add_item(Item(b"x"))
        return await queue.lease(30)

    lease = asyncio.run(begin())
    assert asyncio.run(queue.complete(lease))


# ------------------------------------------------------------------ the end of an event loop


def test_an_event_loop_that_ends_leaves_nothing_on_the_server(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    """Nothing is closed: callers wait, a follower reads, and another has just been cancelled."""
    queue = AsyncWorkQueue.from_url(redis_url, name)
    waiting: list[asyncio.Task[Any]] = []

    async def follow() -> None:
        async for _ in queue.events():
            pass

    async def use() -> None:
        await queue.events.keep(count=10)
        waiting.extend(asyncio.create_task(queue.lease(30)) for _ in range(3))
        waiting.append(asyncio.create_task(follow()))
        async with Redis.from_url(redis_url) as client:
            await blocked(client, 1)
        waiting.pop(0).cancel()

    asyncio.run(use())
    assert all(task.cancelled() for task in waiting)
    until_gone(plain)
    gc.collect()
    assert not [*SESSIONS]


def test_an_event_loop_ends_in_time_although_the_server_does_not_answer(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name, reply_timeout=60)

    async def use() -> None:
        await queue.counts()
        plain.client_pause(2500)
        asyncio.create_task(queue.add_item(Item(b"x")))  # noqa: RUF006 - it is to be cancelled
        await asyncio.sleep(0.05)

    before = time.monotonic()
    asyncio.run(use())
    assert time.monotonic() - before < 30, "far less than the reply timeout"
    until_gone(plain)


def test_an_event_loop_that_is_just_closed_is_noticed_at_the_next_use(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.counts())
    loop.close()
    assert len(connections(plain)) == 1

    async def use() -> None:
        await queue.counts()
        [mine] = SESSIONS
        assert mine is session(queue)

    asyncio.run(use())
    until_gone(plain)
    del loop
    gc.collect()  # a ResourceWarning would be an error here


@contextmanager
def running_elsewhere() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread, and end it as `asyncio.run` does."""
    loops: Future[asyncio.AbstractEventLoop] = Future()
    over = threading.Event()

    async def wait() -> None:
        loops.set_result(asyncio.get_running_loop())
        while not over.is_set():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0.005)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(lambda: asyncio.run(wait()))
        try:
            yield loops.result(20)
        finally:
            over.set()
            running.result(20)


async def test_close_closes_the_queue_in_all_event_loops(queue: AsyncWorkQueue, redis: Redis) -> None:
    with running_elsewhere() as loop:
        waiting = asyncio.run_coroutine_threadsafe(queue.lease(30), loop)
        await queue.counts()
        await blocked(redis, 1)
        await queue.close()
        with pytest.raises(QueueClosed):
            waiting.result(0)
        with pytest.raises(QueueClosed):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(queue.counts(), loop))
        await alone(redis)


async def test_close_returns_although_another_event_loop_is_blocked(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.queue.lifecycle.ELSEWHERE_SECONDS", 0.05)
    over = threading.Event()
    with running_elsewhere() as loop:
        asyncio.run_coroutine_threadsafe(queue.counts(), loop).result(20)
        loop.call_soon_threadsafe(over.wait, 20)
        await queue.close()
        over.set()
        await alone(redis)


async def test_close_returns_although_another_event_loop_stands_still(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, queue.counts())
    await queue.close()
    await asyncio.to_thread(loop.run_until_complete, loop.shutdown_asyncgens())
    loop.close()
    await alone(redis)


# ------------------------------------------------------------------ forks


def test_a_parent_and_two_children_lease_and_complete_at_the_same_time(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)

    async def use() -> None:
        plain.rpush(f"{name}:sessions-seen", queue.session)
        ids = await work_through(queue)
        plain.rpush(f"{name}:done", "-", *ids)

    def in_child() -> None:
        plain.connection_pool.reset()
        asyncio.run(use())

    with asyncio.Runner() as runner:
        runner.run(queue.add_items([Item(b"x", id=f"{n}") for n in range(600)]))
        children = [fork(in_child) for _ in range(2)]
        runner.run(use())
        expect_success(*children)
        assert runner.run(queue.counts()) == (0, 0, 0, 0)
        done = [one for one in plain.lrange(f"{name}:done", 0, -1) if one != b"-"]
        assert sorted(done) == sorted(f"{n}".encode() for n in range(600))
        assert len({*plain.lrange(f"{name}:sessions-seen", 0, -1)}) == 3
        until_gone(plain, left=1)
    until_gone(plain)


def test_a_child_that_closes_hides_no_item_of_its_sibling(redis_url: str, name: str) -> None:
    """An id in an inbox is found as long as its session is registered, so no other process may end that."""
    queue = AsyncWorkQueue.from_url(redis_url, name)
    told, tell = os.pipe()

    async def wait_then_close() -> None:
        waiting = asyncio.create_task(queue.lease(30))
        await asyncio.to_thread(os.read, told, 1)
        await queue.close()
        with pytest.raises(QueueClosed):
            await waiting

    async def wait() -> None:
        await queue.lease(30)

    async def is_registered(client: Redis, count: int) -> None:
        async def ask() -> bool:
            return int(await client.zcard(f"{name}:sessions")) == count

        await until(f"{count} sessions wait", ask)

    async def watch() -> None:
        async with Redis.from_url(redis_url) as client:
            await blocked(client, 2)
            await is_registered(client, 2)
            os.write(tell, b"x")
            await blocked(client, 1)
            await is_registered(client, 1)
            # The sibling dies with an item in its inbox, which is found because it is still registered.
            os.kill(stopped, signal.SIGSTOP)
            await queue.add_item(Item(b"x"))
            [inbox] = await keys_like(client, f"{name}:inbox:*")
            [sibling] = await client.zrange(f"{name}:sessions", 0, -1)
            assert inbox == b"%b:inbox:%b" % (name.encode(), cast("bytes", sibling))
            os.kill(stopped, signal.SIGKILL)

    with asyncio.Runner() as runner:
        runner.run(queue.counts())
        closing = fork(lambda: asyncio.run(wait_then_close()))
        stopped = fork(lambda: asyncio.run(wait()))
        runner.run(watch())
        expect_success(closing)
        os.waitpid(stopped, 0)
        runner.run(queue.close())
    os.close(told)
    os.close(tell)


def test_a_child_forked_by_multiprocessing_uses_the_queue_of_a_running_event_loop(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)

    def in_child() -> None:
        asyncio.run(queue.add_item(Item(b"child")))

    async def use() -> None:
        waiting = asyncio.create_task(queue.lease(30, timeout=20))
        async with Redis.from_url(redis_url) as client:
            await blocked(client, 1)
        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        lease = await waiting
        assert lease is not None
        assert lease.data == b"child"
        assert await queue.complete(lease)
        await asyncio.to_thread(child.join)
        assert child.exitcode == 0

    asyncio.run(use())
    until_gone(plain)


def test_the_server_notices_the_death_of_a_parent_whose_child_lives(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    """The child has inherited the sockets; it must not keep them open."""
    queue = AsyncWorkQueue.from_url(redis_url, name)
    held, hold = os.pipe()

    async def parent() -> None:
        await queue.counts()
        fork(lambda: os._exit(len(os.read(held, 1)) - 1))
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(lambda: asyncio.run(parent())), 0)
    until_gone(plain)
    os.write(hold, b"x")
    os.close(held)
    os.close(hold)


# ------------------------------------------------------------------ pushes


class Heard:
    """Counts what a subscriber is told."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


async def test_all_subscriptions_share_one_connection(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    queue = make_queue()
    await queue.counts()
    mine, heard = session(queue), [Heard() for _ in range(3)]
    channels = [f"{name}:a".encode(), f"{name}:a".encode(), f"{name}:b".encode()]
    first, second, third = [
        await mine.subscribe(channel, one.messages.append, one.end)
        for channel, one in zip(channels, heard, strict=True)
    ]
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
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue()
    await queue.counts()
    heard = [Heard() for _ in range(3)]
    for number, one in enumerate(heard):
        await session(queue).subscribe(f"{name}:{number}".encode(), one.messages.append, one.end)
    [pushes] = [one for one in session(queue).connections if one.purpose == "pushes"]
    assert pushes.id is not None
    await redis.client_kill_filter(_id=str(pushes.id))
    await eventually("each was told twice", lambda: all(one.ends == 2 for one in heard))
    for number in range(3):
        assert await redis.publish(f"{name}:{number}", "x") == 1
    await eventually("all came", lambda: all(one.messages == [b"x"] for one in heard))


async def test_a_push_connection_that_fell_silent_is_replaced(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.scripting.pushes.PING_SECONDS", 0.05)
    queue = make_queue(reply_timeout=0.5)
    heard = Heard()
    await queue.counts()
    await session(queue).subscribe(f"{name}:a".encode(), heard.messages.append, heard.end)
    await redis.client_pause(1200)
    await eventually("it counts as lost", lambda: heard.ends > 0)
    await eventually("it is subscribed again", lambda: heard.ends > 1)
    await redis.publish(f"{name}:a", "x")
    await eventually("it came", lambda: heard.messages == [b"x"])


async def test_where_access_rules_forbid_a_channel_a_subscription_stays_silent(
    redis: Redis, redis_url: str, name: str
) -> None:
    await redis.acl_setuser(
        "deaf", enabled=True, passwords=["+x"], keys=["*"], categories=["+@all"], reset_channels=True
    )
    try:
        url = redis_url.replace("redis://", "redis://deaf:x@")
        async with AsyncWorkQueue.from_url(url, name) as queue:
            heard = Heard()
            await queue.counts()
            one = await session(queue).subscribe(f"{name}:a".encode(), heard.messages.append, heard.end)
            assert await redis.publish(f"{name}:a", "1") == 0
            one.close()
            assert await queue.add_item(Item(b"x"))
    finally:
        await redis.acl_deluser("deaf")
