"""A queue object in forked processes: nothing is shared with the parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import traceback
from typing import TYPE_CHECKING, cast

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, QueueClosed
from tests.queue.asking import blocked, keys_like, until, until_gone, work_through

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis as redis_py


pytestmark = [
    pytest.mark.core,
    # Python warns of a fork in a process with threads, as pytest-xdist's are.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


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
            await client.delete(f"{name}:idle")  # otherwise the item would be leased for it
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
    try:
        until_gone(plain)
    finally:  # the child lives until then
        os.write(hold, b"x")
        os.close(held)
        os.close(hold)
