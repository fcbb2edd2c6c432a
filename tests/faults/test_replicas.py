"""What is added and completed with `replicas=` is on replicas, or the error says that it is not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis, RedisCluster

from leasequeue import AsyncWorkQueue, ConnectionLost, InvalidArgument, Item, TaskQueue, Worker
from leasequeue.errors import AccessDenied, LeasequeueError, NotReplicated, PartlyApplied
from leasequeue.wire import replicas as replicas_settings
from tests.eventually import LIMIT_SECONDS, eventually
from tests.faults.cluster_nodes import joined, owner, port_of
from tests.faults.sentinels import frozen, run_replica, run_server
from tests.ports import free_port
from tests.queue.asking import blocked, command, names_of, take, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow


class Pair:
    """A primary and its replica."""

    def __init__(self, primary: Redis, replica: Redis, stack: AsyncExitStack) -> None:
        self.primary, self.replica = primary, replica
        self._stack = stack

    async def queue(self, name: str = "q", *, user: str = "", **settings: Any) -> AsyncWorkQueue:
        """Open a queue on the primary, which is closed after the test."""
        url = f"redis://{user}127.0.0.1:{port_of(self.primary)}"
        opened = AsyncWorkQueue.from_url(url, name, **{"replicas": 1, "reply_timeout": 600} | settings)
        return await self._stack.enter_async_context(opened)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Run them, and return when the replica has its link."""
    async with AsyncExitStack() as stack:
        port = free_port()
        primary = await run_server(stack, port)
        replica = await run_replica(stack, free_port(), port)

        async def is_linked() -> bool:
            return bool((await replica.info("replication"))["master_link_status"] == "up")

        await until("the replica has its link", is_linked)
        yield Pair(primary, replica, stack)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls wait for replicas for as long as a test needs."""
    monkeypatch.setattr(replicas_settings, "WAIT_SECONDS", LIMIT_SECONDS)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls wait for a frozen replica for a moment."""
    monkeypatch.setattr(replicas_settings, "WAIT_SECONDS", 0.1)


async def exists(redis: Redis, key: str) -> None:
    """Wait until a key exists."""

    async def is_there() -> bool:
        return bool(await redis.exists(key))

    await until(f"{key} exists", is_there)


async def waits_for_replicas(pair: Pair, call: asyncio.Task[Any]) -> None:
    """Check that a call waits on the server, and has not returned."""
    waiting = asyncio.create_task(blocked(pair.primary, 1))
    await asyncio.wait({waiting, call}, return_when=asyncio.FIRST_COMPLETED)
    assert not call.done(), call
    await waiting


@pytest.mark.usefixtures("patient")
async def test_adds_and_completions_return_when_a_replica_has_them(pair: Pair) -> None:
    queue = await pair.queue()
    assert await queue.add_item(Item(b"x", id="first"))
    assert await pair.replica.exists("q:item:first")
    leases = [await take(queue), None]
    async with frozen(pair.replica):
        adding = asyncio.create_task(queue.add_item(Item(b"x", id="second")))
        await exists(pair.primary, "q:item:second")
        await waits_for_replicas(pair, adding)
    assert await adding
    assert await pair.replica.exists("q:item:second")
    leases[1] = await take(queue)
    async with frozen(pair.replica):
        completing = asyncio.create_task(queue.complete_many([one for one in leases if one]))
        await waits_for_replicas(pair, completing)
    assert await completing == [True, True]
    assert not await pair.replica.exists("q:item:first", "q:item:second")


async def test_a_call_that_is_not_replicated_says_that_it_was_applied_and_can_be_repeated(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await pair.queue()
    assert await queue.add_item(Item(b"x", id="held"))
    lease = await take(queue)
    monkeypatch.setattr(replicas_settings, "WAIT_SECONDS", 0.1)
    async with frozen(pair.replica):
        with pytest.raises(
            NotReplicated, match=r"applied here, not yet on 1 replica: 0 of 1 .* 0\.1 s\. "
        ) as found:
            await queue.add_item(Item(b"x", id="new"))
        assert await pair.primary.exists("q:item:new")
        error = found.value
        assert (error.answers, error.replicas, error.confirmed, error.connected) == ((True,), 1, 0, 1)
        assert error.transient
        assert error.maybe_applied
        with pytest.raises(NotReplicated) as found:  # it changes nothing more, and is not replicated yet
            await queue.add_item(Item(b"x", id="new"))
        assert found.value.answers == (False,)
        with pytest.raises(NotReplicated) as found:
            await queue.complete(lease, result=b"y")
        assert found.value.answers == (True,)
        monkeypatch.setattr(replicas_settings, "WAIT_SECONDS", LIMIT_SECONDS)
        again = [
            asyncio.create_task(queue.add_item(Item(b"x", id="new"))),
            asyncio.create_task(queue.complete(lease)),
        ]
    assert await asyncio.gather(*again) == [False, False]
    assert await pair.replica.exists("q:item:new")
    assert not await pair.replica.exists("q:item:held")


@pytest.mark.usefixtures("hasty")
async def test_callers_that_share_a_trip_get_their_own_answers(pair: Pair) -> None:
    queue = await pair.queue()
    await (await pair.queue(replicas=0)).add_item(Item(b"x", id="known"))
    async with frozen(pair.replica):
        found = await asyncio.gather(
            queue.add_items([Item(b"x", id="known"), *(Item(b"x", id=f"{n}") for n in range(600))]),
            queue.add_item(Item(b"x", id="known")),
            queue.add_items([Item(b"x", id="a"), Item(b"x", id="known"), Item(b"x", id="b")]),
            queue.add_item(Item(b"x", id="known")),
            queue.add_item(Item(b"x", id="c")),
            return_exceptions=True,
        )
    answers = [error.answers for error in found if isinstance(error, NotReplicated)]
    assert answers == [(False, *[True] * 600), (False,), (True, False, True), (False,), (True,)]


@pytest.mark.usefixtures("hasty")
async def test_a_call_on_several_shards_has_the_answers_of_all(pair: Pair) -> None:
    queue = await pair.queue(shards=4)
    items = [Item(b"x", id=f"{n}") for n in range(20)]
    assert await (await pair.queue(shards=4, replicas=0)).add_item(items[3])
    homes = {item.id: queue.shard_of(item.id).name for item in items}
    assert len(set(homes.values())) == 4
    async with frozen(pair.replica):
        with pytest.raises(NotReplicated) as found:
            await queue.add_items(items)
        assert found.value.answers == tuple(item is not items[3] for item in items)
        broken = homes["0"]
        await pair.primary.rename(f"{broken}:queue", f"{broken}:elsewhere")
        await pair.primary.set(f"{broken}:queue", "no list")
        with pytest.raises(PartlyApplied) as partly:
            await queue.add_items(others := [Item(b"x", id=f"other {n}") for n in range(20)])
        failed = [queue.shard_of(item.id).name == broken for item in others]
        assert partly.value.answers == tuple(None if one else True for one in failed)
        assert not partly.value.replicated


@pytest.mark.usefixtures("hasty")
async def test_each_queue_of_a_session_has_its_number_of_replicas(pair: Pair) -> None:
    one, two, none = (
        await pair.queue("a"),
        await pair.queue("b", replicas=2),
        await pair.queue("c", replicas=0),
    )

    async def lacks_a_replica() -> bool:
        found = await asyncio.gather(
            *(queue.add_item(Item(b"x")) for queue in (one, two, none)), return_exceptions=True
        )
        assert isinstance(found[1], NotReplicated)
        assert "1 of 2 confirmed" in str(found[1]) or found[1].confirmed == 0
        return found[0] is True and found[2] is True and "has 1 replica now" in str(found[1])

    await until("the replica is fast enough for the one that wants no other", lacks_a_replica)
    names = names_of(await pair.primary.client_list())
    assert [name.split(":")[1] for name in names] == ["commands", "replicated"]


@pytest.mark.usefixtures("hasty")
async def test_a_server_without_replicas_is_named_as_the_reason(pair: Pair) -> None:
    queue = await pair.queue()
    await command(pair.replica, "REPLICAOF", "NO", "ONE")

    async def is_alone() -> bool:
        return not (await pair.primary.info("replication"))["connected_slaves"]

    await until("it has no replica", is_alone)
    with pytest.raises(NotReplicated, match=r"the server has no replicas now: connect more, or .* smaller"):
        await queue.add_item(Item(b"x"))


async def test_queues_that_ask_for_no_replicas_have_no_connection_more(pair: Pair) -> None:
    queue = await pair.queue(replicas=0)
    await queue.add_item(Item(b"x"))
    assert await queue.complete(await take(queue, block=False))
    names = names_of(await pair.primary.client_list())
    assert [name.split(":")[1] for name in names] == ["commands"]


async def test_a_user_who_may_not_wait_is_refused_before_anything_is_applied(pair: Pair) -> None:
    rules = ["on", ">pw", "~*", "&*", "+@all", "-wait"]
    await command(pair.primary, "ACL", "SETUSER", "web", *rules)
    queue = await pair.queue(user="web:pw@")
    with pytest.raises(
        AccessDenied, match=r"forbid WAIT, which `replicas` needs; .*`ACL SETUSER web \+wait`"
    ) as found:
        await queue.add_item(Item(b"x", id="new"))
    assert found.value.commands == ("WAIT",)
    assert not await pair.primary.exists("q:item:new")
    assert await (await pair.queue(user="web:pw@", replicas=0)).add_item(Item(b"x", id="new"))


@pytest.mark.parametrize("given", [-1, 101, True, 1.0, "1", None])
async def test_numbers_of_replicas_that_cannot_be_are_refused(given: Any) -> None:
    async with Redis() as client:
        with pytest.raises(InvalidArgument, match=r"replicas: got .* expected a whole number from 0 to 100"):
            AsyncWorkQueue("q", client, replicas=given)
        with pytest.raises(InvalidArgument, match="replicas"):
            TaskQueue.from_url("redis://localhost", "q", replicas=given)


@pytest.mark.usefixtures("hasty")
async def test_a_worker_logs_a_completion_that_is_not_replicated_and_runs_nothing_again(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    queue, runs = await pair.queue(), list[bytes]()
    worker = Worker()

    @worker.handler(queue, keep_result=600)
    async def handle(data: bytes) -> bytes:
        runs.append(data)
        return data

    async with frozen(pair.replica):
        await (await pair.queue(replicas=0)).add_item(Item(b"x", id="done"))
        running = asyncio.create_task(worker.run())
        with caplog.at_level(logging.INFO, "leasequeue.worker"):
            await eventually("it is logged", lambda: "applied here, not yet on 1 replica" in caplog.text)
            worker.stop()
            await running
    assert runs == [b"x"]
    assert await queue.results.get("done") == b"x"
    assert not (await queue.counts()).total
    assert "1 completed, 1 not replicated" in caplog.text


@pytest.mark.cluster
@pytest.mark.usefixtures("patient")
async def test_what_was_acknowledged_is_on_the_replica_that_replaces_a_killed_master() -> None:
    """The replica is frozen while items are added, so that only waiting can have brought them to it."""
    async with AsyncExitStack() as stack:
        nodes = await joined(stack, "embedded", replicas=1)
        master = owner(nodes, "{q}")
        heir = nodes[nodes.index(master) + 3]
        client = await stack.enter_async_context(RedisCluster(host="127.0.0.1", port=port_of(nodes[0])))
        queue = await stack.enter_async_context(
            AsyncWorkQueue("{q}", client, replicas=1, reply_timeout=LIMIT_SECONDS)
        )
        leases = [await take(queue) for n in range(2) if await queue.add_item(Item(b"x", id=f"done-{n}"))]
        async with frozen(heir):
            adding = asyncio.create_task(queue.add_items([Item(b"x", id=f"{n}") for n in range(300)]))
            completing = asyncio.create_task(queue.complete_many(leases))
            # The items may go in two rounds, and the second is sent when the replica has the first.
            await exists(master, "{q}:item:0")
            assert not adding.done()
        assert await adding == [True] * 300
        assert await completing == [True] * 2
        os.kill((await master.info("server"))["process_id"], signal.SIGKILL)

        async def is_replaced() -> bool:
            return bool((await heir.info("replication"))["role"] == "master")

        await until("the replica is the master", is_replaced)
        keys = [f"{{q}}:item:{n}" for n in range(300)]
        assert await heir.exists(*keys) == 300
        assert not await heir.exists("{q}:item:done-0", "{q}:item:done-1")
        while True:  # it has no replica now
            try:
                with pytest.raises(NotReplicated, match="the server has no replicas now"):
                    await asyncio.wait_for(_add_hastily(queue), LIMIT_SECONDS)
                break
            except (ConnectionLost, LeasequeueError) as error:
                assert error.transient  # noqa: PT017 - until the new master serves the slot
                await asyncio.sleep(0.05)


async def _add_hastily(queue: AsyncWorkQueue) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas_settings, "WAIT_SECONDS", 0.1)
        await queue.add_item(Item(b"x", id="after"))
