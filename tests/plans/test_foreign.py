"""Tests of stages on queues that only clients of another library serve: the flow's workers maintain these."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

from leasequeue import TaskQueue
from leasequeue.errors import AccessDenied
from leasequeue.flow import Flow
from leasequeue.queue import cleaning
from leasequeue.queue.plans.stages import settle
from leasequeue.worker import maintenance
from leasequeue.worker.maintenance import Maintenance
from tests.eventually import eventually
from tests.interop.state import as_bytes
from tests.plans.flows import ONE_QUEUE
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis as AsyncRedis

    from leasequeue import FlowRun
    from leasequeue.queue.engine import Engine
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

# The calls of their client.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


class Legacy:
    """The queue of the foreign stage, as a client of redis-work-queue sees it."""

    def __init__(self, db: Redis, name: str) -> None:
        self.name = name
        self._db = db
        self._client = WorkQueue(KeyPrefix(name))

    async def lease(self, seconds: int = 30) -> Item:
        item = await asyncio.to_thread(self._client.lease, self._db, seconds, block=True, timeout=120)
        assert item is not None
        return item

    def complete(self, item: Item) -> bool:
        return bool(self._client.complete(self._db, item))

    def die_completing(self, item: Item) -> None:
        """Do the first half of `complete`: the process is killed when it begins its second trip."""
        with pytest.raises(SystemExit):
            self._client.complete(_Killed(connection_pool=self._db.connection_pool), item)


class _Killed(Redis):
    def pipeline(self, *_: Any, **__: Any) -> Any:
        raise SystemExit


@pytest.fixture
def legacy(redis_url: str, name: str) -> Iterator[Legacy]:
    with Redis.from_url(redis_url) as db:
        yield Legacy(db, f"{name}-legacy")


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Maintain often, and count how often stages of a queue were settled, by its name."""
    counts: Counter[str] = Counter()

    async def counted(engine: Engine, *, cursor: bytes) -> bytes:
        after = await settle(engine, cursor=cursor)
        counts[engine.name] += 1
        return after

    monkeypatch.setattr(maintenance, "settle", counted)
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.1)
    monkeypatch.setattr(cleaning, "GRACE_MS", 100)
    return counts


def declared(tasks: TaskQueue, legacy: str) -> Flow:
    """Return a flow with a stage of ours, a foreign one, and one that joins them."""
    flow = Flow("access", tasks, attributes={"user_id": int})

    @tasks.task
    async def check(user_id: int) -> int:
        return user_id

    @tasks.task
    async def end(check: int, render: None) -> list[Any]:
        return [check, render]

    first = flow.stage(check)
    render = flow.stage("render", queue=legacy, after=first, takes={"user": "user_id"}, foreign=True)
    flow.stage(end, after=[first, render])
    return flow


async def is_done(run: FlowRun[Any]) -> None:
    assert await run.result(timeout=120) == [3, None]


@ONE_QUEUE
@pytest.mark.seed("GLD-O23", "GLD-B18")
@pytest.mark.parametrize("source", ["flow", "task queue"])
async def test_a_stage_waits_for_a_client_of_another_library(
    tasks: TaskQueue, legacy: Legacy, passes: Counter[str], source: str
) -> None:
    flow = declared(tasks, legacy.name)
    run = await flow.start(user_id=3, priority=5)
    async with working(new_worker(flow if source == "flow" else tasks, clean_every=60)):
        item = await legacy.lease()
        assert item.data_json()["user"] == 3
        seen = passes[legacy.name]
        await eventually("it is maintained", lambda: passes[legacy.name] > seen + 2)
        assert (await flow.runs.get(run.id)).stages["render"].state == "entered"
        assert legacy.complete(item)
        await is_done(run)


@ONE_QUEUE
async def test_a_worker_that_starts_a_queue_later_maintains_the_foreign_ones_of_its_tasks(
    tasks: TaskQueue, legacy: Legacy, name: str
) -> None:
    @tasks.task
    async def before() -> None: ...

    async with working(worker := new_worker(tasks, clean_every=60)):
        await worker.started()

        @tasks.task(queue=f"{name}-later")
        async def later() -> None: ...

        flow = Flow("access", tasks, attributes={"user_id": int})
        render = flow.stage("render", queue=legacy.name, takes={"user": "user_id"}, foreign=True)
        assert render.foreign
        await worker.start_queue(f"{name}-later")
        run = await flow.start(user_id=3)
        assert legacy.complete(await legacy.lease())
        await run.result(timeout=120)


@ONE_QUEUE
async def test_workers_lease_nothing_from_the_queue_of_a_foreign_stage_and_do_not_register_there(
    tasks: TaskQueue, legacy: Legacy, passes: Counter[str], redis: AsyncRedis
) -> None:
    flow = declared(tasks, legacy.name)
    runs = [await flow.start(user_id=3) for _ in range(3)]
    async with working(new_worker(flow, clean_every=0.05)), working(new_worker(flow, clean_every=0.05)):
        items = [await legacy.lease() for _ in runs]
        seen = passes[legacy.name]
        await eventually("both maintain it", lambda: passes[legacy.name] > seen + 4)
        keys = {
            (as_bytes(key) or b"").decode().removeprefix(f"{legacy.name}:")
            for key in await redis.keys(f"{legacy.name}:*")
        }
        kinds = {key.partition(":")[0] for key in keys}
        # Cleans note for a while who does them, and how long a lease of theirs lasts; nothing else is ours.
        kinds -= {"cleaner", "deep_cleaner", "deadlines"}
        assert kinds == {"processing", "item", "leased_by_session", "options"}
        assert all(legacy.complete(item) for item in items)
        await asyncio.gather(*(is_done(run) for run in runs))


@ONE_QUEUE
async def test_what_a_dead_foreign_client_held_waits_again(tasks: TaskQueue, legacy: Legacy) -> None:
    flow = declared(tasks, legacy.name)
    run = await flow.start(user_id=3)
    async with working(new_worker(flow, clean_every=0.05)):
        first = await legacy.lease(seconds=1)
        again = await legacy.lease()  # without a clean, no one would give it back
        assert again.id() == first.id()
        assert legacy.complete(again)
        await is_done(run)


@ONE_QUEUE
async def test_what_a_foreign_client_lost_as_it_completed_waits_again(
    tasks: TaskQueue, legacy: Legacy, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_once = Maintenance.clean_once
    monkeypatch.setattr(
        Maintenance, "clean_once", lambda self, queue, **_: clean_once(self, queue, deep=True)
    )
    flow = declared(tasks, legacy.name)
    run = await flow.start(user_id=3)
    async with working(new_worker(flow, clean_every=0.05)):
        first = await legacy.lease(seconds=1)
        legacy.die_completing(first)
        assert not await redis.llen(f"{legacy.name}:processing")
        again = await legacy.lease()  # only a deep clean finds it
        assert again.id() == first.id()
        assert legacy.complete(again)
        await is_done(run)


@ONE_QUEUE
async def test_of_a_long_foreign_queue_one_pass_looks_at_a_thousand_items(
    tasks: TaskQueue, legacy: Legacy, passes: Counter[str], make_queue: MakeQueue
) -> None:
    flow = Flow("access", tasks, attributes={"user_id": int})
    render = flow.stage("render", queue=legacy.name, takes={"user": "user_id"}, foreign=True)
    assert render.foreign
    runs = [await flow.start(user_id=3) for _ in range(300)]
    queue = make_queue(name=legacy.name)
    for _ in runs:
        assert legacy.complete(await legacy.lease())
    await Maintenance(clean_every=60, keep_dead=None, foreign=[queue])._settle(queue)
    assert passes[legacy.name] > 2
    assert [await run.status() for run in runs] == ["completed"] * 300


async def test_a_worker_that_may_not_maintain_a_foreign_queue_does_not_start(
    make_server: MakeServer, name: str
) -> None:
    server = await make_server()
    with Redis.from_url(server.url) as db:
        db.execute_command("ACL", "SETUSER", "web", "on", ">secret", "+@all", f"~{name}:*", "&*")
    url = server.url.replace("://", "://web:secret@")
    async with TaskQueue.from_url(url, name) as tasks:
        declared(tasks, f"{name}-legacy")
        with pytest.raises(AccessDenied, match=f"{name}-legacy"):
            async with asyncio.timeout(120):
                await new_worker(tasks, clean_every=60).run()
