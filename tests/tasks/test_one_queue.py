"""Several task queues, and handlers, of one worker on the same queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, TaskQueue
from tests.tasks.models import plain
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from tests.queue.fixtures import MakeQueue


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
