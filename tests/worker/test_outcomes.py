"""The outcome of an item follows from what its handler returns or raises."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from leasehold import Item
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasehold.worker import Reject, Retry, RetryPolicy, Snooze
from tests.eventually import eventually
from tests.worker.models import Mail
from tests.worker.working import add, counted, finished, new_worker, the_dead, working

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold import AsyncWorkQueue


NO_CUSTOMERS: dict[str, str] = {}


class Broken(Exception):
    """An error whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class BrokenReject(Reject):
    __str__ = Broken.__str__


async def test_a_handler_that_cancels_its_task_has_failed_and_the_worker_continues(
    queue: AsyncWorkQueue,
) -> None:
    worker = new_worker(concurrency=2)

    @worker.handler(queue)
    async def handle(payload: bytes) -> None:
        if payload == b"bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # as old code for time limits does
            await asyncio.sleep(0)

    await add(queue, b"bad")
    async with working(worker):
        letter = await the_dead(queue)
        await queue.add_items(Item(b"good") for _ in range(10))
        await finished(queue)
    assert letter.attempt == 3
    assert "CancelledError" in letter.error


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": [1]}, b'{"a":[1]}'),
        (b"\xff", b"\xff"),
        (None, b"null"),
        (Mail(to="ann"), b'{"to":"ann","copies":1}'),
    ],
)
@pytest.mark.seed("GLD-O4")
async def test_the_returned_value_is_kept_as_the_result(
    queue: AsyncWorkQueue, value: Any, kept: bytes
) -> None:
    worker = new_worker()

    @worker.handler(queue, keep_result=60)
    async def handle(_: bytes) -> Any:
        return value

    await add(queue, b"x")
    async with working(worker):
        await finished(queue)
    assert await queue.results.get("1") == kept


@pytest.mark.seed("GLD-B7", "GLD-B21")
async def test_no_result_is_kept_without_keep_result(queue: AsyncWorkQueue) -> None:
    worker = new_worker()

    @worker.handler(queue)
    async def handle(_: bytes) -> bytes:
        return b"forgotten"

    await add(queue, b"x")
    async with working(worker):
        await finished(queue)
    assert await queue.results.get("1") is None


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
async def test_an_item_whose_result_cannot_be_encoded_is_a_dead_letter_and_is_not_run_again(
    queue: AsyncWorkQueue, value: object
) -> None:
    runs: list[str] = []
    worker = new_worker()

    @worker.handler(queue, keep_result=60)
    async def handle(payload: str) -> object:
        runs.append(payload)
        return value if payload == "bad" else payload

    await add(queue, "good", "bad", "fine")
    async with working(worker):
        letter = await the_dead(queue)
        await finished(queue)
    assert (letter.id, sorted(runs)) == ("2", ["bad", "fine", "good"])
    assert "cannot be kept as a result" in letter.error
    assert await queue.results.get("3") == b'"fine"'


async def test_a_retry_counts_as_an_attempt_and_keeps_its_reason(queue: AsyncWorkQueue) -> None:
    attempts: list[int] = []
    worker = new_worker(retry=RetryPolicy(attempts=3, first=3600))

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        raise Retry("not yet", delay=0)

    await add(queue, b"x")
    async with working(worker):
        letter = await the_dead(queue)
    assert attempts == [1, 2, 3]
    assert letter.error == "Retry: not yet"


async def test_a_retry_without_a_delay_uses_the_policy(queue: AsyncWorkQueue) -> None:
    worker = new_worker(retry=RetryPolicy(first=1000, jitter=False))

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        raise Retry

    await add(queue, b"x")
    async with working(worker):
        await counted(queue, "it waits", lambda counts: counts.scheduled == 1)
    (view,) = await queue.inspect("scheduled")
    assert view.due is not None
    assert abs(view.due - time.time() - 1000) < 100


@pytest.mark.seed("GLD-O15")
async def test_a_snooze_does_not_count_as_an_attempt_and_goes_to_the_end_of_the_queue(
    queue: AsyncWorkQueue,
) -> None:
    seen: list[tuple[str, int]] = []
    worker = new_worker(concurrency=1)

    @worker.handler(queue)
    async def handle(payload: str, lease: Lease) -> None:
        seen.append((payload, lease.attempt))
        if payload == "tired" and len(seen) < 8:
            raise Snooze(0)

    await add(queue, "tired", "a", "b")
    async with working(worker):
        await finished(queue)
    assert set(seen) == {("tired", 1), ("a", 1), ("b", 1)}
    assert seen[0] == ("tired", 1)
    assert len(seen) >= 8


async def test_a_reject_is_a_dead_letter_at_once(queue: AsyncWorkQueue) -> None:
    worker = new_worker()

    @worker.handler(queue)
    async def handle(payload: str) -> None:
        try:
            NO_CUSTOMERS[payload]
        except KeyError as error:
            raise Reject("no such customer") from error

    await add(queue, "ann")
    async with working(worker):
        letter = await the_dead(queue)
    assert (letter.attempt, letter.data) == (1, b"ann")
    assert letter.error.startswith("Reject: no such customer\n")
    assert "KeyError: 'ann'" in letter.error


@pytest.mark.seed("WRQ-T2")
async def test_after_the_last_attempt_the_traceback_is_kept(queue: AsyncWorkQueue) -> None:
    worker = new_worker()

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        raise ZeroDivisionError("by zero")

    await add(queue, b"x")
    async with working(worker):
        letter = await the_dead(queue)
    assert letter.attempt == 3
    assert letter.error.startswith("Traceback")
    assert "in handle" in letter.error
    assert letter.error.endswith("ZeroDivisionError: by zero\n")


async def test_the_rules_of_a_policy_decide_by_the_class_of_the_exception(queue: AsyncWorkQueue) -> None:
    policy = RetryPolicy(
        attempts=5, first=0, rules={KeyError: "never", OSError: RetryPolicy(attempts=2, first=0)}
    )
    worker = new_worker()

    @worker.handler(queue, retry=policy)
    async def handle(payload: str) -> None:
        raise {"key": KeyError(payload), "os": TimeoutError(), "other": ValueError()}[payload]

    await add(queue, "key", "os", "other")
    async with working(worker):
        await finished(queue)
    letters = await queue.dead_letters.list()
    assert {letter.data: letter.attempt for letter in letters} == {b"key": 1, b"os": 2, b"other": 5}


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), BaseExceptionGroup("g", [SystemExit()])],
)
async def test_the_worker_continues_after_a_handler_raised_any_exception(
    queue: AsyncWorkQueue, error: BaseException
) -> None:
    ran: list[str] = []
    worker = new_worker(concurrency=1)

    @worker.handler(queue)
    async def handle(payload: str) -> None:
        ran.append(payload)
        if payload == "bad":
            raise error

    await add(queue, "bad", "good")
    async with working(worker):
        letter = await the_dead(queue)
        await finished(queue)
        assert worker.health().running == 0
    assert ran == ["bad", "good", "bad", "bad"]
    assert type(error).__name__ in letter.error


@pytest.mark.parametrize("error", [Broken(), BrokenReject("x")])
async def test_the_class_of_an_error_is_kept_if_its_text_cannot_be_made(
    queue: AsyncWorkQueue, error: Exception
) -> None:
    worker = new_worker(concurrency=1)

    @worker.handler(queue)
    async def handle(_: str) -> None:
        raise error

    await add(queue, "bad")
    async with working(worker):
        letter = await the_dead(queue)
    assert type(error).__name__ in letter.error


class Failing(logging.Handler):
    """A log handler that raises, as handlers outside of the standard library may."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"cannot log {record.levelname}")


@pytest.fixture
def failing_log() -> Iterator[None]:
    logger, failing = logging.getLogger("leasehold.worker"), Failing()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(failing)
    yield
    logger.removeHandler(failing)
    logger.setLevel(level)


@pytest.mark.usefixtures("failing_log")
async def test_a_worker_continues_if_its_log_handler_raises(
    queue: AsyncWorkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    worker = new_worker(concurrency=1)

    @worker.handler(queue, keep_result=60)
    async def handle(payload: str) -> object:
        ran.append(payload)
        if payload == "reject":
            raise Reject("never")
        return {"bad": Broken, "odd": object}.get(payload, str)()

    await add(queue, "good", "reject", "odd", "good")
    async with working(worker):
        await finished(queue)
        assert worker.health().running == 0
    assert ran == ["good", "reject", "odd", "good"]
    assert {letter.id for letter in await queue.dead_letters.list()} == {"2", "3"}
    problems = capsys.readouterr().err
    assert all(f"cannot log {level}" in problems for level in ("DEBUG", "INFO", "WARNING", "ERROR"))


async def test_a_handler_that_returns_after_cancelling_its_task_does_not_affect_the_next_run(
    queue: AsyncWorkQueue,
) -> None:
    seen: list[tuple[str, int]] = []
    worker = new_worker(concurrency=1)

    @worker.handler(queue)
    async def handle(payload: str, lease: Lease) -> None:
        if payload == "bad" and lease.attempt < 3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return
        await asyncio.sleep(0)
        seen.append((payload, lease.attempt))

    await add(queue, "bad", "good", "fine")
    async with working(worker):
        await finished(queue)
    assert seen == [("good", 1), ("fine", 1)]


@pytest.mark.seed("WRQ-T3", "GLD-O3", "GLD-B8")
async def test_a_run_that_exceeds_its_time_limit_is_cancelled_and_counts_as_an_attempt(
    queue: AsyncWorkQueue,
) -> None:
    cancelled: list[int] = []
    worker = new_worker(concurrency=1)

    @worker.handler(queue, timeout=0.05)
    async def handle(_: str, lease: Lease) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(lease.attempt)

    await add(queue, "x")
    async with working(worker):
        letter = await the_dead(queue)
    assert cancelled == [1, 2, 3]
    assert "TimeLimitExceeded: the run took longer than its limit of 0.05 s" in letter.error


async def test_a_handler_that_returns_after_its_cancellation_has_completed(queue: AsyncWorkQueue) -> None:
    """The next run in its slot is not cancelled."""
    seen: list[str] = []
    worker = new_worker(concurrency=1)

    @worker.handler(queue, timeout=0.05)
    async def handle(payload: str) -> None:
        if payload == "slow":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("finished")
                return
        await asyncio.sleep(0)
        seen.append(payload)

    await add(queue, "slow", "next")
    async with working(worker):
        await finished(queue)
    assert seen == ["finished", "next"]
    assert not await queue.dead_letters.count()


async def test_each_of_many_items_that_fail_once_is_completed_once(queue: AsyncWorkQueue) -> None:
    done: list[str] = []
    worker = new_worker(concurrency=20)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        await asyncio.sleep(0)
        if lease.attempt == 1:
            raise ValueError
        done.append(lease.id)

    await queue.add_items(Item(b"x", id=f"{number}") for number in range(1000))
    async with working(worker):
        await finished(queue)
        await eventually("all are done", lambda: len(done) == 1000)
    assert len(set(done)) == 1000
    assert not await queue.dead_letters.count()
