"""One queue object in several event loops and threads, and the end of an event loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, Lease, QueueClosed
from leasequeue.queue.queue import engine_of
from leasequeue.wire import subscriptions
from leasequeue.wire.session import SESSIONS
from tests.eventually import LIMIT_SECONDS
from tests.queue.asking import alone, blocked, connections, session, take, until_gone, work_through

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import redis as redis_py

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

    Use = Callable[[AsyncWorkQueue, Lease], Awaitable[object]]


pytestmark = pytest.mark.core


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


def test_threads_use_a_queue_at_the_same_time(plain: redis_py.Redis, redis_url: str, name: str) -> None:
    others = {*SESSIONS}  # such as those of call_sync, in examples that ran before
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
    assert {*SESSIONS} <= others


def test_an_event_loop_that_ends_leaves_nothing_on_the_server(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    """Nothing is closed: callers wait, a follower reads, and another has just been cancelled."""
    others = {*SESSIONS}
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
    assert not plain.exists(f"{name}:sessions")
    gc.collect()
    assert {*SESSIONS} <= others


_numbers = itertools.count(1)


async def report(queue: AsyncWorkQueue, lease: Lease) -> None:
    """Report progress, and wait until it is kept."""
    number = next(_numbers)
    queue._report(lease, number)
    async for progress in queue.results.progress(lease.id):
        if progress == number:
            return


@pytest.mark.parametrize(
    ("begin", "clean_up"),
    [
        pytest.param(lambda queue, _: queue.counts(), lambda queue, _: queue.counts(), id="call"),
        pytest.param(
            lambda queue, lease: queue.results.wait(lease.id),
            lambda queue, _: queue.results.wait("finished"),
            id="wait for a result",
        ),
        pytest.param(report, report, id="report progress"),
    ],
)
def test_a_program_that_cleans_up_while_its_event_loop_ends_is_answered(
    redis_url: str, name: str, begin: Use, clean_up: Use
) -> None:
    """When its main task fails, `asyncio.run` cancels all tasks, ours too: at each turn of the first call."""
    ended: list[int] = []

    async def furnish() -> Lease:
        async with AsyncWorkQueue.from_url(redis_url, name) as queue:
            await queue.add_items([Item(b"x", id="finished"), Item(b"x", id="unfinished")])
            assert await queue.complete(await take(queue), result=b"done", keep_result=3600)
            return await take(queue, 3600)

    async def use(ready: asyncio.Event) -> None:
        async with AsyncWorkQueue.from_url(redis_url, name) as queue:
            if begin is report:
                await queue.counts()
            ready.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            try:
                await begin(queue, lease)
                await asyncio.sleep(3600)
            finally:
                await clean_up(queue, lease)

    async def fail(turn: int) -> None:
        ready = asyncio.Event()
        using = asyncio.create_task(use(ready))
        await ready.wait()
        for _ in range(turn):
            await asyncio.sleep(0)
        assert not using.done()
        raise ZeroDivisionError

    def end_at_each_turn() -> None:
        for turn in range(40):
            with pytest.raises(ZeroDivisionError):
                asyncio.run(fail(turn))
            ended.append(turn)

    lease = asyncio.run(furnish())
    thread = threading.Thread(target=end_at_each_turn, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert ended == [*range(40)]


async def test_of_two_tasks_that_connect_for_messages_the_earlier_ends(
    make_queue: MakeQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one seems to be cancelled for a moment when a pause between its tries ends."""
    proxy.refuse()
    confirmed, pushes = asyncio.Event(), engine_of(make_queue(url=proxy.url)).pushes
    pushes.hold_soon(confirmed.set)
    assert pushes._subscription is not None
    at = pushes._subscription.at
    assert at is not None
    earlier = at._connecting
    assert earlier is not None
    await asyncio.sleep(0)
    with monkeypatch.context() as patched:
        patched.setattr(subscriptions, "keeps_running", lambda _: False)
        at.wake()
    later = at._connecting
    assert later is not earlier
    await asyncio.wait([earlier], timeout=LIMIT_SECONDS)
    assert earlier.done()
    assert at._connecting is later
    await proxy.accept()
    await asyncio.wait_for(confirmed.wait(), LIMIT_SECONDS)
    pushes.release()


def test_an_event_loop_ends_in_time_although_the_server_does_not_answer(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name, reply_timeout=3600)

    async def use() -> None:
        await queue.counts()
        plain.client_pause(2500)
        asyncio.create_task(queue.add_item(Item(b"x")))  # noqa: RUF006 - it is to be cancelled
        await asyncio.sleep(0.05)

    before = time.monotonic()
    asyncio.run(use())
    assert time.monotonic() - before < 600, "far less than the reply timeout"
    until_gone(plain)


def test_an_event_loop_that_is_just_closed_is_noticed_at_the_next_use(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    others = {*SESSIONS}
    queue = AsyncWorkQueue.from_url(redis_url, name)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue.counts())
    loop.close()
    assert len(connections(plain)) == 1

    async def use() -> None:
        await queue.counts()
        [mine] = {*SESSIONS} - others
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
    monkeypatch.setattr("leasequeue.queue.engines.ELSEWHERE_SECONDS", 0.05)
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
