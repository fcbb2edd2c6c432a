"""Blocks hold a place of a limit by name: no more than it permits, also when holders die."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.errors import HoldLost, InvalidArgument
from leasequeue.queue.queue import engine_of
from tests.eventually import LIMIT_SECONDS
from tests.lua.space import NOW, Call, Space
from tests.queue.asking import until
from tests.queue.keyspace import left_over
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def held(queue: AsyncWorkQueue, name: str = "api") -> tuple[int, int]:
    one = (await queue.limits.holds())[name]
    return one.held, one.waiting


async def test_no_more_blocks_run_at_once_than_the_limit_and_each_gets_its_turn(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queues = [make_queue(), make_queue()]
    await queues[0].limits.set(hold="api", concurrency=3)
    running, most, order = 0, 0, list[int]()

    async def run(number: int) -> None:
        nonlocal running, most
        async with queues[number % 2].limits.hold("api"):
            running += 1
            most = max(most, running)
            order.append(number)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(run(number) for number in range(40)))
    assert most <= 3
    assert sorted(order) == [*range(40)]
    assert await held(queues[0]) == (0, 0)
    assert await queues[0].limits.remove_hold("api")
    assert await left_over(redis, name) == set()


async def test_who_came_first_is_served_first(queue: AsyncWorkQueue) -> None:
    await queue.limits.set(hold="api", concurrency=1)
    order: list[int] = []

    async def run(number: int) -> None:
        async with queue.limits.hold("api"):
            order.append(number)

    async with queue.limits.hold("api"):
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(run(number)))
            await until("it waits", partial(_waits, queue, number + 1))
    await asyncio.gather(*tasks)
    assert order == [*range(5)]


async def _waits(queue: AsyncWorkQueue, count: int) -> bool:
    return (await held(queue))[1] == count


async def test_a_caller_that_is_cancelled_leaves_no_place_and_no_wait(queue: AsyncWorkQueue) -> None:
    await queue.limits.set(hold="api", concurrency=1)

    async def run() -> None:
        async with queue.limits.hold("api"):
            await asyncio.Event().wait()

    first, second = asyncio.create_task(run()), asyncio.create_task(run())
    await until("one waits", lambda: _waits(queue, 1))
    second.cancel()
    await asyncio.wait([second])
    assert await held(queue) == (1, 0)
    first.cancel()
    await asyncio.wait([first])
    assert await held(queue) == (0, 0)
    for moment in range(20):
        task = asyncio.create_task(run())
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert await held(queue) == (0, 0)
    with pytest.raises(TimeoutError):
        async with queue.limits.hold("api"), asyncio.timeout(0.01), queue.limits.hold("api"):
            raise AssertionError


async def test_a_wait_that_is_cancelled_as_its_turn_comes_ends(queue: AsyncWorkQueue) -> None:
    await queue.limits.set(hold="api", concurrency=1)

    async def wait() -> None:
        async with queue.limits.hold("api"):
            raise AssertionError

    async with queue.limits.hold("api"):
        waiting = asyncio.create_task(wait())
        await until("it waits", partial(_waits, queue, 1))
        for _ in range(5):  # until it has handled the reply
            await queue.counts()
        engine_of(queue).pushes._missed()
        waiting.cancel()
        await asyncio.wait([waiting], timeout=LIMIT_SECONDS)
        assert waiting.cancelled()


async def test_a_rate_counts_weights_and_goes_by_the_clock_of_the_server(
    redis: Redis, name: str, queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.limits.set(hold="api", rate="10/s", burst=10)
    async with queue.limits.hold("api", weight=7):
        pass
    space = Space(redis, name)

    async def ask(number: int, weight: int, at: float) -> Any:
        now_ms, ticket = int((clock.now + at) * 1000), f"{weight} lh:x#{number}"
        return await space.run("hold_take", now_ms=now_ms, hold_name="api", ticket=ticket, for_ms=9, renews=0)

    assert await ask(1, 4, 0) == [0, 100]
    assert await ask(2, 1, 0) == [0, 100], "a light one does not overtake"
    assert await ask(1, 4, 0.1) == [1, 0]
    assert await ask(2, 1, 0.1) == [0, 100]
    assert await ask(2, 1, 0.2) == [1, 0]
    assert await ask(3, 1000, 0.2) == [0, 1000], "what is above the burst uses all of it"
    assert await ask(3, 1000, 1.2) == [1, 0]


async def test_a_rate_that_is_raised_permits_more_after_one_use_of_the_new_burst(
    redis: Redis, name: str, queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.limits.set(hold="api", rate="1/h")
    async with queue.limits.hold("api"):
        pass
    await queue.limits.set(hold="api", rate="10/s", burst=5)
    space = Space(redis, name)

    async def ask(at: float) -> Any:
        now_ms = int((clock.now + at) * 1000)
        rest: dict[str, Any] = {"ticket": "1 lh:x#1", "for_ms": 9, "renews": 0}
        return await space.run("hold_take", now_ms=now_ms, hold_name="api", **rest)

    assert await ask(0) == [0, 100]
    assert await ask(0.1) == [1, 0]


async def test_who_was_not_told_of_its_turn_asks_while_the_place_is_kept(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.limits.set(hold="api", concurrency=1)
    space = Space(redis, name)
    for number in range(12):
        ticket = f"1 lh:x#{number}"
        asked: Any = await space.run("hold_take", hold_name="api", ticket=ticket, for_ms=99_000, renews=0)
        assert asked == ([0, 4000] if number else [1, 0])
    assert await space.run("hold_drop", hold_name="api", ticket="1 lh:x#0") is not None
    found: Any = await redis.zrange(f"{name}:holders:api", 0, -1, withscores=True)
    assert [(one, end - NOW >= 5000) for one, end in found] == [(b"1 lh:x#1", True)]


class Later:
    """A queue object whose time is the server's, and so many seconds."""

    def __init__(self, redis: Redis, name: str) -> None:
        self.seconds = 0.0
        self.queue = AsyncWorkQueue(name, redis, clock=lambda: time.time() + self.seconds)


@pytest.fixture
async def later(redis: Redis, name: str) -> AsyncIterator[Later]:
    one = Later(redis, name)
    async with one.queue:
        yield one


HOLDER = """
import asyncio, sys
from leasequeue import AsyncWorkQueue

async def hold(queue):
    async with queue.limits.hold("api"):
        print("held", flush=True)
        await asyncio.Event().wait()

async def main():
    async with AsyncWorkQueue.from_url(sys.argv[1], sys.argv[2]) as queue:
        await asyncio.gather(*(hold(queue) for _ in range(4)))

asyncio.run(main())
"""


async def test_the_places_of_a_killed_process_are_free_when_their_time_has_passed(
    redis_url: str, name: str, later: Later
) -> None:
    """The process has two places and waits for two more."""
    queue = later.queue
    await queue.limits.set(hold="api", concurrency=2)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, redis_url, name), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert await process.stdout.readline() == b"held\n"
        await until("two wait", lambda: _waits(queue, 2))
    finally:
        process.kill()
        await process.wait()
    mine = asyncio.create_task(_hold_two(queue))
    await until("it waits behind them", lambda: _waits(queue, 3))
    assert (await held(queue))[0] == 2
    for rate in ("8/s", "9/s"):  # each change gives what is free: first to the dead that wait
        later.seconds += 60
        await queue.limits.set(hold="api", rate=rate, burst=9)
        assert (await held(queue))[0] <= 2
    assert await mine == (2, 0)


async def _hold_two(queue: AsyncWorkQueue) -> tuple[int, int]:
    async with queue.limits.hold("api"), queue.limits.hold("api"):
        return await held(queue)


async def test_a_place_is_renewed_while_its_block_runs(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.limits.set(hold="api", concurrency=1)

    async def ends() -> float:
        tickets: Any = await redis.zrange(f"{name}:holders:api", 0, -1, withscores=True)
        return float(tickets[0][1])

    async with queue.limits.hold("api", lease_time=2):
        before = await ends()

        async def is_renewed() -> bool:
            return await ends() > before

        await until("it is renewed", is_renewed)


async def test_a_place_that_was_lost_cancels_its_block(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.limits.set(hold="api", concurrency=1)

    async def run() -> None:
        async with queue.limits.hold("api", lease_time=0.5):
            await redis.delete(f"{name}:holders:api")
            await asyncio.Event().wait()

    with pytest.raises(HoldLost, match="'api'"):
        await run()


async def test_a_place_whose_time_has_passed_is_free_while_others_renew_theirs(
    redis: Redis, name: str, queue: AsyncWorkQueue
) -> None:
    """The time to live of the key, which all places share, ends none of them."""
    space = Space(redis, name)
    await queue.limits.set(hold="api", concurrency=2)

    async def ask(number: int, at_ms: int, renews: int = 0) -> int:
        ticket = f"1 lh:x#{number}"
        rows: list[int] = await space.run(
            "hold_take", now_ms=NOW + at_ms, hold_name="api", ticket=ticket, for_ms=9_000, renews=renews
        )
        return rows[0]

    assert [await ask(1, 0), await ask(2, 0), await ask(3, 1)] == [1, 1, 0]
    assert await ask(1, 8_000, renews=1) == 1
    assert [await ask(3, 8_999), await ask(3, 9_001)] == [0, 1]
    assert await ask(2, 9_002, renews=1) == -1


async def test_an_interruption_after_any_write_gives_no_place_too_many_and_loses_none(
    redis: Redis, name: str, queue: AsyncWorkQueue, clock: Clock
) -> None:
    space = Space(redis, name)
    interrupter, now_ms = Interrupter(space), int(clock.now * 1000)
    for script in ("hold_take", "hold_drop"):
        writes, run = 0, None
        while run is None or not run.ended:
            await space.send("FLUSHDB")
            await queue.limits.set(hold="api", concurrency=2, rate="1000/s", burst=100)
            at = {"now_ms": now_ms, "hold_name": "api", "for_ms": 30_000, "renews": 0}
            for number in range(4):
                await interrupter.run(Call("hold_take", arguments={**at, "ticket": f"1 lh:x#{number}"}))
            ticket = "1 lh:x#4" if script == "hold_take" else "1 lh:x#0"
            run = await interrupter.run(Call(script, arguments={**at, "ticket": ticket}), writes)
            assert (await held(queue))[0] <= 2, run.commands
            for number in (0, 1, 4, 2, 3):
                await space.run("hold_drop", now_ms=now_ms, hold_name="api", ticket=f"1 lh:x#{number}")
            assert await held(queue) == (0, 0), run.commands
            writes += 1
        assert writes > 1


async def test_a_name_without_limits_and_wrong_arguments_are_refused(queue: AsyncWorkQueue) -> None:
    with pytest.raises(InvalidArgument, match=r"limits.set\(hold='api'"):
        async with queue.limits.hold("api"):
            raise AssertionError
    wrong: dict[str, Any]
    for wrong in ({"weight": 0}, {"lease_time": 0}, {"lease_time": 3601}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            queue.limits.hold("api", **wrong)
    bad: Any
    for bad in ("", "*", 7):
        with pytest.raises(InvalidArgument, match="name"):
            queue.limits.hold(bad)
    given: dict[str, Any]
    for given in ({}, {"burst": 3}, {"concurrency": 1, "group": "g"}, {"rate": "1/s", "ageing": 3}):
        with pytest.raises(InvalidArgument):
            await queue.limits.set(hold="api", **given)
    assert await queue.limits.holds() == {}
    hold = queue.limits.hold("api")
    await queue.limits.set(hold="api", concurrency=9)
    async with hold:
        pass
    with contextlib.suppress(RuntimeError):
        async with hold:
            raise AssertionError


async def test_limits_are_changed_and_removed_where_there_is_room_for_no_other(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await redis.hset(f"{queue.name}:holds", mapping={f"concurrency/{n}": 1 for n in range(2_000)})
    with pytest.raises(InvalidArgument, match=r"'one more'.*1,000 have, and `remove_hold`"):
        await queue.limits.set(hold="one more", concurrency=1)
    assert await queue.limits.set(hold="7", concurrency=2)
    assert await queue.limits.remove_hold("7")
    assert await redis.hlen(f"{queue.name}:holds") == 1_999


async def test_holds_of_a_queue_with_shards(redis: Redis, name: str) -> None:
    async with AsyncWorkQueue(name, redis, shards=4) as queue:
        await queue.limits.set(hold="api", concurrency=1, rate="9/s", burst=2)
        async with queue.limits.hold("api"):
            assert await held(queue) == (1, 0)
        assert await queue.limits.remove_hold("api")
        assert await queue.limits.holds() == {}
