"""Tasks run as soon as a test adds them, on a real server, with retries and errors visible."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    InvalidArgument,
    JobFailed,
    Provided,
    Reject,
    RetryPolicy,
    Snooze,
    TaskQueue,
    TimeLimitExceeded,
    call_sync,
    current_run,
)
from leasequeue.testing import Inline, assert_added, assert_dead, assert_empty

if TYPE_CHECKING:
    from leasequeue.testing import Clock, InlineTasks, Queues

#: As in a module of a program: a server that no test may use.
tasks = TaskQueue.from_url("redis://localhost:1", "app")
others = TaskQueue.from_url("redis://localhost:1", "others")


@dataclass
class Receipt:
    number: int
    to: str


class Refused(Exception):
    """A mail server refuses."""


class Smtp:
    """A mail server that refuses its first mails."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.sent: list[str] = []

    async def send(self, to: str) -> None:
        if self.refuses:
            self.refuses -= 1
            raise Refused(to)
        self.sent.append(to)


@tasks.task(retry=RetryPolicy(attempts=3, first=3600, jitter=False))
async def send_mail(to: str, *, smtp: Smtp = Provided()) -> Receipt:
    await smtp.send(to)
    return Receipt(len(smtp.sent), to)


@tasks.task(queue="slow", keep_result=None)
def thread() -> int:
    return threading.get_ident()


def process_id() -> int:
    return os.getpid()


@tasks.task(batch=10)
async def double(numbers: list[int]) -> list[int | Exception]:
    return [number * 2 if number else ValueError("zero") for number in numbers]


@tasks.task
async def send_all(to: list[str]) -> list[Receipt]:
    jobs = await tasks.add_many([send_mail.call(one) for one in to])
    return [await job.result(timeout=120) for job in jobs]


@others.task
async def send_from_elsewhere(to: str) -> int:
    return (await (await send_mail.add(to)).result(timeout=120)).number


in_a_process = tasks.task(run_in="process")(process_id)


def attempts(inline: InlineTasks) -> list[tuple[str, int, str | None]]:
    return [(run.task, run.attempt, type(run.error).__name__ if run.error else None) for run in inline.runs]


async def test_adding_a_task_runs_it_and_the_result_is_typed(leasequeue_inline: Inline) -> None:
    smtp = Smtp()
    inline = leasequeue_inline(tasks, provide={"smtp": smtp})
    job = await send_mail.add("ann")
    assert smtp.sent == ["ann"]
    assert await job.result(timeout=120) == Receipt(1, "ann")
    (run,) = inline.runs
    assert (run.task, run.id, run.attempt, run.returned) == ("send_mail", job.id, 1, Receipt(1, "ann"))
    await assert_empty(tasks.queue)


async def test_retries_run_at_once_and_each_attempt_is_seen(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, provide={"smtp": Smtp(refuses=2)})
    job = await send_mail.add("ann")
    assert attempts(inline) == [
        ("send_mail", 1, "Refused"),
        ("send_mail", 2, "Refused"),
        ("send_mail", 3, None),
    ]
    assert (await job.result(timeout=120)).to == "ann"


async def test_the_error_of_the_last_attempt_is_raised_where_the_task_was_added(
    leasequeue_inline: Inline,
) -> None:
    inline = leasequeue_inline(tasks, provide={"smtp": Smtp(refuses=3)})
    with pytest.raises(Refused, match="ann") as caught:
        await send_mail.add("ann")
    assert caught.value is inline.runs[-1].error
    assert len(inline.runs) == 3
    await assert_dead(tasks.queue, error="Refused: ann")
    assert (await (await send_mail.add("bob")).result()).to == "bob"


async def test_errors_can_stay_with_the_job_as_in_production(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, provide={"smtp": Smtp(refuses=3)}, raise_errors=False)
    job = await send_mail.add("ann")
    with pytest.raises(JobFailed, match="Refused: ann"):
        await job.result(timeout=120)
    assert [run.attempt for run in inline.runs] == [1, 2, 3]


async def test_several_errors_are_raised_as_a_group(leasequeue_inline: Inline) -> None:
    leasequeue_inline(tasks, provide={"smtp": Smtp(refuses=6)})
    with pytest.raises(ExceptionGroup) as caught:
        await tasks.add_many([send_mail.call("ann"), send_mail.call("bob")])
    assert sorted(str(error) for error in caught.value.exceptions) == ["ann", "bob"]


async def test_tasks_that_tasks_add_run_as_well(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, others, provide={"smtp": Smtp(refuses=1)})
    receipts = await (await send_all.add(["ann", "bob"])).result(timeout=120)
    assert [receipt.to for receipt in receipts] == ["ann", "bob"]
    assert sorted(run.task for run in inline.runs) == ["send_all"] + ["send_mail"] * 3
    assert await (await send_from_elsewhere.add("eve")).result(timeout=120) == 3


@tasks.task
async def begin_sending(to: str) -> None:
    await send_mail.add(to)


async def test_two_task_queues_may_share_a_queue(leasequeue_inline: Inline) -> None:
    one, two = (TaskQueue.from_url("redis://localhost:1", "shared") for _ in range(2))
    doubled = one.task(name="double")(_double)
    squared = two.task(name="square")(_square)
    inline = leasequeue_inline(one, two)
    await squared.add(3)
    await doubled.add(3)
    assert [(run.task, run.returned) for run in inline.runs] == [("square", 9), ("double", 6)]


async def _double(number: int) -> int:
    return 2 * number


async def _square(number: int) -> int:
    return number * number


async def test_a_task_does_not_fail_by_one_that_it_adds(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, provide={"smtp": Smtp(refuses=3)})
    with pytest.raises(Refused):
        await begin_sending.add("ann")
    assert sorted(attempts(inline)[-4:], key=str) == [
        ("begin_sending", 1, None),
        ("send_mail", 1, "Refused"),
        ("send_mail", 2, "Refused"),
        ("send_mail", 3, "Refused"),
    ]


async def test_batches_threads_and_processes_run_in_the_test(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, raise_errors=False)
    await tasks.add_many(map(double.call, [1, 0, 3]))
    returned = [run.returned for run in inline.runs if run.error is None]
    assert sorted(returned) == [2, 6]
    assert [str(run.error) for run in inline.runs if run.error][-1:] == ["zero"]
    await thread.add()
    assert inline.runs[-1].returned != threading.get_ident()
    assert await (await in_a_process.add()).result(timeout=120) == os.getpid()


async def test_delays_of_the_program_wait_for_the_clock(
    leasequeue_inline: Inline, leasequeue_clock: Clock
) -> None:
    inline = leasequeue_inline(tasks, provide={"smtp": Smtp()})
    job = await send_mail.options(delay=60).add("ann")
    await assert_added(tasks.queue, job.id, state="scheduled")
    assert inline.runs == []
    leasequeue_clock.advance(60)
    await inline.run()
    assert (await job.result(timeout=120)).to == "ann"


async def test_many_callers_at_once(leasequeue_inline: Inline) -> None:
    smtp = Smtp()
    inline = leasequeue_inline(tasks, provide={"smtp": smtp})

    async def add(name: str) -> None:
        await send_mail.add(name)
        assert name in smtp.sent

    await asyncio.gather(*(add(str(number)) for number in range(20)))
    assert len(inline.runs) == 20


def test_plain_tests_use_the_synchronous_door(leasequeue_inline: Inline) -> None:
    leasequeue_inline(tasks, provide={"smtp": Smtp(refuses=2)})
    job = call_sync(send_mail.add, "ann")
    assert call_sync(job.result, timeout=30) == Receipt(1, "ann")


async def test_what_is_missing_is_named(leasequeue_inline: Inline) -> None:
    leasequeue_inline(tasks)
    with pytest.raises(Reject, match=r"send_mail has smtp = Provided\(\): see provide="):
        await send_mail.add("ann")
    wrong: Any
    for wrong in ((), (tasks.queue,)):
        with pytest.raises(InvalidArgument, match="task queues"):
            leasequeue_inline(*wrong)
    wrong_provide: Any = ["smtp"]
    with pytest.raises(InvalidArgument, match="a mapping"):
        leasequeue_inline(tasks, provide=wrong_provide)


async def test_a_time_limit_is_an_error_and_a_snooze_is_seen(leasequeue_inline: Inline) -> None:
    mine = TaskQueue.from_url("redis://localhost:1", "mine")

    @mine.task(timeout=0.05, retry=RetryPolicy(attempts=1))
    async def sleep() -> None:
        await asyncio.Event().wait()

    @mine.task
    async def snooze() -> None:
        raise Snooze(60)

    inline = leasequeue_inline(mine)
    with pytest.raises(TimeLimitExceeded):
        await sleep.add()
    await snooze.add()
    assert attempts(inline) == [("sleep", 1, "TimeLimitExceeded"), ("snooze", 1, "Snooze")]
    await assert_added(mine.queue, state="scheduled")


@tasks.task
async def where() -> str:
    return current_run().handler.queue.name


async def test_the_test_has_queues_of_its_own(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks)
    await where.add()
    assert inline.runs[0].returned == tasks.queue.name
    assert tasks.queue.name.startswith("app-")
    assert thread.queue.name.startswith("slow-")


async def test_the_end_of_a_test_undoes_it(leasequeue_queues: Queues) -> None:
    before = [tasks.queue, *(one.queue for one in tasks.tasks)]
    inline = Inline(leasequeue_queues)
    inline(tasks)
    assert not {*before} & {tasks.queue, *(one.queue for one in tasks.tasks)}
    inline.close()
    assert [tasks.queue, *(one.queue for one in tasks.tasks)] == before
