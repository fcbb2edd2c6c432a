"""The correlation id of a job: it follows the job into its function, its log records, and what that adds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from leasequeue import FanOut, InvalidArgument, Item, TaskQueue, correlation_id, fan_out
from leasequeue.errors import InvalidCall
from leasequeue.flow import Flow
from leasequeue.tasks.serving import UnknownTasks, handler_of
from leasequeue.tasks.wire import correlation_of
from leasequeue.worker import RetryPolicy
from leasequeue.worker.run import ActiveRun
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


async def done(tasks: TaskQueue) -> None:
    """Run a worker on the tasks until nothing is left that is due, one after the other."""
    await new_worker(tasks, retry=RetryPolicy(attempts=1), concurrency=1).drain()


async def test_the_function_and_its_log_records_have_the_id_and_the_next_run_has_not(
    tasks: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[tuple[str, str | None]] = []

    @tasks.task
    async def fail(name: str) -> None:
        found.append((name, correlation_id.get()))
        raise LookupError(name)

    await fail.options(correlation="request 7", id="a").add("with")
    await fail.options(id="b").add("without")
    with caplog.at_level(logging.INFO):
        await done(tasks)
    assert found == [("with", "request 7"), ("without", None)]
    records = [one for one in caplog.records if hasattr(one, "token")]
    assert {(vars(one)["id"], vars(one).get("correlation")) for one in records} == {
        ("a", "request 7"),
        ("b", None),
    }


async def test_a_thread_sees_it(tasks: TaskQueue) -> None:
    found: list[str | None] = []

    @tasks.task
    def in_thread() -> None:
        found.append(correlation_id.get())

    await in_thread.options(correlation="t").add()
    await done(tasks)
    assert found == ["t"]


async def test_a_batch_has_it_if_all_of_its_items_have_the_same(tasks: TaskQueue) -> None:
    @tasks.task(batch=10)
    async def together(numbers: list[int]) -> None: ...

    same = together.options(correlation="b")
    await tasks.add_many([same.call(1), same.call(2), together.call(3)])
    leases = await tasks.queue.lease_many(3, 30)
    handler = handler_of(together, UnknownTasks(1), retry=RetryPolicy(), lease_time=30)
    assert ActiveRun(handler, leases[:2]).correlation == "b"
    assert ActiveRun(handler, leases).correlation is None


async def test_what_a_job_adds_has_its_id_if_it_is_given_no_other_one(tasks: TaskQueue) -> None:
    found: dict[str, str | None] = {}

    @tasks.task
    async def note(name: str) -> str:
        found[name] = correlation_id.get()
        return name

    flow = Flow("noting", tasks, attributes={"name": str})
    flow.stage(note)

    @tasks.task
    async def first() -> None:
        await note.add("job")
        await tasks.add_many([note.call("one of many")])
        await note.options(correlation="other").add("other job")
        await note.call("chain").chain().add()
        await note.call("other chain").chain().add(correlation="other")
        await flow.start(name="flow")

    @tasks.task
    async def stage() -> None:
        await note.add("job of a stage")

    await first.options(correlation="root").add()
    await stage.call().chain().add(correlation="run")
    await done(tasks)
    assert found == {
        "job": "root",
        "one of many": "root",
        "other job": "other",
        "chain": "root",
        "other chain": "other",
        "flow": "root",
        "job of a stage": "run",
    }


async def test_a_caller_sets_it_for_all_that_it_adds(tasks: TaskQueue) -> None:
    found: list[str | None] = []

    @tasks.task
    async def note() -> None:
        found.append(correlation_id.get())

    token = correlation_id.set("request 8")
    await note.add()
    correlation_id.reset(token)
    await done(tasks)
    assert found == ["request 8"]


async def test_calls_with_other_ids_are_equal_and_stages_have_that_of_their_run(tasks: TaskQueue) -> None:
    found: list[str | None] = []

    @tasks.task
    async def note() -> None: ...

    @tasks.task
    async def fan() -> FanOut[str]:
        return fan_out([child.call()])

    @tasks.task
    async def child() -> str:
        found.append(correlation_id.get())
        return ""

    same = note.options(content_id=True)
    assert same.options(correlation="a").call().item().id == same.options(correlation="b").call().item().id
    with pytest.raises(InvalidCall, match="a stage has the correlation id of its run"):
        note.options(correlation="a").call().chain()
    await fan.options(correlation="fanned").add()
    await done(tasks)
    assert found == ["fanned"]


@pytest.mark.parametrize("wrong", ["", "x" * 513, 7, "\udc80"])
async def test_an_id_that_cannot_be_sent_is_refused(tasks: TaskQueue, wrong: str) -> None:
    @tasks.task
    async def note() -> None: ...

    with pytest.raises(InvalidArgument, match=r"^correlation: got"):
        note.options(correlation=wrong)


@pytest.mark.parametrize(
    "data",
    [
        b'{"task":"note","args":{},"meta":{"correlation":7}}',
        b'{"task":"note","args":{"correlation":"x"},"meta":{}}',
        b'{"task":"note","args":{"correlation":"x"}}',
        b'{"correlation"',
    ],
)
async def test_what_another_client_has_written_is_no_id(queue: AsyncWorkQueue, data: bytes) -> None:
    assert correlation_of(data) is None
    assert await queue.add_item(Item(data))
