"""What the function of a stage returns, raises and does once decides what follows in its flow run."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from leasequeue import (
    AsyncWorkQueue,
    FanOut,
    HandedOver,
    Item,
    Lease,
    Next,
    Provided,
    TaskQueue,
    call_sync,
    current_stage,
    once,
)
from leasequeue.errors import NotAStage
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.stages import report
from leasequeue.queue.queue import engine_of
from tests.plans.flows import call, ended, field, stage, start, states
from tests.worker.working import counted, new_worker, working


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "ResultError: .* cannot be written"),
        (float("nan"), "ResultError: .* cannot be written"),
        ("text", "ResultMismatch: the result of stage 'first' .* is no result of it"),
        (Next(1, "missing"), "ResultMismatch: the result of stage 'first' .* chooses .*missing"),
        (Next(FanOut([]), "second"), "ResultMismatch: .* cannot choose"),
        (FanOut([], join="n:1"), "ResultMismatch: .* no children"),
    ],
)
async def test_a_result_that_cannot_be_used_fails_the_stage_and_nothing_is_half_done(
    tasks: TaskQueue, value: Any, problem: str
) -> None:
    async def first() -> Any:
        return value

    if not isinstance(value, (Next, FanOut)):
        first.__annotations__["return"] = int
    tasks.task(first)

    @tasks.task
    async def second() -> None:
        raise AssertionError

    queue = tasks.queue
    await start(queue, stage(queue, "first", choice=True), stage(queue, "second", after=("first",)))
    async with working(new_worker(tasks)):
        await ended(queue, "failed")
    assert await states(queue) == {"": "failed", "first": "f"}
    (letter,) = await queue.dead_letters.list()
    assert re.match(problem, letter.error), letter.error
    assert letter.attempt == 1


async def test_what_only_stages_return_is_an_error_of_other_items(queue: AsyncWorkQueue) -> None:
    worker = new_worker()

    @worker.handler(queue)
    async def handle(data: bytes) -> object:
        with pytest.raises(NotAStage):
            current_stage()
        with pytest.raises(NotAStage):
            await once("a", asyncio.sleep, 0)
        return Next(1, "a") if data == b"next" else FanOut([])

    await queue.add_item(Item(b"next"))
    await queue.add_item(Item(b"fan"))
    async with working(worker):
        await counted(queue, "both are dead letters", lambda counts: counts.dead == 2)
    for letter in await queue.dead_letters.list():
        assert "ResultMismatch" in letter.error


@pytest.mark.seed("GLD-O6")
async def test_a_stage_chooses_which_successors_follow(tasks: TaskQueue) -> None:
    @tasks.task
    async def check() -> Next[int]:
        return Next(7, "yes")

    @tasks.task
    async def yes(n: int) -> int:
        return n + 1

    @tasks.task
    async def no() -> None:
        raise AssertionError

    queue = tasks.queue
    await start(
        queue,
        stage(queue, "check", choice=True),
        stage(queue, "no", after=("check",)),
        stage(queue, "yes", call("yes", {"n": "check"}), after=("check",)),
    )
    async with working(new_worker(tasks)):
        await ended(queue)
    assert await states(queue) == {"": "completed", "check": "d", "yes": "d", "no": "k"}
    assert await field(queue, "r:yes") == "8"


async def test_a_step_of_a_stage_is_done_once(tasks: TaskQueue) -> None:
    charged: list[int] = []

    async def charge(amount: int) -> dict[str, int]:
        charged.append(amount)
        return {"amount": amount}

    @tasks.task
    async def pay(lease: Lease = Provided()) -> list[Any]:
        receipt = await once("charge", charge, 5)
        again = await once("charge", lambda: charge(6))
        if lease.attempt == 1:
            raise ValueError("after the charge")
        return [receipt, again]

    @tasks.task
    def ship(paid: list[Any]) -> dict[str, int]:
        return call_sync(once, "ship", charge, len(paid))

    queue = tasks.queue
    await start(
        queue, stage(queue, "pay"), stage(queue, "ship", call("ship", {"paid": "pay"}), after=("pay",))
    )
    async with working(new_worker(tasks)):
        await ended(queue)
    assert charged == [5, 2]
    assert await field(queue, "r:pay") == '[{"amount":5},{"amount":5}]'
    assert await field(queue, "o:ship\0ship") == '{"amount":2}'


@pytest.mark.seed("GLD-O23")
async def test_a_stage_that_is_handed_over_ends_with_its_report(tasks: TaskQueue) -> None:
    @tasks.task
    async def order(n: int) -> int:
        raise HandedOver(timeout=600 + n)

    @tasks.task
    async def after(n: int) -> int:
        return n + 1

    queue = tasks.queue
    await start(
        queue,
        stage(queue, "order", call("order", n=1)),
        stage(queue, "after", call("after", {"n": "order"}), after=("order",)),
    )
    ref = StageRef(queue.name, "r", "order")
    async with working(new_worker(tasks)):
        await counted(queue, "the stage waits", lambda counts: counts.scheduled == 1)
        assert await report(engine_of(queue), ref, result=b"41")
        assert not await report(engine_of(queue), ref, result=b"42")
        await ended(queue)
    assert await field(queue, "r:after") == "42"
    assert (await queue.counts()).total == 0
    assert not await report(
        engine_of(queue), StageRef(queue.name, "missing", "order"), result=None, error="no"
    )
