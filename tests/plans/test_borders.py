"""A user with rights on one queue alone writes flow runs, references and notes, for workers with more rights.

The worker's user may use two queues. What the other user writes on one of them must not reach the other.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from leasequeue import RetryPolicy, TaskQueue, current_stage
from leasequeue.errors import LeaseLost
from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from leasequeue.queue.plans.stages import FinishRow, finish_stages, settle, store_outcome
from leasequeue.queue.queue import engine_of
from leasequeue.wire.access import Role, ServerFacts, questions, rules_of
from leasequeue.worker.maintenance import Maintenance
from tests.eventually import eventually
from tests.plans.flows import call, field, states
from tests.plans.run_hashes import write_run
from tests.queue.asking import command, until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue.embedded import EmbeddedServer
    from leasequeue.worker import Worker
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

TIMEOUT = 120


class Border:
    """Two queues, `shop` and `pay`; a worker's user for both, and a producer of `shop` alone.

    Attributes:
        mallory: The client of that producer.
        ran: The arguments of each call, by task.
    """

    def __init__(self, url: str, mallory: Redis, shop: TaskQueue, pay: TaskQueue, owner: MakeQueue) -> None:
        self.mallory, self.shop, self.pay = mallory, shop, pay
        self.ran: list[tuple[str, str]] = []
        #: The same queues, as a user sees them who may do everything.
        self.home, self.there = owner(url=url, name=shop.name), owner(url=url, name=pay.name)

        @shop.task(retry=RetryPolicy(attempts=1))
        async def greet(text: str = "") -> str:
            self.ran.append(("greet", text))
            await self.greeting()
            if text == "fail":
                raise ValueError(text)
            return "forged"

        @pay.task
        async def payout(to: str) -> str:
            self.ran.append(("payout", to))
            return to

    async def greeting(self) -> None:
        """Do what happens while a stage on `shop` runs."""

    def worker(self, **options: Any) -> Worker:
        """Return a worker of both queues."""
        return new_worker(self.shop, self.pay, **options)

    def payout(self, name: str = "payout", **options: Any) -> StagePlan:
        """Return a stage on `pay`."""
        return StagePlan(name, self.pay.name, call("payout", to="mallory"), **options)

    def greet(self, name: str = "greet", text: str = "", **options: Any) -> StagePlan:
        """Return a stage on `shop`."""
        return StagePlan(name, self.shop.name, call("greet", text=text), **options)

    async def forge_run(self, run: str, *stages: StagePlan, **fields: str) -> None:
        """Write a run of `shop` as its producer; underscores are colons in the names of fields."""
        named = {name.replace("_", ":", 1): value for name, value in fields.items()}
        await write_run(self.mallory, self.home, run, FlowPlan(stages), named)

    async def forge_item(self, item_id: str, reference: str, data: bytes = b"") -> None:
        """Write an item of `shop` as its producer."""
        shop = self.shop.name
        options = json.dumps({"run": reference})
        await command(self.mallory, "HSET", f"{shop}:options", item_id, options)
        await command(self.mallory, "SET", f"{shop}:item:{item_id}", data or call("greet"))
        await command(self.mallory, "LPUSH", f"{shop}:queue", item_id)

    async def note(self, name: str, value: str) -> None:
        """Write a note for those who settle what has ended on `shop`, as its producer."""
        await command(self.mallory, "HSET", f"{self.shop.name}:unsettled", name, value)

    async def paid(self) -> bool:
        """Return whether anything waits on `pay`, or has been leased there."""
        token = await engine_of(self.there).read_at(b"GET", f"{self.pay.name}:fence".encode())
        return token is not None or (await self.there.counts()).total > 0


class MakeBorder(Protocol):
    """What the fixture `permit` returns."""

    async def __call__(self, user: str, role: Role, *names: str) -> str: ...


@pytest.fixture
async def permit(admin: Redis, own: EmbeddedServer, make_queue: MakeQueue) -> MakeBorder:
    """Return a function that gives a user the rules that `leasequeue acl` prints, and returns its URL."""
    info, commands = await engine_of(make_queue(url=own.url)).runner.ask(*questions())
    facts = ServerFacts.read(info, commands)

    async def permit(user: str, role: Role, *names: str) -> str:
        await command(admin, "ACL", "SETUSER", user, "on", ">pw", *rules_of(names, role, facts))
        return own.url.replace("redis://", f"redis://{user}:pw@")

    return permit


@pytest.fixture
async def border(
    own: EmbeddedServer, permit: MakeBorder, make_queue: MakeQueue, name: str
) -> AsyncIterator[Border]:
    """Open both queues."""
    there = f"pay-{name}"
    url = await permit("worker", Role.WORKER, name, there)
    forger = await permit("mallory", Role.PRODUCER, name)
    async with (
        Redis.from_url(forger) as mallory,
        TaskQueue.from_url(url, name) as shop,
        TaskQueue.from_url(url, there) as pay,
    ):
        with pytest.raises(NoPermissionError):
            await command(mallory, "LPUSH", f"{there}:queue", "x")
        yield Border(own.url, mallory, shop, pay, make_queue)


class Attack(NamedTuple):
    """A forged run: its stages, fields of it, and the path of the item that the worker gets."""

    stages: tuple[StagePlan, ...]
    fields: dict[str, str]
    path: str = "greet"


def attacks(border: Border) -> dict[str, Attack]:
    """Return forged runs of `shop`, each of which has an item added to `pay` in another way."""
    payout = border.payout(after=("greet",), join="settled")
    child = ChildPlan(border.pay.name, call("payout", to="mallory"))
    group = StagePlan("group", after=("greet",), children=(child,))
    own = json.dumps({"queue": border.pay.name, "data": call("payout", to="mallory").decode()})
    return {
        "a stage": Attack((border.greet(), payout), {"s_greet": "w"}),
        "a stage after a failure": Attack((border.greet(text="fail"), payout), {"s_greet": "w"}),
        "children": Attack((border.greet(), group), {"s_greet": "w"}),
        "the rest of children": Attack(
            (border.greet(), group), {"s_greet": "d", "s_group": "x", "j_group": "1 0 0 0 0 1"}, "group"
        ),
        "the rest of first stages": Attack((border.payout(),), {"s_": "x", "j_": "1 0 0 0 0 1"}, ""),
        "an interrupted step": Attack(
            (border.greet(), payout), {"s_greet": "w", "s_payout": "w", "adding": "payout\0", "active": "2"}
        ),
        "what adds first stages": Attack(
            (border.greet(), border.greet("last")),
            {"s_greet": "w", "s_": "x", "j_": "2 1 0 0 0 1", "n_": own, "adding": "\0", "active": "2"},
        ),
    }


WAYS = (
    *("a stage", "a stage after a failure", "children", "the rest of children", "the rest of first stages"),
    *("an interrupted step", "what adds first stages"),
)


@pytest.mark.parametrize("way", WAYS)
async def test_a_forged_run_adds_no_item_to_a_queue_that_its_worker_does_not_declare(
    border: Border, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    stages, fields, path = attacks(border)[way]
    await border.forge_run("r", *stages, **fields)
    item = call("greet", text="fail" if "failure" in way else "")
    await border.forge_item(f"r/{path}", f"{border.shop.name}\0r\0{path}", item)
    async with asyncio.timeout(TIMEOUT):
        await border.worker().drain()
    assert not await border.paid()
    found = await states(border.home)
    assert found.get(path) != "w"
    if way != "what adds first stages":
        error = await field(border.home, "error") or ""
        assert "QueueNotDeclared: the worker that finished the stage before does not declare" in error
        assert f"feeds={{'{border.shop.name}': ['{border.pay.name}']}}" in caplog.text


@pytest.mark.parametrize("way", ["a stage follows", "a step was interrupted", "one path is added twice"])
async def test_no_path_of_a_forged_run_hides_an_item_that_is_refused(border: Border, way: str) -> None:
    """A stage without a name, and a path of two items of which one may be added."""
    paid = json.dumps({"queue": border.pay.name, "data": call("payout", to="mallory").decode()})
    followed = {"queue": border.shop.name, "data": call("greet").decode(), "then": [""]}
    payout = json.dumps({"data": call("payout", to="mallory").decode()})
    own = json.dumps({"queue": border.pay.name})
    path, fields = {
        "a stage follows": (
            "greet",
            {"s_greet": "w", "n_greet": json.dumps(followed), "n_": paid, "active": "1"},
        ),
        "a step was interrupted": (
            "greet",
            {"s_greet": "w", "s_": "w", "n_": paid, "adding": "\0", "active": "2"},
        ),
        "one path is added twice": (
            "g",
            {
                "s_g": "x",
                "j_g": "1 0 0 0 0 1",
                "s_g/0": "x",
                "j_g/0": "2 0 0 0 0 1",
                "k_g/0": payout,
                "k_g/0/0": own,
                "adding": "g/0\0",
                "active": "3",
            },
        ),
    }[way]
    await border.forge_run("r", border.greet(), border.greet("last"), **fields)
    await border.forge_item(f"r/{path}", f"{border.shop.name}\0r\0{path}", call("greet"))
    async with asyncio.timeout(TIMEOUT):
        await new_worker(border.shop).drain()
        rewritten = ("k:g/0", paid, "s:g/0", "w", "state", "active")
        if path == "g":
            await command(border.mallory, "HSET", f"{border.shop.name}:run:r", *rewritten)
        await border.worker().drain()
    assert not await border.paid()
    assert ("payout", "mallory") not in border.ran


async def test_a_declared_queue_is_fed_and_a_user_may_retry_what_was_refused(border: Border) -> None:
    plan = FlowPlan((border.greet(), border.payout(after=("greet",))))
    for run in ("refused", "declared"):
        assert await border.home.flow_runs.start(plan, run)
        feeds = {border.shop.name: [border.pay.name]} if run == "declared" else None
        async with asyncio.timeout(TIMEOUT):
            await border.worker(feeds=feeds).drain()
    assert [await field(border.home, "state", run) for run in ("refused", "declared")] == [
        "failed",
        "completed",
    ]
    assert border.ran == [("greet", ""), ("greet", ""), ("payout", "mallory")]
    assert await border.home.flow_runs.retry("refused")
    async with asyncio.timeout(TIMEOUT):
        await border.worker().drain()
    assert border.ran[3:] == [("payout", "mallory")]
    assert await field(border.home, "state", "refused") == "completed"


async def test_a_plan_that_is_rewritten_after_the_worker_has_read_it_adds_nothing(border: Border) -> None:
    assert await border.home.flow_runs.start(
        FlowPlan((border.greet(), border.greet("last", after=("greet",)))), "r"
    )

    async def greeting() -> None:
        if current_stage().path == "greet":
            forged = border.payout("last").json()
            await command(border.mallory, "HSET", f"{border.shop.name}:run:r", "n:last", forged)

    border.greeting = greeting  # type: ignore[method-assign] # for this test
    async with asyncio.timeout(TIMEOUT):
        await border.worker().drain()
    assert border.ran == [("greet", "")]
    assert not await border.paid()
    assert "QueueNotDeclared" in (await field(border.home, "e:last") or "")


@pytest.mark.parametrize("by", ["a worker", "a cleaner"])
async def test_what_maintenance_would_add_to_an_undeclared_queue_is_left_to_a_worker_that_declares_it(
    border: Border, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    """The item has ended as a plain one: its note is all that there is."""
    await border.forge_run("r", border.greet(), border.payout(after=("greet",)), s_greet="w")
    await border.note("r/greet", f"{border.shop.name}\0r\0greet\0")
    if by == "a cleaner":  # as the autoscaler is one
        await Maintenance(clean_every=60, keep_dead=None)._settle(border.shop.queue)
    else:
        async with working(border.worker(clean_every=60)):
            await eventually("it is logged", lambda: "stage 'payout' of the flow run 'r'" in caplog.text)
    assert not await border.paid()
    assert (await states(border.home))["greet"] == "w"
    async with working(border.worker(clean_every=60, feeds={border.shop.name: [border.pay.name]})):
        await until("the stage on the declared queue has run", border.paid)


async def leaked_mark(border: Border) -> str:
    """Start the run `v` of `pay`, with a stage there and one on `shop`; return the mark that `shop` shows."""
    plan = FlowPlan((border.payout("x"), border.greet("y")), "x", attributes={"secret": b'"pin"'})
    assert await border.there.flow_runs.start(plan, "v")
    [options] = await command(border.mallory, "HMGET", f"{border.shop.name}:options", "v/y")
    mark: str = json.loads(options)["run"].split("\0")[3]
    await border.home.cancel("v/y")
    return mark


@pytest.mark.parametrize(("path", "is_marked"), [("x", False), ("x", True), ("y", False)])
async def test_a_worker_runs_nothing_for_a_forged_reference_and_reads_no_inputs_by_it(
    border: Border, path: str, *, is_marked: bool
) -> None:
    mark = await leaked_mark(border)
    data = call("greet", needs={"text": "@secret"})
    await border.forge_item("f", f"{border.pay.name}\0v\0{path}" + f"\0{mark}" * is_marked, data)
    async with asyncio.timeout(TIMEOUT):
        await new_worker(border.shop).drain()
    assert border.ran == []
    assert (await border.home.counts()).total == 0
    assert (await states(border.there, "v"))[path] == "w"


@pytest.mark.parametrize(("path", "is_marked"), [("x", False), ("x", True), ("y", False)])
@pytest.mark.parametrize("kind", ["done", "failed", "fan", "drop"])
async def test_an_item_ends_no_stage_on_another_queue_and_none_without_the_mark_of_the_run(
    border: Border, kind: Any, path: str, *, is_marked: bool
) -> None:
    mark = await leaked_mark(border)
    await border.forge_item(f"v/{path}", f"{border.pay.name}\0v\0{path}" + f"\0{mark}" * is_marked)
    [lease] = await border.shop.queue.lease_many(1, 60, block=False)
    engine = engine_of(border.shop.queue)
    with pytest.raises(LeaseLost):
        await store_outcome(lease, engine, b"charge", b'"forged"')
    value = b"[]" if kind == "fan" else b'"forged"'
    assert await finish_stages(engine, [FinishRow(lease, kind, value)]) == [True]
    found = await states(border.there, "v")
    assert (found[""], found["x"], found["y"]) == ("active", "w", "w")
    assert await field(border.there, f"o:{path}\0charge", "v") is None
    assert await border.there.find("v/x")
    assert await border.there.flow_runs.report("v", "x", "real")
    assert await field(border.there, "r:x", "v") == '"real"'


async def test_the_item_of_a_stage_on_another_queue_than_the_home_ends_it(border: Border) -> None:
    plan = FlowPlan((border.greet(), border.payout(after=("greet",))), "greet")
    assert await border.there.flow_runs.start(plan, "v")
    async with asyncio.timeout(TIMEOUT):
        await border.worker().drain()
    assert border.ran == [("greet", ""), ("payout", "mallory")]
    assert await border.there.flow_runs.result("v", timeout=TIMEOUT) == "forged"


@pytest.mark.parametrize("what", ["an end", "an end with the mark", "a cancel", "a cancel of its own v"])
async def test_a_forged_note_ends_nothing_on_another_queue(border: Border, what: str) -> None:
    mark = await leaked_mark(border)
    there, shop = border.pay.name, border.shop.name
    if what == "a cancel":
        await border.note(f"!{there}\0v\0", "cancel")
    elif what == "a cancel of its own v":
        await border.forge_run("v", border.payout("x"), s_x="w")
        await border.note(f"!{shop}\0v\0", "cancel")
    else:
        await border.note("v/x", f"{there}\0v\0x\0" + f"{mark}\0" * ("mark" in what))
    engine = engine_of(border.shop.queue)
    engine.feeds.limit([])
    await settle(engine)
    await border.shop.queue.close()  # which waits for what it has begun
    found = await states(border.there, "v")
    assert (found[""], found["x"]) == ("active", "w")
    assert await border.there.find("v/x")


def test_a_worker_refuses_what_names_no_queues() -> None:
    with pytest.raises(ValueError, match="feeds: got 'shop'"):
        new_worker(feeds="shop")
    with pytest.raises(ValueError, match="feeds: got 'pay'"):
        new_worker(feeds={"shop": "pay"})
