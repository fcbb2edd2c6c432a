"""How many items an item of one queue adds to another: counted in real flow runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import FanOut, fan_out
from leasequeue.autoscale import FlowChildren
from leasequeue.autoscale.leader import State, decode_state, encode_state
from leasequeue.flow import Flow
from tests.queue.asking import until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, TaskQueue
    from leasequeue.queue.plans.flow_runs import FlowRun


class Moved:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Media:
    """A flow: videos are resized, uploaded, thumbnails of them made, and a mail is sent, on four queues."""

    def __init__(self, tasks: TaskQueue, name: str) -> None:
        #: Set: thumbnails are made.
        self.going_on = asyncio.Event()
        self.home, self.uploads = name, f"{name}-uploads"
        self.thumbs, self.mails = f"{name}-thumbs", f"{name}-mails"

        @tasks.task(queue=self.thumbs)
        async def thumbnail(number: int) -> int:
            await self.going_on.wait()
            return number

        @tasks.task(queue=self.uploads)
        async def upload(number: int) -> FanOut[int]:
            return fan_out([thumbnail.call(number), thumbnail.call(number)])

        @tasks.task
        async def resize(count: int) -> FanOut[list[int]]:
            return fan_out([upload.call(number) for number in range(count)])

        @tasks.task
        async def mail(resize: list[list[int]]) -> int:
            return len(resize)

        self.flow = Flow("media", tasks, attributes={"count": int})
        self.flow.stage(mail, queue=self.mails, after=self.flow.stage(resize))

    async def start(self, *counts: int) -> list[FlowRun[Any]]:
        return [await self.flow.start(count=count) for count in counts]

    def averages(self, uploads: float, thumbs: float, mails: float) -> Mapping[tuple[str, str], float]:
        found = {
            (self.home, self.uploads): uploads,
            (self.uploads, self.thumbs): thumbs,
            (self.thumbs, self.mails): mails,
        }
        return {pair: average for pair, average in found.items() if average}


@pytest.mark.seed("RWQ-K5")
async def test_children_of_children_and_the_stage_after_them_are_counted(
    tasks: TaskQueue, name: str, queue: AsyncWorkQueue
) -> None:
    media, clock = Media(tasks, name), Moved()
    children = FlowChildren(every=60, clock=clock)
    assert await children.of([queue]) == {}
    runs = await media.start(2, 4)
    async with working(new_worker(tasks, concurrency=30)):
        await until("all uploads have added", lambda: added(queue, 12))
        assert await children.of([queue]) == {}, "for a minute"
        clock.now += 60
        seen = await children.of([queue])
        assert seen == pytest.approx(media.averages(6 / 2, 12 / 6, 0))
        media.going_on.set()
        assert [await run.result(timeout=120) for run in runs] == [2, 4]
        clock.now += 59
        assert await children.of([queue]) is seen
        clock.now += 1
        found = await children.of([queue])
        assert found == pytest.approx(media.averages(6 / 2, 12 / 6, 2 / 12)), "their queues are remembered"
        # Another copy has not seen where the children were: the mails follow from the first stage.
        assert await FlowChildren().of([queue]) == {(media.home, media.mails): 1}
        # The state on the server says it.
        state, _ = decode_state(encode_state(State(children=children.learned)))
        other = FlowChildren()
        other.recall(state.children)
        assert await other.of([queue]) == found


async def added(queue: AsyncWorkQueue, count: int) -> bool:
    """Return whether so many thumbnails have been added."""
    runs = await queue.flow_runs.list(children=True, fields=())
    paths = [path for run in runs if run is not None for path in run.stages if path.count("/") == 2]
    return len(paths) == count


async def test_stages_one_after_the_other_and_a_join_of_two_queues(
    tasks: TaskQueue, name: str, queue: AsyncWorkQueue
) -> None:
    """Each of two stages adds half of what joins them; what follows on the same queue is left out."""

    @tasks.task
    async def step(number: int) -> int:
        return number

    flow = Flow("both", tasks, attributes={"number": int})
    first = flow.stage(step)
    again = flow.stage(step, name="again", after=first)
    left = flow.stage(step, name="left", queue=f"{name}-left", after=again)
    right = flow.stage(step, name="right", queue=f"{name}-right", after=again)
    flow.stage(step, name="end", queue=f"{name}-end", after=[left, right])
    async with working(new_worker(flow)):
        runs = [await flow.start(number=number) for number in range(3)]
        for run in runs:
            await run.result(timeout=120)
    assert await FlowChildren().of([queue]) == pytest.approx(
        {
            (name, f"{name}-left"): 0.5,
            (name, f"{name}-right"): 0.5,
            (f"{name}-left", f"{name}-end"): 0.5,
            (f"{name}-right", f"{name}-end"): 0.5,
        }
    )


async def test_of_many_children_some_are_looked_at(
    tasks: TaskQueue, name: str, queue: AsyncWorkQueue, redis: Redis
) -> None:
    media = Media(tasks, name)
    await media.start(60)
    async with working(new_worker(tasks, concurrency=200)):
        await until("all uploads have added", lambda: added(queue, 120))
        before = await fields_read(redis)
        assert await FlowChildren().of([queue]) == pytest.approx(media.averages(60, 2, 0))
        assert await fields_read(redis) - before < 120, (
            "of 180 children: those that were added last, and others"
        )
        media.going_on.set()


async def fields_read(redis: Redis) -> int:
    """Return how many fields of hashes have been read, each by a command."""
    calls = (await redis.info("commandstats")).get("cmdstat_hget", {}).get("calls", 0)
    assert isinstance(calls, int)
    return calls
