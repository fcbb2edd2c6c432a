"""The outcome of an item follows from what its handler returns or raises."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from leasequeue import Item
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import Reject, Retry, RetryPolicy, Signal, Snooze
from leasequeue.worker.acknowledger import Acknowledger, Backlog
from leasequeue.worker.lease_renewer import LeaseRenewer
from leasequeue.worker.outcomes import DONE, Outcome, Release, by_exception
from leasequeue.worker.run import ActiveRun
from tests.unreadable import SIGNALS, UNREADABLE, Escape, raise_named
from tests.worker.models import Mail, Parcel
from tests.worker.working import add, dead_letter_of, finished, new_worker, work, working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


NO_CUSTOMERS: dict[str, str] = {}


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
    [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), BaseExceptionGroup("g", [SystemExit()])],
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
    assert letter.attempt == 3
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
        return object() if payload == "odd" else payload

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


# ---------------------------------------------------------------------------------------- undeclared outcomes


DECLARATIONS = ("counted_as", "is_attempt", "acknowledge", "__str__")


class Park(Signal):
    """A signal whose outcome is not declared."""


@by_exception.register(Park)
def _(error: Park, attempt: int, policy: RetryPolicy) -> object:  # noqa: ARG001 - as in by_exception
    return object()


class Unregistered(Signal):
    """A signal that leads to no outcome at all."""


async def test_a_signal_that_leads_to_no_outcome_is_an_error_of_the_run(queue: AsyncWorkQueue) -> None:
    async def raises(_: bytes) -> None:
        raise Unregistered

    letter = await dead_letter_of(queue, raises, "a", worker=new_worker(concurrency=1))
    assert "TypeError: no outcome is registered for the signal Unregistered" in letter.error


def test_two_outcomes_that_are_counted_alike_are_refused() -> None:
    with pytest.raises(TypeError, match="Release and Twice are both counted as 'released'"):
        type("Twice", (Outcome,), {name: vars(Release)[name] for name in DECLARATIONS})
    assert Outcome.declared["released"] is Release


@pytest.mark.parametrize("batch", [None, 2])
async def test_a_signal_without_a_declared_outcome_is_an_error_of_the_run(
    queue: AsyncWorkQueue, caplog: pytest.LogCaptureFixture, batch: int | None
) -> None:
    async def raises(payload: str) -> None:
        if payload == "park":
            raise Park

    async def answers(payloads: list[str]) -> list[Park | None]:
        return [Park() if payload == "park" else None for payload in payloads]

    handle, worker = answers if batch else raises, new_worker(concurrency=1)
    letter = await dead_letter_of(queue, handle, "park", "good", worker=worker, batch=batch)
    assert "TypeError: Park leads to <object object" in letter.error
    assert re.search("the outcome of <run of .*> cannot be decided", caplog.text)


async def test_an_outcome_that_is_not_declared_is_not_acknowledged_and_its_lease_is_not_renewed(
    queue: AsyncWorkQueue,
) -> None:
    """The other outcomes of the run are acknowledged."""
    worker = new_worker()
    worker.handler(queue, batch=2)(lambda _: None)
    handler = worker.handlers[0]
    renewer = LeaseRenewer(lambda *_: None, lambda: None)
    acknowledger = Acknowledger(handler, renewer, Backlog())
    await add(queue, "a", "park")
    run = ActiveRun(handler, await queue.lease_many(2, 30))
    renewer.add([run])
    run.outcomes = cast("list[Outcome]", [DONE, object()])
    with pytest.raises(TypeError, match="no subclass of Outcome: <object object"):
        acknowledger.add(run)
    await acknowledger.drain()
    assert not renewer.held
    assert (acknowledger.counts, acknowledger.rejected) == ({"completed": 1}, 1)
    assert [view.id for view in await queue.inspect("leased")] == ["2"]


# ---------------------------------------------------------------------------- errors that cannot be described


ONCE = RetryPolicy(attempts=1)
EVERY = UNREADABLE | SIGNALS


@pytest.mark.parametrize("run_in", ["loop", "thread", "process", "batch"])
async def test_an_item_whose_error_cannot_be_described_is_a_dead_letter(
    queue: AsyncWorkQueue, run_in: str
) -> None:
    async def in_loop(payload: str) -> None:
        raise_named(payload)

    async def in_batch(payloads: list[str]) -> list[Exception | None]:
        return [EVERY[payload]() if payload in EVERY else None for payload in payloads]

    functions: dict[str, Callable[..., Any]] = {"loop": in_loop, "batch": in_batch}
    worker = new_worker(concurrency=1, retry=ONCE)
    options: dict[str, Any] = {"batch": 2} if run_in == "batch" else {"run_in": run_in}
    worker.handler(queue, **options)(functions.get(run_in, raise_named))
    await queue.add_items(Item(one, id=one) for name in EVERY for one in (name, f"good after {name}"))
    async with working(worker):
        await finished(queue)
    letters = {letter.id: letter.error for letter in await queue.dead_letters.list()}
    assert letters.keys() == EVERY.keys(), "the next item ran each time"
    assert [name for name, make in EVERY.items() if type(make()).__name__ not in letters[name]] == []
    without = {name for name, error in letters.items() if "in raise_named" not in error}
    assert without == (EVERY.keys() if run_in == "batch" else SIGNALS.keys()), "these are no errors"


class Unkept:
    """A value that cannot be encoded as a result: it looks like a pydantic model."""

    model_validate_json = None

    def model_dump(self, **_: object) -> NoReturn:
        raise Escape(9)


class Unshown:
    """A value without a text."""

    def __repr__(self) -> str:
        raise Escape(9)


VALUES: dict[str, Callable[[], object]] = {**UNREADABLE, "Unkept": Unkept}


async def test_an_item_whose_result_raises_anything_when_it_is_encoded_is_completed(
    queue: AsyncWorkQueue,
) -> None:
    async def handle(payload: str) -> object:
        return VALUES[payload]() if payload in VALUES else payload

    worker = new_worker(concurrency=1)
    await work(queue, handle, *VALUES, "good", worker=worker, keep_result=60)
    assert not any(await queue.counts())
    *kept, good = [
        json.loads(await queue.results.get(str(number)) or b"") for number in range(1, len(VALUES) + 2)
    ]
    assert {one["error"]["type"] for one in kept} == {"ResultError"}
    assert good == "good"


@pytest.mark.parametrize("through_middleware", [False, True])
async def test_the_answers_of_a_batch_that_cannot_be_shown_are_an_error(
    queue: AsyncWorkQueue, *, through_middleware: bool
) -> None:
    async def layer(run: object, call_next: Callable[..., Any]) -> Any:
        answers = await call_next(run)
        return Unshown() if through_middleware else answers

    async def handle(payloads: list[str]) -> Any:
        return Unshown() if len(payloads) == 1 else None

    worker = new_worker(concurrency=1, retry=ONCE, middleware=[layer])
    letter = await dead_letter_of(queue, handle, "a", worker=worker, batch=2)
    assert "TypeError" in letter.error
    assert "a value of type Unshown (it cannot be shown)" in letter.error


@pytest.mark.parametrize("broken", ["raises", "exits", "a text", "less than nothing", "no number"])
async def test_a_retry_policy_that_is_broken_leaves_the_item_its_attempts(
    queue: AsyncWorkQueue, broken: str
) -> None:
    class Broken(RetryPolicy):
        def delay_after(self, attempt: int, error: BaseException) -> Any:
            if broken == "raises":
                raise LookupError(attempt)
            if broken == "exits":
                raise SystemExit(str(error))
            return {"a text": "soon", "less than nothing": -1, "no number": float("nan")}[broken]

    attempts: list[int] = []

    async def handle(_: str, lease: Lease) -> None:
        attempts.append(lease.attempt)
        raise ValueError("bad")

    worker = new_worker(concurrency=1, retry=Broken(attempts=2))
    letter = await dead_letter_of(queue, handle, "x", worker=worker)
    assert attempts == [1, 2]
    assert "ValueError: bad" in letter.error
    assert "Its outcome could not be decided" in letter.error


async def test_a_lease_that_its_handler_has_changed_harms_no_other_item(queue: AsyncWorkQueue) -> None:
    ran: list[str] = []

    async def handle(payload: str, lease: Lease) -> None:
        ran.append(payload)
        if payload == "bad" and lease.attempt == 1:
            lease.id = None  # type: ignore[misc, assignment]  # that is the point

    worker = new_worker(concurrency=10, lease_time=0.5)
    worker.handler(queue)(handle)
    await add(queue, *["good"] * 5, "bad", *["good"] * 5)
    async with working(worker):
        await finished(queue)
    assert sorted(ran) == ["bad"] * 2 + ["good"] * 10


async def test_any_exception_can_be_reported_by_hand(queue: AsyncWorkQueue) -> None:
    for name, make in UNREADABLE.items():
        await queue.add_items([Item("x", name), Item("x", "left")])
        first, second = await queue.lease_many(2, 30)
        assert await queue.fail(first, make())
        letter = await queue.dead_letters.get(name)
        assert letter is not None
        assert type(make()).__name__ in letter.error
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
            async with second:
                raise make()
        assert (second.completed, await queue.processing()) == (None, 1)
        assert await queue.complete(second)
