"""The roles of `leasequeue acl`: what a producer and a watcher can do, and what an error advises them."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, TypeAlias

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from leasequeue import AsyncWorkQueue, Fleet, Item, TaskQueue
from leasequeue.errors import AccessDenied
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.wire.access import READING, Role, least_role
from leasequeue.wire.discovery import find_queues
from leasequeue.wire.scripts import load
from tests.cli.permits import NAME, Permit, facts, opened, permit
from tests.queue.asking import command, take
from tests.queue.fixtures import admin, own, tidy
from tests.queue.keyspace import snapshot
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue.embedded import EmbeddedServer
    from tests.cli.program import Leasequeue

__all__ = ["admin", "opened", "own", "permit", "tidy"]

#: They depend on the server.
core = pytest.mark.core


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


@pytest.mark.parametrize(("has_selectors", "role"), [(True, Role.WATCHER), (False, Role.PRODUCER)])
def test_who_samples_a_queue_depends_on_the_server(role: Role, *, has_selectors: bool) -> None:
    assert least_role(load()["sample_queue"], has_selectors=has_selectors) is role


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
        await new_worker(owner).drain()
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
    if (await facts(own.url)).has_selectors:
        assert (await queue.stats()).counts.waiting == 1
    else:  # it would have to permit SET on all keys
        with pytest.raises(AccessDenied):
            await queue.stats()
    assert not [text for text in caplog.messages if "channel" in text], "it has nothing to publish"
    await command(admin, "UNLINK", f"{NAME}:sample")
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
