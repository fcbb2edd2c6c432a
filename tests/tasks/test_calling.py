"""A task is added by calling it, a worker calls its function, and the job can be cancelled and followed."""

from __future__ import annotations

import asyncio
import enum
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from leasequeue import (
    InvalidArgument,
    Item,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobUnknown,
    Provided,
    TaskQueue,
    current_run,
)
from leasequeue.errors import InvalidCall, ResultError
from leasequeue.worker import RetryPolicy
from tests.worker.working import new_worker, the_dead, working

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


class Color(enum.Enum):
    RED = "red"


class Mail(pydantic.BaseModel):
    to: str
    at: datetime


class Parcel(msgspec.Struct):
    grams: int


@dataclass
class Order:
    price: Decimal
    parcels: list[Parcel]
    mail: Mail | None = None


NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
ORDER = Order(Decimal("1.10"), [Parcel(3)], Mail(to="ann", at=NOON))


async def done(tasks: TaskQueue, **options: Any) -> None:
    """Run a worker on the tasks until nothing is left that is due."""
    await new_worker(tasks, retry=RetryPolicy(attempts=1), **options).drain()


async def test_a_task_is_run_with_its_arguments_and_its_result_is_returned(tasks: TaskQueue) -> None:
    @tasks.task
    async def greet(name: str, times: int = 1, *, mark: str = "!") -> str:
        return f"hello {name}{mark * times}"

    jobs = [await greet.add("ann"), await greet.add("bob", times=2), await greet.add(name="eve", mark="?")]
    assert [job.created for job in jobs] == [True] * 3
    await done(tasks)
    assert [await job.result(timeout=120) for job in jobs] == ["hello ann!", "hello bob!!", "hello eve?"]
    assert await greet("me") == "hello me!"
    assert not any(await tasks.queue.counts())


async def test_values_of_all_types_arrive_as_they_were(tasks: TaskQueue) -> None:
    seen: list[Any] = []

    @tasks.task
    def take(
        order: Order, color: Color, key: UUID, raw: bytes, wait: timedelta, some: dict[str, list[Mail]]
    ) -> Order:
        seen.append((order, color, key, raw, wait, some))
        return order

    given = (ORDER, Color.RED, UUID(int=7), b"\xff", timedelta(1), {"x": [Mail(to="bob", at=NOON)]})
    job = await take.add(*given)
    await done(tasks)
    assert seen == [given]
    assert await job.result(timeout=120) == ORDER


async def test_a_task_on_the_wire_is_json_that_any_language_can_send(
    tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    seen: list[tuple[str, Any]] = []

    @tasks.task(name="mail.send")
    async def send(to: str, count: int = 1) -> list[Any]:
        seen.append((to, count))
        return [to, count]

    job = await send.add("ann")
    view = await queue.find(job.id)
    assert view is not None
    wire = json.loads(view.data or b"")
    assert {**wire, "meta": None} == {"task": "mail.send", "args": {"to": "ann"}, "meta": None}
    assert isinstance(wire["meta"]["at"], int)
    await queue.add_item(Item('{"task":"mail.send","args":{"count":2,"to":"bob"}}', id="foreign"))
    await done(tasks)
    assert sorted(seen) == [("ann", 1), ("bob", 2)]
    assert json.loads(await queue.results.get("foreign") or b"") == {"result": ["bob", 2]}
    assert await send.job("foreign").result(timeout=120) == ["bob", 2]


async def test_options_give_an_id_a_delay_or_a_time(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str) -> str:
        return to

    first = await send.options(id="m1", delay=60).add("ann")
    again = await send.options(id="m1").add("bob")
    later = await send.options(at=datetime(2100, 1, 1, tzinfo=UTC)).add("eve")
    assert (first.id, first.created, again.created, later.created) == ("m1", True, False, True)
    status = await send.job("m1").status()
    assert (status.state, status.attempt, status.error) == ("scheduled", 0, None)
    assert status.due is not None
    assert (await later.status()).due == datetime(2100, 1, 1, tzinfo=UTC).timestamp()
    mistakes: list[dict[str, Any]] = [
        {"delay": -1},
        {"id": ""},
        {"at": NOON.replace(tzinfo=None)},
        {"id": "x", "content_id": True},
    ]
    for wrong in mistakes:
        with pytest.raises(InvalidArgument):
            send.options(**wrong)


async def test_options_of_the_item_go_with_each_call(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str) -> str:
        return to

    urgent = send.options(priority=5, group="g", expires_in=3600).options(id="m1")
    assert (await urgent.add("ann")).created
    assert (await urgent.options(priority=-5, replace=True).add("bob")).created
    view = await tasks.queue.find("m1")
    assert view is not None
    assert (view.priority, view.group, view.expires is None) == (-5, "g", False)
    assert json.loads(view.data or b"")["args"] == {"to": "bob"}
    await tasks.add_many([send.options(priority=n, tags=["import"]).call(f"{n}") for n in (1, 2)])
    assert await tasks.queue.tags.count("import") == 2
    assert sorted(view.priority for view in await tasks.queue.inspect()) == [-5, 1, 2]
    assert send.options(priority=1).call("ann").options == {"priority": 1}
    mistakes: list[dict[str, Any]] = [{"priority": 10}, {"group": ""}, {"expires_in": 0}, {"dedupe_for": -1}]
    for wrong in mistakes:
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            send.options(**wrong)


async def test_a_job_that_no_worker_began_with_in_time_has_expired(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str) -> str:
        return to

    job = await send.options(expires_in=0.001).add("ann")
    await asyncio.sleep(0.002)
    await done(tasks)
    with pytest.raises(JobExpired, match=job.id):
        await job.result(timeout=120)


async def test_equal_calls_have_equal_content_ids(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str, count: int = 1) -> None: ...

    once = send.options(content_id=True)
    jobs = [await once.add("ann"), await once.add(to="ann"), await once.options(delay=5).add("ann")]
    assert [job.created for job in jobs] == [True, False, False]
    assert len({job.id for job in jobs}) == 1
    assert (await once.add("ann", 2)).created
    assert not (await once.add(count=2, to="ann")).created


ORDER_PROGRAM = """
import sys
from leasequeue import TaskQueue
tasks = TaskQueue.from_url("redis://localhost", "t")
@tasks.task(name="tag")
def tag(labels: set[str], *, of: dict[str, int]) -> None: ...
call = tag.options(content_id=True).call({"a", "b", "c", "d", "e"}, of={"x": 1, "y": 2})
print(call.item().id)
"""


def test_equal_calls_of_other_programs_have_the_same_content_id() -> None:
    tasks = TaskQueue.from_url("redis://localhost", "t")

    @tasks.task
    async def tag(labels: set[str], *, of: dict[str, int]) -> None: ...

    once = tag.options(content_id=True)
    here = once.call(of={"y": 2, "x": 1}, labels={*"edcba"}).item().id
    for seed in "123":  # the order of a set of strings is another one in each process
        made = subprocess.run(
            [sys.executable, "-c", ORDER_PROGRAM],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert made.stdout.decode().strip() == here


async def test_the_name_of_an_argument_may_be_any(tasks: TaskQueue) -> None:
    @tasks.task
    async def odd(run: int, function: int, __id: int, __slots__: int = 4) -> list[int]:
        return [run, function, __id, __slots__]

    job = await odd.add(1, 2, 3)
    await done(tasks)
    assert await job.result(timeout=120) == [1, 2, 3, 4]


async def test_many_calls_of_many_tasks_are_added_together(tasks: TaskQueue) -> None:
    @tasks.task
    async def double(number: int) -> int:
        return 2 * number

    @tasks.task(queue=f"{tasks.name}-slow")
    def shout(text: str) -> str:
        return text.upper()

    later = double.options(delay=3600).call(9)
    jobs = await tasks.add_many([*map(double.call, range(600)), shout.call("hi"), later])
    assert len({job.id for job in jobs}) == 602
    assert all(job.created for job in jobs)
    assert (await tasks.queue.counts())[:3] == (600, 0, 1)
    await done(tasks)
    assert [await job.result(timeout=120) for job in jobs[:3]] == [0, 2, 4]
    assert await jobs[600].result(timeout=120) == "HI"
    with pytest.raises(InvalidArgument, match=r"calls of tasks: task\.call"):
        await tasks.add_many([double])  # type: ignore[arg-type] # a mistake of a user


async def test_a_call_shows_what_it_is(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str, count: int = 1) -> None: ...

    call = send.options(delay=5).call("ann")
    assert (call.task, call.arguments, call.delay, call.at) == ("send", {"to": "ann"}, 5, None)
    assert (call.queue, repr(call), repr(send)) == (
        tasks.queue,
        '<call of send with {"to":"ann"}>',
        "<task send>",
    )
    assert call.item().id != call.item().id
    assert call == send.options(delay=5).call("ann")


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((1,), {}, r"send: Expected `str`, got `int` - at `\$\.to`"),
        (("ann",), {"count": "2"}, r"Expected `int`, got `str` - at `\$\.count`"),
        (("ann",), {"order": {"price": 1}}, "Object missing required field `parcels`"),
        (("ann",), {"smtp": "x"}, "the worker fills in smtp: leave it out of the call"),
        (("ann",), {"cc": "x"}, r"it has no argument 'cc' \(it has to, count, order, ratio\)"),
        (("ann",), {"to": "bob"}, "two values for to"),
        ((), {"count": 1}, "^send: the argument 'to' is missing$"),
        (("ann", 1, None, 0.5, 5), {}, "it takes 4 positional arguments, and not 5"),
        ((object(),), {}, "cannot be written as JSON: a value of type object"),
        (("ann",), {"ratio": float("nan")}, "cannot be written as JSON: nan"),
        (("x" * 2**26,), {}, None),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_where_the_task_is_added(
    tasks: TaskQueue, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str | None
) -> None:
    @tasks.task
    async def send(
        to: str,
        count: int = 1,
        order: Order | None = None,
        ratio: float | None = None,
        *,
        smtp: Any = Provided(),
    ) -> None: ...

    kind = InvalidArgument if problem is None else InvalidCall
    with pytest.raises(kind, match=problem):
        await send.add(*args, **kwargs)
    assert not any(await tasks.queue.counts())
    assert issubclass(InvalidCall, TypeError)


async def test_all_arguments_that_are_missing_are_named(tasks: TaskQueue) -> None:
    @tasks.task
    async def send(to: str, text: str, html: str = "") -> None: ...

    with pytest.raises(InvalidCall, match=r"^send: the arguments 'to', 'text' are missing$"):
        send.call()  # type: ignore[call-arg]  # as the test says


async def test_a_failure_reaches_the_waiter(tasks: TaskQueue) -> None:
    @tasks.task
    async def divide(by: int) -> float:
        return 1 / by

    job = await divide.add(0)
    with pytest.raises(TimeoutError, match=f"{job.id}' is still unfinished after 0.01 s"):
        await job.result(timeout=0.01)
    await done(tasks)
    with pytest.raises(JobFailed) as failed:
        await job.result(timeout=120)
    error = failed.value
    assert (error.item_id, error.type, error.message) == (job.id, "ZeroDivisionError", "division by zero")
    assert "return 1 / by" in error.error
    status = await job.status()
    assert (status.state, status.attempt, "ZeroDivisionError" in (status.error or "")) == ("dead", 1, True)
    await tasks.queue.dead_letters.drop(job.id)
    with pytest.raises(JobUnknown):
        await job.result(timeout=120)
    assert (await job.status()).state == "unknown"


async def test_a_result_that_cannot_be_written_or_read_is_an_error_of_the_waiter(
    tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    @tasks.task
    async def odd(what: str) -> list[int]:
        results: dict[str, Any] = {"object": [object()], "text": "no list", "right": [1]}
        return results[what]  # type: ignore[no-any-return] # a mistake of a user

    jobs = await tasks.add_many(map(odd.call, ["object", "text", "right"]))
    await done(tasks)
    assert not any(await queue.counts())
    assert [(await job.status()).state for job in jobs] == ["completed"] * 3
    with pytest.raises(ResultError, match="completed, but the result cannot be written: TypeError: a value"):
        await jobs[0].result(timeout=120)
    with pytest.raises(ResultError, match="completed, but its result cannot be read: Expected `array`, got"):
        await jobs[1].result(timeout=120)
    assert await jobs[2].result(timeout=120) == [1]


async def test_an_error_that_another_language_stored_is_a_failure(
    tasks: TaskQueue, queue: AsyncWorkQueue
) -> None:
    @tasks.task
    async def send(to: str) -> str:
        return to

    job = await send.add("ann")
    lease = await queue.lease(30)
    await queue.complete(lease, result=b'{"error":{"type":"SmtpError","message":"no such user"}}')
    with pytest.raises(JobFailed, match="has failed: SmtpError: no such user"):
        await job.result(timeout=120)
    for wrong in (b"{}", b"nothing", b'{"result":5}'):
        await queue.add_item(Item(b"x", id="wrong"))
        await queue.complete(await queue.lease(30), result=wrong)
        with pytest.raises(ResultError):
            await send.job("wrong").result(timeout=120)


async def test_no_result_is_kept_with_keep_result_none(tasks: TaskQueue) -> None:
    @tasks.task(keep_result=None)
    async def quiet(_to: str) -> object:
        return object()

    job = await quiet.add("ann")
    with pytest.raises(InvalidArgument, match="quiet has keep_result=None"):
        await job.result()
    await done(tasks)
    assert (await job.status()).state == "unknown"
    assert not any(await tasks.queue.counts())


async def test_a_batch_may_return_a_tuple(tasks: TaskQueue) -> None:
    @tasks.task(batch=3)
    async def halve(numbers: list[int]) -> tuple[int | Exception, ...]:
        return tuple(number // 2 if number else ValueError("none") for number in numbers)

    jobs = await tasks.add_many([halve.call(0), halve.call(4)])
    await done(tasks)
    with pytest.raises(JobFailed, match="ValueError: none"):
        await jobs[0].result(timeout=120)
    assert await jobs[1].result(timeout=120) == 2


async def test_an_item_that_is_no_task_is_a_dead_letter(tasks: TaskQueue, queue: AsyncWorkQueue) -> None:
    @tasks.task
    async def send(to: str) -> None: ...

    for data, problem in {
        "hello": "is not a task: it is not JSON of the form",
        '{"task": 5, "args": {}}': "is not a task",
        '{"task": "send", "args": {"to": 5}}': "is not a call of send: Expected `str`, got `int`",
        '{"task": "send", "args": {}}': "missing required field `to`",
        '{"task": "send"}': "missing required field `args`",
    }.items():
        await queue.add_item(Item(data, id="bad"))
        await done(tasks)
        letter = await the_dead(queue)
        assert problem in letter.error
        await queue.dead_letters.drop("bad")


@pytest.mark.seed("WRQ-E2", "GLD-O14")
async def test_a_job_is_cancelled_whether_it_waits_or_runs(tasks: TaskQueue) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @tasks.task
    async def sleep(seconds: float) -> str:
        begun.set()
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.set()
        return "slept"

    waiting = await sleep.add(600)
    assert await waiting.cancel()
    assert (await waiting.status()).state == "cancelled"
    with pytest.raises(JobCancelled, match=f"'{waiting.id}' was cancelled"):
        await waiting.result()
    async with working(new_worker(tasks)):
        job = await sleep.add(600)
        result = asyncio.create_task(job.result())
        await begun.wait()
        assert await job.cancel(keep=60)
        with pytest.raises(JobCancelled) as caught:
            await result
        assert caught.value.item_id == job.id
        async with asyncio.timeout(120):
            await ended.wait()
        assert not await job.cancel()
        done = await sleep.add(0)
        assert await done.result() == "slept"
        assert not await done.cancel()


async def test_a_job_is_cancelled_by_its_arguments(tasks: TaskQueue) -> None:

    @tasks.task
    async def resize(path: str, width: int = 100) -> None: ...

    once = resize.options(content_id=True)
    job = await once.add("cat.jpg", width=200)
    assert not await once.call("cat.jpg").cancel()
    assert await once.call("cat.jpg", width=200).cancel()
    assert (await job.status()).state == "cancelled"
    named = resize.options(id="a").call("dog.jpg")
    await named.add()
    assert await named.cancel(keep=0)
    with pytest.raises(InvalidArgument, match="a call with an id"):
        await resize.call("cat.jpg").cancel()


async def test_the_progress_of_a_job_is_followed(tasks: TaskQueue) -> None:
    seen = asyncio.Event()

    @tasks.task
    async def count(most: int) -> int:
        current_run().progress({"done": 1})
        await seen.wait()
        await current_run().lease.queue.progress(current_run().lease, {"done": most})
        return most

    job = await count.add(7)
    values: list[object] = []
    async with working(new_worker(tasks)):
        async for value in job.progress():
            values.append(value)
            if not seen.is_set():
                assert (await job.status()).progress == {"done": 1}
            seen.set()
        assert await job.result() == 7
    assert values == [{"done": 1}, {"done": 7}]
    with pytest.raises(JobUnknown):
        async for _ in count.job("none").progress():
            pass
