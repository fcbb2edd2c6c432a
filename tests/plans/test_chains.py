"""Chains, groups and fan-outs with real workers: what follows what, and which results are passed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pydantic
import pytest

from leasequeue import (
    FanOut,
    Lease,
    Provided,
    TaskQueue,
    current_run,
    fan_out,
    group,
)
from tests.plans.flows import ONE_QUEUE
from tests.tasks.models import pid
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue import Task


#: How many fields of a plan one call stores.
PLAN_FIELDS = 250


@dataclass
class Point:
    x: int
    y: float


class Order(pydantic.BaseModel):
    id: UUID
    placed: datetime


@pytest.fixture
def add_one(tasks: TaskQueue) -> Task[[int], int]:
    @tasks.task
    async def add_one(number: int) -> int:
        return number + 1

    return add_one


@pytest.fixture
def total(tasks: TaskQueue) -> Task[[list[int]], int]:
    @tasks.task
    def total(numbers: list[int]) -> int:  # in a thread
        return sum(numbers)

    return total


async def test_a_run_has_the_priority_and_the_correlation_that_it_is_added_with(
    tasks: TaskQueue, add_one: Task[[int], int]
) -> None:
    run = await add_one.options(priority=2).call(1).then(add_one).add(priority=3, correlation="c")
    view = await tasks.queue.find(f"{run.id}/add_one")
    assert view is not None
    assert view.priority == 5
    assert (await tasks.queue.flow_runs.get(run.id)).correlation == "c"
    await new_worker(tasks).drain()
    assert await run.result(timeout=120) == 3


@ONE_QUEUE
@pytest.mark.seed("GLD-O5")
async def test_each_call_takes_the_result_before_it(tasks: TaskQueue, name: str) -> None:
    ran: list[str] = []

    @tasks.task
    async def double(number: int, *, lease: Lease = Provided()) -> int:
        ran.append(lease.id)
        return number * 2

    @tasks.task(queue=f"{name}:other")
    def repeat(number: int, text: str = "x", *, times: int = 1) -> str:
        ran.append(current_run().lease.id)
        return text * number * times

    chain = double.call(2).then(double).then(repeat, "ab", times=2)
    run = await chain.add(id="7")
    assert (run.id, run.created) == ("7", True)
    assert (await chain.add(id="7")).created is False
    async with working(new_worker(tasks)):
        assert await run.result(timeout=120) == "ab" * 16
    assert ran == ["7/double", "7/double-2", "7/repeat"]
    assert await chain.flow_run("7").result(timeout=120) == "ab" * 16
    assert await tasks.queue.queue_len() == 0


async def test_values_of_all_types_are_passed(tasks: TaskQueue) -> None:
    @tasks.task
    async def nothing(number: int) -> None:
        assert number == 1

    @tasks.task
    async def point(given: None) -> Point:
        assert given is None
        return Point(12345678901234567890, 0.1)

    @tasks.task
    async def order(point: Point, *, placed: datetime) -> Order:
        assert point == Point(12345678901234567890, 0.1)
        return Order(id=UUID(int=point.x), placed=placed)

    @tasks.task
    async def text(order: Order) -> list[str]:
        return [str(order.id), order.placed.isoformat(), 'é "\\/ \x00']

    @tasks.task
    async def empty(texts: list[str]) -> dict[str, list[int]]:
        assert texts[2] == 'é "\\/ \x00'
        return {"": []}

    when = datetime.fromisoformat("2026-01-02T03:04:05+00:00")
    chain = nothing.call(1).then(point).then(order, placed=when)
    orders = await chain.add()
    rest = await chain.then(text).then(empty).add()
    async with working(new_worker(tasks)):
        assert await orders.result(timeout=120) == Order(id=UUID(int=12345678901234567890), placed=when)
        assert await rest.result(timeout=120) == {"": []}


@pytest.mark.seed("GLD-O8", "GLD-O9")
async def test_a_group_passes_its_results_in_the_order_of_its_calls(
    tasks: TaskQueue, add_one: Task[[int], int]
) -> None:
    first_done = asyncio.Event()

    @tasks.task
    async def late(number: int) -> int:
        await first_done.wait()
        return number

    @tasks.task
    async def note(numbers: list[int], text: str) -> str:
        return f"{text} {numbers}"

    @tasks.task
    async def quick(number: int) -> int:
        first_done.set()
        return number

    run = await group([late.call(1), add_one.call(1), quick.call(3)]).then(note, "all").add()
    async with working(new_worker(tasks)):
        assert await run.result(timeout=120) == "all [1, 2, 3]"


async def test_the_result_of_a_group_is_typed_by_its_calls(
    tasks: TaskQueue, add_one: Task[[int], int]
) -> None:
    @tasks.task
    async def point(x: int) -> Point:
        return Point(x, 0.5)

    run = await group([add_one.call(1), point.call(2)]).add()
    async with working(new_worker(tasks)):
        assert await run.result(timeout=120) == [2, Point(2, 0.5)]


async def test_chains_and_groups_in_groups(
    tasks: TaskQueue, add_one: Task[[int], int], total: Task[[list[int]], int]
) -> None:
    @tasks.task
    async def note(given: list[Any]) -> str:
        return str(given)

    chains = [add_one.call(number).then(add_one) for number in (1, 2)]
    nested = group([group(chains), group([add_one.call(5)]), group([add_one.call(6)]).then(total)])
    runs = [
        await group(chains).add(),
        await group([*chains, add_one.call(9)]).then(total).add(),
        await nested.then(note).add(),
    ]
    whole = await nested.add()
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [[3, 4], 17, "[[3, 4], [6], 7]"]
        assert await whole.result(timeout=120) == [[3, 4], [6], 7]


async def test_a_group_in_the_middle_and_one_of_nothing(
    tasks: TaskQueue, add_one: Task[[int], int], total: Task[[list[int]], int]
) -> None:
    nothing = group(add_one.call(number) for number in range(0))
    pair = group([add_one.call(5), add_one.call(6).then(add_one)])
    middle = add_one.call(1).then(pair, drop_result=True).then(total)
    runs = [
        await middle.then(add_one).add(),
        await add_one.call(1)
        .then(group([add_one.call(1), add_one.call(2)]), drop_result=True)
        .then(total)
        .add(),
        await nothing.then(total).then(add_one).add(),
        await group([nothing.then(total), add_one.call(3)]).then(total).add(),
    ]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [15, 5, 1, 4]


async def test_a_result_is_passed_to_each_part_of_a_group(
    tasks: TaskQueue, add_one: Task[[int], int], total: Task[[list[int]], int]
) -> None:
    part = group([add_one.partial(), add_one.partial().then(add_one), add_one.call(7)])
    runs = [
        await add_one.call(1).then(part).then(total).add(),  # 3 + 4 + 8
        await add_one.call(1).then(group([add_one.partial() for _ in range(70)])).then(total).add(),
        await group([add_one.call(1), add_one.call(2)]).then(group([total.partial()])).then(total).add(),
    ]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [15, 210, 5]


@pytest.mark.seed("GLD-T8")
async def test_batches_threads_and_processes_are_stages(tasks: TaskQueue) -> None:
    local = tasks.task(run_in="process", name="pid")(pid.function)

    @tasks.task(batch=10)
    async def halves(numbers: list[int]) -> list[float]:
        return [number / 2 for number in numbers]

    @tasks.task
    async def second(pair: list[int]) -> int:
        return pair[1]

    @tasks.task
    async def shown(numbers: list[float]) -> str:
        return str(numbers)

    chains = [local.call(number).then(second).then(halves) for number in (3, 4, 5)]
    run = await group(chains).then(shown).add()
    async with working(new_worker(tasks)):
        assert await run.result(timeout=120) == "[1.5, 2.0, 2.5]"


@pytest.mark.parametrize("size", [300, pytest.param(10_000, marks=pytest.mark.long)])
async def test_large_groups_and_fan_outs(tasks: TaskQueue, total: Task[[list[int]], int], size: int) -> None:
    @tasks.task
    async def same(number: int) -> int:
        return number

    @tasks.task
    async def split(size: int) -> FanOut[int]:
        return fan_out([same.call(number) for number in range(size)])

    calls = group(same.call(number) for number in range(size))
    runs = [
        await calls.then(total).add(),
        await same.call(1).then(calls, drop_result=True).then(total).add(),
        await split.call(size).then(total).add(),
    ]
    listed = await calls.add()
    chains = range(min(size, 990))
    of_chains = await group(same.call(number).then(same) for number in chains).then(total).add()
    async with working(new_worker(tasks, concurrency=100)):
        assert [await run.result(timeout=600) for run in runs] == [size * (size - 1) // 2] * 3
        assert await listed.result(timeout=600) == [*range(size)]
        assert await of_chains.result(timeout=600) == sum(chains)


async def test_one_of_many_starts_of_an_id_counts(tasks: TaskQueue, total: Task[[list[int]], int]) -> None:
    @tasks.task
    async def same(number: int) -> int:
        ran.append(number)
        return number

    ran: list[int] = []
    # Their plans are stored in several steps.
    chain = group(same.options(priority=1).call(number) for number in range(2 * PLAN_FIELDS)).then(total)
    cancelled = asyncio.create_task(chain.add(id="7"))
    await asyncio.sleep(0)
    cancelled.cancel()
    runs = await asyncio.gather(*(chain.add(id="7") for _ in range(3)))
    assert sum(bool(run.created) for run in runs) <= 1
    async with working(new_worker(tasks, concurrency=100)):
        assert await runs[0].result(timeout=120) == sum(range(2 * PLAN_FIELDS))
    assert sorted(ran) == [*range(2 * PLAN_FIELDS)]


async def test_a_run_is_found_by_its_values(tasks: TaskQueue, add_one: Task[[int], int]) -> None:
    run = await add_one.call(1).then(add_one).add(lookup={"user": 62, "guilds": ["a", "b"]}, keep=60)
    await add_one.call(1).then(add_one).add(lookup={"user": 6})
    for values in ({"user": 62}, {"guilds": "a"}, {"user": "62", "guilds": "b"}):
        assert [view.id for view in await tasks.queue.flow_runs.find(**values)] == [run.id]
    assert await tasks.queue.flow_runs.find(user=62, guilds="c") == []
    async with working(new_worker(tasks)):
        assert await run.result(timeout=120) == 3
        view = await run.view()
    assert (view.state, view.results) == ("completed", {"add_one": 2, "add_one-2": 3})


@pytest.fixture(autouse=True)
async def _no_key_is_left_without_a_time(tasks: TaskQueue) -> AsyncIterator[None]:
    yield
    counts = await tasks.queue.counts()
    assert (counts.total, counts.dead) == (0, 0)
