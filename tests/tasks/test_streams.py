"""What the runs of a job emit, as its readers get it: at once, late, again, and after faults."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    InvalidArgument,
    Item,
    JobCancelled,
    JobFailed,
    JobUnknown,
    TaskQueue,
    call_sync,
    current_run,
)
from leasequeue.errors import InvalidTask
from leasequeue.queue.pushes import result_waits
from leasequeue.worker import RetryPolicy
from tests.eventually import eventually
from tests.processes import printed, program
from tests.queue.asking import take
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import Job
    from leasequeue.testing import Proxy
    from leasequeue.views import Chunk

pytestmark = pytest.mark.core


@dataclass
class Token:
    text: str


async def read(job: Job[Any], **how: Any) -> list[Any]:
    """Return the values of a stream."""
    return [chunk.value async for chunk in job.stream(**how)]


async def collect(job: Job[Any], found: list[Chunk[Any]], **how: Any) -> None:
    """Put the chunks of a stream into a list."""
    async for chunk in job.stream(**how):
        found.append(chunk)  # noqa: PERF401 - those before an error count


def shown(found: list[Chunk[Any]]) -> list[tuple[Any, int, bool]]:
    """Return what is known of chunks."""
    return [(chunk.value, chunk.attempt, chunk.restarted) for chunk in found]


async def test_readers_get_each_chunk_at_once_late_ones_all_and_then_the_end(
    tasks: TaskQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waits, "ASK_SECONDS", 3600)  # what is not pushed would come no more
    seen: asyncio.Queue[str] = asyncio.Queue()

    @tasks.task(streams=Token, keep_stream=60)
    async def write(count: int) -> int:
        for at in range(count):
            assert await current_run().emit(Token(f"{at}"))
            assert await seen.get() == f"{at}"
        return count

    job = await write.add(3)
    async with working(new_worker(tasks)):
        chunks: list[Chunk[Token]] = []
        async for chunk in job.stream():
            chunks.append(chunk)
            await seen.put(chunk.value.text)
        assert await job.result() == 3
    values = [Token("0"), Token("1"), Token("2")]
    assert [chunk.value for chunk in chunks] == values
    assert {(chunk.attempt, chunk.restarted) for chunk in chunks} == {(1, False)}
    assert await read(write.job(job.id)) == values, "after the end"
    assert await read(job, after=chunks[0].cursor) == values[1:]
    assert await read(job, after=chunks[2].cursor) == []
    assert 30_000 < await redis.pttl(f"{name}:emitted:{job.id}") <= 60_000
    with pytest.raises(JobUnknown):
        await read(write.job("none"))


async def test_a_retry_is_shown_and_the_last_failure_ends_the_stream(tasks: TaskQueue) -> None:

    @tasks.task(streams=str, retry=RetryPolicy(attempts=2, first=0))
    def write() -> None:
        run = current_run()
        for text in ("a", "b"):
            call_sync(run.emit, f"{text}{run.attempt}")
        raise RuntimeError("no more")

    job = await write.add()
    found: list[Chunk[str]] = []
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match="no more"):
            await collect(job, found)
    runs = [("a1", 1, False), ("b1", 1, False), ("a2", 2, True), ("b2", 2, False)]
    assert shown(found) == runs
    again: list[Chunk[str]] = []
    with pytest.raises(JobFailed):
        await collect(job, again, after=found[1].cursor)
    assert shown(again) == runs[2:], "also a reader that comes back sees it"


async def test_a_new_job_of_the_id_begins_anew_though_it_emits_nothing(tasks: TaskQueue) -> None:
    """While it waits, and when it has ended, nobody reads the chunks of the one before."""

    @tasks.task(streams=str)
    async def write(texts: list[str]) -> None:
        for text in texts:
            await current_run().emit(text)

    job = await write.options(id="a").add(["old"])
    await new_worker(tasks).drain()
    assert await read(job) == ["old"]
    await write.options(id="a").add([])
    reading = asyncio.create_task(read(job))
    async with working(new_worker(tasks)):
        assert await reading == []
        assert await read(job) == []


async def test_a_run_that_emits_too_much_or_something_else_gets_an_error(tasks: TaskQueue) -> None:

    @tasks.task(streams=str, max_stream=1000, retry=RetryPolicy(attempts=2, first=0))
    async def write(chunk: Any, times: int) -> None:
        for _ in range(times):
            await current_run().emit(chunk)

    @tasks.task
    async def silent() -> None:
        await current_run().emit("x")

    full = await write.add("x" * 298, 4)
    jobs = [full, await write.add(3, 1), await silent.add()]
    await new_worker(tasks, retry=RetryPolicy(attempts=1)).drain()
    errors = [(await tasks.queue.dead_letters.get(job.id)) for job in jobs]
    assert all(error is not None for error in errors)
    texts = [error.error for error in errors if error is not None]
    assert "emitted 1000 bytes" in texts[0]
    assert "expected str, as `streams` says" in texts[1]
    assert "silent has streams=None" in texts[2]
    found: list[Chunk[str]] = []
    with pytest.raises(JobFailed):
        await collect(full, found)
    assert [chunk.attempt for chunk in found] == [2, 2, 2], "earlier runs make room"
    with pytest.raises(InvalidArgument, match="streams=None"):
        await read(await silent.add())
    with pytest.raises(InvalidArgument, match="cursor of a chunk"):
        await read(jobs[0], after="x")
    with pytest.raises(InvalidTask, match="leave out `streams`"):
        tasks.task(streams=str, run_in="process", name="other")(_plain)


def _plain() -> None: ...


async def test_a_lost_lease_emits_nothing(tasks: TaskQueue) -> None:
    queue = tasks.queue
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    assert await queue.emit(lease, b"first")
    await queue.release(lease)
    assert not await queue.emit(lease, b"late")
    other = await take(queue)
    assert not await queue.emit(lease, b"late")
    assert await queue.emit(other, b"second")
    await queue.complete(other)
    chunks = [chunk async for chunk in queue.results.stream("a")]
    assert shown(chunks) == [(b"first", 1, False), (b"second", 1, True)]
    assert [chunk.token for chunk in chunks] == [lease.token, other.token]


async def test_an_abandoned_job_is_cancelled_unless_it_is_still_read(tasks: TaskQueue) -> None:
    stopped = asyncio.Event()

    @tasks.task(streams=int)
    async def count() -> None:
        try:
            for number in range(1_000_000):
                await current_run().emit(number)
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    job = await count.add()
    async with working(new_worker(tasks)):
        async with contextlib.aclosing(job.stream()) as other:
            await anext(other)
            async with contextlib.aclosing(job.stream(cancel_after=0)) as chunks:
                await anext(chunks)
            reader = asyncio.create_task(read(job, cancel_after=0))
            await anext(other)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await anext(other)
            assert not stopped.is_set(), "somebody reads it, so it runs on"
        async with contextlib.aclosing(job.stream(cancel_after=0)) as chunks:
            await anext(chunks)
        await stopped.wait()
        with pytest.raises(JobCancelled):
            await read(job)


async def test_a_stream_of_a_sharded_queue_is_read_by_its_id(redis_url: str, name: str) -> None:
    async with TaskQueue.from_url(redis_url, name, shards=3) as tasks:

        @tasks.task(streams=int)
        async def count() -> None:
            for number in range(3):
                await current_run().emit(number)

        jobs = [await count.add() for _ in range(4)]
        async with working(new_worker(tasks)):
            assert await asyncio.gather(*map(read, jobs)) == [[0, 1, 2]] * 4


async def test_a_thousand_readers_share_the_connections_of_one(tasks: TaskQueue, redis: Redis) -> None:
    ready = asyncio.Event()

    @tasks.task(streams=int)
    async def count() -> None:
        await ready.wait()
        for number in range(3):
            await current_run().emit(number)

    async def connections() -> int:
        return len(await redis.client_list())

    async with working(new_worker(tasks)):
        job = await count.add()
        first = asyncio.create_task(read(job))
        waits = tasks.queue._engine().result_waits
        await eventually("one reads", lambda: bool(waits._unfinished))
        before = await connections()
        others = [asyncio.create_task(read(job)) for _ in range(999)]
        await eventually("all read", lambda: sum(map(len, waits._readers.values())) == 1000)
        assert await connections() < before + 10, "some of the worker's are opened later"
        ready.set()
        assert await asyncio.gather(first, *others) == [[0, 1, 2]] * 1000


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_reader_and_the_run_go_on_after_cut_connections(
    tasks: TaskQueue, name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Also if the reader has a chunk before the first reply that says what has become of the job."""
    cut, asks = asyncio.Event(), asyncio.Event()

    async def is_lost(waits: result_waits.ResultWaits, ids: list[bytes]) -> None:
        monkeypatch.undo()
        await waits._run("await_results", ids, keep_ms=result_waits.KEEP_MS)
        asks.set()
        await cut.wait()
        raise ConnectionResetError

    if is_known:
        asks.set()
    else:
        monkeypatch.setattr(result_waits.ResultWaits, "_ask_for", is_lost)

    @tasks.task(streams=int)
    async def count() -> None:
        await asks.wait()  # the server notifies the reader from then on
        await current_run().emit(1)
        await cut.wait()
        await current_run().emit(2)

    async with TaskQueue.from_url(proxy.url, name) as far:
        far_count = far.task(streams=int, name="count")(count.function)
        job = await count.add()
        async with working(new_worker(tasks)):
            found = []
            async for chunk in far_count.job(job.id).stream():
                found.append(chunk.value)
                if not cut.is_set():
                    await proxy.cut()
                    cut.set()
            assert found == [1, 2]


async def test_a_worker_that_is_killed_in_mid_stream_loses_no_chunk(
    redis_url: str, redis: Redis, name: str
) -> None:
    """Its peer begins anew, which the reader sees; the chunks of both runs are kept."""
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task(streams=int)
        async def write() -> None:
            for number in range(3):
                await current_run().emit(number)

        job = await write.add()
        found: list[Chunk[int]] = []
        reading = asyncio.create_task(collect(job, found))
        async with program("tests.tasks.streamer", redis_url, name) as worker:
            await printed(worker, b"emitted 1")
            worker.kill()
            await worker.wait()
        await eventually("its chunks are read", lambda: len(found) == 2)
        await redis.zadd(f"{name}:deadlines", {job.id: 1})  # its lease has expired
        async with working(new_worker(tasks)):
            await reading
    assert shown(found) == [(0, 1, False), (1, 1, False), (0, 2, True), (1, 2, False), (2, 2, False)]


READER = """
import asyncio, sys
from leasequeue import TaskQueue

async def main():
    async with TaskQueue.from_url(sys.argv[1], sys.argv[2]) as tasks:
        async for chunk in tasks.queue.results.stream(sys.argv[3]):
            print("read", chunk.cursor, chunk.value.decode(), flush=True)

asyncio.run(main())
"""


async def test_a_reader_that_was_killed_is_continued_after_its_last_chunk(
    tasks: TaskQueue, redis_url: str, name: str
) -> None:
    """The run goes on meanwhile, and another process gets each chunk after that, and none before."""

    @tasks.task(streams=int)
    async def write() -> None:
        for number in range(5):
            if number == 2:
                await gone.wait()
            await current_run().emit(number)

    gone, job = asyncio.Event(), await write.add()
    async with working(new_worker(tasks)):
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", READER, redis_url, name, job.id), stdout=asyncio.subprocess.PIPE
        )
        try:
            lines = [await printed(reader, b"read") for _ in range(2)]
        finally:
            reader.kill()
            await reader.wait()
        gone.set()
        _, cursor, last = lines[-1].decode().split()
        assert last == "1"
        assert await read(job, after=cursor) == [2, 3, 4]


async def test_readers_that_stand_still_keep_no_chunks_anywhere(tasks: TaskQueue, redis: Redis) -> None:
    """Others read on; what the slow have not read is in the stream of the server alone."""
    chunk, count = "x" * 60_000, 80  # 5 MB

    @tasks.task(streams=str, max_stream=16 << 20)
    async def write() -> None:
        await current_run().emit("first")
        await all_read.wait()
        for _ in range(count):
            await current_run().emit(chunk)

    async def stand_still() -> None:
        async for _ in job.stream():
            begun.append(job.id)
            await ends.wait()

    all_read, ends, begun = asyncio.Event(), asyncio.Event(), list[str]()
    job = await write.add()
    async with working(new_worker(tasks)):
        slow = [asyncio.create_task(stand_still()) for _ in range(8)]
        await eventually("all have the first chunk", lambda: len(begun) == 8)
        tracemalloc.start()
        all_read.set()
        values = [one.value async for one in job.stream()]
        held = tracemalloc.get_traced_memory()[0] - sum(map(len, values))
        tracemalloc.stop()
        buffered = max(int(client["omem"]) for client in await redis.client_list())
        ends.set()
        await asyncio.gather(*slow)
    assert len(values) == count + 1
    assert held < 2_000_000
    assert buffered < 100_000
    assert len(begun) == 8 * (count + 1), "they get it all in the end"


async def test_a_plain_item_costs_the_same_commands_as_before_its_queue_had_a_stream(
    tasks: TaskQueue, redis: Redis
) -> None:
    queue = tasks.queue

    async def cost() -> dict[str, int]:
        before = await redis.info("commandstats")
        await queue.add_item(Item(b"x"))
        await queue.complete(await take(queue))
        after = await redis.info("commandstats")
        counts = {name: one["calls"] - before.get(name, {"calls": 0})["calls"] for name, one in after.items()}
        return {name: count for name, count in counts.items() if count and "client" not in name}

    await cost()
    first = await cost()
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    assert await queue.emit(lease, b"chunk")
    await queue.complete(lease)
    assert [chunk.value async for chunk in queue.results.stream("a")] == [b"chunk"]
    assert first == await cost()
