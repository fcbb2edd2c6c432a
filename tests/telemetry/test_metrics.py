"""Metrics by queue and by task: what is counted and measured, and what is not."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics.export import Histogram

from leasequeue import Item, Reject, ServerError, Snooze, TaskQueue, telemetry
from leasequeue.errors import ExtraMissing, WrongKeyType
from leasequeue.telemetry import meters
from tests.eventually import eventually
from tests.queue.asking import registered
from tests.telemetry.recorded import Recorded
from tests.worker.working import Gate, add, finished, new_worker, work, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue


CALLS, RUNS = "messaging.client.operation.duration", "messaging.process.duration"
SENT, LEASED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
PROCESSED, ACTIVE = "leasequeue.processed.items", "leasequeue.runs.active"


async def test_what_is_added_and_leased_is_counted_by_queue(
    queue: AsyncWorkQueue, name: str, recorded: Recorded
) -> None:
    assert await queue.add_item(Item(b"", id="a"))
    assert not await queue.add_item(Item(b"", id="a"))
    await queue.add_unique_item(Item(b"", id="b"))
    await queue.add_items([Item(b"", id=one) for one in "abcd"])
    leases = await queue.lease_many(3, 30)
    await queue.lease(30)
    await queue.complete_many(leases)
    assert recorded.points(SENT) == {(("operation", "add"), ("queue", name), ("type", "send")): 4}
    assert recorded.points(LEASED) == {(("operation", "lease"), ("queue", name), ("type", "receive")): 4}
    assert recorded.count(CALLS, operation="add") == 4
    assert recorded.count(CALLS, operation="complete", type="settle", queue=name) == 1


async def test_items_that_are_delivered_are_counted_as_leased(
    queue: AsyncWorkQueue, name: str, recorded: Recorded
) -> None:
    waiting = asyncio.create_task(queue.lease(30))
    await eventually("the caller waits", lambda: queue._engine().leasing.waits)
    await queue.add_item(Item(b""))
    await queue.complete(await waiting)
    await work(queue, lambda _: None, b"", b"")
    assert recorded.count(LEASED, queue=name) == 3


async def test_waiting_for_items_is_not_recorded(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    assert await queue.lease(30, block=False) is None
    assert recorded.points(CALLS) == {}
    await queue.add_items([Item(b""), Item(b"")])
    await queue.lease(30, block=False)
    assert recorded.count(CALLS, operation="lease") == 1
    await queue.lease(30)
    assert await queue.lease(30, timeout=0.05) is None
    assert recorded.count(CALLS, operation="lease") == 1
    assert recorded.spans == recorded.producers


@pytest.mark.parametrize("delivers", [True, False])
async def test_shards_have_the_name_of_the_whole_queue(
    redis: Redis, name: str, recorded: Recorded, *, delivers: bool
) -> None:
    async with TaskQueue(name, redis, shards=4) as tasks:

        @tasks.task
        async def double(number: int) -> int:
            return 2 * number

        worker = new_worker(tasks)
        jobs = [] if delivers else [await double.add(number) for number in range(8)]
        async with working(worker):
            if delivers:
                await registered(redis, tasks.queue.shards[0])
                jobs = [await double.add(number) for number in range(8)]
            assert [await job.result(timeout=120) for job in jobs] == [2 * number for number in range(8)]
            active = {dict(point)["queue"] for point in recorded.points(ACTIVE)}
            assert {one for one in active if name in one} == {name}
        await tasks.queue.add_items([Item(b"", id=one) for one in "abcdef"])
        await tasks.queue.add_item(Item(b""))
        await tasks.queue.lease_many(2, 30)
    for metric in (SENT, LEASED, CALLS, RUNS, PROCESSED):
        assert {dict(point)["queue"] for point in recorded.points(metric)} == {name}, metric
    assert {span.name for span in recorded.spans} == {f"add {name}", f"process {name}"}


async def test_a_call_that_fails_is_recorded_with_its_error(
    queue: AsyncWorkQueue, redis: Redis, name: str, recorded: Recorded
) -> None:
    await redis.set(f"{name}:queue", "no list")
    with pytest.raises(WrongKeyType):
        await queue.add_item(Item(b""))
    with pytest.raises(ServerError):
        await queue.lease(30)
    assert recorded.count(CALLS, operation="add", error="WrongKeyType") == 1
    assert recorded.count(CALLS, operation="lease", error="WrongKeyType") == 1
    assert recorded.count(SENT, error="WrongKeyType") == 1


async def test_runs_are_measured_by_handler_and_outcome(
    queue: AsyncWorkQueue, name: str, recorded: Recorded
) -> None:
    async def handler(payload: str, snoozed: set[str] | None = None) -> None:  # noqa: ARG001
        if payload == "bad":
            raise ValueError
        if payload == "rejected":
            raise Reject("no")
        if payload == "later" and payload not in seen:
            seen.add(payload)
            raise Snooze(0)

    seen: set[str] = set()
    handled = handler.__qualname__
    worker = new_worker()
    worker.handler(queue)(handler)
    await add(queue, "good", "bad", "rejected", "later")
    async with working(worker):
        await finished(queue)
    for metric in (RUNS, PROCESSED):
        found = {
            (dict(key)["outcome"], dict(key).get("error")): value
            for key, value in recorded.points(metric).items()
        }
        assert found == {
            ("completed", None): 2,
            ("failed", "ValueError"): 3,
            ("failed", "Reject"): 1,
            ("released", None): 1,
        }
    assert recorded.count(RUNS, queue=name, task=handled, operation="process", type="process") == 7


async def test_a_run_over_its_time_limit_names_that_error(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    async def handler(_: str) -> None:
        await asyncio.sleep(60)

    worker = new_worker()
    worker.handler(queue, timeout=0.01)(handler)
    await add(queue, "x")
    async with working(worker):
        await finished(queue)
    assert recorded.count(RUNS, outcome="failed", error="TimeLimitExceeded") == 3


async def test_the_items_of_a_batch_are_counted_by_their_outcomes(
    queue: AsyncWorkQueue, recorded: Recorded
) -> None:
    async def handler(payloads: list[str]) -> list[Exception | None]:
        return [Reject("no") if one == "bad" else None for one in payloads]

    await work(queue, handler, "good", "good", "bad", batch=10)
    assert recorded.count(PROCESSED, outcome="completed") == 2
    assert recorded.count(PROCESSED, outcome="failed") == 1
    assert recorded.count(RUNS, outcome="mixed") == recorded.count(RUNS) == 1


async def test_runs_that_go_on_are_counted(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    worker = new_worker(concurrency=2)
    gate = Gate(worker, queue)
    await add(queue, "x", "x", "x")
    async with working(worker):
        await gate.reached(2)
        assert recorded.count(ACTIVE, queue=queue.name) == 2
        gate.opened.set()
        await finished(queue)
        await eventually("none continues", lambda: recorded.count(ACTIVE, queue=queue.name) == 0)


async def test_tasks_are_told_apart(
    queue: AsyncWorkQueue, redis_url: str, name: str, recorded: Recorded
) -> None:
    tasks = TaskQueue.from_url(redis_url, name)

    @tasks.task
    async def first(number: int) -> None: ...

    @tasks.task
    async def second(number: int) -> None: ...

    await first.add(1)
    await tasks.add_many([first.call(2), first.call(3)])
    await tasks.add_many([first.call(4), second.call(5)])
    async with tasks, working(new_worker(tasks)):
        await finished(queue)
    assert recorded.count(SENT, task="first") == 3
    assert recorded.count(SENT) == 5
    assert recorded.count(RUNS, task="first", outcome="completed") == 4
    assert recorded.count(RUNS, task="second", outcome="completed") == 1


async def test_metrics_alone_make_no_spans_and_traces_alone_no_metrics(queue: AsyncWorkQueue) -> None:
    recorded = Recorded()
    recorded.switch_on(traces=False)
    await queue.add_item(Item(b"", id="1"))
    assert recorded.spans == []
    assert recorded.count(SENT) == 1
    recorded.switch_on(metrics=False)
    await queue.add_item(Item(b"", id="2"))
    assert len(recorded.spans) == 1
    assert recorded.count(SENT) == 1


async def test_without_traces_each_run_is_counted_once(queue: AsyncWorkQueue) -> None:
    """A completed run after the first one of its handler is recorded in a shorter way."""
    recorded = Recorded()
    recorded.switch_on(traces=False)
    worker = new_worker(concurrency=1)

    @worker.handler(queue)
    async def handle(data: str) -> None:
        if data == "bad":
            raise ValueError

    await add(queue, "good", "good", "bad", "good", "good", "good")
    async with working(worker):
        await finished(queue)
    for metric in (RUNS, PROCESSED):
        assert (recorded.count(metric, outcome="completed"), recorded.count(metric, outcome="failed")) == (
            5,
            3,
        )


async def test_metrics_go_on_when_it_is_switched_on_again(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    await queue.add_item(Item(b""))
    recorded.switch_on()
    await queue.add_item(Item(b""))
    assert recorded.count(SENT) == 2
    assert recorded.count(CALLS, operation="add") == 2


def test_of_many_durations_some_are_recorded_and_all_are_counted(recorded: Recorded) -> None:
    known = meters.meters_of(recorded.meter_provider, "leasequeue", "1")
    series = known.run_series("q", "t", "completed")
    began = series._renews
    for number in range(2000):
        series.add(1, 0.001, began + number / 2000)
    assert recorded.count(RUNS) == 10 * meters.MAX_RECORDS
    assert recorded.count(PROCESSED) == 2000


def test_classes_of_errors_are_bounded(recorded: Recorded) -> None:
    known = meters.meters_of(recorded.meter_provider, "leasequeue", "1")
    errors = [type(f"Error{number}", (Exception,), {})() for number in range(500)]
    names = {known.error_type(error) for error in errors}
    assert len(names) == meters.MAX_ERROR_TYPES + 1
    assert "_OTHER" in names


def test_queues_are_bounded(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    known = meters.meters_of(recorded.meter_provider, "leasequeue", "1")
    for number in range(1_000):
        for outcome in ("completed", "failed"):
            known.ran(f"q{number}", "t", (outcome,), None, 0.1, 0.0)
        known.sent[meters.Kind(f"q{number}", "add")].count += 1
        known.leased.of_calls(f"q{number}", "lease").count += 1
    limits = {PROCESSED: meters.MAX_QUEUES, SENT: meters.MAX_QUEUES, RUNS: meters.MAX_QUEUES_TIMED}
    for metric, queues in limits.items():
        assert len({dict(point)["queue"] for point in recorded.points(metric)}) == queues + 1
    assert (recorded.count(PROCESSED), recorded.count(SENT)) == (2_000, 1_000)
    assert recorded.count(PROCESSED, queue="_OTHER") == 2 * (1_000 - meters.MAX_QUEUES)
    assert len(known.leased._of_calls) == meters.MAX_QUEUES + 1
    [warning] = caplog.messages
    assert "the first 500 queues" in warning


# ---------------------------------------------------------------------------------------------- the reference


PAGE = (Path(__file__).parents[2] / "docs/pages/reference/metrics.md").read_text()
#: What is described here; `leasequeue stats` has its own metrics.
OURS = re.compile(
    r"`((?:messaging|leasequeue)\.(?!queue\.|worker\.)[\w.]+)` \| (?:counter|up-down counter|histogram),"
)


async def test_the_metrics_are_those_of_the_reference(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    async def handler(_: bytes) -> None: ...

    await work(queue, handler, b"")
    data = recorded.reader.get_metrics_data()
    assert data is not None
    found = {
        one.name: one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics
    }
    assert set(OURS.findall(PAGE)) == found.keys()
    assert all(f"`{one.unit}`" in PAGE or one.unit == "s" for one in found.values())
    for name, one in found.items():
        if isinstance(one.data, Histogram):
            (bounds,) = {point.explicit_bounds for point in one.data.data_points}
            assert f"| `{name}` | {', '.join(f'{bound:g}' for bound in bounds)} |" in PAGE
        for point in one.data.data_points:
            assert all(f"| `{attribute}` |" in PAGE for attribute in point.attributes or ())


def test_the_operations_are_those_of_the_reference() -> None:
    row = next(line for line in PAGE.splitlines() if "`messaging.operation.name`" in line)
    assert meters.TYPES.keys() <= set(re.findall(r"`(\w+)`", row))


# ------------------------------------------------------------------------------------ switching it on and off


def is_on() -> bool:
    return telemetry.active is not None


def test_it_is_off_until_it_is_switched_on_and_after_it_is_switched_off() -> None:
    assert not is_on()
    telemetry.instrument()
    assert is_on()
    telemetry.uninstrument()
    assert not is_on()


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "leasequeue.telemetry.instruments", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ExtraMissing, match=r'pip install "leasequeue\[telemetry\]"'):
        telemetry.instrument()
    assert not is_on()
