"""Cancelling jobs, and following their progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, JobCancelled, JobUnknown, current_run
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue import TaskQueue


@pytest.mark.seed("WRQ-E2", "GLD-O14")
async def test_a_job_is_cancelled_whether_it_waits_or_runs(tasks: TaskQueue) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @tasks.task
    async def sleep(seconds: float) -> str:
        begun.set()
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.set()
        return "slept"

    waiting = await sleep.add(600)
    assert await waiting.cancel()
    assert (await waiting.status()).state == "cancelled"
    with pytest.raises(JobCancelled, match=f"'{waiting.id}' was cancelled"):
        await waiting.result()
    async with working(new_worker(tasks)):
        job = await sleep.add(600)
        result = asyncio.create_task(job.result())
        await begun.wait()
        assert await job.cancel(keep=60)
        with pytest.raises(JobCancelled) as caught:
            await result
        assert caught.value.item_id == job.id
        async with asyncio.timeout(120):
            await ended.wait()
        assert not await job.cancel()
        done = await sleep.add(0)
        assert await done.result() == "slept"
        assert not await done.cancel()


async def test_a_job_is_cancelled_by_its_arguments(tasks: TaskQueue) -> None:

    @tasks.task
    async def resize(path: str, width: int = 100) -> None: ...

    once = resize.options(content_id=True)
    job = await once.add("cat.jpg", width=200)
    assert not await once.call("cat.jpg").cancel()
    assert await once.call("cat.jpg", width=200).cancel()
    assert (await job.status()).state == "cancelled"
    named = resize.options(id="a").call("dog.jpg")
    await named.add()
    assert await named.cancel(keep=0)
    with pytest.raises(InvalidArgument, match="a call with an id"):
        await resize.call("cat.jpg").cancel()


async def test_the_progress_of_a_job_is_followed(tasks: TaskQueue) -> None:
    seen = asyncio.Event()

    @tasks.task
    async def count(most: int) -> int:
        current_run().progress({"done": 1})
        await seen.wait()
        await current_run().lease.queue.progress(current_run().lease, {"done": most})
        return most

    job = await count.add(7)
    values: list[object] = []
    async with working(new_worker(tasks)):
        async for value in job.progress():
            values.append(value)
            if not seen.is_set():
                assert (await job.status()).progress == {"done": 1}
            seen.set()
        assert await job.result() == 7
    assert values == [{"done": 1}, {"done": 7}]
    with pytest.raises(JobUnknown):
        async for _ in count.job("none").progress():
            pass
