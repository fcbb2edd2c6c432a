"""Errors of the server: each has its class, says what was applied, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, Lease, ServerError
from leasequeue.errors import (
    EvictionWarning,
    ServerBusy,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
    WrongKeyType,
)
from leasequeue.queue.plans.stages import FinishRow, finish_stages
from leasequeue.queue.pushes import listener
from leasequeue.queue.queue import engine_of
from leasequeue.wire.server_errors import translate
from tests.eventually import eventually
from tests.plans.run_hashes import chain
from tests.queue.asking import alone, blocked, command, take, until
from tests.queue.keyspace import audit, snapshot
from tests.queue.pretender import Pretender, bulk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

WRITES: dict[str, Callable[[AsyncWorkQueue, Lease], Awaitable[Any]]] = {
    "add_item": lambda q, _: q.add_item(Item(b"x", id="new")),
    "add_item, delayed": lambda q, _: q.add_item(Item(b"x", id="new"), delay=5),
    "add_unique_item": lambda q, _: q.add_unique_item(Item(b"x", id="new")),
    "lease": lambda q, _: q.lease(30, block=False),
    "lease, waiting": lambda q, _: q.lease_many(1000, 30, timeout=30),
    "complete": lambda q, lease: q.complete(lease),
    "renew": lambda q, lease: q.renew(lease, 30),
    "release": lambda q, lease: q.release(lease),
    "release, delayed": lambda q, lease: q.release(lease, delay=5),
}


@pytest.fixture
async def started(own: EmbeddedServer, make_queue: MakeQueue) -> tuple[AsyncWorkQueue, Lease]:
    """Return a queue on that server with a waiting item and a leased one."""
    queue = make_queue(url=own.url)
    await queue.add_items([Item(b"x", id="leased"), Item(b"x", id="waits")])
    lease = await take(queue, 60)
    return queue, lease


async def test_a_replica_raises_server_read_only(admin: Redis, started: tuple[AsyncWorkQueue, Lease]) -> None:
    queue, lease = started
    await command(admin, "REPLICAOF", "127.0.0.1", "1")
    before = await snapshot(admin)
    for name, call in WRITES.items():
        with pytest.raises(ServerReadOnly, match="nothing was applied"):
            await call(queue, lease)
        assert await snapshot(admin) == before, name
    assert await queue.counts() == (1, 1, 0, 0)
    await command(admin, "REPLICAOF", "NO", "ONE")
    assert await queue.add_item(Item(b"x", id="new"))
    assert await queue.complete(lease)


async def test_a_primary_that_becomes_a_replica_while_a_caller_waits(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends blocked calls with a special error code, of the same meaning."""
    monkeypatch.setattr(listener, "KEEP_MS", 500)  # it is told when it has to register again
    queue = make_queue(url=own.url)
    waiting = asyncio.create_task(queue.lease(30))
    await blocked(admin, 1)
    await command(admin, "REPLICAOF", "127.0.0.1", "1")
    async with asyncio.timeout(120):
        with pytest.raises(ServerReadOnly):
            await waiting
    await command(admin, "REPLICAOF", "NO", "ONE")
    assert await queue.add_item(Item(b"x"))
    await take(queue)


async def test_a_full_server_refuses_adds_and_still_leases_and_completes(
    admin: Redis, started: tuple[AsyncWorkQueue, Lease]
) -> None:
    """Adding fails; waiting items are leased and completed."""
    queue, lease = started
    await admin.config_set("maxmemory", 1)
    before = await snapshot(admin)
    for name in ("add_item", "add_item, delayed", "add_unique_item"):
        with pytest.raises(ServerOutOfMemory, match="nothing was applied"):
            await WRITES[name](queue, lease)
    assert await snapshot(admin) == before

    assert await queue.counts() == (1, 1, 0, 0)
    assert (await queue.stats()).counts == (1, 1, 0, 0), "it must be watched, too"
    assert await queue.renew(lease, 60)
    assert await queue.complete(lease)
    other = await take(queue, 60)
    assert await queue.release(other)
    other = await take(queue, 0.01)
    again = await take(queue, 60)
    assert (again.id, again.token) == (other.id, other.token + 1)
    assert await queue.complete_many([again, other]) == [True, False]
    await audit(admin, queue.name)

    assert await queue.lease(30, block=False) is None
    assert await queue.lease(30, timeout=0.3) is None, "waiting at an empty queue works, too"
    await admin.config_set("maxmemory", 0)
    assert await queue.add_item(Item(b"x", id="new"))
    await take(queue)


async def test_a_full_server_refuses_new_flow_runs_and_finishes_those_it_has(
    admin: Redis, started: tuple[AsyncWorkQueue, Lease]
) -> None:
    queue, lease = started
    await queue.complete(lease)
    await take(queue)
    await queue.flow_runs.start(chain(queue.name, "a", "b"), "r")
    await admin.config_set("maxmemory", 1)
    before = await snapshot(admin)
    for place in (queue.name, f"{queue.name}-elsewhere"):
        with pytest.raises(ServerOutOfMemory, match="nothing was applied"):
            await queue.flow_runs.start(chain(place, "a", "b"), "other")
    assert await snapshot(admin) == before
    for _ in "ab":
        assert await finish_stages(engine_of(queue), [FinishRow(await take(queue), "done", b"1")]) == [True]
    assert (await queue.flow_runs.get("r")).state == "completed"


async def test_an_item_that_falls_due_while_the_server_is_full_is_leased(
    admin: Redis, started: tuple[AsyncWorkQueue, Lease]
) -> None:
    queue, lease = started
    assert await queue.release(lease, delay=0.05)
    await admin.config_set("maxmemory", 1)
    ids = [got.id for _ in range(2) if (got := await queue.lease(30, timeout=120))]
    assert sorted(ids) == ["leased", "waits"]


@pytest.mark.parametrize("login", ["", ":wrong@", "unknown:wrong@"])
async def test_a_missing_or_wrong_login_raises_server_refused(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, login: str
) -> None:
    await admin.config_set("requirepass", "secret")
    queue = make_queue(url=own.url.replace("redis://", f"redis://{login}"))
    for _ in range(2):
        with pytest.raises(ServerRefused, match="nothing was applied"):
            await queue.add_item(Item(b"x", id="new"))
        with pytest.raises(ServerRefused, match="nothing was applied"):
            await queue.lease(30)
    right = make_queue(url=own.url.replace("redis://", "redis://:secret@"))
    assert await right.add_item(Item(b"x", id="new"))
    await admin.config_set("requirepass", "")
    if not login:
        await take(queue)


async def test_a_full_client_list_raises_connection_lost(make_queue: MakeQueue, own: EmbeddedServer) -> None:
    queue = make_queue(url=own.url)
    await own.stop()
    for call in (queue.add_item(Item(b"x")), queue.lease(30), queue.counts(), queue.lease(30, block=False)):
        with pytest.raises(ConnectionLost, match="nothing was applied; repeat") as caught:
            await call
        assert caught.value.maybe_applied is False
        assert isinstance(caught.value, ServerError)


async def test_a_loading_server_raises_server_busy(make_queue: MakeQueue) -> None:
    """A fake server, as a real one loads its data too fast: it answers INFO, and scripts with LOADING."""
    loading = b"-LOADING Redis is loading the dataset in memory\r\n"
    async with Pretender({b"EVALSHA": loading}) as pretender:
        queue = make_queue(url=pretender.url)
        for call in (queue.add_item(Item(b"x")), queue.lease(30), queue.counts()):
            with pytest.raises(ServerBusy, match="nothing was applied; try again"):
                await call
        assert pretender.connections == 1
        pretender.answers[b"EVALSHA"] = b"*1\r\n:1\r\n"
        assert await queue.add_item(Item(b"x"))
        assert pretender.connections == 1
        await queue.close()


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "2.8.0", "6.1.99"])
async def test_an_old_server_raises_server_too_old(make_queue: MakeQueue, version: str) -> None:
    """A fake server, as no real one of that age is available."""
    async with Pretender({b"INFO": bulk(f"redis_version:{version}\r\n")}) as pretender:
        queue = make_queue(url=pretender.url)
        for call in (queue.add_item(Item(b"x")), queue.lease(30)):
            with pytest.raises(ServerTooOld, match=rf"Redis {version}.*needs Redis 6\.2"):
                await call
        assert b"EVALSHA" not in pretender.requests
        await eventually("it has hung up", lambda: pretender.connections == 0)


@pytest.mark.parametrize("version", ["6.2.0", "7.2.4", "8.0", "7.4-rc1", "255.255.255", "10"])
async def test_a_recent_server_is_accepted(make_queue: MakeQueue, version: str) -> None:
    answers = {b"INFO": bulk(f"redis_version:{version}\r\n"), b"EVALSHA": b"*1\r\n:1\r\n"}
    async with Pretender(answers) as pretender:
        queue = make_queue(url=pretender.url)
        assert await queue.add_item(Item(b"x"))
        await queue.close()


async def test_a_server_that_disconnects_during_info_raises_connection_lost(make_queue: MakeQueue) -> None:
    async with Pretender({b"INFO": None}) as pretender:
        queue = make_queue(url=pretender.url)
        with pytest.raises(ConnectionLost) as caught:
            await queue.add_item(Item(b"x"))
        assert caught.value.maybe_applied is False
        await eventually("it has hung up", lambda: pretender.connections == 0)


async def test_an_evicting_policy_issues_one_warning(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue
) -> None:
    await admin.config_set("maxmemory", "100mb")
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    queue = make_queue(url=own.url)
    with pytest.warns(EvictionWarning, match=r"allkeys-lru.*noeviction") as caught:
        assert await queue.add_item(Item(b"x"))
    assert sum(issubclass(warning.category, EvictionWarning) for warning in caught) == 1
    # From here on a warning is an error, as everywhere in these tests.
    await take(queue)
    await admin.client_kill_filter(_type="normal", skipme=True)
    with contextlib.suppress(ConnectionLost):
        await queue.counts()
    assert await queue.counts() == (0, 1, 0, 0)


async def test_an_error_of_many_trips_says_how_many_were_applied(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue
) -> None:
    queue = make_queue(url=own.url)
    await queue.counts()
    used = (await admin.info("memory"))["used_memory"]
    await admin.config_set("maxmemory", used + (12 << 20))
    items = [Item(bytes(1 << 20), id=f"{n}") for n in range(40)]
    with pytest.raises(ServerOutOfMemory) as caught:
        await queue.add_items(items)
    [note] = caught.value.__notes__
    applied, of = map(int, re.findall(r"\d+", note))
    assert of == 40
    assert 0 < applied == (await queue.counts()).waiting < 40
    await admin.config_set("maxmemory", 0)
    assert sum(await queue.add_items(items)) == 40 - applied
    assert (await queue.counts()).waiting == 40


@pytest.mark.parametrize(("maxmemory", "policy"), [("100mb", "noeviction"), ("0", "allkeys-lru")])
async def test_a_policy_that_evicts_nothing_issues_no_warning(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, maxmemory: str, policy: str
) -> None:
    await admin.config_set("maxmemory", maxmemory)
    await admin.config_set("maxmemory-policy", policy)
    assert await make_queue(url=own.url).add_item(Item(b"x"))  # warnings are errors here


async def test_a_warning_that_is_an_error_leaves_no_connection(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue
) -> None:
    await admin.config_set("maxmemory", "100mb")
    await admin.config_set("maxmemory-policy", "volatile-ttl")
    queue = make_queue(url=own.url)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvictionWarning)
        with pytest.raises(EvictionWarning, match="volatile-ttl"):
            await queue.counts()
    await alone(admin)


async def test_a_script_that_the_server_has_no_memory_for_says_so(own: EmbeddedServer) -> None:
    pages = int(Path(f"/proc/{own.pid}/statm").read_text(encoding="ascii").split()[0])  # noqa: ASYNC240 - no file
    limit = pages * resource.getpagesize() + (60 << 20)
    resource.prlimit(own.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    async with Redis.from_url(own.url) as redis:
        with pytest.raises(ResponseError) as raised:
            await command(redis, "EVAL", "return #string.rep('x', 100 * 1024 * 1024)", 0)
    ours = translate(raised.value, maybe_applied=True)
    assert isinstance(ours, ServerOutOfMemory)
    assert "Set its maxmemory below" in str(ours)


async def test_a_node_that_is_cut_off_from_its_cluster_is_left_for_the_one_that_took_its_place() -> None:
    """It answers CLUSTERDOWN, to the connections that are open as well. Its slots may be elsewhere since."""
    answers = {b"EVALSHA": b"-CLUSTERDOWN The cluster is down\r\n"}
    async with Pretender(answers) as old, Pretender({b"EVALSHA": b"*1\r\n:1\r\n"}) as new:

        def all_slots_at(node: Pretender) -> None:
            port = node.url.rpartition(":")[2].partition("/")[0]
            slots = f"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{bulk('127.0.0.1').decode()}:{port}\r\n".encode()
            old.answers[b"CLUSTER"] = new.answers[b"CLUSTER"] = slots

        all_slots_at(old)
        async with AsyncWorkQueue.from_url(old.url, "{q}", cluster=True) as queue:
            with pytest.raises(ServerBusy, match=r"CLUSTERDOWN|cluster is down"):
                await queue.add_item(Item(b"x"))
            all_slots_at(new)

            async def is_added() -> bool:
                with contextlib.suppress(ServerBusy):
                    return await queue.add_item(Item(b"x"))
                return False

            await until("the other node is asked", is_added)


async def test_calls_that_need_a_key_of_another_type_raise_wrong_key_type(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x", id="leased"))
    lease = await take(queue)
    await redis.set(f"{queue.name}:queue", "something else")
    with pytest.raises(WrongKeyType, match="choose another name"):
        await queue.add_item(Item(b"x"))
    for call in (queue.add_items([Item(b"x")]), queue.release(lease), queue.inspect(), queue.deep_clean()):
        with pytest.raises(WrongKeyType):
            await call
    assert await queue.complete(lease), "it does not need the key"


async def test_the_other_items_are_leased_and_completed(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(10)])
    await redis.delete(f"{queue.name}:item:5")
    await redis.rpush(f"{queue.name}:item:5", "something", "else")
    leases = await queue.lease_many(10, 30, block=False)
    assert [lease.id for lease in leases] == [f"{n}" for n in range(10) if n != 5]
    with pytest.raises(WrongKeyType):
        await queue.lease_many(10, 30, block=False)
    with pytest.raises(WrongKeyType):
        await queue.lease(30, timeout=120)
    await redis.delete(f"{queue.name}:item:5")
    assert await queue.complete_many(leases) == [True] * 9
    assert await queue.lease(30, block=False) is None
    await audit(redis, queue.name)


#: More calls than leave the process at once.
CALLS = 5_000


async def connections_of(redis: Redis) -> int:
    received: int = (await redis.info("stats"))["total_connections_received"]
    return received


@pytest.mark.slow
async def test_all_calls_on_a_server_that_stands_still_end_together(make_server: MakeServer) -> None:
    """They were 1,000 a second, each thousand with its own connection that was not answered either."""
    server = await make_server()
    async with (
        Redis.from_url(server.url) as redis,
        AsyncWorkQueue.from_url(server.url, "q", reply_timeout=3) as queue,
    ):
        await queue.add_item(Item(b"x", id="before"))
        before = await connections_of(redis)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            errors = await asyncio.gather(
                *(queue.add_item(Item(b"x")) for _ in range(CALLS)),
                *(queue.lease(30, block=False) for _ in range(CALLS)),
                return_exceptions=True,
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert {type(error) for error in errors} == {ConnectionLost}
        applied = sum(error.maybe_applied for error in errors if isinstance(error, ConnectionLost))
        # The ones that had left the process; calls that were made while the first waited get one more try.
        assert applied <= 3_000
        assert await connections_of(redis) - before <= 3
        assert await queue.add_item(Item(b"x", id="after"))
