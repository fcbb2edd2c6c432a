"""A worker that a server refuses: at the start it ends, later it waits and says so."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, FanOut, Item
from leasequeue.errors import AccessDenied, DatabaseMissing, LoginRefused, ServerRefused, ServerTooOld
from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from leasequeue.worker import refusals
from tests.eventually import eventually
from tests.queue.asking import command, until
from tests.queue.pretender import Pretender, bulk
from tests.worker.working import Gate, add, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from leasequeue.embedded import EmbeddedServer
    from leasequeue.worker import Worker
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

#: How long a worker may take to end that cannot start (s).
TIMEOUT = 120


def worker_with_lifespan(started: list[str]) -> Worker:
    """Make a worker whose lifespan notes that it was run."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        started.append("lifespan")
        yield

    return new_worker(lifespan=lifespan)


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize(
    ("login", "database", "kind"),
    [("", 0, LoginRefused), (":wrong@", 0, LoginRefused), (":secret@", 99, DatabaseMissing)],
)
async def test_a_worker_that_is_refused_raises_before_its_lifespan_runs(
    admin: Redis,
    own: EmbeddedServer,
    make_queue: MakeQueue,
    login: str,
    database: int,
    kind: type[ServerRefused],
    monkeypatch: pytest.MonkeyPatch,
    *,
    drain: bool,
) -> None:
    monkeypatch.setattr(refusals, "START_SECONDS", 3600)  # it does not start before the server has answered
    await admin.config_set("requirepass", "secret")
    started: list[str] = []
    worker = worker_with_lifespan(started)
    queue = make_queue(url=f"redis://{login}127.0.0.1:{own.port}/{database}")
    gate = Gate(worker, queue)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(kind, match="othing was applied"):
            await (worker.drain() if drain else worker.run())
        with pytest.raises(kind):  # not WorkerBusy: it can be started again
            await worker.run()
    assert started == gate.begun == []
    assert not worker.health().ok


@pytest.mark.parametrize("refused", ["zadd", "evalsha"])
async def test_a_worker_whose_user_may_not_lease_raises(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, refused: str
) -> None:
    rules = ["on", ">pw", f"~{name}:*", "&*", "+@all", f"-{refused}"]
    if refused == "evalsha":
        rules.append("-eval")
    await command(admin, "ACL", "SETUSER", "some", *rules)
    worker = new_worker()
    Gate(worker, make_queue(url=own.url.replace("redis://", "redis://some:pw@")))
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(AccessDenied, match=f"(?i){refused}"):
            await worker.run()


async def test_a_worker_of_several_servers_is_refused_if_one_refuses(
    admin: Redis, own: EmbeddedServer, queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await admin.config_set("requirepass", "secret")
    await add(queue, b"x")
    worker = new_worker()
    gate = Gate(worker, queue)
    Gate(worker, make_queue(url=own.url))
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(LoginRefused):
            await worker.run()
    assert gate.begun == []


async def test_a_worker_on_a_server_that_is_too_old_raises(make_queue: MakeQueue) -> None:
    async with Pretender({b"INFO": bulk("redis_version:6.0.16\r\n")}) as pretender:
        worker = new_worker()
        queue = make_queue(url=pretender.url)
        Gate(worker, queue)
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(ServerTooOld):
                await worker.run()
        await queue.close()


async def test_a_worker_waits_for_a_server_that_is_down_and_ends_if_it_then_refuses(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path
) -> None:
    server = await make_server(dir=tmp_path)
    await server.stop()
    worker = new_worker()
    Gate(worker, make_queue(url=f"redis://127.0.0.1:{server.port}/99"))
    running = asyncio.create_task(worker.run())
    await eventually("it waits", lambda: "no items can be leased" in " ".join(worker.health().reasons))
    await make_server(dir=tmp_path, port=server.port)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(DatabaseMissing):
            await running


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ],
)
async def test_a_worker_waits_for_a_server_that_accepts_no_writes(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, away: str, back: str
) -> None:
    """Such a server recovers by itself, so it does not count as a refusal."""
    queue = make_queue(url=own.url)
    worker = new_worker()
    gate = Gate(worker, queue)
    await add(queue, b"x")
    await command(admin, *away.split())
    async with working(worker):
        await eventually("it has started", lambda: worker.health().reasons != ("the worker is not running",))
        await command(admin, *back.split())
        await gate.reached(1)
        gate.opened.set()
        await finished(queue)
    assert gate.done == ["1"]


async def test_a_worker_is_unhealthy_while_its_server_is_full(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue
) -> None:
    queue = make_queue(url=own.url)
    worker = new_worker()
    gate = Gate(worker, queue)
    async with working(worker):
        await eventually("it is healthy", lambda: worker.health().ok)
        await admin.config_set("maxmemory", 1)
        await eventually("it works, but is not", lambda: worker.health().works and not worker.health().ok)
        [reason] = worker.health().reasons
        assert "the server refuses new items" in reason
        assert "maxmemory" in reason
        assert "ServerOutOfMemory, see the log" in worker.health().public_reasons[0]
        await admin.config_set("maxmemory", 0)
        await eventually("it is healthy again", lambda: worker.health().ok)
    assert gate.done == []


async def test_a_worker_can_be_stopped_while_it_asks_whether_it_is_refused(make_queue: MakeQueue) -> None:
    async with Pretender({b"EVALSHA": b""}) as pretender:  # it answers nothing
        started: list[str] = []
        worker = worker_with_lifespan(started)
        queue = make_queue(url=pretender.url)
        Gate(worker, queue)
        running = asyncio.create_task(worker.run())
        await eventually("it has connected", lambda: pretender.connections > 0)
        worker.stop()
        async with asyncio.timeout(TIMEOUT):
            await running
        assert started == []
        await queue.close()


async def connections_of(admin: Redis) -> int:
    """Return how many connections the server has accepted so far."""
    info: dict[str, int] = await admin.info("stats")
    return info["total_connections_received"]


@pytest.mark.usefixtures("quick_checks")
async def test_a_worker_that_is_refused_later_works_on_when_it_is_accepted_again(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Outcomes of runs wait: no item runs again. The refusal is logged once a minute."""
    queue = make_queue(url=own.url)
    worker = new_worker(concurrency=3, lease_time=3600)
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * 3)
    async with working(worker):
        await gate.reached(3)
        await admin.config_set("requirepass", "secret")
        await command(admin, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await command(admin, "CLIENT", "KILL", "TYPE", "pubsub")
        gate.opened.set()
        await eventually("outcomes wait", lambda: "outcomes of" in caplog.text)

        def reasons() -> str:
            return " ".join(worker.health().reasons)

        await eventually("it is unhealthy", lambda: "the server refuses for" in reasons())
        assert "check the user and the password" in reasons()
        assert not worker.health().ok
        tries = await connections_of(admin) + 10

        async def has_tried() -> bool:
            return await connections_of(admin) >= tries

        await until("it has tried again several times", has_tried)
        refusals = [one for one in caplog.records if "check the user" in one.getMessage()]
        assert {one.levelname for one in refusals} == {"ERROR"}
        texts = [one.getMessage() for one in refusals]
        assert len(texts) == len({*texts}), "each of them once"
        await admin.config_set("requirepass", "")
        await queue.add_item(Item(b"x", id="after"))
        await finished(queue)
        await eventually("it is healthy", lambda: worker.health().ok)
    assert gate.begun == gate.done == ["1", "2", "3", "after"]


@pytest.mark.core
@pytest.mark.parametrize("kind", ["children", "deleted"])
async def test_a_stage_whose_queue_the_worker_may_not_use_fails(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, kind: str
) -> None:
    """The worker that would add its item still ends the work before it, and names the queue."""
    there = f"other-{name}"
    owner = make_queue(url=own.url)
    await command(admin, "ACL", "SETUSER", "bob", "on", ">pw", f"~{name}:*", "&*", "+@all")
    if kind == "deleted":
        await command(admin, "ACL", "SETUSER", "bob", "allkeys")
        await command(admin, "HSET", f"{there}:control", "closed", "deleted 1")
    queue = make_queue(url=own.url.replace("redis://", "redis://bob:pw@"))
    assert await owner.flow_runs.start(FlowPlan((StagePlan("a", name, b"{}"),)), "r")
    worker = new_worker(feeds={name: [there]})
    runs = 0

    @worker.handler(queue)
    async def fan(item: Item) -> object:
        nonlocal runs
        assert item.data == b"{}"
        runs += 1
        return FanOut([ChildPlan(there, b"{}")] * 120)

    async with asyncio.timeout(TIMEOUT):
        await worker.drain()
    view = await owner.flow_runs.get("r")
    assert (view.state, runs) == ("failed", 1)
    assert view.error is not None
    assert there in view.error
    assert ("is being deleted" if kind == "deleted" else "access rules") in view.error
    assert (await owner.counts()).total == 0
