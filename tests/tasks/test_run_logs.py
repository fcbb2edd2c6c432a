"""What is logged below runs: the fields of its records, and what is kept of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import TaskQueue
from leasequeue.errors import InvalidArgument
from leasequeue.queue.run_logs import RunLogs, read_chunks
from leasequeue.testing import Proxy
from leasequeue.worker import RetryPolicy
from tests.eventually import eventually
from tests.processes import program
from tests.queue.asking import take, until
from tests.tasks import logging_program, logging_tasks
from tests.worker.working import new_worker, the_dead, working

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Job
    from leasequeue.views import LoggedRecord

log = logging.getLogger("tests.run_logs")


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Let records of INFO and above pass; pytest's handlers are those of the root logger."""
    log.setLevel(logging.INFO)
    yield
    log.setLevel(logging.NOTSET)
    log.propagate = True


class Unprintable:
    def __str__(self) -> str:
        raise LookupError("no text")


def messages(records: list[LoggedRecord]) -> list[tuple[int, str]]:
    return [(one.attempt, one.message) for one in records]


async def logs_of(job: Job[Any]) -> list[tuple[int, str]]:
    return messages(await job.logs())


async def test_records_of_tasks_and_threads_below_a_run_are_kept_and_name_it(
    tasks: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    handlers, level = [*logging.root.handlers], logging.root.level

    @tasks.task(keep_logs="64KiB")
    async def work(name: str) -> str:
        log.debug("below the level")
        log.info("begins %s", name, extra={"id": "own"})

        async def child() -> None:
            log.warning("in a child")

        await asyncio.gather(child())
        await asyncio.to_thread(log.info, "in a thread")
        assert (logging.root.handlers, logging.root.level) == (handlers, level)
        return name

    @tasks.task(keep_logs=4096)
    def plain() -> None:
        try:
            int("bad")
        except ValueError:
            log.exception("caught")

    job = await work.options(id="a", correlation="request 7").add("ann")
    other = await plain.options(id="b").add()
    log.info("outside of a run")
    await new_worker(tasks).drain()
    assert await job.result(timeout=120) == "ann"
    assert await logs_of(job) == [(1, "begins ann"), (1, "in a child"), (1, "in a thread")]
    [caught] = await other.logs()
    assert (caught.level, caught.logger, caught.message, caught.number) == ("ERROR", log.name, "caught", 1)
    assert caught.traceback is not None
    assert caught.traceback.endswith("'bad'")
    seen = {one.getMessage(): vars(one) for one in caplog.records if one.name == log.name}
    assert "task" not in seen["outside of a run"]
    fields = ("task", "id", "attempt", "token", "correlation")
    token = caught.token - 1
    assert [seen["in a thread"].get(name) for name in fields] == ["work", "a", 1, token, "request 7"]
    assert [seen["caught"].get(name) for name in fields] == ["plain", "b", 1, caught.token, None]
    assert seen["begins ann"]["id"] == "own"


async def test_records_of_a_process_are_kept(tasks: TaskQueue) -> None:
    work = tasks.task(keep_logs="64KiB", run_in="process", retry=RetryPolicy(attempts=1))(logging_tasks.work)
    task = tasks.task(run_in="process")(logging_tasks.fields)
    jobs = [await work.add(0), await work.add(9)]
    plain = await task.options(id="plain", correlation="c").add()
    await new_worker(tasks).drain()
    assert await logs_of(jobs[0]) == [(1, "begins 0"), (1, "in a thread")]
    [*_, last] = await jobs[1].logs()
    assert (last.number, last.message) == (9 * 1000 + 2, "number 8999")
    assert await plain.result(timeout=120) == ["fields", "plain", 1, "c"]
    assert await plain.logs() == []


async def test_attempts_are_told_apart_and_a_dead_letter_has_all_of_them(
    tasks: TaskQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    @tasks.task(keep_logs="64KiB", retry=RetryPolicy(attempts=2, first=0))
    async def fail() -> None:
        log.info("before")
        raise LookupError("no such thing")

    job = await fail.add()
    await new_worker(tasks).drain()
    assert (await the_dead(queue)).attempt == 2
    assert await logs_of(job) == [(1, "before"), (2, "before")]
    key = f"{queue.name}:logged:{job.id}"
    assert await redis.pttl(key) == -1
    assert await queue.dead_letters.drop(job.id) == [True]
    assert await job.logs() == []


async def test_cancelled_and_timed_out_runs_keep_their_logs(tasks: TaskQueue) -> None:
    started = asyncio.Event()

    @tasks.task(keep_logs="64KiB", timeout=0.01, retry=RetryPolicy(attempts=1))
    async def late() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.info("too late")

    @tasks.task(keep_logs="64KiB")
    async def endless() -> None:
        try:
            started.set()
            await asyncio.sleep(60)
        finally:
            log.info("cleaning up")

    slow, job = await late.add(), await endless.add()
    async with working(new_worker(tasks)):
        await started.wait()
        assert await job.cancel()

        async def kept() -> bool:
            return [await logs_of(one) for one in (slow, job)] == [[(1, "too late")], [(1, "cleaning up")]]

        await until("both are kept", kept)


async def test_a_run_shows_its_logs_while_it_goes_on(tasks: TaskQueue) -> None:
    goes_on, ends = asyncio.Event(), asyncio.Event()

    @tasks.task(keep_logs="64KiB")
    async def work() -> None:
        log.info("one")
        await goes_on.wait()
        log.info("two")
        await ends.wait()

    job = await work.add()
    async with working(new_worker(tasks)):

        async def has(count: int) -> None:
            async def kept() -> bool:
                return len(await job.logs()) == count

            await until(f"{count} are kept", kept)

        await has(1)
        goes_on.set()
        await has(2)
        ends.set()
        await job.result(timeout=60)
    assert await logs_of(job) == [(1, "one"), (1, "two")]


async def test_a_killed_worker_loses_only_the_last_second(
    tasks: TaskQueue, redis: Redis, redis_url: str
) -> None:
    job = await tasks.task(keep_logs="16KiB")(logging_program.wait).add()

    async def begun() -> bool:
        return bool(await job.logs())

    async with program("tests.tasks.logging_program", redis_url, tasks.name) as worker:
        await until("the first attempt logs", begun)
        worker.kill()
        await worker.wait()
    await redis.zadd(f"{tasks.name}:deadlines", {job.id: 1})  # let the lease expire
    await new_worker(tasks).drain()
    texts = [(1, "attempt 1 begins"), (2, "attempt 2 begins"), (2, "attempt 2 ends")]
    assert await logs_of(job) == texts


async def test_logs_wait_for_a_server_that_is_away_and_precede_the_outcome(
    redis_url: str, name: str, tasks: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(redis_url) as proxy, TaskQueue.from_url(proxy.url, name, reply_timeout=0.5) as others:

        @others.task(keep_logs="16KiB")
        async def work() -> None:
            await proxy.fail()
            log.info("during the outage")

        async with working(new_worker(others, lease_time=60)):
            await tasks.queue.add_item(work.options(id="a").call().item())
            await eventually("it waits", lambda: "logs of runs of" in caplog.text)
            assert "outcomes of" not in caplog.text
            await proxy.heal()
            await tasks.queue.results.wait("a", timeout=60)
    assert messages(await tasks.queue.results.logs("a")) == [(1, "during the outage")]


async def test_a_run_whose_result_counts_keeps_its_log_though_another_holds_the_item(
    tasks: TaskQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    """The first holder that ends decides, also when its lease has expired while the server was silent."""

    @tasks.task(keep_logs="16KiB")
    async def work() -> str:
        log.info("while it is leased")
        await until("the record is kept", begun)
        await redis.zadd(f"{tasks.name}:deadlines", {job.id: 1})
        assert (await take(queue)).id == job.id
        log.info("after that")
        return "done"

    async def begun() -> bool:
        return bool(await job.logs())

    job = await work.add()
    async with working(new_worker(tasks, lease_time=600, concurrency=1)):
        assert await job.result(timeout=60) == "done"
    assert await logs_of(job) == [(1, "while it is leased"), (1, "after that")]


async def test_the_logs_of_a_job_are_found_in_its_shard(redis: Redis, name: str) -> None:
    async with TaskQueue(name, redis, shards=2) as spread:

        @spread.task(keep_logs=4096)
        async def work(number: int) -> None:
            log.info("number %d", number)

        jobs = [await work.add(number) for number in range(4)]
        await new_worker(spread).drain()
        assert [await logs_of(job) for job in jobs] == [[(1, f"number {number}")] for number in range(4)]


async def test_a_flood_keeps_the_newest_records_in_bounded_memory(tasks: TaskQueue, redis: Redis) -> None:
    count = 3_000
    log.propagate = False  # pytest keeps all records

    @tasks.task(keep_logs="16KiB")
    async def flood() -> None:
        for number in range(count):
            log.info("number %d", number)

    job = await flood.add()
    await new_worker(tasks).drain()
    records = await job.logs()
    assert [one.number for one in records] == [*range(records[0].number, count + 1)]
    assert records[-1].message == f"number {count - 1}"
    assert 100 < len(records) < 400
    assert (await redis.memory_usage(f"{tasks.name}:logged:{job.id}") or 0) < 40_000


async def test_a_task_that_keeps_no_logs_writes_none(tasks: TaskQueue, redis: Redis) -> None:
    @tasks.task
    async def work() -> None:
        log.info("not kept")

    async def writes_none() -> bool:
        await redis.config_resetstat()
        job = await work.add()
        await job.result(timeout=60)
        used = await redis.info("commandstats")
        assert not [key async for key in redis.scan_iter(f"{tasks.name}:logged:*")]
        assert await job.logs() == []
        return not {"cmdstat_xadd", "cmdstat_xrevrange"} & used.keys()

    async with working(new_worker(tasks)):
        # Both threads of the worker ask once what they may do, which tries these commands.
        await until("a run writes none", writes_none, within=20)


def test_any_record_is_kept_in_few_bytes() -> None:
    kept = RunLogs(4096)
    for message, arguments in (
        ("%d", ("x",)),
        ("%s", (Unprintable(),)),
        ("\ud800\n\x1b[31m" + "\x00" * 9000, ()),
    ):
        kept.add(logging.LogRecord("a\nb", logging.INFO, "file", 1, message, arguments, None))
    taken = kept.take()
    assert taken is not None
    first, lines = taken
    assert max(map(len, lines)) <= 2048
    chunk = b"\n".join([b"1 %d" % first, *lines])
    read = read_chunks([(7, chunk), (7, chunk), (8, b"x\n{}"), (9, b"1 1\n[1e300,1]")])
    assert [one.number for one in read] == [1, 2, 3]
    assert "TypeError" in read[0].message
    assert "LookupError" in read[1].message
    assert len(f"{read[2]}".split("\n")) == 1
    assert "\x1b" not in f"{read[2]}"


def test_what_waits_to_be_written_is_bounded_and_says_how_much_was_dropped() -> None:
    kept = RunLogs(4096)
    for _ in range(1000):
        kept.add(logging.LogRecord("a", logging.INFO, "file", 1, "text", (), None))
    taken = kept.take()
    assert taken is not None
    first, lines = taken
    assert first + len(lines) - 1 == 1000
    assert sum(map(len, lines)) <= 4096
    kept.close()
    kept.done()
    kept.add(logging.LogRecord("a", logging.INFO, "file", 1, "after the end of the run", (), None))
    assert not kept.waits


@pytest.mark.parametrize("size", ["64", 100, "2MiB", "64kB", True, 4096.0])
def test_a_size_that_is_none_is_refused(tasks: TaskQueue, size: Any) -> None:
    with pytest.raises(InvalidArgument, match="keep_logs"):
        tasks.task(keep_logs=size)(logging_tasks.fields)
