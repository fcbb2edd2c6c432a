"""`leasequeue acl`: a user with the rules that it prints can do all that its role is for, no more."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import shlex
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from leasequeue import AsyncWorkQueue, Fleet, Item, TaskQueue
from leasequeue.errors import AccessDenied
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.queue.queue import engine_of
from leasequeue.queue.shards.opening import find_whole_queues, open_queue
from leasequeue.wire.access import READING, Role, ServerFacts, commands_of, least_role, questions
from leasequeue.wire.discovery import find_queues
from leasequeue.wire.scripts import load
from leasequeue.worker import Retry, current_run
from tests.eventually import eventually
from tests.lua.space import Space
from tests.lua.test_wrong_types import BUSY, call_of, in_state
from tests.queue.asking import blocked, command, take, until
from tests.queue.fixtures import admin, own, tidy
from tests.queue.keyspace import snapshot
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from leasequeue.embedded import EmbeddedServer
    from tests.cli.program import Leasequeue

__all__ = ["admin", "opened", "own", "permit", "tidy"]


#: They depend on the server.
core = pytest.mark.core

#: A name with all signs that have a meaning in the patterns of rules, and with white space.
NAME = r"{q}*?[é-\x]" + " \t\"'y"


class Permit(Protocol):
    """Permit a user what `leasequeue acl` prints for some queues, and return the URL of this user."""

    async def __call__(self, *queues: str, role: str = "worker") -> str: ...


@pytest.fixture
def permit(leasequeue: Leasequeue, own: EmbeddedServer, admin: Redis) -> Permit:
    """Give a function that permits the user bob what the command prints."""

    async def permit(*queues: str, role: str = "worker") -> str:
        printed = await leasequeue(
            "acl", *queues, "--user", "bob", "--role", role, "--json", LEASEQUEUE_URL=own.url
        )
        assert printed.code == 0
        await command(admin, "ACL", "SETUSER", "bob", ">pw")
        await command(admin, *printed.document["command"])
        await command(admin, "ACL", "LOG", "RESET")
        return own.url.replace("redis://", "redis://bob:pw@")

    return permit


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[str, str], AsyncWorkQueue]]:
    """Give a function that opens a queue object, which is closed after the test."""
    async with AsyncExitStack() as stack:

        def open_queue(url: str, name: str) -> AsyncWorkQueue:
            queue = AsyncWorkQueue.from_url(url, name)
            stack.push_async_exit(queue)
            return queue

        yield open_queue


async def refused(admin: Redis) -> set[str]:
    """Return what the server has refused since its log was emptied."""
    entries: list[dict[bytes, bytes]] = await command(admin, "ACL", "LOG", "128")
    return {f"{one[b'reason'].decode()} {one[b'object'].decode()}" for one in entries}


async def facts(url: str) -> ServerFacts:
    """Return what the server knows."""
    async with AsyncWorkQueue.from_url(url, "q") as queue:
        info, commands = await engine_of(queue).runner.ask(*questions())
        return ServerFacts.read(info, commands)


@core
async def test_a_user_with_these_rules_can_do_everything(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server has refused nothing."""
    url = await permit(NAME, "{q}other")
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(120):
            await the_whole_life(opened(url, NAME), opened(url, "{q}other"), url)
    assert await refused(admin) == set()
    assert not [text for text in caplog.messages if "forbid" in text or "cannot see" in text]


@core
async def test_each_script_runs_with_these_rules(admin: Redis, permit: Permit) -> None:
    async with Redis.from_url(await permit(NAME, "another", "home")) as client:
        await client.ping()
        await command(admin, "ACL", "LOG", "RESET")  # what redis-py sends when it connects is not ours
        for script in load():
            await Space(admin, NAME).seed(BUSY)
            await Space(client, NAME).run_all([in_state(call_of(script), "")])
    assert await refused(admin) <= {"command msetex", "command spublish"}  # which this server does not have


@core
async def test_each_command_is_needed(
    admin: Redis, permit: Permit, own: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A session without one of them finds out when it starts, and says which rule permits it."""
    url = await permit("q")
    scripts = {name.lower() for script in load().values() for name in script.commands}
    for name in sorted(commands_of(Role.WORKER, await facts(own.url)) & (scripts | {"blmove"})):
        await command(admin, "ACL", "SETUSER", "bob", f"-{name}")
        caplog.clear()
        async with AsyncWorkQueue.from_url(url, "q") as queue:
            try:
                await engine_of(queue).rights.expect_worker()
            except AccessDenied as error:
                told = [str(error)]
            else:
                told = caplog.messages
        if name in ("msetex", "spublish"):  # the scripts do without
            assert not told
        else:
            assert f"+{name}" in told[0]
            assert "`leasequeue acl q --user bob --role " in told[0]
        await command(admin, "ACL", "SETUSER", "bob", f"+{name}")


async def follow(admin: Redis, advice: str) -> None:
    """Do what the first rule in a message says."""
    [rule] = re.findall(r"`(ACL SETUSER [^`]*)`", advice)
    await command(admin, *rule.split())


async def test_the_rule_in_an_error_permits_the_call(
    admin: Redis, permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    url = await permit("q")
    await command(admin, "ACL", "SETUSER", "bob", "-incrby", "-lmove", "-set")
    with pytest.raises(AccessDenied, match="nothing was applied") as caught:
        await opened(url, "q").lease(30, block=False)
    assert {"INCRBY", "LMOVE", "SET"} <= {*caught.value.commands}
    await follow(admin, str(caught.value))
    assert await opened(url, "q").lease(30, block=False) is None


async def handle(item: Item) -> None:
    """Do nothing."""


async def test_a_worker_says_what_it_may_not_do_and_works(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = opened(await permit("q"), "q")
    await command(admin, "ACL", "SETUSER", "bob", "-renamenx")
    worker = new_worker()
    worker.handler(queue)(handle)
    await queue.add_item(Item(b"x"))
    await worker.drain()
    [warning] = [text for text in caplog.messages if "RENAMENX" in text]
    assert "fsck_rename, move_items will be refused. `ACL SETUSER bob +renamenx` permits that" in warning


async def test_a_right_that_is_added_later_is_noticed(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = opened(await permit("q"), "q")
    await command(admin, "ACL", "SETUSER", "bob", "-incrby")
    for _ in range(2):
        with pytest.raises(AccessDenied):
            await queue.lease(30, block=False)
    await command(admin, "ACL", "SETUSER", "bob", "+incrby")
    monkeypatch.setattr("leasequeue.wire.rights.RECHECK_SECONDS", 0)
    _, added = await asyncio.gather(queue.lease(30, block=False), queue.add_item(Item(b"x")))
    assert added
    assert (await queue.counts()).total == 1


@core
@pytest.mark.parametrize("forbidden", [("resetchannels",), ("-publish",), ("-subscribe",)])
async def test_a_forbidden_channel_is_logged_once_with_the_rule_that_permits_it(
    admin: Redis,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
    forbidden: tuple[str, ...],
) -> None:
    """Otherwise delayed items, results and cancels would be late, and nothing would say why."""
    url = await permit("q*")
    await command(admin, "ACL", "SETUSER", "bob", *forbidden)
    async with AsyncWorkQueue.from_url(url, "q*") as queue:
        waiting = asyncio.create_task(queue.lease(30))
        await eventually("it is logged", lambda: bool(caplog.messages))
        for _ in range(2):
            await queue.add_item(Item(b"x"))
            assert await queue.complete(await waiting)
            waiting = asyncio.create_task(queue.lease(30))
        await blocked(admin, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
    [warning] = caplog.messages
    assert "the channel 'q*:" in warning
    await follow(admin, warning)
    waiting = asyncio.create_task(opened(url, "q*").lease(30))
    await blocked(admin, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert caplog.messages == [warning]


async def test_a_user_cannot_use_another_queue(
    permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    other = opened(await permit("q?"), "qx")
    with pytest.raises(AccessDenied, match="leasequeue acl"):
        await other.add_item(Item(b"x"))


async def test_the_keys_of_shared_limits_are_permitted(
    admin: Redis, own: EmbeddedServer, permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    await opened(own.url, "{q}").limits.set(concurrency=2, shared="{q}pool")
    queue = opened(await permit("{q}"), "{q}")
    await queue.add_item(Item(b"x"))
    assert await queue.complete(await take(queue))
    assert await refused(admin) == set()


# ----------------------------------------------------------------------------------------------------- shards

#: The same signs, of which braces cannot be in the name of a queue with shards.
SHARDED = NAME.replace("{", "").replace("}", "")


@core
@pytest.mark.parametrize("used", [True, False])
async def test_a_user_can_do_everything_with_a_queue_with_shards(
    admin: Redis,
    own: EmbeddedServer,
    permit: Permit,
    caplog: pytest.LogCaptureFixture,
    *,
    used: bool,
) -> None:
    if used:
        async with AsyncWorkQueue.from_url(own.url, SHARDED, shards=4) as queue:
            await queue.counts()
    url = await permit(SHARDED, *["--shards"] * (not used))
    with caplog.at_level(logging.WARNING):
        async with Redis.from_url(url) as client, AsyncWorkQueue(SHARDED, client, shards=4) as queue:
            await admin.acl_log_reset()  # what redis-py sends when it connects is not ours
            waiting = [asyncio.create_task(queue.lease(30)) for _ in range(3)]
            await queue.add_items([Item(b"x", id=f"i{n}") for n in range(8)])
            for lease in await asyncio.gather(*waiting):
                assert lease is not None
                assert await queue.complete(lease, result=b"done")
            assert await queue.admin.purge() == 5
            await queue.events.keep(count=1000)
            await queue.events.publish()
            live = aiter(queue.events(live=True))
            event = asyncio.ensure_future(anext(live))
            async with TaskQueue(SHARDED, client, shards=4) as tasks:
                await work(tasks)
            assert (await event).id
            await live.aclose()  # type: ignore[attr-defined]  # it is a generator
            await schedules(queue)
            await queue.limits.set(concurrency=4)
            await queue.pause()
            await queue.deep_clean()
            await queue.admin.fsck()
            assert (await queue.stats()).queue == SHARDED
            async with await open_queue(SHARDED, client) as opened:
                assert len(opened.shards) == 4
            assert (await find_whole_queues(client)).names == [SHARDED]
            await queue.admin.delete()
    assert await refused(admin) == set()
    assert not [text for text in caplog.messages if "forbid" in text or "cannot see" in text]


@core
async def test_the_rules_of_a_queue_with_shards_permit_no_other(
    permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    url = await permit("q", "--shards")
    assert await opened(url, "{q}").add_item(Item(b"x"))
    assert await opened(url, "{q/15.204}").add_item(Item(b"x"))
    for other in ("q", "{qx}", "{q/x}", "{q}x", "q/1.2", "{x/1.2}"):
        with pytest.raises(AccessDenied):
            await opened(url, other).add_item(Item(b"x"))


@core
async def test_each_role_has_its_part_of_a_queue_with_shards(
    admin: Redis, own: EmbeddedServer, permit: Permit
) -> None:
    async with AsyncWorkQueue.from_url(own.url, "q", shards=4) as owner:
        await owner.add_item(Item(b"x", id="a"))
        url = await permit("q", role="producer")
        async with Redis.from_url(url) as client, await open_queue("q", client) as queue:
            assert await queue.add_item(Item(b"x", id="b"))
            assert await queue.cancel("b")
            with pytest.raises(AccessDenied, match="leasequeue acl q --shards --user bob --role worker"):
                await queue.lease(30, block=False)
        before = await snapshot(admin)
        async with Redis.from_url(await permit("q", role="watcher")) as client:
            async with await open_queue("q", client) as queue:
                assert (await queue.counts()).waiting == 1
                assert (await queue.stats()).counts.waiting == 1
                assert await queue.find("a")
                with pytest.raises(
                    AccessDenied, match="leasequeue acl q --shards --user bob --role producer"
                ):
                    await queue.add_item(Item(b"x"))
            assert (await find_whole_queues(client)).names == ["q"]
        assert await snapshot(admin) == before


async def test_the_line_is_what_a_client_program_reads(leasequeue: Leasequeue, own: EmbeddedServer) -> None:
    printed = await leasequeue("acl", NAME, "--user", "bob", LEASEQUEUE_URL=own.url)
    assert printed.error == (
        "the server has no user 'bob' yet: this line creates it, without a password. "
        "Set one with ACL SETUSER bob >PASSWORD"
    )
    as_json = await leasequeue("acl", NAME, "--user", "bob", "--json", LEASEQUEUE_URL=own.url)
    line = printed.out.splitlines()
    assert [printed.out.removesuffix("\n")] == line
    # In quotes, redis-cli reads as Python does.
    read = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line[0])
    words = [ast.literal_eval(word) if word[0] == '"' else word for word in read]
    assert words == as_json.document["command"]


async def test_a_user_that_may_not_ask_is_told(
    leasequeue: Leasequeue, admin: Redis, own: EmbeddedServer
) -> None:
    await command(admin, "ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-command")
    url = own.url.replace("redis://", "redis://ann:pw@")
    printed = await leasequeue("acl", "q", LEASEQUEUE_URL=url)
    assert (printed.code, printed.out) == (5, "")
    assert "command" in printed.error


# ------------------------------------------------------------------------------------------------------ roles


async def test_a_producer_can_add_wait_and_cancel_but_not_lease(
    permit: Permit, own: EmbeddedServer, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    owner, queue = opened(own.url, "q"), opened(await permit("q", role="producer"), "q")
    assert await queue.add_item(Item(b"x", id="a"))
    assert await queue.add_item(Item(b"x", id="b"), delay=60)
    assert await queue.cancel("b")
    await owner.complete(await take(owner), result=b"done", keep_result=60)
    assert await queue.results.wait("a", timeout=120) == b"done"
    assert await queue.counts() == (0, 0, 0, 0)
    with pytest.raises(AccessDenied, match="leasequeue acl q --user bob --role worker"):
        await queue.lease(30, block=False)


async def test_a_producer_can_also_pause_limit_and_purge_as_the_docs_warn(
    permit: Permit, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    """These need no other commands than adding and cancelling do, and access rules tell only those apart."""
    queue = opened(await permit("q", role="producer"), "q")
    assert await queue.add_item(Item(b"x", id="a"))
    await queue.pause()
    assert await queue.limits.set(rate="1/s")
    assert await queue.schedules.every(60, "often", b"x")
    assert await queue.admin.purge() == 1
    assert await queue.admin.delete() == 0


Hint: TypeAlias = tuple[str, str, "Callable[[AsyncWorkQueue], Awaitable[object]]", str]
#: A role, a command that is taken from it, a call that needs that, and the least role that permits the call.
HINTS: list[Hint] = [
    ("producer", "xadd", lambda queue: queue.add_item(Item(b"x")), "producer"),
    ("producer", "ping", lambda queue: queue.lease(30, block=False), "worker"),
    ("worker", "xadd", lambda queue: queue.add_item(Item(b"x")), "producer"),
    ("watcher", "ping", lambda queue: queue.add_item(Item(b"x")), "producer"),
    ("watcher", "llen", lambda queue: queue.counts(), "watcher"),
]


@core
async def test_what_only_reads_is_known(own: EmbeddedServer) -> None:
    writes = (await facts(own.url)).writes
    used = {name for script in load().values() for name in script.commands if name.lower() in writes}
    assert {name for name in used if not writes[name.lower()]} - {"PUBLISH", "SPUBLISH"} == READING & used


@pytest.mark.parametrize("name", ["open_shards", "sample_queue"])
def test_a_watcher_may_sample_a_queue_and_read_how_many_shards_it_has(name: str) -> None:
    assert least_role(load()[name]) is Role.WATCHER


@core
@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: "-".join((hint[0], hint[1], hint[3])))
async def test_the_error_names_the_role_that_fits_the_call(
    admin: Redis,
    leasequeue: Leasequeue,
    own: EmbeddedServer,
    permit: Permit,
    opened: Callable[[str, str], AsyncWorkQueue],
    hint: Hint,
) -> None:
    """Following the hint permits the call, and no more than the role: a producer does not become a worker."""
    role, taken, call, least = hint
    url = await permit("q", role=role)
    await command(admin, "ACL", "SETUSER", "bob", f"-{taken}")
    with pytest.raises(AccessDenied) as raised:
        await call(opened(url, "q"))
    [said] = re.findall(r"`leasequeue (acl [^`]*)`", str(raised.value))
    words = shlex.split(said)
    assert words[-2:] == ["--role", least]
    printed = await leasequeue(*words, "--json", LEASEQUEUE_URL=own.url)
    await command(admin, *printed.document["command"])
    await call(opened(url, "q"))
    if least != "worker":
        with pytest.raises(AccessDenied):
            await opened(url, "q").lease(30, block=False)


@core
async def test_a_producer_starts_and_steers_flow_runs_which_a_watcher_reads(
    permit: Permit, own: EmbeddedServer, opened: Callable[[str, str], AsyncWorkQueue]
) -> None:
    """The second stage is on another queue, and its item is added by the worker that finishes the first."""
    url = await permit("{q}", "{q}other", role="producer")
    owner, queue = TaskQueue("{q}", Redis.from_url(own.url)), opened(url, "{q}")

    @owner.task()
    async def double(number: int) -> int:
        return 2 * number

    plan = FlowPlan(
        (
            StagePlan("a", "{q}", b'{"task":"double","args":{"number":1}}', then=("b",)),
            StagePlan("b", "{q}other", b"{}", after=("a",)),
        ),
        result="b",
        flow="f",
        attributes={"n": b"1"},
        lookup={"n": ("1",)},
    )
    async with owner:
        for run_id in ("r", "s"):
            assert await queue.flow_runs.start(plan, run_id)
        assert await queue.flow_runs.cancel("s")
        assert await queue.flow_runs.replay("r", new_id="t") == "t"
        assert await queue.flow_runs.cancel("t")
        await new_worker(owner, feeds={"{q}": ["{q}other"]}).drain()
        assert await queue.flow_runs.report("r", "b", 7)
        assert await queue.flow_runs.result("r", timeout=120) == 7
        url = await permit("{q}", "{q}other", role="watcher")
        watcher = opened(url, "{q}")
        assert (await watcher.flow_runs.get("r", children=True)).results == {"a": 2, "b": 7}
        assert [run.id for run in await watcher.flow_runs.list(state="completed") if run] == ["r"]
        assert len(await watcher.flow_runs.find("f", n=1)) == 3
        for change in (
            watcher.flow_runs.start(plan, "u"),
            watcher.flow_runs.cancel("r"),
            watcher.flow_runs.delete("r"),
        ):
            with pytest.raises(AccessDenied):
                await change
        assert await owner.queue.flow_runs.list(["u"]) == [None]


@core
async def test_a_watcher_can_read_and_change_nothing(
    admin: Redis,
    permit: Permit,
    own: EmbeddedServer,
    opened: Callable[[str, str], AsyncWorkQueue],
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner, url = opened(own.url, NAME), await permit(NAME, role="watcher")
    await owner.events.keep(count=10)
    await owner.add_item(Item(b"x", id="a"))
    before = await snapshot(admin)
    queue = opened(url, NAME)
    assert (await queue.counts()).waiting == 1
    assert [view.id for view in await queue.peek()] == ["a"]
    assert await queue.find("a")
    assert len([event async for event in queue.events(follow=False)]) == 1
    assert await Fleet(queue).workers() == []
    assert (await find_queues(url)).names == [NAME]
    assert (await queue.stats()).counts.waiting == 1
    assert not [text for text in caplog.messages if "channel" in text], "it has nothing to publish"
    for change in (
        queue.add_item(Item(b"x")),
        queue.admin.purge(),
        queue.cancel("a"),
        queue.lease(30, block=False),
    ):
        with pytest.raises(AccessDenied):
            await change
    async with Redis.from_url(url) as client:
        for raw in (
            ("SET", f"{NAME}:item:a", "y"),
            ("EVAL", "return redis.call('DEL', KEYS[1])", 1, f"{NAME}:item:a"),
        ):
            with pytest.raises((NoPermissionError, ResponseError)):
                await command(client, *raw)
    assert await snapshot(admin) == before


# ----------------------------------------------------------------------- all that a queue can do, called once


async def the_whole_life(queue: AsyncWorkQueue, other: AsyncWorkQueue, url: str) -> None:
    """Call all that a queue can do: work, events, limits, schedules, and what operators do."""
    await queue.events.keep(count=1000)
    await queue.events.publish()
    live = aiter(queue.events(live=True))
    event = asyncio.ensure_future(anext(live))
    async with TaskQueue(queue.name, Redis.from_url(url)) as tasks:
        await work(tasks)
    assert (await event).id
    await live.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert [event async for event in queue.events(follow=False)]
    await limits(queue)
    await schedules(queue)
    await operate(queue, other)
    assert {*(await find_queues(url)).names} == {queue.name, other.name}
    await queue.events.stop()
    await queue.admin.delete()


async def work(tasks: TaskQueue) -> None:
    """Run tasks that succeed, are retried, fail and are cancelled, beside a fleet that watches."""
    began = asyncio.Event()

    @tasks.task(keep_result=60)
    async def double(number: int) -> int:
        if number == 2 and current_run().attempt == 1:
            raise Retry
        return 2 * number

    @tasks.task()
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    @tasks.task(retry=None)
    async def fail() -> None:
        raise ValueError

    @tasks.task(every=3600)
    async def poll() -> None: ...

    worker = new_worker(tasks, clean_every=0.2)
    async with working(worker):
        jobs = [await double.add(number) for number in range(3)]
        assert [await job.result(timeout=120) for job in jobs] == [0, 2, 4]
        assert await (await double.options(delay=0.1).add(4)).result(timeout=120) == 8
        hanging = await hang.add()
        await began.wait()
        assert await hanging.cancel()
        await fail.add()
        await until("a dead letter", lambda: _is(tasks.queue.dead_letters.count(), 1))
        fleet = Fleet(tasks.queue)
        await until("the worker is registered", lambda: _is(_count(fleet), 1))
        [one] = await fleet.workers()
        await fleet.quiet(one)
        await fleet.resume(one)


async def _is(value: Awaitable[object], wanted: object) -> bool:
    return await value == wanted


async def _count(fleet: Fleet) -> int:
    return len(await fleet.workers())


async def limits(queue: AsyncWorkQueue) -> None:
    """Limit, pause and prioritise."""
    await queue.limits.set(rate="100/s", concurrency=5)
    await queue.limits.set(concurrency=1, group="*")
    await queue.pause(group="g")
    for at in range(4):
        await queue.add_item(Item(b"x", id=f"p{at}"), priority=at, group="g")
    assert await queue.lease(30, block=False) is None
    await queue.resume(group="g")
    lease = await take(queue)
    assert await queue.progress(lease, 0.5)
    assert await queue.renew(lease, 60)
    assert await queue.release(lease, delay=0.01)
    assert await queue.complete(await take(queue))
    await queue.limits.remove()
    await queue.limits.remove(group="*")
    await queue.admin.purge(scheduled=True)


async def schedules(queue: AsyncWorkQueue) -> None:
    """Add, tick and remove a schedule."""
    await queue.schedules.every(1000, "poll", data=b"x")
    await queue.schedules.tick()
    assert [one.name for one in await queue.schedules.list()]
    await queue.schedules.remove("poll")


async def operate(queue: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
    """Read, repair and move."""
    await queue.add_items([Item(b"x", id=f"i{at}") for at in range(600)])
    leases = await queue.lease_many(3, 30)
    await queue.fail(leases[0], "an error")
    await queue.stats()
    await queue.inspect()
    await queue.find("i1")
    await queue.peek(3)
    await queue.dead_letters.requeue_all()
    await queue.cancel("i5")
    await queue.admin.recover(10, 0, 30)
    await queue.admin.clear_leases()
    await queue.light_clean()
    await queue.deep_clean()
    await queue.admin.fsck()
    assert await queue.admin.move(other, count=10)
    assert await queue.admin.purge()
