"""Plain functions run in threads or processes, batch handlers take many items; runs are isolated."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item
from leasequeue.worker import Reject, Retry, RetryPolicy, Snooze
from tests.eventually import eventually
from tests.worker.models import ends_badly, own_pid, twice
from tests.worker.working import (
    add,
    counted,
    dead_letter_of,
    finished,
    new_worker,
    work,
    working,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue import AsyncWorkQueue
    from leasequeue.worker import Run

ONCE = RetryPolicy(attempts=1)
request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


async def test_a_plain_function_runs_in_threads_that_end_with_the_worker(queue: AsyncWorkQueue) -> None:
    threads: set[threading.Thread] = set()
    both = threading.Barrier(2, timeout=120)

    def handle(_: bytes) -> None:
        threads.add(threading.current_thread())
        both.wait()  # passes when both threads run at once

    await work(queue, handle, *[b"x"] * 2)
    assert threading.main_thread() not in threads
    await eventually("the threads have ended", lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_thread_that_raises_any_exception_has_failed(
    queue: AsyncWorkQueue, error: type[BaseException]
) -> None:
    def handle(_: bytes) -> None:
        raise error

    letter = await dead_letter_of(queue, handle, b"x")
    assert letter.attempt == 3
    assert f"RuntimeError: the handler raised {error.__name__}" in letter.error


@pytest.mark.parametrize("limit", ["handler", "middleware", "middleware in a separate task"])
async def test_a_thread_that_outlives_its_time_limit_keeps_its_slot_until_it_returns(
    make_queue: Callable[..., AsyncWorkQueue], name: str, limit: str
) -> None:
    slow, quick = make_queue(), make_queue(name=f"{name}-quick")
    release, ran = threading.Event(), list[bytes]()

    async def limited(run: Run, call: Callable[[Run], Any]) -> Any:
        seconds = 0.1 if limit != "handler" and run.lease.data == b"hangs" else None
        if limit.endswith("task"):
            return await asyncio.wait_for(asyncio.create_task(call(run)), seconds)
        async with asyncio.timeout(seconds):
            return await call(run)

    worker = new_worker(concurrency=2, retry=ONCE, middleware=[limited])

    @worker.handler(slow, timeout=0.1 if limit == "handler" else None)
    def hang(payload: bytes) -> None:
        ran.append(payload)
        release.wait(30)

    worker.handler(quick)(ran.append)
    await add(slow, b"hangs", b"hangs")
    async with working(worker):
        await counted(slow, "both are dead letters", lambda counts: counts.dead == 2)
        await add(quick, *[b"quick"] * 6)
        assert worker.health().running == 2
        assert ran == [b"hangs", b"hangs"]
        release.set()
        await finished(quick)
    assert ran == [b"hangs", b"hangs", *[b"quick"] * 6]
    assert await slow.dead_letters.count() == 2


async def test_a_plain_function_that_returns_a_coroutine_has_failed(
    queue: AsyncWorkQueue,
) -> None:
    letter = await dead_letter_of(queue, lambda _: asyncio.sleep(0), b"x")
    assert "returned coroutine, which is not awaited" in letter.error


async def test_functions_in_processes_return_results_and_errors(
    make_queue: Callable[..., AsyncWorkQueue],
) -> None:
    pids, sums, bad = (make_queue(name=f"process-{kind}") for kind in ("pids", "sums", "bad"))
    worker = new_worker(concurrency=2, retry=ONCE)
    worker.handler(pids, run_in="process", keep_result=60)(own_pid)
    worker.handler(sums, run_in="process", keep_result=60)(twice)
    worker.handler(bad, run_in="process")(ends_badly)
    await pids.add_item(Item(b"x", id="pid"))
    await sums.add_item(Item(b"[1,2]", id="sum"))
    for how in ("picky", "shifty", "exit", "interrupt", "snooze", "division", "current", "killed"):
        await bad.add_item(Item(how, id=how))
    async with working(worker):
        await finished(pids)
        await finished(sums)
        await counted(bad, "all runs have ended", lambda counts: counts.dead == 7 and counts.scheduled == 1)
    assert int(await pids.results.get("pid") or 0) not in (0, os.getpid())
    assert await sums.results.get("sum") == b"6"
    letters = {letter.id: letter for letter in await bad.dead_letters.list()}
    assert {letter.attempt for letter in letters.values()} == {1}
    assert "RuntimeError: Picky: this and that" in letters["picky"].error
    assert "RuntimeError: Shifty: slips away" in letters["shifty"].error
    assert "RuntimeError: the handler raised SystemExit" in letters["exit"].error
    assert "RuntimeError: the handler raised KeyboardInterrupt" in letters["interrupt"].error
    assert "ZeroDivisionError: by zero" in letters["division"].error
    assert "in ends_badly" in letters["division"].error, "the traceback of the other process"
    assert "NoCurrentRun: no run calls this code" in letters["current"].error
    assert "BrokenWorkerProcess" in letters["killed"].error
    assert [view.id for view in await bad.inspect("scheduled")] == ["snooze"]


@pytest.mark.seed("GLD-T8")
async def test_a_batch_handler_takes_several_items_and_answers_for_each(queue: AsyncWorkQueue) -> None:
    sizes: list[int] = []
    worker = new_worker()

    @worker.handler(queue, batch=4, keep_result=60)
    async def handle(payloads: list[str]) -> list[Any]:
        sizes.append(len(payloads))
        answers: dict[str, Any] = {
            "retry": Retry(delay=3600),
            "snooze": Snooze(3600),
            "reject": Reject("no use"),
            "error": ValueError("bad"),
        }
        return [answers.get(payload, payload) for payload in payloads]

    await add(queue, "one", "retry", "snooze", "reject", "error", "two")
    async with working(worker):
        await counted(queue, "all have their outcomes", lambda counts: counts.dead == 2 and counts.total == 2)
    assert max(sizes) == 4
    assert [await queue.results.get(item_id) for item_id in ("1", "6")] == [b'"one"', b'"two"']
    letters = {letter.id: letter for letter in await queue.dead_letters.list()}
    assert letters["4"].error == "Reject: no use"
    assert "ValueError: bad" in letters["5"].error
    assert letters["5"].attempt == 3
    assert {view.id for view in await queue.inspect("scheduled")} == {"2", "3"}


@pytest.mark.parametrize("answer", [["one too few"], "ab", 5])
async def test_a_batch_handler_that_returns_no_answer_for_each_item_has_failed(
    queue: AsyncWorkQueue, answer: Any
) -> None:
    async def handle(payloads: list[bytes]) -> Any:
        return answer if len(payloads) == 2 else [None]

    await work(queue, handle, b"x", b"y", batch=2)
    assert not await queue.dead_letters.count(), "the last attempt takes each item alone"


async def test_the_last_attempt_of_a_batch_takes_each_item_alone(queue: AsyncWorkQueue) -> None:
    """One bad item must not make dead letters of the others."""
    runs: list[list[str]] = []

    def handle(payloads: list[str]) -> None:
        runs.append(payloads)
        if "bad" in payloads:
            raise ValueError("something is bad")

    letter = await dead_letter_of(queue, handle, "a", "bad", "c", batch=3)
    assert (letter.id, letter.attempt) == ("2", 3)
    assert runs[:2] == [["a", "bad", "c"]] * 2
    assert sorted(runs[2:]) == [["a"], ["bad"], ["c"]]


@pytest.mark.parametrize("batch", [None, 2])
async def test_items_are_completed_if_middleware_returns_without_calling_the_handler(
    queue: AsyncWorkQueue, batch: int | None
) -> None:
    async def never(_: Run, __: Callable[[Run], Any]) -> None: ...

    worker = new_worker(middleware=[never], concurrency=1)
    ran: list[Any] = []
    await work(queue, ran.append, b"x", b"y", b"z", worker=worker, batch=batch)
    assert not ran


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_context_variable_set_by_a_run_is_not_seen_by_the_next(
    queue: AsyncWorkQueue, place: str
) -> None:
    seen: list[str] = []
    request.set("outside")

    def plain(payload: str) -> None:
        seen.append(request.get())
        request.set(payload)

    async def coroutine(payload: str) -> None:
        plain(payload)

    handle = plain if place == "thread" else coroutine
    await work(queue, handle, "a", "b", "c", worker=new_worker(concurrency=1))
    assert seen == ["outside"] * 3


async def test_a_context_variable_set_by_middleware_is_seen_in_the_thread(queue: AsyncWorkQueue) -> None:
    seen: list[str] = []

    async def around(run: Run, call_next: Callable[[Run], Any]) -> Any:
        request.set(run.lease.id)
        return await call_next(run)

    worker = new_worker(middleware=[around])
    await work(queue, lambda _: seen.append(request.get()), b"x", b"y", worker=worker)
    assert sorted(seen) == ["1", "2"]
