"""Chains, groups and fan-outs of which a part fails, is cancelled or does not fit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from leasequeue import AtLeast, FanOut, Reject, TaskQueue, fan_out, group
from leasequeue.errors import JobCancelled, JobFailed, JobUnknown
from leasequeue.flow import Flow
from leasequeue.queue.queue import engine_of
from tests.eventually import eventually
from tests.queue.asking import until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue import Call, Task
    from leasequeue.queue.plans.plan import Join


class Part:
    """A task that succeeds, fails, or runs until the test ends it."""

    def __init__(self, tasks: TaskQueue) -> None:
        self.ran: list[int] = []
        self.ended: list[int] = []
        self.may_end = asyncio.Event()

        @tasks.task
        async def part(number: int) -> int:
            self.ran.append(number)
            if number < 0:
                raise Reject(f"{number} is negative")
            if number >= 100:
                await self.may_end.wait()
            self.ended.append(number)
            return number

        self.task: Task[[int], int] = part

    def calls(self, *numbers: int) -> list[Call[int]]:
        return [self.task.call(number) for number in numbers]


@pytest.fixture
def part(tasks: TaskQueue) -> Part:
    return Part(tasks)


@pytest.fixture
def note(tasks: TaskQueue) -> Task[[list[int]], str]:
    @tasks.task
    async def note(numbers: list[int]) -> str:
        return str(numbers)

    return note


#: How a group is started, of which the chain continues with `note`.
FORMS = ("children", "stages", "fan out")


@pytest.fixture(params=FORMS)
def start(
    request: pytest.FixtureRequest, tasks: TaskQueue, part: Part, note: Task[[list[int]], str]
) -> Callable[..., Any]:
    """Start a group of parts in one of its forms."""

    @tasks.task
    async def split(numbers: list[int], join: str) -> FanOut[int]:
        # The names of policies are those of `Join`.
        policy: Any = AtLeast(int(join[2:])) if join[1] == ":" else join
        return fan_out(part.calls(*numbers), join=policy)

    @tasks.task
    async def same(number: int) -> int:
        return number

    def start(*numbers: int, join: Join) -> Any:
        if request.param == "children":
            return group(part.calls(*numbers), join=join).then(note).add()
        if request.param == "stages":
            return group([same.call(one).then(part.task) for one in numbers], join=join).then(note).add()
        text = f"n:{join.count}" if isinstance(join, AtLeast) else join
        return split.call([*numbers], text).then(note).add()

    return start


async def test_all_must_succeed(tasks: TaskQueue, part: Part, start: Callable[..., Any]) -> None:
    good, bad = await start(1, 2, join="all"), await start(3, -4, 5, join="all")
    async with working(new_worker(tasks)):
        assert await good.result(timeout=120) == "[1, 2]"
        with pytest.raises(JobFailed, match="-4 is negative") as failed:
            await bad.result(timeout=120)
    assert (failed.value.stage or "").startswith(("group/1", "part-2", "split/1"))
    assert sorted(part.ran) == [-4, 1, 2, 3, 5]


async def test_going_on_with_those_that_succeeded(tasks: TaskQueue, start: Callable[..., Any]) -> None:
    runs = [await start(3, -4, 5, join="settled"), await start(-1, join="settled")]
    async with working(new_worker(tasks)):
        assert await runs[0].result(timeout=120) == "[3, 5]"
        assert await runs[1].result(timeout=120) == "[]"


async def test_failing_at_once(tasks: TaskQueue, part: Part, start: Callable[..., Any]) -> None:
    run = await start(100, -4, 101, join="fail")
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match="-4 is negative"):
            await run.result(timeout=120)
        assert part.ended == []
        part.may_end.set()
        await eventually("the others have run on", lambda: sorted(part.ended) == [100, 101])
    assert await run.status() == "failed"


async def test_failing_fast_cancels_the_rest(tasks: TaskQueue, part: Part, start: Callable[..., Any]) -> None:
    run = await start(100, 101, -4, join="fail_fast")
    worker = new_worker(tasks)
    async with working(worker):
        with pytest.raises(JobFailed, match="-4 is negative"):
            await run.result(timeout=120)
        await eventually("nothing runs", lambda: not worker.health().running)
    assert part.ended == []
    assert (await tasks.queue.counts()).total == 0


async def test_as_soon_as_some_have_succeeded(
    tasks: TaskQueue, part: Part, start: Callable[..., Any]
) -> None:
    runs = [await start(1, 100, -4, 2, join=AtLeast(2)), await start(7, -8, -9, join=AtLeast(2))]
    worker = new_worker(tasks)
    async with working(worker):
        assert await runs[0].result(timeout=120) == "[1, 2]"
        with pytest.raises(JobFailed):
            await runs[1].result(timeout=120)
        await eventually("the rest was cancelled", lambda: not worker.health().running)
    assert 100 not in part.ended
    assert (await tasks.queue.counts()).total == 0


@pytest.mark.parametrize("join", [AtLeast(1), "fail_fast"], ids=str)
async def test_chains_are_cancelled_before_their_last_part_has_begun(
    tasks: TaskQueue, part: Part, note: Task[[list[int]], str], join: Join
) -> None:
    @tasks.task
    async def held(numbers: list[int]) -> int:
        await part.may_end.wait()
        return len(numbers)

    first, *others = part.calls(1 if join == AtLeast(1) else -4, 100, 101, 102)
    chains = [
        first.then(part.task),
        others[0].then(part.task).then(part.task),
        group(others[1:], join="settled").then(held).then(part.task).then(part.task),  # `held` begins then
    ]
    run = await group(chains, join=join).then(note).add()
    worker = new_worker(tasks)
    async with working(worker):
        if join == "fail_fast":
            with pytest.raises(JobFailed, match="-4 is negative"):
                await run.result(timeout=120)
        else:
            assert await run.result(timeout=120) == "[1]"

        async def is_over() -> bool:
            return (await tasks.queue.counts()).total == 0 and not worker.health().running

        await until("nothing is left", is_over)
    assert not {100, 101, 102} & {*part.ended}


async def test_what_something_else_follows_is_not_cancelled_for_a_join(tasks: TaskQueue, part: Part) -> None:
    flow = Flow("flow", tasks, returns=int)

    def stage(name: str, number: int, **options: Any) -> Any:
        return flow.stage(part.task, name=name, args={"number": number}, **options)

    shared, alone = stage("shared", 100), stage("alone", 101)
    ends = [stage("fast", 1), stage("a", 2, after=shared), stage("b", 3, after=alone)]
    stage("other", 4, after=shared)
    stage("end", 5, after=ends, join=AtLeast(1), result=True)
    run = await flow.start()

    async def is_cancelled() -> bool:
        return (await run.view()).stages["alone"].state == "cancelled"

    async with working(new_worker(flow)):
        await until("a stage is cancelled", is_cancelled)
        part.may_end.set()
        assert await run.result(timeout=120) == 5
    assert {100, 4} <= {*part.ended}


async def test_a_group_in_a_group_fails_for_itself(
    tasks: TaskQueue, part: Part, note: Task[[list[int]], str]
) -> None:
    @tasks.task
    async def shown(given: list[Any]) -> str:
        return str(given)

    chains = [part.task.call(number).then(part.task) for number in (1, -2, 3)]
    inner = [group(chains, join="settled"), group(part.calls(4, -5), join="settled")]
    outer = group([group(part.calls(6, -7)).then(note), note.call([8])], join="settled")
    runs = [await group(inner).then(shown).add(), await outer.then(shown).add(), await group(inner).add()]
    # A group that has failed is left out as a whole, also what has succeeded in it.
    failing = group([group(chains), group(part.calls(4, -5)), part.task.call(9)], join="settled")
    left_out = [await failing.then(shown).add(), await failing.add()]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in left_out] == ["[9]", [9]]
        assert await runs[0].result(timeout=120) == "[[1, 3], [4]]"
        assert await runs[1].result(timeout=120) == "['[8]']"
        assert await runs[2].result(timeout=120) == [[1, 3], [4]]


async def test_a_result_that_does_not_fit_the_task_after_it_fails_that_one(tasks: TaskQueue) -> None:
    @tasks.task
    async def untyped(number: int) -> Any:
        return number

    @tasks.task
    async def takes_text(text: str) -> str:
        return text

    run = await untyped.call(1).then(takes_text).add()
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed) as failed:
            await run.result(timeout=120)
    assert failed.value.stage == "takes_text"
    [letter] = await tasks.queue.dead_letters.list()
    assert letter.attempt == 1


async def test_a_run_is_cancelled(tasks: TaskQueue, part: Part) -> None:
    run = await group(part.calls(100, 101)).then(part.task.call(1)).then(part.task).add()
    worker = new_worker(tasks, concurrency=1)
    async with working(worker):
        await eventually("one runs", lambda: bool(part.ran))
        assert await run.status() == "active"
        assert await run.cancel()
        with pytest.raises(JobCancelled):
            await run.result(timeout=120)
        await eventually("nothing runs", lambda: not worker.health().running)
        assert not await run.cancel()
    assert (await run.status(), part.ended) == ("cancelled", [])
    assert (await run.view()).state == "cancelled"
    assert (await tasks.queue.counts()).total == 0


async def test_runs_that_are_not_there(tasks: TaskQueue, part: Part) -> None:
    chain = part.task.call(1).then(part.task)
    run = chain.flow_run("none")
    with pytest.raises(JobUnknown):
        await run.result(timeout=120)
    for call in (run.view, run.cancel, run.retry):
        with pytest.raises(JobUnknown):
            await call()
    assert await run.status() == "gone"
    short = await chain.add(keep=0)
    async with working(new_worker(tasks)):

        async def is_gone() -> bool:
            return (await short.status()) == "gone"

        await until("the run is gone", is_gone)


async def test_the_result_of_a_run_says_that_a_flow_run_is_unfinished(tasks: TaskQueue, part: Part) -> None:
    run = await part.task.call(1).then(part.task).add(id="r")
    for wait in (run.result(timeout=0.05), tasks.queue.flow_runs.result("r", timeout=0.05)):
        with pytest.raises(TimeoutError, match=r"the flow run 'r' is still unfinished after 0\.05 s"):
            await wait


@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_that_waits_gets_the_end_of_a_run_that_is_not_kept(
    tasks: TaskQueue, *, fails: bool
) -> None:
    @tasks.task(retry=None)
    async def work(number: int) -> int:
        if fails:
            raise ValueError("bad")
        return number + 1

    run = await group([work.call(1), work.call(2)]).add(id="r", keep=0)
    home = tasks.queue.shard_of("r")
    waiting = [asyncio.create_task(one) for one in (run.result(timeout=120), run.result(timeout=120))]

    async def is_noted() -> bool:
        return int(await engine_of(home).read_at(b"HLEN", f"{home.name}:watchers".encode())) == 1

    await until("the server knows who waits", is_noted)
    async with working(new_worker(tasks)):
        for one in waiting:
            if fails:
                with pytest.raises(JobFailed, match="ValueError: bad"):
                    await one
            else:
                assert await one == [2, 3]


async def test_children_that_return_another_type_than_declared_fail_the_stage(tasks: TaskQueue) -> None:
    @tasks.task
    async def word(number: int) -> str:
        return str(number)

    @tasks.task
    async def numbers(number: int) -> FanOut[int]:
        children: Any = fan_out([word.call(number)])
        return cast("FanOut[int]", children)

    run = await numbers.call(1).chain().add()
    message = r"ResultMismatch.*its child 'word' returns str, and 'numbers' declares the results list\[int\]"
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match=message):
            await run.result(timeout=120)
    assert (await run.view()).stages.keys() == {"numbers"}
    assert await tasks.queue.flow_runs.delete(run.id)  # with its dead letter
