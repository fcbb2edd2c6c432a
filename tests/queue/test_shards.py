"""Queues whose items are spread over several queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from redis.crc import key_slot

from leasequeue import AsyncWorkQueue, Fleet, InvalidArgument, Item, TaskQueue, Worker, lease_from
from leasequeue.errors import JobUnknown, PartlyApplied, ServerError
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.pushes import listener
from leasequeue.queue.queue import engine_of, engines_of
from leasequeue.queue.shards.naming import shard_names
from leasequeue.queue.shards.parts import joined_stats
from leasequeue.queue.shards.queue import ShardedQueue
from tests.eventually import LIMIT_SECONDS, eventually
from tests.queue.asking import names_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Redis

pytestmark = [pytest.mark.core, pytest.mark.server]

COUNT = 4


@pytest.fixture
async def queue(redis: Redis, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue(name, redis, shards=COUNT) as one:
        yield one


@pytest.fixture
async def by_group(redis: Redis, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue(name, redis, shards=COUNT, shard_by="group") as one:
        yield one


def items(count: int) -> list[Item]:
    return [Item(b"x", id=f"i{n}") for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("masters", [1, 3, 4, 6])
def test_shards_lie_evenly_over_the_masters_of_a_cluster(count: int, masters: int) -> None:
    for name in ("jobs", "emails", "shop", "a"):
        slots = [key_slot(f"{one}:queue".encode()) for one in shard_names(name, count)]
        on = Counter(slot * masters // 16_384 for slot in slots)
        assert max(on.values()) - min(on[one] for one in range(masters)) <= 1


async def test_each_item_is_in_one_shard_and_is_found_by_its_id(queue: AsyncWorkQueue) -> None:
    assert await queue.add_items(items(100)) == [True] * 100
    assert await queue.add_items(items(101)) == [False] * 100 + [True]
    assert all([(await one.counts()).waiting for one in queue.shards]), "all shards have some"
    assert (await queue.counts()).waiting == 101
    found = await queue.find("i7")
    assert found is not None
    assert found.data == b"x"
    assert await queue.cancel("i7")
    assert not await queue.cancel("i7")
    assert await queue.cancel_many(["i7", "i8"]) == [False, True]
    assert (await queue.counts()).waiting == 99
    assert len(await queue.inspect(count=1000)) == len(await queue.peek(1000)) == 99
    assert await queue.admin.purge() == 99


async def test_another_number_of_shards_is_refused(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x"))
    for how in ({"shards": 8}, {"shards": COUNT, "shard_by": "group"}):
        async with AsyncWorkQueue(queue.name, redis, **how) as other:
            with pytest.raises(InvalidArgument, match=f"shards={COUNT}, shard_by='id', as when"):
                await other.add_item(Item(b"x", id="a"))
            worker = Worker()
            worker.handler(other)(_pass)
            with pytest.raises(InvalidArgument, match="as when the queue was first used"):
                await worker.run()
    assert (await queue.counts()).total == 1
    await queue.admin.delete()
    async with AsyncWorkQueue(queue.name, redis, shards=8) as other:
        assert await other.add_item(Item(b"x"))


async def test_the_number_of_shards_is_deleted_last(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who repeats a deletion that was stopped has to find the other shards."""
    await queue.add_items(items(20))
    first, *_, last = queue.shards
    monkeypatch.setattr(last.admin, "delete", _refuse)
    deleted: list[str] = []
    monkeypatch.setattr(first.admin, "delete", lambda: deleted.append(first.name))
    with pytest.raises(ServerError):
        await queue.admin.delete()
    assert deleted == []
    monkeypatch.undo()
    await queue.admin.delete()
    assert not await redis.keys(f"{{{queue.name}*:shards")


async def _refuse() -> int:
    raise ServerError("the node is away")


async def _pass(_: bytes) -> None:
    return


async def test_a_queue_that_was_used_without_shards_gets_none(redis: Redis, name: str) -> None:
    async with AsyncWorkQueue(f"{{{name}}}", redis) as plain, AsyncWorkQueue(name, redis, shards=2) as spread:
        await plain.add_item(Item(b"x"))
        with pytest.raises(InvalidArgument, match="is used without shards"):
            await spread.counts()


async def test_arguments_that_cannot_be_used_are_refused(redis: Redis) -> None:
    for wrong in (0, 257, True, "4"):
        with pytest.raises(InvalidArgument, match="shards: got"):
            AsyncWorkQueue("jobs", redis, shards=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="None for Special"):
        type("Special", (AsyncWorkQueue,), {})("jobs", redis, shards=4)
    with pytest.raises(InvalidArgument, match="name without braces"):
        AsyncWorkQueue("{jobs}", redis, shards=4)
    with pytest.raises(InvalidArgument, match="'id' or 'group'"):
        AsyncWorkQueue("jobs", redis, shards=4, shard_by="name")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'id' without `shards`"):
        AsyncWorkQueue("jobs", redis, shard_by="group")


async def test_what_has_no_shards_says_so_by_name(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x", id="a"))
    with pytest.raises(InvalidArgument, match=r"one of its 4 `shards`"):
        await queue.admin.move("{other}")
    with pytest.raises(InvalidArgument, match="the `cursor` of an event"):
        queue.events(since=1)
    with pytest.raises(InvalidArgument, match="shared"):
        await queue.limits.set(rate="10/s", shared="{x}")


async def test_leases_are_completed_in_their_shards(queue: AsyncWorkQueue) -> None:
    await queue.add_items(items(60))
    leases = await queue.lease_many(50, 30)
    assert len({lease.queue for lease in leases}) > 1
    done, renewed, released, failed = leases[:20], leases[20:30], leases[30:40], leases[40:]
    results: list[bytes | None] = [lease.id.encode() for lease in done]
    assert await queue.complete_many(done, results=results) == [True] * 20
    assert await queue.complete_many(done) == [False] * 20
    assert [await queue.results.get(lease.id) for lease in done] == results
    assert await queue.results.wait(done[0].id) == results[0]
    assert await queue.renew_many(renewed, 60) == [True] * 10
    assert await queue.release_many(released) == [True] * 10
    for lease in failed:
        assert await queue.fail(lease, "broken")
    assert await queue.counts() == (20, 10, 0, 10)
    letters = await queue.dead_letters.list()
    assert [one.died_at for one in letters] == sorted((one.died_at for one in letters), reverse=True)
    assert await queue.dead_letters.list(start=3, count=4) == letters[3:7]
    assert await queue.dead_letters.list(start=-4, count=3) == letters[-4:-1]
    assert await queue.dead_letters.list(start=-40) == letters
    assert await queue.dead_letters.count() == 10
    assert await queue.dead_letters.requeue(*(lease.id for lease in failed), "none") == [True] * 10 + [False]
    with pytest.raises(JobUnknown):
        await queue.results.wait("none")


async def test_a_lease_of_another_queue_is_refused(queue: AsyncWorkQueue, redis: Redis) -> None:
    async with AsyncWorkQueue(f"{queue.name}-2", redis, shards=COUNT) as other:
        await other.add_item(Item(b"x"))
        lease = await other.lease(30)
        assert lease is not None
        with pytest.raises(InvalidArgument, match="a lease of the queue"):
            await queue.complete(lease)


async def test_a_shard_that_fails_leaves_the_answers_of_the_others(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_items(items(20))
    broken = queue.shard_of("i3")
    await redis.delete(f"{broken.name}:queue")
    await redis.set(f"{broken.name}:queue", "no list")
    new = [Item(b"x", id=f"n{n}") for n in range(40)]
    with pytest.raises(PartlyApplied, match=r"Repeating is safe") as caught:
        await queue.add_items(new)
    expected = [None if queue.shard_of(one.id) is broken else True for one in new]
    assert [*caught.value.answers] == expected
    assert None in expected
    assert isinstance(caught.value.__cause__, ServerError)


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no session look by itself while the test runs."""
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 3600)


async def waits(queue: AsyncWorkQueue, redis: Redis, count: int = 1) -> None:
    """Return when sessions wait on each shard."""

    async def is_registered() -> bool:
        return all([await redis.zcard(f"{one.name}:idle") == count for one in queue.shards])

    await until("they wait on each shard", is_registered)


@pytest.mark.usefixtures("no_looks")
async def test_each_way_in_which_an_item_comes_to_wait_wakes_a_caller(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """No connection is blocked for it."""

    async def taken(how: Callable[[], Awaitable[object]]) -> Lease:
        waiting = asyncio.create_task(queue.lease(30))
        await waits(queue, redis)
        names = names_of(await redis.client_list())
        assert not [one for one in names if one.startswith("leasequeue:waits")]
        await how()
        async with asyncio.timeout(LIMIT_SECONDS):
            lease = await waiting
        assert lease is not None
        return lease

    lease = await taken(lambda: queue.add_item(Item(b"x", id="a")))
    lease = await taken(lambda: queue.release(lease))
    lease = await taken(lambda: queue.fail(lease, "x", retry_in=0))
    assert await queue.fail(lease, "x")
    lease = await taken(lambda: queue.dead_letters.requeue("a"))
    lease = await taken(queue.admin.clear_leases)
    assert await queue.complete(lease)
    lease = await taken(lambda: queue.add_item(Item(b"x", id="b"), priority=3))
    assert lease.id == "b"
    await queue.add_item(Item(b"x", id="later"), delay=600)
    lease = await taken(lambda: queue.promote("later"))
    assert lease.id == "later"


@pytest.mark.usefixtures("no_looks")
async def test_a_slot_of_a_limit_that_becomes_free_wakes_a_caller(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.limits.set(concurrency=COUNT)
    shard = queue.shards[1]
    a, b, *_ = [one for one in items(100) if queue.shard_of(one.id) is shard]
    await queue.add_items([a, b])
    lease = await queue.lease(30)
    assert lease is not None
    waiting = asyncio.create_task(queue.lease(30))
    await waits(queue, redis)
    await queue.complete(lease)
    async with asyncio.timeout(LIMIT_SECONDS):
        other = await waiting
    assert other is not None
    assert {lease.id, other.id} == {a.id, b.id}


@pytest.mark.usefixtures("no_looks")
async def test_as_many_sessions_are_woken_as_items_were_added(
    redis_url: str, redis: Redis, name: str
) -> None:
    async with AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(AsyncWorkQueue.from_url(redis_url, name, shards=COUNT))
            for _ in range(3)
        ]
        waiting = [asyncio.create_task(one.lease(30)) for one in queues]
        await waits(queues[0], redis, 3)
        same = [one for one in items(100) if queues[0].shard_of(one.id) is queues[0].shards[2]]
        await queues[0].add_items(same[:2])
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        await queues[0].add_item(same[2])
        async with asyncio.timeout(LIMIT_SECONDS):
            leases = [await one for one in waiting]
        assert {lease.id for lease in leases if lease is not None} == {one.id for one in same[:3]}


@pytest.mark.usefixtures("no_looks")
async def test_a_session_that_leaves_notifies_another_one(redis_url: str, redis: Redis, name: str) -> None:
    """The one that was notified is closed before it has leased."""
    async with AsyncWorkQueue.from_url(redis_url, name, shards=COUNT) as queue:
        async with AsyncWorkQueue.from_url(redis_url, name, shards=COUNT) as other:
            leaving = asyncio.create_task(other.lease(30))
            await waits(other, redis)
            waiting = asyncio.create_task(queue.lease(30))
            await waits(queue, redis, 2)
            shard = queue.shard_of("a")
            # As if its message had been lost.
            idle = f"{shard.name}:idle"
            members: list[Any] = await redis.zrange(idle, 0, -1)
            await redis.zrem(idle, *(one for one in members if one.endswith(other.session.encode())))
            await redis.lpush(f"{shard.name}:queue", "a")
            await redis.set(f"{shard.name}:item:a", "x")
            leaving.cancel()
            await asyncio.wait([leaving])
        async with asyncio.timeout(LIMIT_SECONDS):
            lease = await waiting
        assert lease is not None
        assert lease.id == "a"


@pytest.mark.usefixtures("no_looks")
async def test_an_item_that_is_added_just_before_a_session_registers_is_leased(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No script could notify it: its registration finds what waits."""
    subscribe, shard = listener.Listener._subscribe, queue.shard_of("a")
    channel = f"{shard.name}:due".encode()

    async def add_first(self: listener.Listener, waiter: listener.Waiter) -> None:
        await subscribe(self, waiter)
        if self._channel == channel and await redis.set(f"{shard.name}:item:a", "x", nx=True):
            await redis.lpush(f"{shard.name}:queue", "a")

    monkeypatch.setattr(listener.Listener, "_subscribe", add_first)
    async with asyncio.timeout(LIMIT_SECONDS):
        lease = await queue.lease(30)
    assert lease is not None
    assert lease.id == "a"


async def test_a_message_that_is_lost_costs_seconds(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 0.2)
    waiting = asyncio.create_task(queue.lease(30))
    await waits(queue, redis)
    shard = queue.shard_of("a")
    await redis.set(f"{shard.name}:item:a", "x")
    await redis.lpush(f"{shard.name}:queue", "a")
    async with asyncio.timeout(LIMIT_SECONDS):
        lease = await waiting
    assert lease is not None
    assert lease.id == "a"


async def test_a_forged_message_to_look_is_dropped(queue: AsyncWorkQueue, redis: Redis) -> None:
    waiting = asyncio.create_task(queue.lease(30))
    await waits(queue, redis)
    shard = queue.shards[0]
    await redis.publish(f"{shard.name}:push:{queue.session}", "look 0123456789abcdef")
    await eventually("it is counted", lambda: engines_of(shard).unverified.count == 1)
    assert not waiting.done()
    await queue.add_item(Item(b"x"))
    assert await waiting is not None


async def test_a_worker_serves_all_shards_as_one_consumer(queue: AsyncWorkQueue) -> None:
    done: list[str] = []
    worker = Worker(concurrency=10)

    @worker.handler(queue, keep_result=60)
    async def handle(_: bytes, lease: Lease) -> str:
        done.append(lease.id)
        return lease.id

    running = asyncio.create_task(worker.run())
    await worker.started()
    await queue.add_items(items(200))
    assert await queue.results.wait("i150", 60) == b'"i150"'
    await eventually("all are done", lambda: len(done) == 200)
    assert len({*done}) == 200
    [view] = await Fleet(queue).workers()
    assert view.queues == (queue.name,)
    assert len(view.sessions) == COUNT
    assert len((await queue.stats()).workers) == 1
    await worker.stop_queue(queue.name)
    await queue.add_item(Item(b"x", id="later"))
    assert len(done) == 200
    await worker.start_queue(queue.name)
    await queue.results.wait("later", 60)
    worker.stop()
    await running


async def test_tasks_and_their_schedules_are_spread(redis: Redis, name: str) -> None:
    async with TaskQueue(name, redis, shards=COUNT) as tasks:
        ticks: list[int] = []

        @tasks.task
        async def double(number: int) -> int:
            return 2 * number

        @tasks.task(every=0.05)
        async def tick() -> None:
            ticks.append(1)

        @tasks.task(concurrency=COUNT)
        async def limited() -> int:
            return 1

        worker = Worker(tasks)
        running = asyncio.create_task(worker.run())
        await worker.started()
        jobs = await tasks.add_many([double.call(number) for number in range(50)])
        assert [await job.result(timeout=60) for job in jobs] == [2 * number for number in range(50)]
        assert await (await limited.add()).result(timeout=60) == 1
        await eventually("the schedule ticks", lambda: len(ticks) >= 3)
        [one] = await tasks.queue.schedules.list()
        assert one.name == "tick"
        worker.stop()
        await running


async def test_a_limit_is_divided_and_never_exceeded(queue: AsyncWorkQueue) -> None:
    await queue.limits.set(concurrency=6)
    assert (await queue.limits.get()).queue.concurrency == 6
    await queue.add_items(items(100))
    leases = await queue.lease_many(100, 30, block=False)
    assert len(leases) == 6
    with pytest.raises(InvalidArgument, match="concurrency"):
        await queue.limits.set(concurrency=COUNT - 1)
    with pytest.raises(InvalidArgument, match="burst"):
        await queue.limits.set(rate="10/s")
    await queue.limits.set(rate="40/s", burst=8)
    limits = (await queue.limits.get()).queue
    assert (limits.rate, limits.burst) == ("40/s", 8)
    await queue.complete_many(leases)
    assert await queue.limits.remove()
    assert (await queue.limits.get()).queue.concurrency is None


async def test_a_group_has_one_shard_with_its_order_and_its_limits(by_group: AsyncWorkQueue) -> None:
    queue = by_group
    for group in "abcdef":
        await queue.add_items([Item(b"x", id=f"{group}{n}") for n in range(5)], group=group)
    await queue.limits.set(group="a", concurrency=1)
    assert (await queue.limits.get()).groups["a"].concurrency == 1
    await queue.pause(group="b")
    leases = await queue.lease_many(100, 30, block=False)
    got = Counter(lease.id[0] for lease in leases)
    assert got == {"a": 1, "c": 5, "d": 5, "e": 5, "f": 5}
    for group in "cdef":
        assert [one.id for one in leases if one.id[0] == group] == [f"{group}{n}" for n in range(5)]
    assert await queue.resume(group="b")
    found = await queue.find("b3")
    assert found is not None
    assert found.group == "b"
    assert await queue.cancel("b3")
    first = leases[0]
    assert await queue.complete(first, result=b"done")
    assert await queue.results.get(first.id) == await queue.results.wait(first.id) == b"done"
    assert await queue.fail(leases[1], "x")
    assert await queue.dead_letters.requeue(leases[1].id, "none") == [True, False]


async def test_events_and_history_of_all_shards_are_joined(queue: AsyncWorkQueue) -> None:
    await queue.events.keep(count=10_000)
    await queue.history.keep()
    await queue.add_items(items(50))
    await queue.complete_many(await queue.lease_many(50, 30))
    events = [event async for event in queue.events(follow=False)]
    assert [event.at for event in events] == sorted(event.at for event in events)
    counts = Counter(event.what for event in events)
    assert (counts["added"], counts["leased"], counts["completed"]) == (50, 50, 50)
    reading = queue.events()
    seen = [await anext(reading) for _ in range(150)]
    await queue.add_item(Item(b"x", id="new"))
    assert (await anext(reading)).id == "new"
    assert len(seen) == 150
    await reading.aclose()  # type: ignore[attr-defined]
    cells = (await queue.history(count=2)).cells
    assert (sum(one.added for one in cells), sum(one.completed for one in cells)) == (51, 50)
    await queue.history.stop()
    await queue.events.stop()


async def test_all_shards_are_paused_cleaned_and_recovered(queue: AsyncWorkQueue) -> None:
    await queue.add_items(items(40))
    await queue.pause(reason="move")
    assert await queue.lease_many(10, 30, block=False) == []
    assert (await queue.stats()).paused is not None
    assert await queue.resume()
    leases = await queue.lease_many(20, 30)
    again = await queue.admin.recover(15, 0, 30)
    assert len({lease.id for lease in again} & {lease.id for lease in leases}) == 15
    assert len(await queue.admin.clear_leases()) == 20
    assert (await queue.light_clean()).repaired == (await queue.deep_clean()).repaired == 0
    assert (await queue.admin.fsck()).repaired == 0
    assert (await queue.counts()).waiting == 40


async def test_one_call_leases_from_queues_with_and_without_shards(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    async with AsyncWorkQueue(f"{queue.name}-plain", redis) as plain:
        await plain.add_item(Item(b"x", id="plain"))
        await queue.add_items(items(5))
        leases = await lease_from([plain, queue], 10, 30)
        assert len(leases) == 6
        assert leases[0].id == "plain"


async def test_schedules_and_what_they_add_are_found_by_name(queue: AsyncWorkQueue) -> None:
    for n in range(8):
        await queue.schedules.every(timedelta(milliseconds=1), f"s{n}")
    assert len(await queue.schedules.list()) == 8

    async def ticked() -> bool:
        await queue.schedules.tick()
        return (await queue.counts()).waiting >= 8

    await until("each has added", ticked)
    for view in await queue.inspect(count=100):
        assert await queue.find(view.id) is not None
    assert await queue.schedules.remove("s3")
    assert len(await queue.schedules.list()) == 7


def test_no_call_of_a_queue_is_forgotten() -> None:
    """What is not made for shards would ask an engine, and raise; what is built on others may be left."""
    public = {name for name, one in vars(AsyncWorkQueue).items() if callable(one) and name[0] != "_"}
    assert public - {*vars(ShardedQueue)} == {"fail", "processing", "queue_len", "renew"}


async def test_a_pipeline_adds_to_the_shard_of_the_item(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.counts()
    async with redis.pipeline() as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(b"x", id="a"))
        queue.add_unique_item_to_pipeline(pipeline, Item(b"x", id="b"))
        await pipeline.execute()
    assert await queue.find("a") is not None
    assert await queue.find("b") is not None


@pytest.mark.usefixtures("no_looks")
async def test_connections_do_not_grow_with_the_shards(redis_url: str, redis: Redis, name: str) -> None:
    async with AsyncWorkQueue.from_url(redis_url, name, shards=64) as queue:
        waiting = asyncio.create_task(queue.lease(30))
        await waits(queue, redis)
        connections = engine_of(queue.shards[0]).session.connections
        assert sorted(one.purpose for one in connections) == ["commands", "pushes"]
        await queue.add_item(Item(b"x", id="a"))
        async with asyncio.timeout(LIMIT_SECONDS):
            assert await waiting is not None


async def test_a_worker_is_one_in_the_fleet_and_is_failed_on_all_shards(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_items(items(40))
    async with AsyncWorkQueue(queue.name, redis, shards=COUNT) as other:
        for shard in other.shards:
            leases = await shard.lease_many(5, 600, block=False)
            about = {"worker": "w", "name": "w", "running": [[one.id, "send", 1] for one in leases]}
            await engine_of(shard).registry.beat(about, alive_ms=600_000, first=True)
        fleet = Fleet(queue)
        [worker] = await fleet.workers()
        assert worker.queues == (queue.name,)
        assert {run.queue for run in worker.running} == {queue.name}
        assert len(worker.running) == 5 * COUNT
        assert await fleet.workers({queue.name: [other.session]}) == [worker]
        assert await fleet.workers({queue.name: ["another"]}) == []
        assert await fleet.fail("w") == 5 * COUNT
        assert (await queue.counts()).waiting == 40


async def test_a_worker_that_was_failed_on_one_shard_counts_once_and_its_dead_session_too(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """It works on under another session there, until the old one is failed."""
    for at, end in ((0, 600_000), (1, 1)):
        async with AsyncWorkQueue(queue.name, redis, shards=COUNT) as other:
            for shard in other.shards[at : at + 1] if end == 1 else other.shards:
                about = {"worker": "w", "name": "w", "items": {}}
                await engine_of(shard).registry.beat(about, alive_ms=end, first=True)
    stats = await queue.stats()
    assert stats.workers_alive == 1
    assert [one.dead for one in stats.workers] == [False, True]


async def test_the_queue_is_paused_if_all_shards_are(queue: AsyncWorkQueue) -> None:
    await queue.add_items(items(40))
    for shard in queue.shards:
        assert (await queue.stats()).paused is None
        await shard.pause(reason="work")
    paused = (await queue.stats()).paused
    assert paused is not None
    assert paused.reason == "work"


async def test_the_time_of_the_statistics_is_that_of_the_first_shard(queue: AsyncWorkQueue) -> None:
    """The clocks of nodes differ: rates follow from the differences of one."""
    found = [await one.stats() for one in queue.shards]
    found = [replace(one, at=100.0 + at, oldest_age=float(at)) for at, one in enumerate(found)]
    assert joined_stats(queue.name, found).at == 100.0
    assert joined_stats(queue.name, found).oldest_age == COUNT - 1
