"""Users whose access rules forbid a queue of a flow: it is said when the run, or the worker, starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import Flow, Item, RetryPolicy, TaskQueue
from leasequeue.errors import AccessDenied, JobUnknown
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from tests.eventually import eventually
from tests.queue.asking import command
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.embedded import EmbeddedServer
    from leasequeue.worker import Worker
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

TIMEOUT = 120
#: Rules for the queue of a later stage. Before Redis 7, there are none that permit to read only.
RULES = {"none": (), "read only": ("%R~{there}:*",)}


async def login(admin: Redis, own: EmbeddedServer, *rules: str) -> str:
    """Make a user, and return the URL with which it connects."""
    version = (await admin.info("server"))["redis_version"]
    known = [rule for rule in rules if not rule.startswith("%") or int(version.partition(".")[0]) >= 7]
    await command(admin, "ACL", "SETUSER", "bob", "reset", "on", ">pw", "&*", "+@all", *known)
    return own.url.replace("redis://", "redis://bob:pw@")


@pytest.mark.parametrize("rule", RULES)
async def test_a_run_does_not_start_if_the_queue_of_a_later_stage_is_forbidden(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, rule: str
) -> None:
    there = f"other-{name}"
    url = await login(admin, own, f"~{name}:*", *(one.format(there=there) for one in RULES[rule]))
    queue = make_queue(url=url)
    plan = FlowPlan((StagePlan("a", name, b"{}"), StagePlan("b", there, b"{}", after=("a",))))
    with pytest.raises(AccessDenied, match=f"(?s)write to the queue '{there}'.*ACL SETUSER bob ~{there}:"):
        await queue.flow_runs.start(plan, "r")
    with pytest.raises(JobUnknown):
        await queue.flow_runs.get("r")
    await command(admin, "ACL", "SETUSER", "bob", f"~{there}:*")
    assert await queue.flow_runs.start(plan, "r")


@pytest.mark.parametrize("forbidden", ["home", "successor"])
async def test_a_worker_of_a_stage_does_not_start_if_another_queue_of_the_flow_is_forbidden(
    admin: Redis, own: EmbeddedServer, name: str, forbidden: str
) -> None:
    middle, last = f"middle-{name}", f"last-{name}"
    permitted = {"home": (middle, last), "successor": (name, middle)}[forbidden]
    tasks = TaskQueue.from_url(await login(admin, own, *(f"~{one}:*" for one in permitted)), name)
    flow = Flow("access", tasks)

    @tasks.task
    async def one() -> int:
        return 1

    first = flow.stage(one, name="first", queue=middle)
    flow.stage(one, name="second", queue=last, after=first)
    missing = name if forbidden == "home" else last
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(AccessDenied, match=f"(?s)write to the queue '{missing}'.*ACL SETUSER bob"):
            await new_worker(flow.only("first")).run()
    await tasks.close()


async def test_copies_of_what_a_worker_leases_for_say_to_which_queues_a_flow_adds(
    tasks: TaskQueue, name: str, make_queue: MakeQueue
) -> None:
    flow = Flow("access", tasks)

    @tasks.task
    async def one() -> int:
        return 1

    flow.stage(one, name="first", queue=f"{name}-other")
    queues = [name, f"{name}-other"]
    for consumer in flow.consumers(retry=RetryPolicy(), lease_time=60):
        for made in (consumer, consumer.on(make_queue()), consumer.joined(consumer)):
            assert made.adds_to == queues
            assert sorted(made.feeds) == [(name, queue) for queue in queues]


@pytest.mark.parametrize("rule", RULES)
async def test_a_stage_whose_queue_the_worker_may_not_write_to_fails_with_its_name(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, rule: str
) -> None:
    """A worker of a plain handler knows of no flow: nothing of the step is half done."""
    there = f"other-{name}"
    url = await login(admin, own, f"~{name}:*", *(one.format(there=there) for one in RULES[rule]))
    owner = make_queue(url=own.url)
    plan = FlowPlan((StagePlan("a", name, b"{}"), StagePlan("b", there, b"{}", after=("a",))))
    assert await owner.flow_runs.start(plan, "r")
    worker = new_worker(feeds={name: [there]})

    @worker.handler(make_queue(url=url))
    async def one(item: Item) -> int:
        return len(item.data)

    async with asyncio.timeout(TIMEOUT):
        await worker.drain()
    view = await owner.flow_runs.get("r")
    assert view.state == "failed"
    assert view.error is not None
    assert (
        f"the access rules of the client that finished the stage before forbid the queue {there}"
        in view.error
    )
    assert (await owner.counts()).total == 0


async def test_a_worker_that_may_not_use_the_home_of_a_run_leaves_the_stage_to_others(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = f"other-{name}"
    url = await login(admin, own, f"~{there}:*")
    owner = make_queue(url=own.url)
    assert await owner.flow_runs.start(FlowPlan((StagePlan("a", there, b"{}"),)), "r")
    called = []

    def serve(url: str) -> Worker:
        worker = new_worker()

        @worker.handler(make_queue(url=url, name=there))
        async def one(item: Item) -> None:
            called.append(item)

        return worker

    def is_logged() -> bool:
        return any(
            f"on the queue {name}, cannot be read" in one.getMessage()
            for one in caplog.records
            if one.levelname == "ERROR"
        )

    async with working(serve(url)):
        await eventually("the worker says which queue it may not use", is_logged)
    assert called == []
    item = await make_queue(url=own.url, name=there).find("r/a")
    assert item is not None
    assert item.attempt == 0
    async with working(serve(own.url)):
        await owner.flow_runs.result("r", timeout=TIMEOUT)
    assert len(called) == 1
