"""All that a queue can do, called once: for tests of what a user must be permitted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from leasequeue import Fleet, Item, TaskQueue
from leasequeue.wire.discovery import find_queues
from leasequeue.worker import Retry, current_run
from tests.queue.asking import take, until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leasequeue import AsyncWorkQueue


async def the_whole_life(queue: AsyncWorkQueue, other: AsyncWorkQueue, url: str) -> None:
    """Call all that a queue can do: work, events, limits, schedules, and what operators do."""
    await queue.events.keep(count=1000)
    await queue.events.publish()
    live = aiter(queue.events(live=True))
    event = asyncio.ensure_future(anext(live))
    async with TaskQueue(queue.name, Redis.from_url(url)) as tasks:
        await work(tasks)
    assert (await event).id
    await live.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert [event async for event in queue.events(follow=False)]
    await limits(queue)
    await schedules(queue)
    await operate(queue, other)
    assert {*(await find_queues(url)).names} == {queue.name, other.name}
    await queue.events.stop()
    await queue.admin.delete()


async def work(tasks: TaskQueue) -> None:
    """Run tasks that succeed, are retried, fail and are cancelled, beside a fleet that watches."""
    began = asyncio.Event()

    @tasks.task(keep_result=60)
    async def double(number: int) -> int:
        if number == 2 and current_run().attempt == 1:
            raise Retry
        return 2 * number

    @tasks.task()
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    @tasks.task(retry=None)
    async def fail() -> None:
        raise ValueError

    @tasks.task(every=3600)
    async def poll() -> None: ...

    worker = new_worker(tasks, clean_every=0.2)
    async with working(worker):
        jobs = [await double.add(number) for number in range(3)]
        assert [await job.result(timeout=120) for job in jobs] == [0, 2, 4]
        assert await (await double.options(delay=0.1).add(4)).result(timeout=120) == 8
        hanging = await hang.add()
        await began.wait()
        assert await hanging.cancel()
        await fail.add()
        await until("a dead letter", lambda: _is(tasks.queue.dead_letters.count(), 1))
        fleet = Fleet(tasks.queue)
        await until("the worker is registered", lambda: _is(_count(fleet), 1))
        [one] = await fleet.workers()
        await fleet.quiet(one)
        await fleet.resume(one)


async def _is(value: Awaitable[object], wanted: object) -> bool:
    return await value == wanted


async def _count(fleet: Fleet) -> int:
    return len(await fleet.workers())


async def limits(queue: AsyncWorkQueue) -> None:
    """Limit, pause and prioritise."""
    await queue.limits.set(rate="100/s", concurrency=5)
    await queue.limits.set(concurrency=1, group="*")
    await queue.pause(group="g")
    for at in range(4):
        await queue.add_item(Item(b"x", id=f"p{at}"), priority=at, group="g")
    assert await queue.lease(30, block=False) is None
    await queue.resume(group="g")
    lease = await take(queue)
    assert await queue.progress(lease, 0.5)
    assert await queue.renew(lease, 60)
    assert await queue.release(lease, delay=0.01)
    assert await queue.complete(await take(queue))
    await queue.limits.remove()
    await queue.limits.remove(group="*")
    await queue.admin.purge(scheduled=True)


async def schedules(queue: AsyncWorkQueue) -> None:
    """Add, tick and remove a schedule."""
    await queue.schedules.every(1000, "poll", data=b"x")
    await queue.schedules.tick()
    assert [one.name for one in await queue.schedules.list()]
    await queue.schedules.remove("poll")


async def operate(queue: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
    """Read, repair and move."""
    await queue.add_items([Item(b"x", id=f"i{at}") for at in range(600)])
    leases = await queue.lease_many(3, 30)
    await queue.fail(leases[0], "an error")
    await queue.stats()
    await queue.inspect()
    await queue.find("i1")
    await queue.peek(3)
    await queue.dead_letters.requeue_all()
    await queue.cancel("i5")
    await queue.admin.recover(10, 0, 30)
    await queue.admin.clear_leases()
    await queue.light_clean()
    await queue.deep_clean()
    await queue.admin.fsck()
    assert await queue.admin.move(other, count=10)
    assert await queue.admin.purge()
