"""Functions that fan out: the outcomes of their children, and what cannot be a child."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AtLeast, FanOut, FlowRun, JobFailed, RetryPolicy, Task, TaskQueue, fan_out, group
from leasequeue.queue.plans.stages import FinishRow, child_text, finish_stages
from leasequeue.queue.queue import engine_of
from leasequeue.worker import stages as worker_stages
from tests.plans.flows import ONE_QUEUE, ended, stage, start, states
from tests.queue.asking import take
from tests.worker.working import counted, new_worker, working

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


@pytest.fixture
def add_one(tasks: TaskQueue) -> Task[[int], int]:
    @tasks.task
    async def add_one(number: int) -> int:
        return number + 1

    return add_one


async def test_a_child_may_be_a_chain_or_a_group(tasks: TaskQueue, add_one: Task[[int], int]) -> None:
    @tasks.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @tasks.task
    async def count(number: int) -> FanOut[int]:
        return fan_out([add_one.call(n) for n in range(number)])

    @tasks.task
    async def split(size: int) -> FanOut[int]:
        middle = group([add_one.partial(), add_one.partial().then(add_one), add_one.call(100)])
        chains = [add_one.call(n).then(middle).then(total) for n in range(size)]
        fanning = add_one.call(2).then(count).then(total)
        return fan_out([*chains, add_one.call(7).then(add_one.call(8)), fanning])

    @tasks.task
    async def nested(size: int) -> FanOut[list[int]]:
        calls: list[Any] = [add_one.call(n).then(count) for n in range(size)]
        return fan_out([*calls, group([add_one.call(5)])])

    runs: list[FlowRun[Any]] = [
        await split.add(2),
        await split.call(70).then(total).add(),  # more than one step adds
        await nested.add(2),
        await split.add(0),
    ]
    expected = [[106, 108, 9, 6], sum(106 + 2 * n for n in range(70)) + 15, [[1], [1, 2], [6]], [9, 6]]
    async with working(new_worker(tasks)):
        assert [await run.result(timeout=120) for run in runs] == expected
    for run in runs:
        view = await run.view()
        assert (view.state, view.unfinished) == ("completed", 0)
    stages = (await runs[0].view()).stages
    assert stages["split/0"].is_chain
    assert not stages["split/0/1"].is_chain
    assert [stages[f"split/0/1/{n}"].result for n in (0, 2)] == [2, 101]


async def test_a_part_of_a_child_that_fails_fails_it_and_is_done_again(
    tasks: TaskQueue, add_one: Task[[int], int]
) -> None:
    broken, calls = {"yes"}, Counter[str]()

    @tasks.task(retry=RetryPolicy(attempts=1))
    async def check(number: int) -> int:
        calls["check"] += 1
        if broken:
            raise ValueError("broken")
        return number

    @tasks.task
    async def split() -> FanOut[int]:
        return fan_out([add_one.call(1).then(check).then(add_one), add_one.call(5)])

    run = await split.add()
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match="broken"):
            await run.result(timeout=120)
        stages = (await run.view()).stages
        assert [stages[f"split/{path}"].state for path in ("0", "0/0", "0/1", "0/2", "1")] == [
            *("failed", "done", "failed", "not entered", "done")
        ]
        broken.clear()
        assert await run.retry()
        assert await run.result(timeout=120) == [3, 6]
    assert calls["check"] == 2
    assert await run.status() == "completed"
    assert await tasks.queue.dead_letters.count() == 0


async def test_a_run_with_chains_is_cancelled_wherever_they_are(tasks: TaskQueue) -> None:
    waits, lost = asyncio.Event(), Counter[str]()

    @tasks.task
    async def first() -> None:
        waits.set()
        await asyncio.sleep(3600)

    @tasks.task
    async def second() -> None:
        lost["second"] += 1

    @tasks.task
    async def split() -> FanOut[None]:
        later = second.options(delay=60).call()
        return fan_out([first.call().then(second.call()), later.then(second.call())])

    run = await split.add()
    async with working(new_worker(tasks)):
        await waits.wait()
        assert not (await tasks.queue.flow_runs.check()).findings  # its parts that wait are not lost
        assert await run.cancel()
        await ended(tasks.queue, "cancelled", run.id)
    assert not lost
    view = await run.view()
    assert [view.stages[path].state for path in ("split/0/0", "split/0/1")] == ["cancelled", "not entered"]


async def test_a_chain_that_ends_after_its_run_was_cancelled_leaves_nothing_open(
    tasks: TaskQueue, add_one: Task[[int], int]
) -> None:
    split = fan_out([add_one.call(1).then(add_one)])
    run = "r"
    await start(tasks.queue, stage(tasks.queue, "plan"), run=run)
    queue = tasks.queue.shard_of(run)
    lease = await take(queue, 3600)
    assert lease.stage is not None
    texts = [child_text(lease.stage, tasks.queue.flow_runs.placed(one, queue.name)) for one in split.children]
    row = FinishRow(lease, "fan", b"[" + b",".join(texts) + b"]", b"all")
    assert await finish_stages(engine_of(queue), [row]) == [True]
    part = await take(queue, 3600)
    # As another client does that cancels the run, and dies before it cancels the items.
    assert await engine_of(queue).run("run_cancel", of_run=b"r", as_failed=b"") == 1
    assert await finish_stages(engine_of(queue), [FinishRow(part, "done", b"2")]) == [True]
    assert await states(tasks.queue) == {"": "cancelled", "plan": "f", "plan/0": "f", "plan/0/0": "d"}
    await ended(tasks.queue, "cancelled")


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


@ONE_QUEUE
async def test_children_that_gather_are_each_in_the_group_of_their_key(tasks: TaskQueue) -> None:
    @tasks.task(batch=3, batch_wait=3600, batch_by="customer")
    async def confirm(orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [order | {"with": len(orders)} for order in orders]

    @tasks.task
    async def split(size: int) -> FanOut[dict[str, Any]]:
        calls = [confirm.call({"customer": name}) for _ in range(size) for name in ("Ann", "Bob")]
        return fan_out([*calls, confirm.call({"customer": "Cid"}).then(confirm)])

    @tasks.task
    async def wrong() -> FanOut[dict[str, Any]]:
        return fan_out([confirm.call({"customer": "Ann"}), confirm.call({"name": "Bob"})])

    run, bad = await split.add(2), await wrong.add()
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match=r"InvalidFanOut: fan_out of .*batch_by='customer'"):
            await bad.result(timeout=120)
        await counted(tasks.queue, "the children wait", lambda counts: counts.waiting == 5)
        groups = await tasks.queue.groups.list()
        waiting = {group.rpartition(":")[2]: counts.waiting for group, counts in groups.items()}
        assert waiting == {"Ann": 2, "Bob": 2, "Cid": 1}
        for name in ("Ann", "Bob", "Cid", "Cid"):
            await confirm.add({"customer": name})
        results = await run.result(timeout=120)
    assert [(one["customer"], one["with"]) for one in results] == [*[("Ann", 3), ("Bob", 3)] * 2, ("Cid", 1)]


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

    monkeypatch.setattr(worker_stages, "child_text", counted)
    size = 3 * worker_stages.CHILDREN_PER_TURN + 1
    run = await split.add(size)
    turns = asyncio.create_task(count_turns())
    async with working(new_worker(tasks)):
        await run.result(timeout=120)
    turns.cancel()
    assert written.total() == size
    assert max(written.values()) == worker_stages.CHILDREN_PER_TURN


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
            "chain": word.call(1).then(word.options(expires_in=5).call(2)),
            "later": word.call(1).then(word.options(at=datetime(2100, 1, 1, tzinfo=UTC)).call(2)),
            "group": group([word.call(1), group([])]),
            "large": group([word.call(1)] * 251),
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
    assert len(attempts) == 8
    assert await tasks.queue.dead_letters.count() == 8
