"""A worker reads what a stage takes of its flow run; what its function does decides what follows."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    AsyncWorkQueue,
    FanOut,
    Item,
    Lease,
    Next,
    Provided,
    Reject,
    RetryPolicy,
    StageContext,
    TaskQueue,
    call_sync,
    correlation_id,
    current_run,
    current_stage,
    once,
)
from leasequeue.errors import NotAStage
from leasequeue.queue.lease import StageRef
from leasequeue.tasks.wire import data_of
from tests.plans.flows import call, child, ended, field, stage, start, states
from tests.worker.working import counted, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue


@pytest.mark.seed("GLD-O2", "GLD-B1", "GLD-O5")
async def test_a_stage_takes_attributes_and_the_results_of_stages_before_it(tasks: TaskQueue) -> None:
    @tasks.task
    async def check(user: int, guild: str = "none") -> dict[str, Any]:
        assert [*current_stage().inputs] == ["user"]
        return {"user": user + 1, "guild": guild}

    @tasks.task
    async def welcome(found: dict[str, Any], user: int, name: str, lease: Lease = Provided()) -> str:
        assert lease.stage is not None
        assert lease.stage[:3] == StageRef(tasks.queue.shard_of("r").name, "r", "welcome")[:3]
        return f"{found['guild']} {user} {name}"

    await start(
        tasks.queue,
        stage(tasks.queue, "check", call("check", {"user": "@user"})),
        stage(
            tasks.queue,
            "welcome",
            call("welcome", {"found": "check", "user": "check.user", "name": "@person.name"}),
            after=("check",),
        ),
        attributes={"user": b"1", "guild": b'"g"', "person": b'{"name":"ann"}'},
    )
    async with working(new_worker(tasks)):
        await ended(tasks.queue)
    assert await field(tasks.queue, "r:welcome") == '"none 2 ann"'
    assert (await tasks.queue.counts()).total == 0


@pytest.mark.seed("GLD-B6", "GLD-B7")
async def test_a_plain_handler_of_another_queue_works_on_a_stage_and_its_none_is_a_result(
    queue: AsyncWorkQueue, make_queue: MakeQueue, name: str
) -> None:
    other = make_queue(name=f"{name}-other")
    worker = new_worker()
    seen: list[tuple[bytes, object]] = []

    @worker.handler(other)
    async def first(data: bytes) -> None:
        seen.append((data, dict(current_stage().inputs)))

    @worker.handler(queue)
    def second(data: bytes) -> bytes:  # in a thread
        seen.append((data, dict(current_stage().inputs)))
        return b"done"

    data = b'{"meta":{"needs":{"x":"one","y":"@a","z":"missing"}}}'
    await start(
        queue,
        stage(other, "one", b"anything"),
        stage(queue, "two", data, after=("one",)),
        attributes={"a": b"[1.0]"},
    )
    async with working(worker):
        await ended(queue)
    assert seen == [(b"anything", {}), (data, {"x": b"null", "y": b"[1.0]"})]
    assert await field(queue, "r:two") == '"ZG9uZQ=="'


@pytest.mark.seed("GLD-O8", "GLD-O9", "GLD-G7", "GLD-K4")
async def test_children_of_several_kinds_fan_out_again_and_their_results_are_a_list(
    tasks: TaskQueue,
) -> None:
    queue = tasks.queue

    @tasks.task
    async def plan() -> FanOut[Any]:
        return FanOut([child(queue, "double", n=1), child(queue, "again"), child(queue, "double", n=4)])

    @tasks.task
    async def double(n: int) -> int:
        return 2 * n

    @tasks.task
    async def again() -> FanOut[int]:
        return FanOut([child(queue, "double", n=n) for n in (2, 3)])

    @tasks.task
    async def none() -> FanOut[int]:
        return FanOut([])

    @tasks.task
    async def finish(a: list[Any], b: list[Any], c: list[Any], d: list[int]) -> list[Any]:
        return [a, b, c, d]

    needs = {"a": "plan", "b": "plan/*", "c": ["plan/0", ["plan/1", "missing"]], "d": "none/*"}
    await start(
        queue,
        stage(queue, "plan"),
        stage(queue, "none"),
        stage(queue, "finish", call("finish", needs), after=("plan", "none")),
    )
    async with working(new_worker(tasks)):
        await ended(queue)
    results = [2, [4, 6], 8]
    assert json.loads(await field(queue, "r:finish") or "") == [results, results, [2, [[4, 6]]], []]
    assert (await queue.counts()).total == 0


async def test_the_stages_of_runs_that_are_gone_or_cancelled_are_dropped(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await start(queue, stage(queue, "one", b"1"), run="gone")
    await start(queue, stage(queue, "one", b"1"), run="cancelled")
    await redis.delete(f"{queue.name}:run:gone")
    await redis.hset(f"{queue.name}:run:cancelled", "state", "cancelled")
    worker = new_worker()

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        raise AssertionError

    async with working(worker):
        await counted(queue, "both are dropped", lambda counts: counts.total == 0)
    assert await states(queue, "cancelled") == {"": "cancelled", "one": "c"}
    assert (await queue.counts()).dead == 0


@pytest.mark.seed("GLD-O22")
async def test_the_correlation_id_is_in_the_context_and_in_the_log(
    tasks: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    @tasks.task
    async def first() -> None:
        seen.append((correlation_id.get(), current_stage().correlation))
        raise Reject("to be logged")

    @tasks.task(batch=10)
    async def many(numbers: list[int]) -> None:
        seen.extend((correlation_id.get(), None) for _ in numbers)
        with pytest.raises(NotAStage, match="in a batch, which has several"):
            current_stage()

    @tasks.task
    async def plain() -> None:
        seen.append((correlation_id.get(), None))

    queue = tasks.queue
    await start(
        queue,
        stage(queue, "first"),
        stage(queue, "one", call("many", numbers=1)),
        stage(queue, "two", call("many", numbers=2)),
        correlation="request-7",
        flow="access",
    )
    await plain.add()
    with caplog.at_level(logging.WARNING, "leasequeue.worker"):
        async with working(new_worker(tasks, concurrency=1)):
            await ended(queue, "failed")
    assert seen.count(("request-7", "request-7")) == 1
    assert seen.count((None, None)) == 1
    assert {one for one, _ in seen} == {"request-7", None}
    (record,) = [record for record in caplog.records if "to be logged" in record.getMessage()]
    assert (record.run, record.stage, record.correlation) == ("r", "first", "request-7")  # type: ignore[attr-defined]


async def test_maintenance_settles_stages_whose_items_were_cancelled_or_dropped(
    tasks: TaskQueue, redis: Redis
) -> None:
    queue = tasks.queue
    for run in ("cancelled", "lost", "dead"):
        await start(queue, stage(queue, "one", b"no task"), run=run)
    await queue.cancel("cancelled/one")
    await redis.delete(f"{queue.name}:item:lost/one")
    worker = new_worker(tasks, clean_every=60)

    @tasks.task
    async def unused() -> None: ...

    async with working(worker):
        for run in ("cancelled", "lost", "dead"):
            await ended(queue, "failed", run)
    assert (await states(queue, "cancelled"))["one"] == "c"
    assert (await states(queue, "lost"))["one"] == "f"


async def test_a_step_of_one_item_of_a_batch_is_done_once(tasks: TaskQueue) -> None:
    charged: list[int] = []

    def charge(amount: int) -> int:
        charged.append(amount)
        return 10 * amount

    @tasks.task(batch=10, retry=RetryPolicy(attempts=2, first=0))
    async def pay(amounts: list[int]) -> list[int]:
        leases = current_run().leases
        receipts = [
            await StageContext.of(lease).once("charge", charge, amount)
            for lease, amount in zip(leases, amounts, strict=True)
        ]
        if leases[0].attempt == 1:
            raise ConnectionError("after the charges")
        return receipts

    queue = tasks.queue
    await start(
        queue,
        stage(queue, "one", call("pay", amounts=1)),
        stage(queue, "two", call("pay", amounts=2)),
    )
    async with working(new_worker(tasks)):
        await ended(queue)
    assert [await field(queue, f"r:{name}") for name in ("one", "two")] == ["10", "20"]
    assert sorted(charged) == [1, 2]


def add_one(n: int) -> int:
    """Run in a separate process."""
    with pytest.raises(NotAStage, match=r"in a separate process, .*: use run_in='thread'"):
        asyncio.run(once("part", int, "1"))
    assert current_stage().path == "first"
    assert correlation_id.get() == "c"
    return n + int(current_stage().inputs["n"])


async def test_a_separate_process_knows_its_stage(tasks: TaskQueue) -> None:
    tasks.task(name="first", run_in="process")(add_one)
    queue = tasks.queue
    data = data_of("first", b"{}", None, needs={"n": "@n"})
    await start(queue, stage(queue, "first", data), attributes={"n": b"4"}, correlation="c")
    async with working(new_worker(tasks)):
        await ended(queue)
    assert await field(queue, "r:first") == "8"


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
