"""Whatever a handler raises or returns, its item is settled and its slot takes the next one.

Each of these once ended the slot before the item had an outcome: its lease was renewed for ever.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from leasequeue import Item
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import RetryPolicy
from tests.unreadable import SIGNALS, UNREADABLE, Escape
from tests.worker.working import add, dead_letter_of, finished, new_worker, work, working

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue import AsyncWorkQueue

ONCE = RetryPolicy(attempts=1)
EVERY = UNREADABLE | SIGNALS


@pytest.mark.parametrize("run_in", ["loop", "thread", "batch"])
@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
async def test_an_item_whose_error_cannot_be_described_is_a_dead_letter(
    queue: AsyncWorkQueue, make: Callable[[], Exception], run_in: str
) -> None:
    seen: list[str] = []

    def handle(payload: str) -> None:
        seen.append(payload)
        if payload == "bad":
            raise make()

    async def in_loop(payload: str) -> None:
        handle(payload)

    async def in_batch(payloads: list[str]) -> list[Exception | None]:
        seen.extend(payloads)
        return [make() if payload == "bad" else None for payload in payloads]

    functions: dict[str, Callable[..., Any]] = {"loop": in_loop, "thread": handle, "batch": in_batch}
    letter = await dead_letter_of(
        queue,
        functions[run_in],
        *("bad", "good", "fine"),
        worker=new_worker(concurrency=1, retry=ONCE),
        batch=2 if run_in == "batch" else None,
    )
    assert sorted(seen) == ["bad", "fine", "good"]
    assert type(make()).__name__ in letter.error


class Unkept:
    """A value that cannot be encoded as a result: it looks like a pydantic model."""

    model_validate_json = None

    def model_dump(self, **_: object) -> NoReturn:
        raise Escape(9)


class Unshown:
    """A value without a text."""

    def __repr__(self) -> str:
        raise Escape(9)


VALUES = UNREADABLE | {"Unkept": Unkept}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
async def test_an_item_whose_result_raises_anything_when_it_is_encoded_is_completed(
    queue: AsyncWorkQueue, make: Callable[[], object]
) -> None:
    async def handle(payload: str) -> object:
        return make() if payload == "bad" else payload

    await work(queue, handle, "bad", "good", worker=new_worker(concurrency=1), keep_result=60)
    assert not any(await queue.counts())
    assert json.loads(await queue.results.get("1") or b"")["error"]["type"] == "ResultError"
    assert json.loads(await queue.results.get("2") or b"") == "good"


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
            lease.id = None  # type: ignore[assignment]  # that is the point

    worker = new_worker(concurrency=10, lease_time=0.5)
    worker.handler(queue)(handle)
    await add(queue, *["good"] * 5, "bad", *["good"] * 5)
    async with working(worker):
        await finished(queue)
    assert sorted(ran) == ["bad"] * 2 + ["good"] * 10


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
async def test_any_exception_can_be_reported_by_hand(
    queue: AsyncWorkQueue, make: Callable[[], Exception]
) -> None:
    await queue.add_items([Item("x", "dead"), Item("x", "left")])
    first, second = await queue.lease_many(2, 30)
    assert await queue.fail(first, make())
    letter = await queue.dead_letters.get("dead")
    assert letter is not None
    assert type(make()).__name__ in letter.error
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is
        async with second:
            raise make()
    assert (second.completed, await queue.processing()) == (None, 1)
