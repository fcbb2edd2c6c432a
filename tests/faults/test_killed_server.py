"""A server that is killed under load and restarted keeps what it has acknowledged."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import ConnectionLost, Flow, Item, RetryPolicy, TaskQueue, Worker, current_run
from tests.eventually import eventually
from tests.faults.flow_runs import Flows
from tests.history.events import FinalState, History
from tests.history.recording import record_calls
from tests.history.rules import check
from tests.queue.asking import blocked, take, until
from tests.queue.keyspace import audit, left_over
from tests.worker.working import working

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from leasequeue.embedded import EmbeddedServer
    from leasequeue.views import Chunk
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def add(flows: Flows, queue: AsyncWorkQueue, stop: asyncio.Event) -> None:
    while not stop.is_set():
        item = Item(b"x" * 100, id=f"{next(flows.numbers)}")
        await flows.insist(partial(queue.add_item, item))


async def work(flows: Flows, queue: AsyncWorkQueue, stop: asyncio.Event, done: list[str]) -> None:
    while True:
        lease = await flows.insist(lambda: queue.lease(1.0, timeout=0.3))
        if lease is not None:
            done += [lease.id] if await flows.insist(partial(queue.complete, lease)) else []
        elif stop.is_set() and not (await flows.insist(queue.counts)).total:
            return


async def start(make_server: MakeServer, folder: Path, port: int = 0) -> EmbeddedServer:
    """Start a server that writes every change to disk before it answers."""
    server = await make_server(dir=folder, port=port)
    async with Redis.from_url(server.url) as admin:
        await admin.config_set("appendfsync", "always")
    return server


async def kill(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await eventually("the server has gone", lambda: not server.running)


@pytest.mark.slow
@pytest.mark.seed("RWQ-G2", "GLD-G4", "RRQ-T2", "RRQ-B2")
async def test_nothing_acknowledged_is_lost_and_each_item_is_completed_once(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    server = await start(make_server, tmp_path)
    flows, stop, done = Flows(logs, name), asyncio.Event(), list[str]()
    queues = [record_calls(make_queue(url=server.url, reply_timeout=5), flows.log()) for _ in range(3)]
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for queue in queues * 5:
            group.create_task(add(flows, queue, stop))
            group.create_task(work(flows, queue, stop, done))
        for number in range(4):
            if number:
                await kill(server)
                server = await start(make_server, tmp_path, server.port)
            goal = len(done) + 200
            await eventually("200 more items are completed", lambda goal=goal: len(done) > goal)  # type: ignore[misc]  # mypy 17372
        stop.set()

    assert flows.losses
    async with Redis.from_url(server.url) as admin:
        await audit(admin, name)
        final = await FinalState.read(queues[0])
        for queue in queues:
            await queue.close()
        assert not await left_over(admin, name)
    for log in flows.logs:
        log.close()
    assert not check(History.load(logs), final)


@pytest.mark.seed("RRQ-B1")
async def test_waiting_works_again_after_a_restart(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    """Waiting callers get ConnectionLost; the next call waits as before."""
    server = await start(make_server, tmp_path)
    waiter, adder = make_queue(url=server.url), make_queue(url=server.url)
    await adder.add_item(Item(b"x", id="leased"))
    lease = await take(adder, 3)
    waiting = asyncio.create_task(waiter.lease(30))
    async with Redis.from_url(server.url) as admin:
        await blocked(admin, 1)
    await kill(server)
    with pytest.raises(ConnectionLost):
        await waiting
    server = await start(make_server, tmp_path, server.port)
    taken = await take(waiter, 30)
    assert (taken.id, taken.attempt) == ("leased", 2)
    assert taken.token > lease.token
    assert await waiter.complete(taken)
    assert await adder.complete(lease) is False
    waiting = asyncio.create_task(waiter.lease(30))
    await adder.add_item(Item(b"x", id="next"))
    async with asyncio.timeout(120):
        after = await waiting
    assert after is not None
    # Not the next one exactly: a delivery that is not accepted in time has taken a number.
    assert taken.token < after.token < taken.token + 10, "the token counter has survived, too"
    async with Redis.from_url(server.url) as admin:
        assert (await audit(admin, name)).leased == [b"next"]


async def test_a_reader_gets_every_accepted_chunk_once_when_the_server_was_killed_in_mid_stream(
    make_server: MakeServer, tmp_path: Path, name: str
) -> None:
    """The run whose chunk is refused fails; the reader waits through it, and sees that another has begun."""
    server = await start(make_server, tmp_path)
    found: list[Chunk[int]] = []
    accepted: list[tuple[int, int]] = []
    killed, refused = asyncio.Event(), asyncio.Event()
    async with TaskQueue.from_url(server.url, name) as tasks, TaskQueue.from_url(server.url, name) as others:

        async def count() -> None:
            run = current_run()
            for number in range(4):
                if number == 2:
                    await killed.wait()  # the reader has the chunks before
                try:
                    assert await run.emit(number)
                except ConnectionLost:
                    refused.set()
                    raise
                accepted.append((run.lease.token, number))

        retry = RetryPolicy(attempts=2, first=0)
        job = await tasks.task(streams=int, retry=retry)(count).add()

        async def read() -> None:
            async for chunk in others.task(streams=int)(count).job(job.id).stream():
                found.append(chunk)  # noqa: PERF401 - as they come

        async with asyncio.timeout(120), working(Worker(tasks)):
            reading = asyncio.create_task(read())
            await eventually("two chunks are read", lambda: len(found) == 2)
            await kill(server)
            killed.set()
            await refused.wait()
            await start(make_server, tmp_path, server.port)
            await reading
    read_of = [(chunk.token, chunk.value) for chunk in found]
    assert sorted(set(accepted) - set(read_of)) == []
    assert len(set(read_of)) == len(read_of)
    assert [chunk.value for chunk in found if chunk.token == found[-1].token] == [0, 1, 2, 3]
    assert [chunk.restarted for chunk in found].count(True) == len({token for token, _ in read_of}) - 1


async def test_held_places_of_a_limit_outlive_a_killed_server(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """No block runs too many, those that run go on, and the next in turn gets the place that becomes free."""
    server = await start(make_server, tmp_path)
    queue, other = make_queue(url=server.url), make_queue(url=server.url)
    await queue.limits.set(hold="api", concurrency=2)
    entered, leaves = list[int](), [asyncio.Event() for _ in range(4)]

    async def hold(number: int) -> None:
        async with (queue, other)[number % 2].limits.hold("api"):
            entered.append(number)
            await leaves[number].wait()

    async def held(held: int, waiting: int) -> bool:
        try:
            found = (await queue.limits.holds())["api"]
        except ConnectionLost:
            return False
        return (found.held, found.waiting) == (held, waiting)

    async with asyncio.timeout(120):
        first = [asyncio.create_task(hold(number)) for number in range(2)]
        await until("two hold", partial(held, 2, 0))
        await kill(server)
        await start(make_server, tmp_path, server.port)
        await until("both hold on", partial(held, 2, 0))
        others = [asyncio.create_task(hold(number)) for number in (2, 3)]
        await until("two wait", partial(held, 2, 2))
        leaves[1].set()
        await until("one of them has the place", partial(held, 2, 1))
        for leave in leaves:
            leave.set()
        await asyncio.gather(*first, *others)
    assert sorted(entered) == [0, 1, 2, 3]
    assert await held(0, 0)


# -------------------------------------------------------------------------------------------------- flow runs


@pytest.mark.slow
@pytest.mark.seed("GLD-G5", "GLD-B2", "GLD-B3")
async def test_runs_go_on_when_the_server_is_killed_and_restarted(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    server = await start(make_server, tmp_path)
    flows, stop = Flows(logs, name), asyncio.Event()
    queues = [make_queue(name=one, url=server.url, reply_timeout=5) for _ in range(3) for one in flows.names]
    home, other, *of_workers = queues
    workers = [flows.worker(*of_workers[at : at + 2]) for at in (0, 2)]
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run()) for worker in workers]
        group.create_task(flows.start_runs(home, stop))
        for _ in range(3):
            await until("more runs are started", partial(flows.has_started, 20))
            await kill(server)
            server = await start(make_server, tmp_path, server.port)
        stop.set()
        await until("all runs have ended", partial(flows.all_ended, home))
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
    assert flows.losses
    problems = await flows.problems(home, other)
    assert not problems, "\n".join(problems[:20])
    for run_id in flows.started:
        assert await home.flow_runs.delete(run_id)
    for queue in queues:
        await queue.close()
    async with Redis.from_url(server.url) as admin:
        left = await left_over(admin, home.name) | await left_over(admin, other.name)
    # Sessions of before a restart stay registered until their time is over.
    assert {key for key in left if not key.endswith((b":idle", b":sessions"))} == set()


@pytest.mark.slow
async def test_what_waits_for_a_signal_or_a_time_waits_on_when_the_server_was_killed(
    make_server: MakeServer, tmp_path: Path, name: str
) -> None:
    server = await start(make_server, tmp_path)
    async with TaskQueue.from_url(server.url, name) as tasks:

        @tasks.task
        async def note(answer: str) -> str:
            return answer

        flow = Flow("f", tasks, attributes={"on": datetime}, returns=str)
        answered = flow.signal("answer", type=str, within=0.5, otherwise="none")
        flow.stage(note, after=answered, at="on")
        on = datetime.now(UTC) + timedelta(seconds=0.5)
        sent, late = [await flow.start(id=one, on=on) for one in ("sent", "late")]
        assert await sent.signal("answer", "yes")
        await kill(server)
        await start(make_server, tmp_path, server.port)
        async with working(Worker(flow)):
            assert [await run.result(timeout=100) for run in (sent, late)] == ["yes", "none"]
