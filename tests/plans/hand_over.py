"""Two flows of which one hands over to the other, and a worker that kills itself at one point of that.

Run as a program with the URL of a server, the name of the queue, and the point.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from leasequeue import RetryPolicy, TaskQueue, Worker, current_stage
from leasequeue.flow import Flow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue import Run

#: When the worker dies: before the other run is started, after that, and after the stage is finished.
POINTS = ("before", "between", "after")


class Pair:
    """The flows, and what their functions were called with.

    Args:
        home: The queue of the flow that hands over.
        there: The queue of the other one.
    """

    def __init__(self, home: TaskQueue, there: TaskQueue) -> None:
        self.delivered: list[tuple[int, str]] = []
        self.shipping = Flow("shipping", there, attributes={"amount": int, "note": str | None}, keep=0)
        self.orders = Flow("orders", home, attributes={"item": str})

        @there.task
        async def deliver(amount: int) -> int:
            self.delivered.append((amount, current_stage().run))
            return amount

        @home.task
        async def pay(item: str) -> int:
            return len(item)

        @home.task
        async def end(shipping: str, item: str) -> list[str]:
            return [shipping, item]

        self.shipping.stage(deliver)
        paid = self.orders.stage(pay)
        policy = RetryPolicy(attempts=1000, first=0.01, longest=0.05)
        handed = self.orders.then_start(self.shipping, after=paid, takes={"amount": paid}, retry=policy)
        self.orders.stage(end, after=handed, takes={"shipping": handed})


def deadly(point: str) -> Callable[[Run, Callable[[Run], Awaitable[Any]]], Awaitable[Any]]:
    """Return a middleware that kills the process at a point of the hand-over."""

    async def middleware(run: Run, call_next: Callable[[Run], Awaitable[Any]]) -> Any:
        stage = current_stage().path
        if (stage, point) in (("start-shipping", "before"), ("end", "after")):
            os.kill(os.getpid(), signal.SIGKILL)
        returned = await call_next(run)
        if (stage, point) == ("start-shipping", "between"):
            os.kill(os.getpid(), signal.SIGKILL)
        return returned

    return middleware


async def _main(url: str, name: str, point: str) -> None:
    home, there = TaskQueue.from_url(url, name), TaskQueue.from_url(url, f"{name}-there")
    Pair(home, there)
    await Worker(home, middleware=[deadly(point)], lease_time=0.5, clean_every=None).run()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
