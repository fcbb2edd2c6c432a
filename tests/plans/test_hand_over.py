"""Tests of the hand-over to a flow in another slot, stopped at each point of its two phases."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, TaskQueue, correlation_id
from leasequeue.errors import InvalidFlow
from leasequeue.flow import Flow
from tests.plans import hand_over
from tests.plans.hand_over import POINTS, Pair
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import MakeServer


@pytest.fixture
async def there(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Open a task queue in another slot."""
    async with TaskQueue.from_url(redis_url, f"{{there}}{name}") as tasks:
        yield tasks


async def test_a_stage_starts_a_run_of_a_flow_in_another_slot(tasks: TaskQueue, there: TaskQueue) -> None:
    pair = Pair(tasks, there)
    run = await pair.orders.start(item="shirt", id="o1", correlation="request-7")
    async with working(new_worker(tasks, there)):
        assert await run.result(timeout=120) == ["o1.start-shipping", "shirt"]
        handed = pair.shipping.flow_run("o1.start-shipping")
        assert await handed.result(timeout=120) == 5
    assert pair.delivered == [(5, "o1.start-shipping")]
    # It is kept, although its flow keeps none, so that a repetition finds it.
    view = await pair.shipping.runs.get("o1.start-shipping")
    assert (view.correlation, view.attributes) == ("request-7", {"amount": 5, "note": None})


@pytest.mark.parametrize("point", ["before", "between"])
async def test_a_hand_over_that_fails_at_a_point_is_repeated_and_starts_one_run(
    tasks: TaskQueue, there: TaskQueue, point: str
) -> None:
    pair = Pair(tasks, there)
    failures: list[str] = []

    async def failing(run: Any, call_next: Any) -> Any:
        fails = run.handler.name == "orders.start-shipping" and len(failures) < 2
        if fails and point == "before":
            failures.append(point)
            raise ConnectionError(point)
        returned = await call_next(run)
        if fails:
            failures.append(point)
            raise ConnectionError(point)
        return returned

    run = await pair.orders.start(item="shirt", id="o1")
    async with working(new_worker(tasks, there, middleware=[failing])):
        assert await run.result(timeout=120) == ["o1.start-shipping", "shirt"]
        await pair.shipping.flow_run("o1.start-shipping").result(timeout=120)
    assert len(failures) == 2
    assert pair.delivered == [(5, "o1.start-shipping")]


@pytest.mark.slow
async def test_a_worker_that_is_killed_at_any_point_of_a_hand_over_leaves_one_run(
    redis_url: str, name: str
) -> None:
    async def killed_at(point: str) -> list[tuple[int, str]]:
        home = TaskQueue.from_url(redis_url, f"{name}-{point}")
        there = TaskQueue.from_url(redis_url, f"{name}-{point}-there")
        async with home, there:
            pair = Pair(home, there)
            run = await pair.orders.start(item="shirt", id="o1")
            program = await asyncio.create_subprocess_exec(
                sys.executable, "-m", hand_over.__name__, redis_url, home.name, point
            )
            assert await program.wait() == -signal.SIGKILL
            async with working(new_worker(home, there)):
                assert await run.result(timeout=120) == ["o1.start-shipping", "shirt"]
                await pair.shipping.flow_run("o1.start-shipping").result(timeout=120)
            return pair.delivered

    delivered = await asyncio.gather(*(killed_at(point) for point in POINTS))
    assert delivered == [[(5, "o1.start-shipping")]] * len(POINTS)


@pytest.mark.slow
async def test_a_hand_over_waits_for_the_other_server(tasks: TaskQueue, make_server: MakeServer) -> None:
    server = await make_server()
    async with TaskQueue.from_url(server.url, "there") as there:
        pair = Pair(tasks, there)
        await server.stop()
        run = await pair.orders.start(item="shirt", id="o1")
        async with working(new_worker(tasks)):
            with pytest.raises(TimeoutError):
                await run.result(timeout=0.3)
            again = await make_server(port=server.port)
            assert await run.result(timeout=120) == ["o1.start-shipping", "shirt"]
            assert (await pair.shipping.runs.get("o1.start-shipping")).state == "active"
        await again.stop()


async def test_a_hand_over_that_cannot_be_is_refused(tasks: TaskQueue, there: TaskQueue) -> None:
    pair = Pair(tasks, there)
    with pytest.raises(InvalidArgument):
        await pair.orders.start(item="shirt", id="x" * 190)  # the id of the other run would be too long
    flow = Flow("flow", tasks, attributes={"amount": str})
    with pytest.raises(InvalidFlow, match="'amount' takes int, and the attribute 'amount' is str"):
        flow.then_start(pair.shipping)
    with pytest.raises(InvalidFlow, match="its name is to be without"):
        flow.then_start(pair.shipping, name="a.b")
    assert flow.stages == ()
    assert correlation_id.get() is None
