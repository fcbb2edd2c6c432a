"""A part of a worker that fails: the worker heals or stops, and says so."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from leasequeue import Item
from leasequeue.alive.membership import Membership
from leasequeue.errors import WorkerNotRunning
from leasequeue.queue.engines import Engines
from leasequeue.queue.pushes.listener import Listener
from leasequeue.queue.queue import engine_of
from leasequeue.worker import background, fetcher
from leasequeue.worker.acknowledger import Acknowledger
from leasequeue.worker.background import BackgroundThread
from leasequeue.worker.health import Monitor
from leasequeue.worker.lease_renewer import LeaseRenewer
from tests.alive.members import the_worker
from tests.eventually import eventually
from tests.worker.working import Gate, add, counted, finished, new_worker, working

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.worker import Worker
    from tests.queue.fixtures import MakeQueue


#: What the tasks call that lease, run and complete an item: an object, and its function.
FAULTS: dict[str, tuple[Any, str]] = {
    "fetching": (fetcher, "_runs"),
    "a slot": (Acknowledger, "add"),
    "acknowledging": (Acknowledger, "_until_answered"),
}


class Bug(Exception):
    """What the parts fail with."""


def fail(*_: object, **__: object) -> NoReturn:
    """Fail, in place of a function."""
    raise Bug("a part has a bug")


async def fail_when_called(*_: object, **__: object) -> NoReturn:
    """Fail, in place of an async function."""
    fail()


async def unhealthy(worker: Worker, reason: str) -> None:
    """Wait until the health of a worker names this reason."""
    await eventually(reason, lambda: any(reason in one for one in worker.health().reasons))
    health = worker.health()
    assert not health.ok
    assert not health.works
    assert any("Bug" in one for one in health.public_reasons) or "Bug" not in reason


async def begun(worker: Worker, gate: Gate, queue: AsyncWorkQueue) -> asyncio.Task[None]:
    """Start a worker, and wait until it runs an item."""
    await add(queue, b"long")
    running = asyncio.create_task(worker.run())
    await eventually("the run has begun", lambda: gate.begun == ["1"])
    return running


async def raised(running: asyncio.Task[None], error: type[BaseException] = Bug) -> None:
    """Wait until the worker has ended with this error."""
    with pytest.raises(error):
        async with asyncio.timeout(120):
            await running


@pytest.mark.parametrize("part", FAULTS)
async def test_a_failed_task_of_the_event_loop_stops_the_worker_when_its_runs_have_finished(
    make_queue: MakeQueue, name: str, part: str
) -> None:
    queue, other = make_queue(), make_queue(name=f"{name}-other")
    worker = new_worker(concurrency=3)
    gate = Gate(worker, queue)

    @worker.handler(other)
    async def handle(_: bytes) -> None:
        """Do nothing."""

    running = await begun(worker, gate, queue)
    with pytest.MonkeyPatch.context() as patch:
        owner, function = FAULTS[part]
        patch.setattr(owner, function, fail_when_called if part == "acknowledging" else fail)
        await other.add_item(Item(b"quick"))
        await unhealthy(worker, "the worker stops, as a part of it has failed: Bug: a part has a bug")
    assert not running.done()
    gate.opened.set()
    await raised(running)
    assert gate.done == ["1"]
    assert (await queue.counts()).total == 0, "what has run is completed"
    left = 1 if part == "fetching" else 0  # what has run is completed by the background thread
    assert (await other.counts()).total == left, "and nothing is lost"


@pytest.mark.parametrize(("part", "call"), [(Monitor, "beat"), (Membership, "register")])
async def test_a_heartbeat_or_a_registration_that_fails_stops_the_worker(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, part: type, call: str
) -> None:
    monkeypatch.setattr(part, call, fail_when_called)
    worker = new_worker()
    Gate(worker, queue)
    await raised(asyncio.create_task(worker.run()))


async def test_a_queue_that_cannot_be_begun_anew_stops_the_worker(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(dead_after=0.5)
    gate = Gate(worker, queue)
    running = await begun(worker, gate, queue)
    monkeypatch.setattr(Engines, "replace_session", fail_when_called)
    await engine_of(queue).registry.fail(queue.session)
    await raised(running)
    assert {*gate.cancelled} == {"1"}, "and perhaps once more, before it was noticed"


async def test_a_background_thread_that_ends_stops_the_worker_and_its_runs(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    gate = Gate(worker, queue)
    running = await begun(worker, gate, queue)

    def end() -> None:
        raise SystemExit

    assert worker._runtime is not None
    worker._runtime.background.call_soon(end)
    await raised(running, RuntimeError)
    assert gate.cancelled == ["1"], "its lease is no longer renewed"
    assert (await queue.counts()).waiting == 1


async def test_a_background_task_that_fails_begins_again_and_the_worker_is_unhealthy_meanwhile(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.05)
    monkeypatch.setattr(background, "HEALED_SECONDS", 0.2)
    worker = new_worker()
    gate = Gate(worker, queue)
    running = await begun(worker, gate, queue)
    await eventually("it is healthy", lambda: worker.health().ok)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaseRenewer, "_release_stale", fail_when_called)
        await unhealthy(worker, "a background task has failed")
    await eventually("it is healthy again", lambda: worker.health().ok)
    gate.opened.set()
    await finished(queue)
    worker.stop()
    await running


async def test_leases_of_a_queue_that_was_started_later_are_renewed_after_the_renewals_have_failed(
    make_queue: MakeQueue, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.05)
    monkeypatch.setattr(background, "HEALED_SECONDS", 0.2)
    worker = new_worker()
    Gate(worker, queue)
    new = make_queue(name=f"{queue.name}-new")
    await add(new, b"x")
    async with working(worker):
        await the_worker(queue)
        gate = Gate(worker, new, lease_time=6)
        await worker.start_queue(new.name)
        await gate.reached(1)
        runtime = worker._runtime
        assert runtime is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LeaseRenewer, "_release_stale", fail_when_called)
            await unhealthy(worker, "a background task has failed")
        await eventually("it is healthy again", lambda: worker.health().ok)
        [run] = [*runtime.renewer.held]
        before = run.lease.deadline
        await eventually("its lease is renewed", lambda: run.lease.deadline > before)
        gate.opened.set()
        await finished(new)


async def test_a_background_task_that_fails_again_and_again_begins_ever_later(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.001)
    monkeypatch.setattr(background, "LONGEST_RESTART", 0.004)
    monkeypatch.setattr(LeaseRenewer, "_release_stale", fail_when_called)
    worker = new_worker()
    gate = Gate(worker, queue)
    running = await begun(worker, gate, queue)

    def pauses() -> list[object]:
        found = [one.args for one in caplog.records if "restarting it" in one.msg]
        return [args[0] for args in found if isinstance(args, tuple)]

    await eventually("it has failed four times", lambda: len(pauses()) >= 4)
    assert pauses()[:4] == [0.001, 0.002, 0.004, 0.004]
    assert "a background task has failed" in worker.health().reasons[0]
    gate.opened.set()
    await finished(queue)
    worker.stop()
    await running


async def test_a_worker_whose_listener_fails_is_unhealthy_and_tries_again(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    gate = Gate(worker, queue)
    gate.opened.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Listener, "_connect", fail_when_called)
        running = asyncio.create_task(worker.run())
        await unhealthy(worker, "no items can be leased")
    await add(queue, b"an item")
    await counted(queue, "the item is done", lambda counts: not counts.total)
    await eventually("it is healthy again", lambda: worker.health().ok)
    worker.stop()
    await running


# -------------------------------------------------------------------------------------- the background thread


class Calls:
    """A coroutine to call, and whether it was made."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> None:
        self.made += 1
        await asyncio.sleep(3600)


def unexpected(error: BaseException) -> None:
    """Fail the test: the thread has ended with an error."""
    raise AssertionError from error


async def test_a_thread_that_has_ended_takes_no_calls() -> None:
    call, called = Calls(), list[str]()
    thread = BackgroundThread([], [call], failing={}, on_failure=unexpected)
    await thread.start()
    await thread.stop()
    with pytest.raises(WorkerNotRunning):
        thread.call(call)
    thread.call_soon(lambda: called.append("never"))
    assert call.made == 1
    assert called == []


async def test_a_thread_that_ends_takes_no_calls_and_cancels_those_that_it_took() -> None:
    call = Calls()
    refused: list[Exception] = []
    accepted: list[Future[Any]] = []

    async def calls_at_the_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            try:
                thread.call(call)
            except WorkerNotRunning as error:
                refused.append(error)

    thread = BackgroundThread([], [calls_at_the_end], failing={}, on_failure=unexpected)
    await thread.start()
    accepted.append(thread.call(call))
    await thread.stop()
    assert len(refused) == 1
    with pytest.raises(CancelledError):
        accepted[0].result(timeout=120)
