"""Tasks with limits: their calls have a group, whose limits each worker declares before it leases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, TaskQueue, Worker
from leasequeue.errors import InvalidTask
from leasequeue.views import Limit

if TYPE_CHECKING:
    from collections.abc import Callable


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
