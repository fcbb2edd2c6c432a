"""A flow that is a stage of another one, and a worker that kills itself at one point of that.

Run as a program with the URL of a server, the name of the queue, and the point.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from leasequeue import HandedOver, RetryPolicy, TaskQueue, Worker, current_stage
from leasequeue.flow import Flow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue import Run

#: When the worker dies: before the inner run is started; when it is, and the stage is not released; before
#: the last stage of the inner run has ended; and after the step that has ended it.
POINTS = ("before", "between", "last", "after")


class Nested:
    """The flows, and what their functions were called with.

    Attributes:
        broken: Amounts that cannot be paid.
        waits: Whether paying is handed over to another system.
    """

    def __init__(self, tasks: TaskQueue, attempts: int = 1) -> None:
        self.paid: list[int] = []
        self.broken: set[int] = set()
        self.waits = False
        self.payment = Flow("payment", tasks, attributes={"amount": int, "note": str | None}, returns=int)
        self.orders = Flow("orders", tasks, attributes={"item": str}, returns=str)

        @tasks.task(retry=RetryPolicy(attempts=attempts))
        async def pay(amount: int) -> int:
            if self.waits:
                raise HandedOver
            self.paid.append(amount)
            if amount in self.broken:
                raise ValueError("no money")
            return amount

        @tasks.task
        async def book(pay: int) -> int:
            return pay + 1

        @tasks.task
        async def price(item: str) -> int:
            return len(item)

        @tasks.task
        async def end(item: str, payment: int | None = None) -> str:
            return f"{item} for {payment}"

        self.payment.stage(book, after=self.payment.stage(pay))
        priced = self.orders.stage(price)
        inner = self.orders.stage(self.payment, after=priced, takes={"amount": priced})
        self.orders.stage(end, after=inner, join="settled")


def deadly(point: str) -> Callable[[Run, Callable[[Run], Awaitable[Any]]], Awaitable[Any]]:
    """Return a middleware that kills the process at a point."""

    async def middleware(run: Run, call_next: Callable[[Run], Awaitable[Any]]) -> Any:
        here = (current_stage().path, point)
        if here in {("payment", "before"), ("book", "last"), ("end", "after")}:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return await call_next(run)
        finally:
            if here == ("payment", "between"):
                os.kill(os.getpid(), signal.SIGKILL)

    return middleware


async def _main(url: str, name: str, point: str) -> None:
    tasks = TaskQueue.from_url(url, name)
    nested = Nested(tasks, attempts=5)
    await Worker(nested.orders, middleware=[deadly(point)], lease_time=0.5, clean_every=None).run()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
