"""A shop with a day's history: queues that worked for a day by a clock that was moved, until now."""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from leasequeue import AsyncWorkQueue, RetryPolicy, TaskQueue, Worker
from leasequeue.dashboard.pages import PAGES
from leasequeue.dashboard.sampler import EVERY, KEPT, QueueHistory
from leasequeue.dashboard.view import segment
from tests.alive.members import the_worker
from tests.eventually import eventually
from tests.worker.working import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from leasequeue.tasks.task import Task

#: What a task does with the number that it is given.
Work: TypeAlias = "Callable[[int], Coroutine[None, None, int]]"

DAY = 86_400.0
#: Of each queue: its task, how many are added each minute at the busiest time, and what goes wrong at times.
QUEUES: dict[str, tuple[str, float, str]] = {
    "orders": ("charge_card", 10, "CardDeclined: the bank says no: insufficient funds"),
    "mail": ("send_receipt", 14, "SMTPServerDisconnected: Connection unexpectedly closed"),
    "images": ("resize", 20, ""),
    "search-index": ("index_product", 5, ""),
    "reports": ("monthly_report", 0.2, ""),
    "stock": ("reserve", 8, ""),
}
#: This one has no worker for the last half hour, and this one is paused.
UNSERVED, PAUSED = "search-index", "reports"


class Shop:
    """The queues of the shop, on a server.

    Attributes:
        url: The URL of the server.
        samples: What a dashboard that was open in the last minutes has seen of each queue.
        parts: What stands for the parts of the paths of pages. A new part is given a value here.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.samples = {name: QueueHistory(name) for name in QUEUES}
        self.parts = {"queue": "orders", "id": "charge_card-now"}
        #: How far in the past the clock is (s).
        self._behind = DAY
        self._random = random.Random(27)
        self._count = 0

    def now(self) -> float:
        """Return the time of the shop."""
        return time.time() - self._behind

    @property
    def addresses(self) -> list[str]:
        """The addresses of all pages, while the shop is open."""
        parts = {name: segment(text) for name, text in self.parts.items()}
        return [page.path.format(**parts) for page in PAGES]

    async def fill(self) -> None:
        """Work for a day."""
        async with AsyncExitStack() as opened:
            queues = {}
            for name in QUEUES:
                tasks = TaskQueue.from_url(self.url, name, clock=self.now)
                queues[name] = await opened.enter_async_context(tasks), _task_of(tasks)
                await tasks.queue.history.keep()
                await tasks.queue.events.keep(count=1000)
            while self._behind > 0:
                step = 900.0 if self._behind > 3600 else 60.0 if self._behind > EVERY * KEPT else EVERY
                await asyncio.gather(*(self._work(*one, step) for one in queues.values()))
                self._behind = max(0.0, self._behind - step)
                if step == EVERY:
                    for name, (tasks, _) in queues.items():
                        self.samples[name].add(await tasks.queue.stats())
            await self._end(*queues["orders"], queues[PAUSED][0])

    async def _work(self, tasks: TaskQueue, task: Task[[int], int], step: float) -> None:
        """Add and do the work of some seconds."""
        _, pace, problem = QUEUES[tasks.name]
        busy = 0.3 + 0.7 * math.cos(math.pi * self._behind / DAY) ** 2
        count = int(pace * busy * step / 60 + self._random.random())
        self._count += count
        numbers = range(self._count - count, self._count)
        await tasks.add_many([task.options(id=f"{task.name}-{number}").call(number) for number in numbers])
        if tasks.name == UNSERVED and self._behind < 1800:
            return
        left = round(pace * (1.2 + math.sin(self._behind / 40 + pace)))
        waiting = (await tasks.queue.stats()).counts.waiting
        if waiting <= left:
            return
        leases = await tasks.queue.lease_many(min(1000, waiting - left), 60, block=False)
        if problem and leases and self._random.random() < step / 6000:
            await tasks.queue.fail(leases.pop(), problem)
        await tasks.queue.complete_many(leases)

    async def _end(self, orders: TaskQueue, charge: Task[[int], int], reports: TaskQueue) -> None:
        """Add what is there now, and limits."""
        await orders.queue.limits.set(concurrency=20, rate="50/s")
        await orders.queue.limits.set(concurrency=2, group="wholesale")
        for minutes in (4, 25, 90, 600):
            await charge.options(id=f"subscription-{minutes}", delay=60.0 * minutes).add(minutes)
        run = await charge.call(1).then(charge).then(charge).add()
        self.parts["run"] = run.id
        await charge.options(id="wholesale-17", group="wholesale", priority=5).add(17)
        await orders.queue.schedules.every(900, "tidy-carts", b'{"task": "tidy_carts", "args": {}}')
        newsletter = b'{"task": "send_newsletter", "args": {}}'
        await orders.queue.schedules.cron("30 7 * * 1-5", "newsletter", newsletter, tz="Europe/Vienna")
        await reports.queue.pause(reason="the warehouse is moved until Monday; ask Ann")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Have workers in the middle of their work inside the block."""
        may_end = asyncio.Event()
        begun: dict[str, int] = {}

        def work_of(name: str) -> Work:
            async def work(number: int) -> int:
                begun[name] = number
                await may_end.wait()
                return number

            return work

        async with AsyncExitStack() as opened:
            for name in QUEUES:
                if name == UNSERVED:
                    continue
                tasks = await opened.enter_async_context(TaskQueue.from_url(self.url, name))
                task = _task_of(tasks, work_of(name))
                await tasks.add_many([task.options(id=f"{task.name}-now").call(-1)])
                worker = Worker(tasks, concurrency=3, name=f"{name}-1", clean_every=None)
                await opened.enter_async_context(working(worker))
            opened.callback(may_end.set)
            queue = await opened.enter_async_context(AsyncWorkQueue.from_url(self.url, "orders"))
            self.parts["worker"] = (await the_worker(queue)).id
            await eventually("the workers work", lambda: {*begun} == {*QUEUES} - {UNSERVED, PAUSED})
            yield


async def _nothing(number: int) -> int:
    return number


def _task_of(tasks: TaskQueue, work: Work = _nothing) -> Task[[int], int]:
    return tasks.task(name=QUEUES[tasks.name][0], retry=RetryPolicy(attempts=1))(work)
