"""Functions that fan out: the outcomes of their children, and what cannot be a child."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AtLeast, FanOut, JobFailed, TaskQueue, fan_out, group
from leasequeue.queue.plans.stages import child_text
from leasequeue.worker import stages
from tests.plans.flows import ONE_QUEUE
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue.queue.lease import StageRef
    from leasequeue.queue.plans.plan import ChildPlan


@ONE_QUEUE
@pytest.mark.seed("GLD-O8")
async def test_a_function_fans_out_to_children_of_several_kinds(tasks: TaskQueue, name: str) -> None:
    @tasks.task(queue=f"{name}:discord")
    async def discord(guild: int) -> str:
        return f"discord {guild}"

    @tasks.task
    def telegram(chat: str, *, silent: bool = False) -> str:
        return f"telegram {chat} {silent}"

    @tasks.task
    async def rewards(guild: int) -> FanOut[str]:
        return fan_out([discord.call(guild), telegram.call("a"), telegram.call("b", silent=True)])

    @tasks.task
    async def finish(given: list[str]) -> int:
        return len(given)

    alone = await rewards.call(1).chain().add()
    alike = [await rewards.call(1).add(), await rewards.options(priority=3).add(1)]
    chain = await rewards.call(2).then(finish).add()
    pair = await group([rewards.call(3), rewards.call(4)]).add()
    async with working(new_worker(tasks)):
        assert await alone.result(timeout=120) == ["discord 1", "telegram a False", "telegram b True"]
        for run in alike:
            assert await run.result(timeout=120) == await alone.result(timeout=120)
        assert await chain.result(timeout=120) == 3
        assert [one[0] for one in await pair.result(timeout=120)] == ["discord 3", "discord 4"]


async def test_the_items_of_a_batch_fan_out(tasks: TaskQueue) -> None:
    @tasks.task
    async def same(number: int) -> int:
        return number

    @tasks.task(batch=10)
    async def split(numbers: list[int]) -> list[FanOut[int] | Exception]:
        return [fan_out([same.call(i) for i in range(number)]) for number in numbers]

    run = await group([split.call(2), split.call(3), split.call(0)]).add()
    async with working(new_worker(tasks)):
        assert await run.result(timeout=120) == [[0, 1], [0, 1, 2], []]


async def test_many_children_are_written_in_many_turns_of_the_event_loop(
    tasks: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, written = 0, Counter[int]()

    def counted(stage: StageRef, child: ChildPlan) -> bytes:
        written[turn] += 1
        return child_text(stage, child)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    @tasks.task
    async def same(number: int) -> int:
        return number

    @tasks.task
    async def split(size: int) -> FanOut[int]:
        return fan_out([same.call(number) for number in range(size)], join=AtLeast(1))

    monkeypatch.setattr(stages, "child_text", counted)
    size = 3 * stages.CHILDREN_PER_TURN + 1
    run = await split.add(size)
    turns = asyncio.create_task(count_turns())
    async with working(new_worker(tasks)):
        await run.result(timeout=120)
    turns.cancel()
    assert written.total() == size
    assert max(written.values()) == stages.CHILDREN_PER_TURN


async def test_a_fan_out_to_what_can_be_no_child_fails_at_once(
    tasks: TaskQueue, redis_url: str, name: str
) -> None:
    attempts: Counter[str] = Counter()

    @tasks.task
    async def word(number: int) -> str:
        return str(number)

    async with TaskQueue.from_url(redis_url.replace("127.0.0.1", "localhost"), f"{name}-other") as elsewhere:
        other = elsewhere.task(word.function)
        wrong: dict[str, Any] = {
            "chain": word.call(1).then(word.call(2)),
            "group": group([word.call(1)]),
            "expires": word.options(expires_in=5).call(1),
            "elsewhere": other.call(1),
            "no call": 5,
        }

        @tasks.task
        async def split(kind: str) -> FanOut[str]:
            attempts[kind] += 1
            return fan_out([word.call(0), wrong[kind]])

        @tasks.task(name="threaded")
        def split_in_thread(kind: str) -> FanOut[str]:
            attempts[f"threaded {kind}"] += 1
            return fan_out([word.call(0), wrong[kind]])

        runs = [await split.add(kind) for kind in wrong] + [await split_in_thread.add("chain")]
        async with working(new_worker(tasks)):
            for run in runs:
                with pytest.raises(JobFailed, match="InvalidFanOut: fan_out of"):
                    await run.result(timeout=120)
    assert set(attempts.values()) == {1}
    assert len(attempts) == 6
    assert await tasks.queue.dead_letters.count() == 6
