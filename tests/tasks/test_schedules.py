"""Tasks with a schedule: workers declare it while they run, and of two versions the newer one counts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, Lease, Provided, TaskQueue
from leasequeue.errors import InvalidTask
from leasequeue.worker import maintenance
from leasequeue.worker.retry import RetryPolicy
from tests.eventually import eventually
from tests.queue.asking import until
from tests.worker.working import counted, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from leasequeue.testing import Clock

MINUTE, HOUR = 60, 3600

pytestmark = pytest.mark.core


@asynccontextmanager
async def deployed(
    url: str,
    name: str,
    clock: Clock | None = None,
    *,
    cron: str | None = None,
    tz: str | None = None,
    every: float | None = None,
) -> AsyncIterator[TaskQueue]:
    """Open the task queue of a version of a program whose task `clean` has a schedule, or none."""
    async with TaskQueue.from_url(url, name, clock=clock) as tasks:

        @tasks.task(cron=cron, tz=tz, every=every)
        async def clean(older_than: int = 30) -> int:
            return older_than

        yield tasks


async def start(tasks: TaskQueue) -> None:
    """Declare what a worker declares when it starts, and each minute."""
    for consumer in tasks.consumers(retry=RetryPolicy(), lease_time=30):
        for declaration in consumer.declarations:
            await consumer.queue.schedules._declare(declaration)


async def expressions(tasks: TaskQueue) -> list[str | float | None]:
    """Return what the schedules on the server say."""
    return [view.expression or view.interval for view in await tasks.queue.schedules.list()]


# ------------------------------------------------------------------------------------- running workers


async def test_a_running_worker_declares_and_runs_a_scheduled_task(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.1)
    ran: list[tuple[str, str]] = []
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task(every=0.1)
        async def clean(why: str = "the time has come", *, lease: Lease = Provided()) -> None:
            ran.append((lease.id.partition("@")[0], why))

        async with working(new_worker(tasks, clean_every=60)):
            await eventually("it has run twice", lambda: len(ran) > 1)
    assert set(ran) == {("clean", "the time has come")}


async def test_a_worker_declares_the_schedules_of_a_queue_that_it_starts_later(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.05)
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        async def other() -> None: ...

        async with working(worker := new_worker(tasks, clean_every=60)):
            await worker.started()
            ran = asyncio.Event()

            @tasks.task(every=0.1, queue=f"{name}-later")
            async def clean() -> None:
                ran.set()

            await worker.start_queue(f"{name}-later")
            async with asyncio.timeout(120):
                await ran.wait()


async def test_a_worker_declares_again_and_removes_what_none_declares(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.05)
    monkeypatch.setattr(maintenance, "DECLARE_EVERY", 0.1)
    async with (
        deployed(redis_url, name, clock, every=HOUR) as tasks,
        TaskQueue.from_url(redis_url, name, clock=clock) as other,
    ):

        @other.task(every=7200)
        async def gone() -> None: ...

        await start(other)
        async with working(new_worker(tasks, clean_every=60)):

            async def declared(*names: str) -> None:
                async def is_so() -> bool:
                    return sorted(view.name for view in await tasks.queue.schedules.list()) == [*names]

                await until(f"the schedules are {names}", is_so)

            await declared("clean", "gone")
            assert await tasks.queue.schedules.remove("clean")
            await declared("clean", "gone")
            clock.advance(HOUR + 1)
            await declared("clean")


async def test_a_worker_that_maintains_nothing_declares_nothing(redis_url: str, name: str) -> None:
    async with deployed(redis_url, name, every=HOUR) as tasks:
        await new_worker(tasks).drain()
        async with working(worker := new_worker(tasks)):
            await eventually("it runs", lambda: worker.health().ok)
        assert await expressions(tasks) == []


async def test_drain_declares_schedules_and_runs_what_is_due(redis_url: str, name: str, clock: Clock) -> None:
    runs: list[float] = []
    async with TaskQueue.from_url(redis_url, name, clock=clock) as tasks:

        @tasks.task(every=HOUR)
        async def clean() -> None:
            runs.append(clock())

        for passed in (0, HOUR, HOUR, 1):
            clock.advance(passed)
            await new_worker(tasks, clean_every=60).drain()
    first, second = runs
    assert second - first == HOUR


async def test_a_task_adds_its_calls_to_its_own_queue(redis_url: str, name: str) -> None:
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task(every=HOUR, queue=f"{name}-slow")
        async def clean() -> None: ...

        await start(tasks)
        assert await expressions(tasks) == []
        [view] = await clean.queue.schedules.list()
        assert (view.name, view.data) == ("clean", b'{"task":"clean","args":{},"meta":{}}')
        await clean.queue.schedules.remove("clean")


# ------------------------------------------------------------------------------------------- a deploy


async def test_an_old_worker_that_restarts_during_a_deploy_changes_nothing(
    redis_url: str, name: str, clock: Clock
) -> None:
    async with (
        deployed(redis_url, name, clock, cron="0 3 * * *") as old,
        deployed(redis_url, name, clock, cron="0 5 * * *", tz="Europe/Berlin") as new,
        deployed(redis_url, name, clock) as unscheduled,
    ):
        await start(old)
        assert await expressions(new) == ["0 3 * * *"]
        clock.advance(MINUTE)
        await start(new)
        assert await expressions(new) == ["0 5 * * *"]
        for _ in range(3 * 60):
            clock.advance(MINUTE)
            for one in (old, unscheduled, new, old):
                await start(one)
                assert await expressions(one) == ["0 5 * * *"]
            assert await unscheduled.queue.schedules._expire_declared() == []


async def test_after_a_rollback_the_older_definition_counts_again(
    redis_url: str, name: str, clock: Clock
) -> None:
    async with (
        deployed(redis_url, name, clock, every=10) as old,
        deployed(redis_url, name, clock, every=20) as new,
    ):
        await start(old)
        clock.advance(MINUTE)
        await start(new)
        seen = []
        for _ in range(6):
            seen += await expressions(old)
            clock.advance(MINUTE)
            await start(old)
        assert seen == [20] * 6
        assert await expressions(old) == [10]


async def test_a_schedule_that_no_worker_declares_for_an_hour_is_removed(
    redis_url: str, name: str, clock: Clock
) -> None:
    async with deployed(redis_url, name, clock, every=2 * HOUR) as old:
        await old.queue.schedules.every(2 * HOUR, "by hand")
        await start(old)
        clock.advance(HOUR)
        assert await old.queue.schedules._expire_declared() == []
        clock.advance(1)
        assert await old.queue.schedules._expire_declared() == ["clean"]
        assert [view.name for view in await old.queue.schedules.list()] == ["by hand"]


async def test_ticks_that_were_missed_while_no_worker_ran_are_made_up_for(
    redis_url: str, name: str, clock: Clock
) -> None:
    """A worker declares before it removes and ticks, so a long pause of all workers loses no tick."""
    async with deployed(redis_url, name, clock, every=2 * HOUR) as tasks:
        await start(tasks)
        clock.advance(5 * HOUR)
        async with working(new_worker(tasks, clean_every=60)):
            await until("it is due next", lambda: goes_on(tasks, clock))
            await counted(tasks.queue, "the task has run", lambda counts: not counts.total)


async def goes_on(tasks: TaskQueue, clock: Clock) -> bool:
    """Return whether the schedule of five hours ago has been ticked, and continues with its series."""
    [view] = await tasks.queue.schedules.list()
    return view.next_due is not None and abs((view.next_due - clock.now).total_seconds() - HOUR) < 1


# ------------------------------------------------------------------------------------------- refused


def required(to: str, why: str = "x", *, smtp: str = Provided()) -> None:
    """Have an argument without a default."""


async def free(lease: Lease = Provided(), to: str = "all", *, smtp: str = Provided()) -> None:
    """Have none."""


async def several(to: list[str]) -> None:
    """Take a batch."""


@pytest.mark.parametrize(
    ("function", "options", "error", "text"),
    [
        (required, {"every": 5}, InvalidTask, "required cannot be a task: a schedule.* give to a default"),
        (several, {"every": 5, "batch": 3}, InvalidTask, "with batch= each has one"),
        (free, {"every": 5, "name": "x" * 488}, InvalidTask, "its name, that of its schedule, is to be"),
        (free, {"every": 5, "cron": "* * * * *"}, InvalidArgument, "not both"),
        (free, {"every": 0}, InvalidArgument, "every: got 0"),
        (free, {"cron": "0 3 * *"}, InvalidArgument, "cron: got '0 3 \\* \\*'"),
        (free, {"cron": "0 3 * * *", "tz": "Mars"}, InvalidArgument, "tz: got 'Mars'"),
        (free, {"tz": "UTC"}, InvalidArgument, "a time zone beside a cron expression"),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_when_the_task_is_registered(
    tasks: TaskQueue,
    function: Callable[..., Any],
    options: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        tasks.task(**options)(function)
    assert tasks.tasks == ()
    assert tasks.task(every=5)(free).name == "free"
