"""The run is known anywhere below its handler."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, RetryPolicy, current_run
from leasequeue.errors import NoCurrentRun
from tests.queue.asking import until
from tests.worker.working import dead_letter_of, finished, new_worker, work, working

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from leasequeue import AsyncWorkQueue, Run


def item_of_run() -> str:
    return current_run().lease.id


async def test_the_run_is_known_below_a_handler_in_tasks_threads_and_middleware(
    queue: AsyncWorkQueue,
) -> None:
    seen: list[tuple[str, str]] = []

    async def layer(run: Run, call_next: Callable[[Run], Any]) -> Any:
        assert current_run() is run
        return await call_next(run)

    async def handle(payload: str) -> None:
        inside = asyncio.create_task(asyncio.to_thread(item_of_run))
        await asyncio.sleep(0)
        seen.append((payload, f"{item_of_run()} {await inside}"))

    worker = new_worker(concurrency=2, middleware=[layer])
    await work(queue, handle, *"abcd", worker=worker)
    assert sorted(seen) == [("a", "1 1"), ("b", "2 2"), ("c", "3 3"), ("d", "4 4")]


async def test_a_plain_handler_knows_its_run_in_its_thread(queue: AsyncWorkQueue) -> None:
    seen: list[str] = []

    def handle(payload: str) -> None:
        seen.append(payload + item_of_run())

    await work(queue, handle, "a", "b")
    assert sorted(seen) == ["a1", "b2"]


async def test_there_is_no_run_outside_of_one_and_in_a_process(queue: AsyncWorkQueue) -> None:
    with pytest.raises(NoCurrentRun):
        current_run()
    letter = await dead_letter_of(queue, in_a_process, "x", run_in="process", retry=RetryPolicy(attempts=1))
    assert "NoCurrentRun: no run calls this code" in letter.error


def in_a_process(_: str) -> str:
    return item_of_run()


async def test_a_run_reports_its_progress_from_loops_and_threads(queue: AsyncWorkQueue) -> None:
    reported = threading.Event()

    async def in_loop(_: list[str]) -> None:
        current_run().progress("in a loop")
        await until("it is kept", functools.partial(shows, queue, "1", "in a loop"))
        await until("of each item", functools.partial(shows, queue, "2", "in a loop"))

    def in_thread(_: str) -> None:
        current_run().progress("in a thread")
        assert reported.wait(20)

    await work(queue, in_loop, "a", "b", batch=2)
    worker = new_worker()
    worker.handler(queue)(in_thread)
    await queue.add_item(Item("c", id="c"))
    async with working(worker):
        await until("it is kept", functools.partial(shows, queue, "c", "in a thread"))
        reported.set()
        await finished(queue)


async def shows(queue: AsyncWorkQueue, item_id: str, value: str) -> bool:
    """Return whether an item has this progress."""
    view = await queue.find(item_id)
    return view is not None and view.progress == value
