"""The outcome of an item follows from what its handler returns or raises."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import Reject, Retry, RetryPolicy, Snooze
from tests.worker.models import Mail, Parcel
from tests.worker.working import dead_letter_of, new_worker, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


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
    async def handle(payload: bytes) -> None:
        if payload == b"bad":
            cancel_this_task()
            await asyncio.sleep(0)

    letter = await dead_letter_of(queue, handle, b"bad", *[b"good"] * 10, worker=new_worker(concurrency=2))
    assert (letter.id, letter.attempt) == ("1", 3)
    assert "CancelledError" in letter.error


def cancel_this_task() -> None:
    """Cancel the running task, as old code for time limits does."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": [1]}, b'{"a":[1]}'),
        (b"\xff", b"\xff"),
        (None, b"null"),
        (Mail(to="ann"), b'{"to":"ann","copies":1}'),
        (Parcel(3), b'{"weight":3}'),
    ],
)
@pytest.mark.seed("GLD-O4", "GLD-B7", "GLD-B21")
async def test_the_returned_value_is_kept_as_the_result_only_with_keep_result(
    queue: AsyncWorkQueue, make_queue: MakeQueue, name: str, value: Any, kept: bytes
) -> None:
    without = make_queue(name=f"{name}-without")
    await work(queue, lambda _: value, b"x", keep_result=60)
    await work(without, lambda _: value, b"x")
    assert [await one.results.get("1") for one in (queue, without)] == [kept, None]


@pytest.mark.parametrize("value", [object(), float("nan"), {1, object()}, {"x": [float("inf")]}])
async def test_an_item_whose_result_cannot_be_written_is_completed_with_an_error_as_its_result(
    queue: AsyncWorkQueue, value: object
) -> None:
    runs: list[str] = []

    async def handle(payload: str) -> object:
        runs.append(payload)
        return value if payload == "bad" else payload

    await work(queue, handle, "good", "bad", "fine", keep_result=60)
    assert sorted(runs) == ["bad", "fine", "good"]
    assert not any(await queue.counts())
    error = json.loads(await queue.results.get("2") or b"")["error"]
    assert (error["type"], error["message"][:28]) == ("ResultError", "the result cannot be written")
    assert await queue.results.get("3") == b'"fine"'


async def test_a_retry_counts_as_an_attempt_and_keeps_its_reason(queue: AsyncWorkQueue) -> None:
    attempts: list[int] = []

    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        raise Retry("not yet", delay=0)

    letter = await dead_letter_of(queue, handle, b"x", retry=RetryPolicy(attempts=3, first=3600))
    assert attempts == [1, 2, 3]
    assert letter.error == "Retry: not yet"


@pytest.mark.seed("GLD-O15")
async def test_a_snooze_does_not_count_as_an_attempt_and_goes_to_the_end_of_the_queue(
    queue: AsyncWorkQueue,
) -> None:
    seen: list[tuple[str, int]] = []

    async def handle(payload: str, lease: Lease) -> None:
        seen.append((payload, lease.attempt))
        if payload == "tired" and len(seen) < 8:
            raise Snooze(0)

    await work(queue, handle, "tired", "a", "b", worker=new_worker(concurrency=1))
    assert set(seen) == {("tired", 1), ("a", 1), ("b", 1)}
    assert seen[0] == ("tired", 1)
    assert len(seen) >= 8


async def test_a_reject_is_a_dead_letter_at_once(queue: AsyncWorkQueue) -> None:
    async def handle(payload: str) -> None:
        try:
            NO_CUSTOMERS[payload]
        except KeyError as error:
            raise Reject("no such customer") from error

    letter = await dead_letter_of(queue, handle, "ann")
    assert (letter.attempt, letter.data) == (1, b"ann")
    assert letter.error.startswith("Reject: no such customer\n")
    assert "KeyError: 'ann'" in letter.error


@pytest.mark.seed("WRQ-T2")
async def test_after_the_last_attempt_the_traceback_is_kept(queue: AsyncWorkQueue) -> None:
    async def handle(_: bytes) -> None:
        raise ZeroDivisionError("by zero")

    letter = await dead_letter_of(queue, handle, b"x")
    assert (letter.attempt, letter.error[:9]) == (3, "Traceback")
    assert "in handle" in letter.error
    assert letter.error.endswith("ZeroDivisionError: by zero\n")


async def test_the_rules_of_a_policy_decide_by_the_class_of_the_exception(queue: AsyncWorkQueue) -> None:
    async def handle(payload: str) -> None:
        raise {"key": KeyError(payload), "os": TimeoutError(), "other": ValueError()}[payload]

    rules: dict[type[BaseException], Any] = {KeyError: "never", OSError: RetryPolicy(attempts=2, first=0)}
    await work(queue, handle, "key", "os", "other", retry=RetryPolicy(attempts=5, first=0, rules=rules))
    letters = await queue.dead_letters.list()
    assert {letter.data: letter.attempt for letter in letters} == {b"key": 1, b"os": 2, b"other": 5}


@pytest.mark.parametrize(
    "error",
    [
        *(SystemExit(3), asyncio.CancelledError(), GeneratorExit(), BaseExceptionGroup("g", [SystemExit()])),
        *(Broken(), BrokenReject("x")),  # their class is kept, since their text cannot be made
    ],
)
async def test_the_worker_continues_after_a_handler_raised_any_exception(
    queue: AsyncWorkQueue, error: BaseException
) -> None:
    ran: list[str] = []

    async def handle(payload: str) -> None:
        ran.append(payload)
        if payload == "bad":
            raise error

    letter = await dead_letter_of(queue, handle, "bad", "good", worker=new_worker(concurrency=1))
    assert ran == ["bad", "good", *["bad"] * (letter.attempt - 1)]
    assert letter.attempt == (1 if isinstance(error, Reject) else 3)
    assert type(error).__name__ in letter.error


class Failing(logging.Handler):
    """A log handler that raises, as handlers outside of the standard library may."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"cannot log {record.levelname}")


@pytest.fixture
def failing_log() -> Iterator[None]:
    logger, failing = logging.getLogger("leasequeue.worker"), Failing()
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

    async def handle(payload: str) -> object:
        ran.append(payload)
        if payload == "reject":
            raise Reject("never")
        return {"bad": Broken, "odd": object}.get(payload, str)()

    payloads = ["good", "reject", "odd", "good"]
    await work(queue, handle, *payloads, worker=new_worker(concurrency=1), keep_result=60)
    assert ran == payloads
    assert [letter.id for letter in await queue.dead_letters.list()] == ["2"]
    assert b"ResultError" in (await queue.results.get("3") or b"")
    problems = capsys.readouterr().err
    assert all(f"cannot log {level}" in problems for level in ("DEBUG", "INFO", "WARNING", "ERROR"))


async def test_a_handler_that_returns_after_cancelling_its_task_does_not_affect_the_next_run(
    queue: AsyncWorkQueue,
) -> None:
    seen: list[tuple[str, int]] = []

    async def handle(payload: str, lease: Lease) -> None:
        if payload == "bad" and lease.attempt < 3:
            cancel_this_task()
            return
        await asyncio.sleep(0)
        seen.append((payload, lease.attempt))

    await work(queue, handle, "bad", "good", "fine", worker=new_worker(concurrency=1))
    assert seen == [("good", 1), ("fine", 1)]


@pytest.mark.seed("WRQ-T3", "GLD-O3", "GLD-B8")
async def test_a_run_that_exceeds_its_time_limit_is_cancelled_and_counts_as_an_attempt(
    queue: AsyncWorkQueue,
) -> None:
    cancelled: list[int] = []

    async def handle(_: str, lease: Lease) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(lease.attempt)

    letter = await dead_letter_of(queue, handle, "x", worker=new_worker(concurrency=1), timeout=0.05)
    assert cancelled == [1, 2, 3]
    assert "TimeLimitExceeded: the run took longer than its limit of 0.05 s" in letter.error


async def test_a_handler_that_returns_after_its_cancellation_has_completed(queue: AsyncWorkQueue) -> None:
    """The next run in its slot is not cancelled."""
    seen: list[str] = []

    async def handle(payload: str) -> None:
        if payload == "slow":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("finished")
                return
        await asyncio.sleep(0)
        seen.append(payload)

    await work(queue, handle, "slow", "next", worker=new_worker(concurrency=1), timeout=0.05)
    assert seen == ["finished", "next"]
    assert not await queue.dead_letters.count()


async def test_each_of_many_items_that_fail_once_is_completed_once(queue: AsyncWorkQueue) -> None:
    done: list[str] = []

    async def handle(_: bytes, lease: Lease) -> None:
        await asyncio.sleep(0)
        if lease.attempt == 1:
            raise ValueError
        done.append(lease.id)

    await work(queue, handle, *[b"x"] * 1000, worker=new_worker(concurrency=20))
    assert sorted(done, key=int) == [f"{number}" for number in range(1, 1001)]
    assert not await queue.dead_letters.count()
