"""Flow runs are cancelled, their workers die, the server is away: the run ends, and nothing is left of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import FanOut, Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.engine import Engine
from leasequeue.queue.plans import stages
from leasequeue.queue.plans.stages import FinishRow, child_text, finish_stages, stage_children
from leasequeue.queue.queue import engine_of
from leasequeue.worker.run import Interruption
from leasequeue.worker.stages import EntryReader
from tests.eventually import eventually
from tests.plans.flows import call, child, ended, field, stage, start, states
from tests.queue.asking import command, take
from tests.worker.working import Gate, counted, new_worker, order_of, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, TaskQueue
    from leasequeue.queue.plans.inputs import EntryState
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

#: More than one call adds.
CHILDREN = 300


async def begin_to_fan_out(queue: AsyncWorkQueue, join: bytes = b"all") -> Lease:
    """Lease the stage `plan`, and add the first of its children, as a worker does that dies then."""
    lease = await take(queue, 3600)
    assert lease.stage is not None
    definitions = [child_text(lease.stage, child(queue, "echo", numbers=n)) for n in range(CHILDREN)]
    assert await stage_children(engine_of(queue), lease, definitions)
    row = FinishRow(lease, "fan", b"%d" % CHILDREN, join)
    assert await stages._send(engine_of(queue), [row]) == [stages.MORE]
    return lease


async def fanning(tasks: TaskQueue, join: bytes = b"all") -> Lease:
    """Start a run whose first stage is fanning out."""
    finish = stage(tasks.queue, "finish", call("finish", {"numbers": "plan"}), after=("plan",))
    await start(tasks.queue, stage(tasks.queue, "plan"), finish)
    return await begin_to_fan_out(tasks.queue.shard_of("r"), join)


def serve(tasks: TaskQueue, run: list[int]) -> None:
    """Define the tasks of the run."""

    @tasks.task
    async def plan() -> FanOut[int]:
        raise AssertionError("it has fanned out already")

    @tasks.task
    async def echo(numbers: int) -> int:
        run.append(numbers)
        return numbers

    @tasks.task
    async def finish(numbers: list[int]) -> int:
        return len(numbers)


async def expire(queue: AsyncWorkQueue, redis: Redis, item_id: str) -> None:
    """Let the lease of an item expire."""
    await command(redis, "ZADD", f"{queue.shard_of('r').name}:deadlines", 1, item_id)


async def test_the_next_holder_goes_on_fanning_out_without_a_run(tasks: TaskQueue, redis: Redis) -> None:
    run: list[int] = []
    serve(tasks, run)
    lease = await fanning(tasks)
    await expire(tasks.queue, redis, lease.id)
    async with working(new_worker(tasks)):
        await ended(tasks.queue)
    assert sorted(run) == [*range(CHILDREN)]
    home = tasks.queue.shard_of("r")
    assert await field(tasks.queue, "r:finish") == str(CHILDREN)
    assert await finish_stages(engine_of(home), [FinishRow(lease, "done", b"1")]) == [False]


@pytest.mark.parametrize("holder_lives", [True, False])
async def test_a_run_is_cancelled_while_a_stage_fans_out(
    tasks: TaskQueue, redis: Redis, *, holder_lives: bool
) -> None:
    run: list[int] = []
    serve(tasks, run)
    queue = tasks.queue
    lease = await fanning(tasks)
    assert await queue.flow_runs.cancel("r")
    if holder_lives:
        await stages.fan(engine_of(queue.shard_of("r")), lease)
    else:
        await expire(queue, redis, lease.id)
    async with working(new_worker(tasks)):
        await ended(queue, "cancelled")
        await counted(queue, "nothing is left", lambda counts: counts.total == 0)
    assert not run
    assert (await states(queue))["plan/0"] == "c"


async def test_a_join_that_needs_no_more_cancels_children_that_are_not_added(tasks: TaskQueue) -> None:
    run: list[int] = []
    serve(tasks, run)
    queue = tasks.queue
    lease = await fanning(tasks, b"n:1")
    async with working(new_worker(tasks, concurrency=1)):
        await counted(queue, "a part is done", lambda _: bool(run))
        await stages.fan(engine_of(queue.shard_of("r")), lease)
        await ended(queue)
        await counted(queue, "nothing is left", lambda counts: counts.total == 0)


async def test_a_stage_whose_attempts_are_used_up_has_failed(tasks: TaskQueue, redis: Redis) -> None:
    @tasks.task
    async def never() -> None:
        raise AssertionError

    queue = tasks.queue
    await start(queue, stage(queue, "never"))
    for _ in range(3):  # its workers die
        lease = await take(queue, 3600)
        await expire(queue, redis, lease.id)
    async with working(new_worker(tasks)):
        await ended(queue, "failed")
    assert "attempts are used up" in (await field(queue, "e:never") or "")
    assert (await queue.counts()).dead == 1


async def test_a_stage_is_released_while_its_run_cannot_be_read(
    proxy: Proxy, make_queue: MakeQueue, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks when the worker reads the run. That is no attempt."""
    reads: list[int] = []
    attempts: list[int] = []

    read_many_at = Engine.read_many_at

    async def read(engine: Engine, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        reads.append(len(commands))
        if len(reads) > 1:
            return await read_many_at(engine, commands)
        await proxy.fail()
        try:
            return await read_many_at(engine, commands)
        finally:
            await proxy.heal()

    monkeypatch.setattr(Engine, "read_many_at", read)
    worker = new_worker()

    @worker.handler(make_queue(url=proxy.url))
    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)

    await start(queue, stage(queue, "one", b"1"))
    async with working(worker):
        await ended(queue)
    assert attempts == [1]
    assert reads == [1, 1]


@pytest.mark.parametrize("first", ["waiting", "leased", "scheduled"])
async def test_the_runs_of_other_queues_go_on_when_the_queue_of_their_stages_is_deleted(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis, first: str
) -> None:
    mails = make_queue(name=f"{queue.name}-mails")
    plan = (
        stage(mails, "first", delay_ms=3_600_000 if first == "scheduled" else 0),
        stage(mails, "second", after=("first",), join="settled"),
        stage(queue, "last", after=("second",), join="settled"),
    )
    await start(mails, stage(mails, "first"), stage(queue, "last", after=("first",)), run="its own")
    for run in range(120):
        await start(queue, *plan, run=f"{run}")
    # More than some calls settle, and of no run that is there.
    gone: dict[Any, Any] = {f"gone/{run}": f"{queue.name}\0gone {run}\0first" for run in range(5000)}
    await redis.hset(f"{mails.name}:unsettled", mapping=gone)
    if first == "leased":
        assert len(await mails.lease_many(150, 3600, block=False)) == 121
    assert await mails.admin.delete() == 121
    assert {key async for key in redis.scan_iter(f"{mails.name}:*")} <= {f"{mails.name}:fence".encode()}
    assert await queue.counts() == (120, 0, 0, 0)
    assert await states(queue, "0") == {"": "active", "first": "f", "second": "f", "last": "w"}


@pytest.mark.parametrize("stopped", ["queue", "worker"])
async def test_a_stage_is_released_without_a_run_if_its_worker_stops_before_its_flow_run_is_read(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    read, begins, goes_on = EntryReader.read, asyncio.Event(), asyncio.Event()

    async def wait_and_read(
        reader: EntryReader, queue: AsyncWorkQueue, leases: Sequence[Lease]
    ) -> list[EntryState]:
        begins.set()
        await goes_on.wait()
        return await read(reader, queue, leases)

    monkeypatch.setattr(EntryReader, "read", wait_and_read)
    worker = new_worker(grace=0)
    gate = Gate(worker, queue)
    gate.opened.set()
    await start(queue, stage(queue, "one", b"1"))
    async with working(worker) as running:
        await begins.wait()
        runtime = worker._runtime
        assert runtime is not None
        (run,) = runtime.executor.running.values()
        if stopped == "worker":
            worker.stop()
            stopping = running
        else:
            stopping = asyncio.create_task(worker.stop_queue(queue.name, grace=0))
        await eventually("the run has ended", lambda: run.cancelled or stopping.done())
        interruption = run.interruption
        goes_on.set()
        await stopping
        assert interruption is Interruption.SHUTDOWN
        assert await order_of(queue) == [("r/one", 0)]
    assert gate.begun == []


async def test_runs_of_another_type_fail_their_stages_alone(
    queue: AsyncWorkQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker()

    @worker.handler(queue)
    async def handle(_: bytes) -> None: ...

    await start(queue, stage(queue, "one", b"1"), run="bad")
    await start(queue, stage(queue, "one", b"1"), run="good")
    await redis.delete(f"{queue.name}:run:bad")
    await redis.set(f"{queue.name}:run:bad", "a string")
    async with working(worker):
        await ended(queue, run="good")
    assert "WrongKeyType" in caplog.text
