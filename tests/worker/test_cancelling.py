"""Runs of items that are cancelled: handlers end at once, and their outcomes are discarded."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item
from leasequeue.worker import RetryPolicy, current_run, lease_renewer
from tests.eventually import eventually
from tests.processes import gone
from tests.queue.asking import command, until
from tests.queue.keyspace import audit, left_over
from tests.worker.models import note_pid
from tests.worker.working import Gate, add, finished, new_worker, working

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.embedded import EmbeddedServer
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue


@pytest.fixture
def holds_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers keep what waits for a slot, which they release soon otherwise."""
    monkeypatch.setattr(lease_renewer, "STALE_SECONDS", 3600)


async def subscribed(redis: Redis, queue: AsyncWorkQueue) -> None:
    """Wait until the worker's session receives pushes."""

    async def is_so() -> bool:
        [(_, count)] = await redis.pubsub_numsub(f"{queue.name}:push:{queue.session}")
        return int(count) == 1

    await until("the session receives pushes", is_so)


@pytest.mark.seed("WRQ-E2", "WRQ-B14", "WRQ-T3", "GLD-O14")
async def test_a_running_handler_is_cancelled_and_its_outcome_discarded(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600)
    gate = Gate(worker, queue)
    await add(queue, b"x", b"y")
    with caplog.at_level(logging.INFO, "leasequeue.worker"):
        async with working(worker):
            await gate.reached(2)
            assert await other.cancel("1")
            await eventually("it is cancelled", lambda: gate.cancelled == ["1"])
            assert not await other.cancel("1")
            gate.opened.set()
            await finished(queue)
    assert gate.done == ["2"]
    assert await queue.dead_letters.list() == []
    assert any("item 1" in text and "was cancelled" in text for text in caplog.messages)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await queue.close()
    await other.close()
    assert await left_over(redis, queue.name) == {f"{queue.name}:cancelled".encode()}


async def test_a_thousand_running_handlers_are_cancelled_at_once(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600, concurrency=1000)
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * 1001)
    async with working(worker):
        await gate.reached(1000)
        ids = [*gate.begun]
        assert await other.cancel_many(ids) == [True] * 1000
        await eventually("all are cancelled", lambda: sorted(gate.cancelled) == sorted(ids))
        gate.opened.set()
        await finished(queue)
    assert len(gate.done) == 1
    assert gate.done[0] not in ids


@pytest.mark.usefixtures("holds_on")
async def test_an_item_that_waits_in_the_worker_never_starts(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600, concurrency=1)
    gate = Gate(worker, queue)
    held = worker_waiting(worker)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        runtime = worker._runtime
        assert runtime is not None
        await other.add_item(Item(b"y", id="2"))
        [lease] = await queue.lease_many(1, 600, block=False)
        runtime.fetcher.accept(worker.handlers[0], [lease])
        assert held() == 1
        assert await other.cancel("2")
        await eventually("it is known", lambda: lease.cancelled)
        gate.opened.set()
        await finished(queue)
        await eventually("nothing waits", lambda: held() == 0)
    assert gate.done == ["1"]


def worker_waiting(worker: Any) -> Any:
    """Return a function that returns how many runs wait for a slot."""
    return lambda: len(worker._runtime.renewer.waiting)


async def test_a_message_that_comes_before_its_item_is_remembered(
    make_queue: MakeQueue, redis: Redis
) -> None:
    queue = make_queue()
    worker = new_worker(lease_time=600)
    gate = Gate(worker, queue)
    gate.opened.set()
    async with working(worker):
        await subscribed(redis, queue)
        await queue.add_items([Item(b"x", id="1"), Item(b"y", id="2")], delay=1000)
        await queue.add_item(Item(b"z", id="0"))
        await eventually("a run has ended", lambda: gate.done == ["0"])
        await redis.set(f"{queue.name}:fence", 2)
        await redis.publish(f"{queue.name}:push:{queue.session}", "cancel 2 1")
        await redis.publish(f"{queue.name}:push:{queue.session}", "cancel what")
        cancellations = worker._runtime.cancellations  # type: ignore[union-attr]
        await eventually("it came", lambda: bool(cancellations._early))
        await redis.set(f"{queue.name}:fence", 1)
        await redis.zadd(f"{queue.name}:scheduled", {"1": 1, "2": 2})
        await queue.light_clean()
        await eventually("the other one runs", lambda: "2" in gate.done)
    assert gate.begun == ["0", "2"]


async def test_of_a_batch_the_cancelled_item_alone_is_lost(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600)
    opened, begun = asyncio.Event(), asyncio.Event()
    cancelled: list[list[bool]] = []

    @worker.handler(queue, batch=3, keep_result=60)
    async def handle(payloads: list[str]) -> list[str]:
        begun.set()
        await opened.wait()
        cancelled.append([lease.cancelled for lease in current_run().leases])
        return [text.upper() for text in payloads]

    await add(queue, "a", "b", "c")
    async with working(worker):
        await begun.wait()
        [lease] = [lease for lease in current_leases(worker) if lease.id == "2"]
        assert await other.cancel("2")
        await eventually("it is known", lambda: lease.cancelled)
        opened.set()
        await finished(queue)
    assert cancelled == [[False, True, False]]
    assert [await queue.results.get(one) for one in "123"] == [b'"A"', None, b'"C"']


def current_leases(worker: Any) -> list[Any]:
    """Return the leases that a worker holds."""
    return [lease for run in worker._runtime.renewer.held for lease in run.leases]


@pytest.mark.usefixtures("holds_on")
async def test_a_cancelled_item_of_a_batch_that_has_not_started_is_left_out(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600, concurrency=1)
    begun: list[list[str]] = []
    tokens: list[int] = []
    opened = asyncio.Event()

    @worker.handler(queue, batch=3)
    async def handle(payloads: list[str]) -> None:
        begun.append(payloads)
        tokens.extend(lease.token for lease in current_run().leases)
        await opened.wait()

    await add(queue, "first")
    async with working(worker):
        await eventually("the first has started", lambda: len(begun) == 1)
        await other.add_items([Item(f"{n}", id=f"b{n}") for n in range(3)])
        leases = await queue.lease_many(3, 600, block=False)
        worker._runtime.fetcher.accept(worker.handlers[0], leases)  # type: ignore[union-attr]
        assert await other.cancel("b1")
        await eventually("it is known", lambda: leases[1].cancelled)
        opened.set()
        await finished(queue)
    assert begun == [["first"], ["0", "2"]]
    assert tokens[1:] == [leases[0].token, leases[2].token]


async def test_a_thread_sees_that_it_is_cancelled(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600)
    begun, seen = threading.Event(), threading.Event()

    @worker.handler(queue)
    def handle(_: bytes) -> None:
        assert not current_run().lease.cancelled
        begun.set()
        while not (current_run().cancelled and current_run().lease.cancelled):
            threading.Event().wait(0.005)
        seen.set()

    await add(queue, b"x")
    async with working(worker):
        await eventually("it runs", begun.is_set)
        assert await other.cancel("1")
        await eventually("the thread has seen it", seen.is_set)
        await eventually("its slot is free", lambda: not worker.health().running)
    assert await queue.dead_letters.list() == []


async def test_a_process_is_killed(make_queue: MakeQueue, tmp_path: Path) -> None:
    queue, other = make_queue(), make_queue()
    worker = new_worker(lease_time=600)
    worker.handler(queue, run_in="process")(note_pid)
    file = tmp_path / "pid"
    await queue.add_item(Item(f"600 {file}", id="1"))
    async with working(worker):
        await eventually("it runs", lambda: file.exists() and bool(file.read_text()))
        assert await other.cancel("1")
        pid = int(file.read_text())
        await gone(pid)
        await finished(queue)
    assert await queue.dead_letters.list() == []


async def test_what_a_cancelled_handler_raises_is_no_failure(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    begun = asyncio.Event()
    ends: list[object] = []
    worker = new_worker(lease_time=600, retry=RetryPolicy(attempts=1))

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ends.append(current_run())
            raise ValueError("in the cleanup")

    await add(queue, b"x")
    async with working(worker):
        await begun.wait()
        assert await other.cancel("1")
        await eventually("it has ended", lambda: len(ends) == 1)
        assert await other.add_item(Item(b"again", id="1"))
        begun.clear()
        await begun.wait()
        [held] = current_leases(worker)
        assert (held.attempt, held.data) == (1, b"again"), "it is a new item"
        assert await other.cancel("1")
        await finished(queue)
    assert await queue.dead_letters.list() == []


async def test_after_the_connection_was_lost_a_cancellation_is_seen_at_once(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy
) -> None:
    queue, other = make_queue(url=proxy.url), make_queue()
    worker = new_worker(lease_time=600)
    gate = Gate(worker, queue)
    await add(other, b"x")
    async with working(worker):
        await gate.reached(1)
        await proxy.fail()
        assert await other.cancel("1")
        await proxy.heal()
        await eventually("it is cancelled", lambda: gate.cancelled == ["1"])
    await audit(redis, other.name)


async def test_where_pushes_are_forbidden_the_next_renewal_cancels(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rules = (f"~{name}:*", "+@all", "resetchannels")
    await command(admin, "ACL", "SETUSER", "deaf", "on", ">pw", *rules)
    queue = make_queue(url=own.url.replace("redis://", "redis://deaf:pw@"))
    other = make_queue(url=own.url)
    worker = new_worker(lease_time=0.6)
    gate = Gate(worker, queue)
    await add(other, b"x")
    with caplog.at_level(logging.INFO, "leasequeue.worker"):
        async with working(worker):
            await gate.reached(1)
            assert await other.cancel("1")
            await eventually("it is cancelled", lambda: gate.cancelled == ["1"])
    assert any("was interrupted: its item was cancelled" in text for text in caplog.messages)
