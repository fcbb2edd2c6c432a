"""A worker runs tasks as it runs handlers: in threads, processes and batches, on one queue, within limits."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    InvalidArgument,
    Item,
    JobFailed,
    Lease,
    Provided,
    Retry,
    RetryPolicy,
    TaskQueue,
    Worker,
    current_run,
)
from leasequeue.errors import InvalidTask
from leasequeue.views import Limit
from tests.eventually import eventually
from tests.tasks.models import plain
from tests.worker.working import counted, new_worker, the_dead, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Run
    from leasequeue.testing import Clock
    from tests.queue.fixtures import MakeQueue


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, Any]]:
    yield {"smtp": "a connection"}


async def test_the_worker_fills_in_the_lease_and_values_of_the_lifespan(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str, *, smtp: str = Provided(), lease: Lease = Provided()) -> list[str]:
        return [to, smtp, lease.id, current_run().lease.id]

    @tasks.task
    def store(lease: Lease = Provided(), to: str = "bob", *, smtp: str = Provided()) -> list[str]:
        return [to, smtp, lease.id, current_run().lease.id]

    jobs = [await send.add("ann"), await store.add()]
    await new_worker(tasks, lifespan=lifespan).drain()
    assert [await job.result(timeout=120) for job in jobs] == [
        [to, "a connection", job.id, job.id] for to, job in zip(("ann", "bob"), jobs, strict=True)
    ]
    with pytest.raises(InvalidArgument, match=r"'send'.*does not provide smtp"):
        await new_worker(tasks).drain()


async def test_what_is_provided_says_so_when_it_is_missing() -> None:
    mark = Provided()
    assert repr(mark) == "Provided()"
    with pytest.raises(AttributeError, match="when you call the function yourself, pass a value"):
        mark.send("x")


async def test_tasks_run_in_threads_and_in_processes(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        def thread() -> int:
            return threading.get_ident()

        from tests.tasks import models

        decorated = tasks.task(run_in="process", name="pid")(models.pid.function)
        monkeypatch.setattr(models, "pid", decorated)
        bare = tasks.task(run_in="process", name="bare")(plain)
        jobs = [await decorated.add(2, factor=3), await bare.add(1), await thread.add()]
        await new_worker(tasks, concurrency=1).drain()
        (pid, product), other, ident = [await job.result(timeout=120) for job in jobs]
        assert (product, other - 1) == (6, pid)
        assert pid != os.getpid()
        assert ident != threading.get_ident()


async def test_each_task_has_its_own_retries_time_limit_and_result_time(
    tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    attempts: list[str] = []

    @tasks.task(retry=RetryPolicy(attempts=2, first=0))
    async def twice() -> None:
        attempts.append("twice")
        raise ValueError("never")

    @tasks.task(retry=RetryPolicy(attempts=3, first=0), keep_result=7200)
    async def third() -> int:
        attempts.append("third")
        if attempts.count("third") < 3:
            raise Retry(delay=0)
        return 3

    @tasks.task(timeout=0.05, retry=RetryPolicy(attempts=1))
    async def slow() -> None:
        await asyncio.sleep(60)

    jobs = [await task.add() for task in (twice, third, slow)]
    async with working(new_worker(tasks)):
        await counted(queue, "all are done", lambda counts: counts.total == 0)
    assert sorted(attempts) == ["third"] * 3 + ["twice"] * 2
    assert await jobs[1].result(timeout=120) == 3
    with pytest.raises(JobFailed, match="ValueError: never"):
        await jobs[0].result(timeout=120)
    with pytest.raises(JobFailed, match="took longer than its limit"):
        await jobs[2].result(timeout=120)


async def test_a_batch_has_the_items_of_its_task_and_an_answer_for_each(tasks: TaskQueue) -> None:
    batches: list[list[int]] = []

    @tasks.task(batch=10, retry=RetryPolicy(attempts=2, rules={ValueError: "never"}))
    async def halve(numbers: list[int]) -> list[int | Exception]:
        batches.append(sorted(numbers))
        return [number // 2 if number % 2 == 0 else ValueError(f"{number} is odd") for number in numbers]

    @tasks.task
    async def other(number: int) -> int:
        return -number

    @tasks.task(batch=2)
    def quiet(texts: list[str], *, smtp: str = Provided()) -> None: ...

    calls = [call for n in range(4) for call in (halve.call(n), other.call(n))]
    jobs = await tasks.add_many([*calls, quiet.call("x")])
    await new_worker(tasks, lifespan=lifespan).drain()
    assert sorted(number for batch in batches for number in batch) == [0, 1, 2, 3]
    assert len(batches) < 4
    assert [await job.result(timeout=120) for job in jobs[1:8:2]] == [0, -1, -2, -3]
    assert [await jobs[at].result(timeout=120) for at in (0, 4, 8)] == [0, 1, None]
    with pytest.raises(JobFailed, match="ValueError: 3 is odd"):
        await jobs[6].result(timeout=120)


async def test_middleware_and_logs_name_the_task(
    tasks: TaskQueue, queue: AsyncWorkQueue, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def layer(run: Run, call_next: Any) -> Any:
        seen.append(f"{run.handler.name} {run!r}")
        return await call_next(run)

    @tasks.task(name="mail.send", retry=RetryPolicy(attempts=1))
    async def send() -> None:
        raise ValueError("no")

    job = await send.add()
    with caplog.at_level(logging.WARNING, "leasequeue.worker"):
        await new_worker(tasks, middleware=[layer]).drain()
    assert seen == [f"mail.send <run of mail.send on {job.id!r}>"]
    (record,) = [one for one in caplog.records if "failed" in one.message]
    assert (record.__dict__["task"], record.__dict__["id"]) == ("mail.send", job.id)
    assert (await the_dead(queue)).id == job.id


async def test_a_worker_runs_several_task_queues_and_handlers(
    redis_url: str, name: str, tasks: TaskQueue, make_queue: Any
) -> None:
    seen: list[str] = []
    plain_queue = make_queue(name=f"{name}-plain")
    async with TaskQueue.from_url(redis_url, f"{name}-2") as others:
        worker = new_worker(tasks, others)

        @tasks.task
        async def one(text: str) -> None:
            seen.append(text)

        @others.task(name="one")
        async def two(text: str) -> None:
            seen.append(text)

        @others.task(queue=f"{name}-own", weight=2)
        async def three(text: str) -> None:
            seen.append(text)

        @worker.handler(plain_queue)
        async def handle(text: str) -> None:
            seen.append(text)

        assert [handler.name for handler in worker.handlers] == [
            f"{test_a_worker_runs_several_task_queues_and_handlers.__name__}.<locals>.handle",
            *("one", "one", "three"),
        ]
        await asyncio.gather(one.add("1"), two.add("2"), three.add("3"), plain_queue.add_item(Item("4")))
        await worker.drain()
        assert sorted(seen) == ["1", "2", "3", "4"]


async def test_included_modules_are_imported_when_a_worker_starts(
    redis_url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "app_of_test.py").write_text(
        "from leasequeue import TaskQueue\n"
        f"tasks = TaskQueue.from_url({redis_url!r}, {name!r}, include=['mail_of_test'])\n"
    )
    (tmp_path / "mail_of_test.py").write_text(
        "from app_of_test import tasks\n@tasks.task\nasync def send() -> int:\n    return 5\n"
    )
    import app_of_test  # type: ignore[import-not-found] # written above

    try:
        worker = new_worker(app_of_test.tasks)
        assert [handler.name for handler in worker.handlers] == ["send"]
        job = await app_of_test.tasks.tasks[0].add()
        await worker.drain()
        assert await job.result(timeout=120) == 5
    finally:
        await app_of_test.tasks.close()
        del sys.modules["app_of_test"], sys.modules["mail_of_test"]


async def test_a_worker_without_tasks_does_not_run(tasks: TaskQueue) -> None:
    with pytest.raises(InvalidArgument, match=r"at least one: see TaskQueue\.task"):
        await Worker(tasks).run()
    with pytest.raises(InvalidArgument, match=r"write @worker\.handler\(queue\)"):
        Worker(tasks.queue)  # type: ignore[arg-type] # a mistake of a user


def with_clock(redis_url: str, name: str, clock: Clock, **options: Any) -> TaskQueue:
    tasks = TaskQueue.from_url(redis_url, name, clock=clock, **options)
    clock.attach(tasks.queue)
    return tasks


async def test_a_task_that_a_worker_does_not_know_waits_for_another_worker(
    redis_url: str, name: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_clock(redis_url, name, clock) as new, with_clock(redis_url, name, clock) as old:

        @new.task(name="send")
        async def send(to: str, cc: str = "") -> str:
            return to + cc

        @new.task
        async def resize(path: str) -> str:
            return path

        @old.task(name="send")
        async def send_before(to: str) -> str:
            return to

        jobs = [await resize.add("cat"), await send.add("ann", cc="bob"), await send.add("eve")]
        with caplog.at_level(logging.WARNING, "leasequeue.worker"):
            for _ in range(3):
                await new_worker(old).drain()
                clock.advance(5)
        assert await jobs[2].result(timeout=120) == "eve"
        for job, what in zip(jobs, ("the task 'resize'", "the argument cc of the task 'send'"), strict=False):
            status = await job.status()
            assert (status.state, status.attempt) == ("scheduled", 0)
            assert sum(f"does not know {what}" in text for text in caplog.messages) == 1
        assert all(text.endswith("and is a dead letter after 24.0 h") for text in caplog.messages)
        clock.advance(60)
        await new_worker(new).drain()
        assert [await job.result(timeout=120) for job in jobs[:2]] == ["cat", "annbob"]


async def test_an_unknown_task_waits_longer_each_time(redis_url: str, name: str, clock: Clock) -> None:
    async with with_clock(redis_url, name, clock) as new, with_clock(redis_url, name, clock) as old:

        @new.task
        async def resize() -> None: ...

        @old.task
        async def other() -> None: ...

        job = await resize.add()
        waits: list[float] = []
        for _ in range(9):
            await new_worker(old).drain()
            due = (await job.status()).due
            assert due is not None
            waits.append(round(due - clock(), 2))
            clock.advance(waits[-1])
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("delay", [0, 3600])
async def test_a_task_that_no_worker_knows_is_a_dead_letter_after_a_day(
    redis_url: str, name: str, clock: Clock, delay: float
) -> None:
    async with with_clock(redis_url, name, clock) as new, with_clock(redis_url, name, clock) as old:

        @new.task
        async def resize() -> None: ...

        @old.task
        async def other() -> None: ...

        job = await resize.options(delay=delay).add()
        clock.advance(86_390 + delay)
        await new_worker(old).drain()
        assert (await job.status()).state == "scheduled"
        clock.advance(300)
        await new_worker(old).drain()
        assert (
            await job.status()
        ).state == "scheduled"  # it may be of a backlog, and this worker soon replaced
        clock.advance(301)
        await new_worker(old).drain()
        letter = await the_dead(new.queue)
        assert "since 86400 s has known the task 'resize'" in letter.error


async def test_how_long_unknown_tasks_are_kept_can_be_set(redis_url: str, name: str, clock: Clock) -> None:
    async with with_clock(redis_url, name, clock, keep_unknown=10) as tasks:

        @tasks.task
        async def known() -> None: ...

        await tasks.queue.add_item(Item('{"task":"unknown","args":{}}'))  # from a client that sends no times
        for state in ("scheduled", "scheduled", "dead"):
            await new_worker(tasks).drain()
            assert getattr(await tasks.queue.counts(), state) == 1
            clock.advance(6)


async def test_items_that_have_not_started_return_in_their_order(tasks: TaskQueue) -> None:
    """Those of different tasks, too: they are released by their queue, not by their handlers."""
    hold = asyncio.Event()
    held: list[int] = []

    async def work(number: int) -> None:
        if number >= 200:
            held.append(number)
            await hold.wait()

    one, two = tasks.task(name="one")(work), tasks.task(name="two")(work)
    jobs = await tasks.add_many((one if n % 3 else two).call(n) for n in range(600))
    async with working(new_worker(tasks, concurrency=1, grace=0)):
        await eventually("one is held", lambda: bool(held))
    assert held == [200]
    assert [view.id for view in await tasks.queue.inspect(count=1000)] == [job.id for job in jobs[200:]]


async def test_results_of_tasks_that_end_together_are_kept_for_their_own_times(
    tasks: TaskQueue, redis: Redis
) -> None:
    @tasks.task(keep_result=100)
    async def short() -> None: ...

    @tasks.task(keep_result=10_000)
    async def long() -> None: ...

    @tasks.task(keep_result=None)
    async def never() -> None: ...

    order = [short, long, never]
    jobs = await tasks.add_many(order[n % 3].call() for n in range(60))
    await new_worker(tasks).drain()
    left = [await redis.ttl(f"{tasks.name}:result:{job.id}") for job in jobs]
    kept = [0 if seconds < 0 else 100 if seconds <= 100 else 10_000 for seconds in left]
    assert kept == [100, 10_000, 0] * 20


async def test_items_are_leased_for_the_longest_time_of_their_queue(tasks: TaskQueue) -> None:
    """Before it is leased, it is not known for which task an item is."""
    seen: list[float] = []

    @tasks.task(lease_time=1)
    async def short(*, lease: Lease = Provided()) -> None:
        seen.append(lease.remaining())

    @tasks.task(lease_time=500)
    async def long() -> None: ...

    await short.add()
    await new_worker(tasks).drain()
    assert 400 < seen[0] <= 500


async def test_task_queues_on_one_queue_run_each_other_s_items(
    redis_url: str, tasks: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async with TaskQueue.from_url(redis_url, tasks.name) as others:

        @tasks.task
        async def one(number: int) -> int:
            return number

        @others.task(lease_time=50)
        async def two(number: int) -> int:
            return -number

        jobs = await tasks.add_many([task.call(number) for number in range(9) for task in (one, two)])
        worker = new_worker(tasks, others)
        await worker.drain()
        assert "does not know" not in caplog.text
        assert [await job.result(timeout=120) for job in jobs[:4]] == [0, 0, 1, -1]

        others.task(name="one")(plain)
        with pytest.raises(InvalidArgument, match="name that no other handler"):
            await new_worker(tasks, others).drain()


async def test_a_handler_on_a_queue_with_tasks_is_refused(tasks: TaskQueue, make_queue: MakeQueue) -> None:
    tasks.task(plain)
    worker = new_worker(tasks)

    @worker.handler(make_queue())
    async def handle(data: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match=f"it would be given those of {tasks.name}"):
        await worker.drain()


async def test_no_more_calls_run_at_once_than_the_task_permits(tasks: TaskQueue) -> None:
    running, most, others = 0, 0, 0

    @tasks.task(concurrency=2)
    async def charge(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return number

    @tasks.task
    async def greet() -> None:
        nonlocal others
        others = max(others, running)

    jobs = await tasks.add_many([*map(charge.call, range(12)), greet.call()])
    assert {view.group for view in await tasks.queue.inspect()} == {"task:charge", None}
    first, second = Worker(tasks, concurrency=10), Worker(tasks, concurrency=10)
    async with asyncio.TaskGroup() as group:
        for worker in (first, second):
            group.create_task(worker.run())
        assert [await job.result(timeout=120) for job in jobs[:12]] == [*range(12)]
        first.stop()
        second.stop()
    assert most == 2
    assert (await tasks.queue.limits.get()).groups == {"task:charge": Limit(concurrency=2)}


async def test_a_worker_declares_the_limits_that_its_tasks_have_now(tasks: TaskQueue) -> None:
    await tasks.queue.limits.set(group="task:charge", concurrency=9, rate="1/s")

    @tasks.task(rate="1000/s")
    async def charge() -> None: ...

    await charge.add()
    await Worker(tasks).drain()
    limits = await tasks.queue.limits.get()
    assert limits.groups == {"task:charge": Limit(rate="1000/s", burst=1)}


async def test_a_task_with_limits_has_no_other_group(tasks: TaskQueue) -> None:
    @tasks.task(concurrency=1)
    async def charge() -> None: ...

    with pytest.raises(InvalidArgument, match="'task:charge'"):
        charge.options(group="tenant-7")
    assert charge.options(priority=3).call().options == {"priority": 3, "group": "task:charge"}


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"concurrency": 0}, InvalidArgument, "concurrency"),
        ({"concurrency": "3"}, InvalidArgument, "concurrency"),
        ({"rate": "0/s"}, InvalidArgument, "rate"),
        ({"rate": 10}, InvalidArgument, "rate"),
        ({"rate": "1/s", "every": 60}, InvalidTask, "schedule"),
        ({"rate": "1/s", "name": "x" * 252}, InvalidTask, "256 bytes"),
    ],
)
async def test_limits_that_cannot_be_are_refused(
    tasks: TaskQueue, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    def charge() -> None: ...

    register: Callable[[Any], Any] = tasks.task(**settings)
    with pytest.raises(error, match=said):
        register(charge)
