"""Runs are linked to what led to them, whichever way an item takes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from leasequeue import (
    FanOut,
    Flow,
    Item,
    RetryPolicy,
    TaskQueue,
    call_sync,
    fan_out,
    group,
    lease_from,
    telemetry,
)
from leasequeue.telemetry import instruments
from leasequeue.worker import Reject, Snooze
from tests.eventually import eventually
from tests.queue.asking import registered
from tests.queue.keyspace import audit
from tests.telemetry.recorded import Recorded, links_of, place_of
from tests.worker.working import AT_ONCE, add, finished, new_worker, work, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


async def do_nothing(_: bytes) -> None:
    """Stand for a handler."""


def trace_seen(_: bytes) -> str:
    """Return the trace and the span of the place where this runs."""
    return (instruments.current() or b"").decode()


class Unreadable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_each_stage_is_linked_to_those_that_led_to_it(
    redis_url: str, name: str, recorded: Recorded
) -> None:
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        async def check(number: int) -> int:
            return number

        @tasks.task
        async def rewards(number: int) -> FanOut[int]:
            return fan_out([check.call(one) for one in range(number)])

        @tasks.task(retry=RetryPolicy(attempts=1))
        async def fails(number: int) -> int:
            raise ValueError(number)

        @tasks.task
        async def end(left: int, given: list[int] | None = None) -> int:
            return left if given is None else len(given)

        flow = Flow("access", tasks, attributes={"number": int})
        first = flow.stage(check)
        left = flow.stage(check, name="left", after=first)
        given = flow.stage(rewards, name="given", after=first)
        broken = flow.stage(fails, name="broken", after=first)
        last = flow.stage(end, after=[left, given, broken], join="settled", takes={"left": "number"})
        flow.stage(check, name="after", after=last, takes={"number": last})
        run = await flow.start(id="7", number=20)
        many = await rewards.add(100)
        async with working(new_worker(tasks)):
            assert await run.result(timeout=120) == 20
            await many.result(timeout=120)
    start = recorded.producers[0]
    spans_of = {str((one.attributes or {})["messaging.message.id"]): one for one in recorded.runs}
    places = {path: place_of(one) for path, one in spans_of.items()}

    def led_to(path: str) -> set[object]:
        return {*links_of(spans_of[path])}

    assert led_to("7/check") == {place_of(start)}
    for path in ("7/left", "7/given", "7/broken"):
        assert led_to(path) == {places["7/check"]}
    for number in range(20):
        assert led_to(f"7/given/{number}") == {places["7/given"]}
    children = {places[f"7/given/{number}"] for number in range(20)}
    joined = led_to("7/end")
    assert joined >= {places["7/left"], places["7/broken"]}
    assert len(joined) == 10, "those of the last 8 children are kept"
    assert joined - {places["7/left"], places["7/broken"]} < children
    assert led_to("7/after") == {places["7/end"]}
    # Most are added by later steps than the one that has fanned out.
    for number in range(100):
        assert led_to(f"{many.id}/rewards/{number}") == {places[f"{many.id}/rewards"]}


async def test_the_span_of_a_job_has_its_correlation_id(
    redis_url: str, name: str, recorded: Recorded
) -> None:
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        async def note() -> None: ...

        await note.options(correlation="request 9").add()
        await new_worker(tasks).drain()
    (run,) = recorded.runs
    assert (run.attributes or {})["messaging.message.conversation_id"] == "request 9"
    assert "leasequeue.flow" not in (run.attributes or {})


async def test_the_first_stages_are_linked_to_the_call_that_started_the_run(
    queue: AsyncWorkQueue, redis_url: str, name: str, recorded: Recorded
) -> None:
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        async def same(number: int) -> int:
            return number

        run = await group([same.call(1).then(same), same.call(2)]).add(id="7", correlation="c")
        async with working(new_worker(tasks)):
            assert await run.result(timeout=120) == [1, 2]
    (producer,) = recorded.producers
    assert producer.name == f"add {queue.name}"
    second = next(one for one in recorded.runs if (one.attributes or {})["leasequeue.stage"] == "same-2")
    for one in recorded.runs:
        assert (links_of(one) == [place_of(producer)]) is (one is not second)
    for one in recorded.runs:
        attributes = one.attributes or {}
        assert (attributes["leasequeue.flow"], attributes["leasequeue.flow_run"]) == ("", "7")
        assert attributes["messaging.message.conversation_id"] == "c"
        assert attributes["messaging.message.id"] == "7/" + str(attributes["leasequeue.stage"])


async def test_a_run_is_linked_to_the_call_that_added_its_item(
    queue: AsyncWorkQueue, name: str, recorded: Recorded
) -> None:
    await work(queue, do_nothing, b"1", b"2")
    (producer,), runs = recorded.producers, recorded.runs
    assert [links_of(run) for run in runs] == [[place_of(producer)]] * 2
    assert producer.name == f"add {name}"
    assert dict(producer.attributes or {}) == {
        "messaging.system": "leasequeue",
        "messaging.destination.name": name,
        "messaging.operation.name": "add",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 2,
    }
    assert runs[0].name == f"process {name}"
    assert dict(runs[0].attributes or {}) == {
        "messaging.system": "leasequeue",
        "messaging.destination.name": name,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "1",
        "leasequeue.task": "do_nothing",
        "leasequeue.attempt": 1,
        "leasequeue.outcome": "completed",
    }
    assert len({place_of(span)[0] for span in recorded.spans}) == 3, "each run has its own trace"


async def test_the_trace_is_an_option_and_the_data_stays_as_it_is(
    queue: AsyncWorkQueue, redis: Redis, name: str, recorded: Recorded
) -> None:
    await queue.add_item(Item(b"data", id="a"))
    await queue.add_item(Item(b"data", id="b"), priority=3, group="g", delay=60, expires_in=60)
    first, second = (
        instruments.written(span.context).decode() for span in recorded.producers if span.context
    )
    stored = {key: json.loads(text) for key, text in (await redis.hgetall(f"{name}:options")).items()}
    assert stored[b"a"] == {"trace": first}
    assert stored[b"b"].pop("expires") > 0
    assert stored[b"b"] == {"trace": second, "level": 3, "group": "g"}
    assert await redis.get(f"{name}:item:a") == b"data"
    view = await queue.find("b")
    assert view is not None
    assert (view.priority, view.group) == (3, "g")


async def test_nothing_is_kept_while_it_is_off_or_not_sampled(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"", id="off"))
    recorded = Recorded(sampler=ALWAYS_OFF)
    recorded.switch_on()
    await queue.add_item(Item(b"", id="not sampled"))
    telemetry.instrument(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    await queue.add_item(Item(b"", id="no SDK"))
    assert not await redis.exists(f"{name}:options")
    assert [one.trace for one in await queue.lease_many(3, 30)] == [None] * 3


async def test_a_lease_has_its_trace_whichever_way_it_was_leased(
    queue: AsyncWorkQueue, make_queue: MakeQueue, name: str, recorded: Recorded
) -> None:
    async def leased() -> AsyncIterator[str | None]:
        await queue.add_items([Item(b"", id=str(number)) for number in range(3)])
        yield (await queue.lease(30)).trace
        (one,) = await queue.lease_many(1, 30)
        yield one.trace
        (one,) = await lease_from([make_queue(name=f"{name}-other"), queue], 1, 30)
        yield one.trace
        (one,) = await queue.admin.recover(1, 0, 30)
        yield one.trace
        delivered = asyncio.create_task(lease_from([make_queue(name=f"{name}-other"), queue], 1, 30))
        await eventually("the caller waits", lambda: queue._engine().leasing.waits)
        await queue.add_item(Item(b"delivered"))
        (one,) = await delivered
        yield one.trace

    found = [one async for one in leased()]
    many, single = (instruments.written(span.context).decode() for span in recorded.producers if span.context)
    assert found == [*[many] * 4, single]


async def test_only_traced_items_among_others_have_one(queue: AsyncWorkQueue) -> None:
    recorded = Recorded()
    await queue.add_item(Item(b"", id="a"), priority=-1)
    recorded.switch_on()
    await queue.add_item(Item(b"", id="b"), group="g")
    telemetry.uninstrument()
    await queue.add_item(Item(b"", id="c"))
    traced = {one.id: one.trace is not None for one in await queue.lease_many(10, 30)}
    assert traced == {"a": False, "b": True, "c": False}


async def test_an_item_that_a_worker_waits_for_is_delivered_with_its_trace(
    queue: AsyncWorkQueue, redis: Redis, name: str, recorded: Recorded
) -> None:
    worker = new_worker()
    worker.handler(queue)(do_nothing)
    pushed = redis.pubsub()
    async with pushed, working(worker):
        await registered(redis, queue)
        await pushed.psubscribe(f"{name}:push:*")
        await queue.add_item(Item(b"data" * 10, id="a;b c"))
        await finished(queue)
        messages = [await pushed.get_message(timeout=120) for _ in range(2)]
    delivered = [one for one in messages if one and one["type"] == "pmessage"]
    (producer,), (run,) = recorded.producers, recorded.runs
    assert links_of(run) == [place_of(producer)]
    assert producer.context is not None
    assert [instruments.written(producer.context) in one["data"] for one in delivered] == [True]
    assert recorded.count("messaging.client.consumed.messages") == 1
    assert not (await audit(redis, name)).leased


async def test_retries_dead_letters_and_requeued_items_keep_the_trace(
    queue: AsyncWorkQueue, recorded: Recorded
) -> None:
    async def fail(_: str) -> None:
        if len(recorded.runs) < 3:
            raise ValueError

    worker = new_worker()
    worker.handler(queue, retry=AT_ONCE)(fail)
    await add(queue, "x")
    async with working(worker):
        await finished(queue)
        (letter,) = await queue.dead_letters.list()
        await queue.dead_letters.requeue(letter.id)
        await finished(queue)
    (producer,) = recorded.producers
    assert [links_of(run) for run in recorded.runs] == [[place_of(producer)]] * 4
    assert [(run.attributes or {})["leasequeue.outcome"] for run in recorded.runs] == [
        *["failed"] * 3,
        "completed",
    ]


async def test_moved_and_expired_leases_keep_the_trace_and_cancelled_items_leave_none(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str, recorded: Recorded
) -> None:
    other = make_queue(name=f"{name}-other")
    await queue.add_items([Item(b"", id="a"), Item(b"", id="b")])
    (producer,) = recorded.producers
    await queue.lease(30)
    await queue.admin.clear_leases()
    assert len(await queue.admin.move(other)) == 2
    assert not await redis.exists(f"{name}:options")
    leases = await other.lease_many(2, 30)
    assert producer.context is not None
    assert {one.trace for one in leases} == {instruments.written(producer.context).decode()}
    await other.cancel_many(["a", "b"])
    assert not await redis.exists(f"{name}-other:options")


async def test_a_batch_has_a_link_for_each_of_its_items(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    async def handler(_: list[bytes]) -> None: ...

    for number in range(3):
        await queue.add_item(Item(b"", id=str(number)))
    worker = new_worker()
    worker.handler(queue, batch=10)(handler)
    async with working(worker):
        await finished(queue)
    (run,) = recorded.runs
    assert links_of(run) == [place_of(one) for one in recorded.producers]
    assert (run.attributes or {})["messaging.batch.message_count"] == 3


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_spans_in_threads_and_processes_are_children_of_the_run(
    queue: AsyncWorkQueue, recorded: Recorded, run_in: str
) -> None:
    await work(queue, trace_seen, b"", run_in=run_in, keep_result=60)
    (run,) = recorded.runs
    assert run.context is not None
    seen = json.loads((await queue.results.get("1")) or b"")
    assert seen == instruments.written(run.context).decode()


async def test_the_spans_of_a_handler_are_children_and_do_not_reach_the_next_run(
    queue: AsyncWorkQueue, recorded: Recorded
) -> None:
    tracer = recorded.tracer_provider.get_tracer("app")

    async def handler(payload: str) -> None:
        with tracer.start_as_current_span(payload):
            await asyncio.sleep(0)
        if payload == "first":
            await queue.add_item(Item("second"))

    await work(queue, handler, "first")
    named = {span.name: span for span in recorded.spans}
    first, second = sorted(recorded.runs, key=lambda span: span.start_time or 0)
    inner = recorded.producers[1]
    assert named["first"].parent == first.context
    assert inner.parent == first.context
    assert named["second"].parent == second.context
    assert second.parent is None
    assert links_of(second) == [place_of(inner)]


async def test_a_producer_in_a_span_is_its_child_also_from_plain_code(
    redis_url: str, name: str, recorded: Recorded
) -> None:
    tasks = TaskQueue.from_url(redis_url, name)

    @tasks.task
    async def job() -> None: ...

    def add_one() -> None:
        with recorded.tracer_provider.get_tracer("app").start_as_current_span("request"):
            call_sync(job.add)
        call_sync(tasks.close)

    await asyncio.to_thread(add_one)
    (producer,) = recorded.producers
    (request,) = (span for span in recorded.spans if span.name == "request")
    assert producer.parent == request.context
    assert (producer.attributes or {})["leasequeue.task"] == "job"


async def test_an_item_in_a_pipeline_of_the_user_is_linked_too(
    queue: AsyncWorkQueue, redis: Redis, recorded: Recorded
) -> None:
    async with redis.pipeline(transaction=True) as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(b""))
        assert await pipeline.execute() == [[1]]
    (producer,) = recorded.producers
    assert producer.context is not None
    assert (await queue.lease(30)).trace == instruments.written(producer.context).decode()


@pytest.mark.parametrize("kind", [ValueError, Unreadable])
async def test_the_error_of_a_run_is_on_its_span(
    queue: AsyncWorkQueue, recorded: Recorded, kind: type[Exception]
) -> None:
    async def handler(_: bytes) -> None:
        raise kind

    await work(queue, handler, b"", retry=RetryPolicy(attempts=1))
    (run,) = recorded.runs
    assert run.status.status_code is StatusCode.ERROR
    assert (run.status.description or "").startswith(kind.__name__)
    assert (run.attributes or {})["error.type"] == kind.__name__
    (event,) = run.events
    assert (event.attributes or {})["exception.type"] == kind.__name__
    assert "in handler" in str((event.attributes or {})["exception.stacktrace"])


async def test_a_signal_is_an_error_only_if_the_item_fails(queue: AsyncWorkQueue, recorded: Recorded) -> None:
    async def handler(_: bytes) -> None:
        raise Reject("no") if recorded.runs else Snooze(0)

    await work(queue, handler, b"")
    snoozed, rejected = recorded.runs
    assert snoozed.status.status_code is StatusCode.UNSET
    assert rejected.status.status_code is StatusCode.ERROR


async def test_what_the_sdk_raises_fails_neither_calls_nor_runs(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded()
    recorded.switch_on()
    monkeypatch.setattr("opentelemetry.sdk.trace.Tracer.start_span", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("opentelemetry.sdk.metrics._internal.instrument.Histogram.record", lambda *_: 1 / 0)
    monkeypatch.setattr("leasequeue.telemetry.meters._logged", {})
    done: list[bytes] = []

    async def handler(payload: bytes) -> None:
        done.append(payload)

    await work(queue, handler, b"1", b"2")
    assert done == [b"1", b"2"]
    said = [record.message for record in caplog.records if record.name == "leasequeue.telemetry"]
    assert said == ["OpenTelemetry raised an error; something was not recorded"] * 3


ONES = "1" * 32 + "-" + "1" * 16


@pytest.mark.parametrize("text", ["", "x", f"00-{'0' * 32}-{'1' * 16}-01", f"01-{ONES}-01", f"00-{ONES}-01 "])
async def test_a_trace_that_cannot_be_read_is_ignored(text: str) -> None:
    assert instruments.links_to([text.encode(), None]) == []
    with telemetry.continued(text.encode()):
        assert trace.get_current_span() is trace.INVALID_SPAN
