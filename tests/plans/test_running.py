"""Tests of flows with workers and a server: what follows what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import FanOut, JobFailed, Next, RetryPolicy, TaskQueue, correlation_id, current_stage, fan_out
from leasequeue.flow import Flow
from leasequeue.queue.plans.stages import settle
from leasequeue.queue.queue import engine_of
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue.testing import Inline


@dataclass
class Member:
    user: int
    roles: list[str]


async def test_a_flow_runs_from_its_attributes_to_its_result(tasks: TaskQueue) -> None:
    flow = Flow(
        "access", tasks, attributes={"user_id": int, "guilds": list[int]}, lookup=["user_id", "guilds"]
    )

    @tasks.task
    async def check(user_id: int) -> Member:
        assert correlation_id.get() == "request-7"
        return Member(user_id, ["owner", "member"])

    @tasks.task
    async def reward(guild: int, role: str) -> str:
        return f"{role} of {guild}"

    @tasks.task
    async def rewards(guilds: list[int], roles: list[str]) -> FanOut[str]:
        return fan_out([reward.call(guild, role) for guild in guilds for role in roles])

    @tasks.task
    async def finish(check: Member, given: list[str], mark: str) -> list[Any]:
        return [check.user, given, mark, current_stage().flow]

    first = flow.stage(check)
    second = flow.stage(rewards, after=first, takes={"roles": first.member("roles")})
    flow.stage(finish, after=second, takes={"given": second}, args={"mark": "!"})
    run = await flow.start(user_id=62, guilds=[1, 2], correlation="request-7", id="r")
    assert run.created
    async with working(new_worker(flow)):
        given = ["owner of 1", "member of 1", "owner of 2", "member of 2"]
        assert await run.result(timeout=120) == [62, given, "!", "access"]
    assert not (await flow.start(user_id=62, guilds=[1, 2], id="r")).created
    assert await flow.flow_run("r").result() == [62, given, "!", "access"]


@pytest.mark.seed("GLD-O6")
async def test_a_stage_chooses_what_follows_and_a_later_one_joins_both_ways(tasks: TaskQueue) -> None:
    flow = Flow("access", tasks, attributes={"user_id": int})

    @tasks.task
    async def check(user_id: int) -> Next[int]:
        return Next(user_id, "member" if user_id > 0 else "guest")

    @tasks.task
    async def member(check: int) -> str:
        return f"member {check}"

    @tasks.task
    async def guest(check: int) -> str:
        return f"guest {check}"

    @tasks.task
    async def end(check: int, member: str = "", guest: str = "") -> list[Any]:
        return [check, member, guest]

    first = flow.stage(check)
    flow.stage(end, after=[flow.stage(member, after=first), flow.stage(guest, after=first)])
    runs = [await flow.start(user_id=number) for number in (1, -1)]
    async with working(new_worker(tasks)):
        assert await runs[0].result(timeout=120) == [1, "member 1", ""]
        assert await runs[1].result(timeout=120) == [-1, "", "guest -1"]


@pytest.mark.seed("GLD-O24")
async def test_one_task_is_a_stage_of_two_flows_with_other_successors_in_each(tasks: TaskQueue) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    @tasks.task
    async def double(check: int) -> int:
        return check * 2

    @tasks.task
    async def negate(check: int) -> int:
        return -check

    one = Flow("one", tasks, attributes={"user_id": int})
    two = Flow("two", tasks, attributes={"user_id": int})
    one.stage(double, after=one.stage(check))
    two.stage(negate, after=two.stage(check))
    runs = [await one.start(user_id=4), await two.start(user_id=4)]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [8, -4]


async def test_a_run_goes_on_as_it_was_planned_when_the_program_has_changed(tasks: TaskQueue) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    @tasks.task
    async def double(check: int) -> int:
        return check * 2

    @tasks.task
    async def negate(check: int) -> int:
        return -check

    before, after = (Flow("access", tasks, attributes={"user_id": int}) for _ in range(2))
    before.stage(double, after=before.stage(check))
    after.stage(negate, after=after.stage(check))
    old = await before.start(user_id=4)
    new = await after.start(user_id=4)
    async with working(new_worker(after)):
        assert [await after.flow_run(run.id).result(timeout=120) for run in (old, new)] == [8, -4]
    drawn = await after.runs.mermaid(old.id)
    assert '"double<br/>done"' in drawn
    assert "negate" not in drawn


@pytest.mark.seed("GLD-T8")
async def test_a_task_for_batches_is_a_stage_like_any_other(tasks: TaskQueue) -> None:
    sizes: list[int] = []

    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    @tasks.task(batch=10)
    async def store(users: list[int]) -> list[str]:
        sizes.append(len(users))
        return [f"user {user}" for user in users]

    @tasks.task
    async def end(store: str) -> str:
        return store.upper()

    flow = Flow("access", tasks, attributes={"user_id": int})
    first = flow.stage(check)
    flow.stage(end, after=flow.stage(store, after=first, takes={"users": first}))
    runs = [await flow.start(user_id=number) for number in range(4)]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [f"USER {number}" for number in range(4)]
    assert sum(sizes) == 4


@pytest.mark.seed("GLD-O19")
async def test_stages_of_a_higher_priority_run_first_and_a_run_shifts_them(tasks: TaskQueue) -> None:
    order: list[str] = []

    @tasks.task
    async def log(name: str) -> None:
        order.append(name)

    low = Flow("low", tasks, attributes={"name": str})
    low.stage(log)
    high = Flow("high", tasks, attributes={"name": str})
    high.stage(log, priority=2)
    runs = [
        await low.start(name="low"),
        await low.start(name="shifted", priority=3),
        await high.start(name="high"),
        await high.start(name="lowest", priority=-9),
    ]
    async with working(new_worker(tasks, concurrency=1)):
        for run in runs:
            await run.result(timeout=120)
    assert order == ["shifted", "high", "low", "lowest"]


@pytest.mark.seed("GLD-K1")
async def test_a_stage_is_retried_by_its_own_policy_and_has_a_limit_of_its_own(tasks: TaskQueue) -> None:
    attempts: list[int] = []
    running = 0

    @tasks.task(retry=RetryPolicy(attempts=1))
    async def flaky(number: int) -> int:
        nonlocal running
        attempts.append(number)
        running += 1
        try:
            assert running == 1
            await asyncio.sleep(0.002)
        finally:
            running -= 1
        if attempts.count(number) < 3:
            raise ValueError(number)
        return number

    flow = Flow("access", tasks, attributes={"number": int})
    flow.stage(flaky, retry=RetryPolicy(attempts=3, first=0), concurrency=1)
    plain = Flow("plain", tasks, attributes={"number": int})
    plain.stage(flaky, name="once")
    runs = [await flow.start(number=number) for number in range(3)]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == [0, 1, 2]
        failed = await plain.start(number=9)
        with pytest.raises(JobFailed, match="once"):
            await failed.result(timeout=120)
    assert len(attempts) == 10


async def test_a_delayed_stage_waits_and_an_expired_one_fails_the_run(tasks: TaskQueue) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    flow = Flow("access", tasks, attributes={"user_id": int})
    flow.stage(check, delay=60)
    await flow.start(user_id=3)
    assert (await tasks.queue.counts()).scheduled == 1


async def test_a_stage_that_expires_fails_the_run(tasks: TaskQueue) -> None:
    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    flow = Flow("access", tasks, attributes={"user_id": int})
    flow.stage(check, expires_in=0.001)
    run = await flow.start(user_id=3)
    await asyncio.sleep(0.005)
    assert await tasks.queue.lease(5, block=False) is None  # which discards it
    await settle(engine_of(tasks.queue))  # as the workers of the queue do
    with pytest.raises(JobFailed, match="expired"):
        await run.result(timeout=120)


async def test_a_result_that_does_not_fit_fails_the_stage(tasks: TaskQueue) -> None:
    values: dict[str, Any] = {
        "type": "not a number",
        "children": FanOut([]),
        "choice": Next(1, "check"),
    }

    @tasks.task
    async def check(case: str) -> int:
        value: int = values[case]
        return value

    @tasks.task
    async def choose(case: str) -> Next[int]:
        return Next(1, case)

    flow = Flow("access", tasks, attributes={"case": str})
    flow.stage(check)
    choosing = Flow("choosing", tasks, attributes={"case": str})
    choosing.stage(check, after=choosing.stage(choose))
    runs = {
        "'not a number' is no result": await flow.start(case="type"),
        "does not say that it returns FanOut": await flow.start(case="children"),
        "does not say that it returns Next": await flow.start(case="choice"),
        "unknown": await choosing.start(case="unknown"),
    }
    async with working(new_worker(tasks)):
        for message, run in runs.items():
            with pytest.raises(JobFailed, match=f"(?s)ResultMismatch.*{message}"):
                await run.result(timeout=120)


async def test_a_flow_runs_inline_in_tests(tasks: TaskQueue, leasequeue_inline: Inline) -> None:
    @tasks.task
    async def check(number: int) -> Next[int]:
        return Next(number + 1, "double")

    @tasks.task
    async def double(check: int) -> int:
        return check * 2

    flow = Flow("access", tasks, attributes={"number": int})
    first = flow.stage(check)
    flow.stage(double, after=first, timeout=5)
    flow.stage(double, name="other", after=first)
    inline = leasequeue_inline(tasks)
    run = await flow.start(number=3)
    assert [one.task for one in inline.runs] == ["check", "access.double"]
    assert (await flow.runs.get(run.id)).state == "completed"
