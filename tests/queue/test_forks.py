"""A queue object in forked processes, and `call_sync`: methods called from plain code, in any thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, assert_type, cast

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, Lease, QueueClosed, call_sync
from leasequeue.errors import InsideEventLoop
from tests.queue.asking import blocked, keys_like, until, until_gone, work_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        waiting = asyncio.create_task(queue.lease(30, timeout=120))
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


@pytest.fixture
def queue(redis_url: str, name: str) -> Iterator[AsyncWorkQueue]:
    """Return a queue object that only plain code uses."""
    queue = AsyncWorkQueue.from_url(redis_url, name)
    yield queue
    call_sync(queue.close)


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_a_whole_life_of_an_item_without_an_event_loop(queue: AsyncWorkQueue) -> None:
    assert_type(call_sync(queue.add_item, Item(b"data", id="a")), bool)
    lease = assert_type(call_sync(queue.lease, 30, timeout=120), Lease | None)
    assert lease is not None
    assert lease.data == b"data"
    assert call_sync(queue.complete, lease, result=b"done") is True
    assert call_sync(queue.results.wait, "a", timeout=120) == b"done"


def test_an_error_of_the_call_is_raised(queue: AsyncWorkQueue) -> None:
    call_sync(queue.add_item, Item(b"x", id="a"))
    with pytest.raises(TimeoutError):
        call_sync(queue.results.wait, "a", timeout=0.05)
    call_sync(queue.close)
    with pytest.raises(QueueClosed):
        call_sync(queue.counts)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_ends_a_program_does_not_end_the_event_loop(
    queue: AsyncWorkQueue, raised: BaseException
) -> None:
    async def leave() -> None:
        raise raised

    loop = call_sync(running_loop)
    with pytest.raises(type(raised)) as caught:
        call_sync(leave)
    assert caught.value is raised
    assert call_sync(queue.queue_len) == 0
    assert call_sync(running_loop) is loop


def test_many_threads_use_one_connection(queue: AsyncWorkQueue, plain: redis_py.Redis) -> None:
    before = len(plain.client_list())
    ready = threading.Barrier(20)

    def add(number: int) -> bool:
        if number < 20:
            ready.wait(20)
        return call_sync(queue.add_item, Item(b"x", id=f"{number}"))

    with ThreadPoolExecutor(20) as threads:
        assert all(threads.map(add, range(200)))
    assert call_sync(queue.counts).waiting == 200
    assert len(plain.client_list()) == before + 1


def test_inside_an_event_loop_it_names_await(queue: AsyncWorkQueue) -> None:
    async def inside() -> int:
        with pytest.raises(InsideEventLoop, match=r"write `await add_item\(…\)` instead"):
            call_sync(queue.add_item, Item(b"x"))
        return (await asyncio.to_thread(call_sync, queue.counts)).waiting

    assert asyncio.run(inside()) == 0, "in a thread it is allowed"


def test_forked_processes_have_their_own(queue: AsyncWorkQueue, plain: redis_py.Redis, name: str) -> None:
    assert call_sync(queue.add_item, Item(b"x", id="parent"))

    def child() -> None:
        assert call_sync(queue.add_item, Item(b"x"))

    expect_success(fork(child), fork(child))
    assert call_sync(queue.add_item, Item(b"x", id="later"))
    assert plain.llen(f"{name}:queue") == 4


CALLING = """
import asyncio, sys, threading
from leasequeue import AsyncWorkQueue, Item, call_sync

async def others_end():
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "leasequeue call_sync"]
    tasks.remove(asyncio.current_task())
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)

async def lease():
    print("waits", flush=True)
    await queue.lease(30)

queue = AsyncWorkQueue.from_url(sys.argv[1], sys.argv[2])
call_sync(queue.add_item, Item(b"x", id="1"))
if sys.argv[3] == "waits in a thread":
    threading.Thread(target=call_sync, args=(queue.results.wait, "1"), daemon=True).start()
    call_sync(queue.add_item, Item(b"x", id="2"))
elif sys.argv[3] == "is interrupted":
    call_sync(queue.lease, 30)
    try:
        call_sync(lease)
    except KeyboardInterrupt:
        call_sync(others_end)
        print("cancelled", flush=True)
        raise
"""


@pytest.mark.parametrize("how", ["ends", "waits in a thread"])
def test_a_process_ends_although_the_queue_is_open(redis_url: str, name: str, how: str) -> None:
    program = [sys.executable, "-W", "error", "-c", CALLING, redis_url, name, how]
    ended = subprocess.run(program, capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"")
    if how == "ends":
        assert ended.stderr == b""


AT_EXIT = """
import atexit, sys
from leasequeue import AsyncWorkQueue, Item, call_sync
queue = AsyncWorkQueue.from_url(sys.argv[1], sys.argv[2])
atexit.register(lambda: print(call_sync(queue.add_item, Item(b"x", id="1"))))
call_sync(queue.queue_len)
"""


def test_a_function_that_runs_at_exit_can_call(redis_url: str, name: str) -> None:
    # Registered before the event loop was started, it runs after that was closed.
    program = [sys.executable, "-W", "error", "-c", AT_EXIT, redis_url, name]
    ended = subprocess.run(program, capture_output=True, timeout=300, check=False)
    if (3, 12) <= sys.version_info < (3, 12, 2):  # these start no thread then, CPython's issue 113964
        assert b"can't create new thread at interpreter shutdown" in ended.stderr
    else:
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"True\n", b"")


def test_an_interrupted_call_is_cancelled(redis_url: str, name: str) -> None:
    program = [sys.executable, "-c", CALLING, redis_url, name, "is interrupted"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert out == b"cancelled\n", err
    assert b"KeyboardInterrupt" in err
    assert process.returncode in (1, 130, -signal.SIGINT)
