"""Whatever another client writes into a key: no call raises what is not ours, no loop of a worker stops.

Each key of the table in `leasequeue.keys` is written with the values of tests/faults/hostile_keys.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from leasequeue import Fleet, Item, TaskQueue
from leasequeue.alive import ring
from leasequeue.errors import EventsError, LeasequeueError, WrongKeyType
from leasequeue.fastapi import router
from leasequeue.queue.findings import Problem
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.plans.stages import settle
from leasequeue.queue.queue import engine_of
from tests.eventually import LIMIT_SECONDS, eventually
from tests.faults.hostile_keys import Hostile, all_keys, hostile, is_shown
from tests.queue.asking import until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

    Call = Callable[[], Awaitable[object]]

pytestmark = [pytest.mark.core, pytest.mark.slow]

#: How many ids of a queue are asked for one by one, over HTTP and as flow runs.
MANY, SOME = 200, 40


async def write(redis: Redis, queue: str, found: Hostile) -> None:
    """Write the keys of a queue."""
    async with redis.pipeline(transaction=False) as pipeline:
        found.write(pipeline, queue)
        await pipeline.execute()


async def all_of(calls: list[Awaitable[object]]) -> None:
    """Make calls at once, and raise the first error that is not ours, or else the first error."""
    errors = [one for one in await asyncio.gather(*calls, return_exceptions=True) if one is not None]
    raised = [one for one in errors if isinstance(one, BaseException)]
    for one in sorted(raised, key=lambda error: isinstance(error, LeasequeueError)):
        raise one


def calls_on(queue: AsyncWorkQueue, ids: list[bytes]) -> dict[str, Call]:  # noqa: C901 - a list of calls
    """Return what reads and maintains a queue, by name."""
    texts = [one.decode(errors="surrogateescape") for one in ids[:MANY]]
    names = [one for one in texts if one.isascii() and is_shown(one.encode()) and not {*"/\0"} & {*one}]
    fleet, run_ids = Fleet(queue), [f"v{at}" for at in range(len(ids))]

    async def events() -> None:
        async for _ in queue.events(follow=False):
            pass

    async def inspect() -> None:
        for state in ("waiting", "leased", "scheduled"):
            await queue.inspect(state, count=1000)

    async def flow_runs() -> None:
        await queue.flow_runs.list()
        await queue.flow_runs.find("f", user_id=62)
        for at in range(0, len(run_ids), 1000):
            await queue.flow_runs.list(run_ids[at : at + 1000], children=True)
        some = random.Random(1).sample(names, min(SOME, len(names)))
        for one in await queue.flow_runs.list(some):
            if one is not None:
                await queue.flow_runs.get(one.id, children=True)
                await queue.flow_runs.cancel(one.id)

    async def settle_all() -> None:
        cursor = await settle(engine_of(queue))
        while cursor != b"0":
            cursor = await settle(engine_of(queue), cursor=cursor)

    return {
        "find": lambda: all_of([queue.find(one) for one in texts]),
        "inspect": inspect,
        "stats": queue.stats,
        "counts": queue.counts,
        "events": events,
        "history": queue.history,
        "schedules": queue.schedules.list,
        "limits": queue.limits.get,
        "dead letters": queue.dead_letters.list,
        "a dead letter": lambda: all_of([queue.dead_letters.get(one) for one in texts]),
        "results": lambda: all_of([queue.results.get(one) for one in texts]),
        "workers": fleet.workers,
        "light clean": queue.light_clean,
        "tick": queue.schedules.tick,
        "wait for an item": lambda: queue.lease(30, timeout=0.01),
        "settle": settle_all,
        "flow runs": flow_runs,
        "deep clean": queue.deep_clean,
    }


async def asked(tasks: TaskQueue, ids: list[bytes]) -> set[int]:
    """Ask the routes about a queue and its jobs; return the status of each answer."""
    app = FastAPI()
    app.include_router(router(tasks))
    paths = [f"/jobs/{quote(one, safe='')}" for one in ids[:SOME] if is_shown(one)]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = await asyncio.gather(*map(client.get, ["/queues", "/workers", *paths]))
    return {one.status_code for one in answers}


async def do_good_item(queue: AsyncWorkQueue) -> None:
    """Add an item, and lease until it comes."""
    await queue.add_item(Item(b"x", id="good"))
    found: set[str] = set()
    while "good" not in found:
        leases = await queue.lease_many(100, 30, timeout=LIMIT_SECONDS)
        assert leases, "the good item does not come"
        await queue.complete_many(leases)
        found = {one.id for one in leases}


@pytest.mark.parametrize("key", all_keys())
async def test_what_another_client_has_written_is_read_or_refused(
    redis: Redis, make_queue: MakeQueue, redis_url: str, name: str, key: str
) -> None:
    """A key of another type may be refused, until `fsck` has renamed it. No other value is."""
    for number, found in enumerate(hostile(key, all_keys()[key])):
        place = f"{name}-{number}"
        await write(redis, place, found)
        queue = make_queue(name=place)
        may_refuse = found.what.startswith("is a ") or key == "fence"
        for what, call in calls_on(queue, found.ids).items():
            try:
                await call()
            except EventsError:
                assert what == "events"
            except Exception as error:
                if may_refuse and isinstance(error, WrongKeyType):
                    continue
                raise AssertionError(f"{found.what}: {what} raises {error!r}"[:2000]) from error
        tasks = TaskQueue.from_url(redis_url, place)
        assert await asked(tasks, found.ids) <= {200, 404, 503} - ({503} if not may_refuse else set())
        await queue.admin.fsck()
        again = await queue.admin.fsck()
        # A stage whose child has an unreadable state stays open: only `cancel` ends its run.
        rest = {one.problem for one in again.findings if one.is_repaired}
        assert rest <= {Problem.SETTLED_STAGE}, (found.what, again)
        await do_good_item(queue)
        await queue.close()


async def test_fsck_drops_a_worker_whom_no_other_can_name(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue()
    await redis.zadd(f"{queue.name}:heartbeats", {b"\xff": 1.0})
    [found] = (await queue.admin.fsck()).findings
    assert (found.problem, found.examples) == (Problem.LOST_WORKER, ("\\xff",))
    assert not await redis.exists(f"{queue.name}:heartbeats")


def worst_of(key: str, kind: str) -> Hostile:
    """Return one queue for a key: with all values, if it can have them at once, or with a deep one."""
    found = {one.what: one for one in hostile(key, kind)}
    return found.get("of all kinds") or found["deep object"]


async def test_no_key_stops_a_loop_of_a_worker(
    redis: Redis,
    make_queue: MakeQueue,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A queue for each key, and one worker: it does the good items, and each loop goes round all queues."""
    monkeypatch.setattr(ring, "READ_SECONDS", 0.05)
    queues = [make_queue(name=f"{name}-{number}") for number in range(len(all_keys()))]
    for queue, (key, kind) in zip(queues, all_keys().items(), strict=True):
        await write(redis, queue.name, worst_of(key, kind))
    done: set[str] = set()
    worker = new_worker(clean_every=2, concurrency=50)

    def handler_of(place: str) -> Callable[[Lease], Awaitable[None]]:
        async def handle(lease: Lease) -> None:
            if lease.id == "good":
                done.add(place)

        return handle

    for queue in queues:
        worker.handler(queue)(handler_of(queue.name))
        with contextlib.suppress(WrongKeyType):  # only the fence
            await queue.add_item(Item(b"x", id="good"))
    watched: set[str] = set()
    read = ring.Ring.read

    async def noting(one: ring.Ring, server: str) -> bool:
        is_registered = await read(one, server)
        watched.add(one.queue.name)
        return is_registered

    monkeypatch.setattr(ring.Ring, "read", noting)
    with caplog.at_level(logging.DEBUG, "leasequeue"):
        async with working(worker):
            await eventually("the watch has read all queues", lambda: len(watched) == len(queues))
            for queue in queues:
                cleaned = [f"{queue.name}:cleaner", f"{queue.name}:deep_cleaner"]

                async def is_cleaned(keys: list[str] = cleaned) -> bool:
                    return bool(await redis.exists(*keys))

                await until(f"{queue.name} was cleaned", is_cleaned)
            await queues[[*all_keys()].index("fence")].admin.fsck()
            await eventually("the good items are done", lambda: len(done) == len(queues))
            # The queue of the last one counts as ignored until the next look.
            await eventually("it is healthy", lambda: worker.health().reasons == ())
    assert not [one.getMessage() for one in caplog.records if one.exc_info]
