"""The pages of workers, schedules, history and autoscalers: what they show, and what reaches the server."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec
from playwright.async_api import expect

from leasequeue import AsyncWorkQueue, Fleet, Item
from leasequeue.autoscale.leader import PASS_ID, State, encode_state
from leasequeue.autoscale.model import TierReport
from leasequeue.autoscale.report import PassReport
from leasequeue.dashboard.view import segment
from tests.eventually import LIMIT_SECONDS
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from tests.browser.conftest import Visit

expect.set_options(timeout=LIMIT_SECONDS * 1000)


async def test_a_worker_is_quieted_resumed_and_stopped(visit: Visit, queue: AsyncWorkQueue) -> None:
    worker, packed = new_worker(name="packer"), asyncio.Event()

    @worker.handler(queue)
    async def pack(_: bytes) -> None:
        packed.set()

    async with working(worker) as running:
        visitor = await visit(queue)
        page = await visitor.open("/workers")
        await page.locator("main").get_by_role("link", name="packer").click()
        await page.get_by_role("button", name="Fetch nothing more").click()
        await expect(page.locator(".title").get_by_text("quiet")).to_be_visible()
        assert [one.quiet for one in await Fleet(queue).workers()] == [True], "it says so itself"
        await queue.add_item(Item(b"data", id="one"))
        await page.get_by_role("button", name="Fetch again").click()
        async with asyncio.timeout(LIMIT_SECONDS):
            await packed.wait()
        await expect(page.locator(".title").get_by_text("quiet")).to_have_count(0)
        await page.get_by_role("button", name="Stop…").click()
        await expect(page.get_by_text("Stop the worker packer?")).to_be_visible()
        await page.get_by_role("button", name="Stop it").click()
        async with asyncio.timeout(LIMIT_SECONDS):
            await running
        await expect(page.get_by_text("it has stopped, or was failed")).to_be_visible()


async def test_a_schedule_shows_its_next_time_and_is_run_now(visit: Visit, queue: AsyncWorkQueue) -> None:
    await queue.schedules.every(7200, "tidy-carts", b"tidy")
    visitor = await visit(queue)
    page = await visitor.open("/schedules")
    row = page.locator("tbody tr", has_text="tidy-carts")
    await expect(row).to_contain_text("every 2 h")
    due = await row.locator("time").get_attribute("datetime")
    [schedule] = await queue.schedules.list()
    assert schedule.next_due is not None
    assert due == schedule.next_due.isoformat(timespec="seconds")
    await row.get_by_role("button", name="Run now").click()
    await expect(page.get_by_text("1 item was added for the schedule.")).to_be_visible()
    [item] = await queue.inspect()
    assert item.data == b"tidy"
    assert await row.locator("time").get_attribute("datetime") == due, "the next time stays"


async def test_history_is_drawn_with_a_dashed_end_and_switched_off(
    visit: Visit, queue: AsyncWorkQueue, redis_url: str
) -> None:
    visitor = await visit(queue)
    await queue.add_item(Item(b"data", id="waits"))
    page = await visitor.open("/queues/orders")
    history = page.locator("section.history")
    await history.get_by_role("button", name="Keep history").click()
    await expect(page.get_by_text("keeps its history from now on")).to_be_visible()
    now = time.time()
    for at in (now - 3 * 86_400, now):  # three days ago, and now
        clock = repeat(at).__next__
        async with AsyncWorkQueue.from_url(redis_url, "orders", clock=clock) as then:
            await then.add_items([Item(b"data") for _ in range(4)])
            await then.complete_many(await then.lease_many(4, 60))
    await history.get_by_role("link", name="by day").click()
    await expect(history.locator(".legend .done")).to_have_text("completed 8")
    chart = history.locator("svg.bars").first
    drawn: list[list[bool]] = await chart.locator("rect").evaluate_all(
        """bars => bars.filter(one => one.getBBox().height > 0).map(
        one => [one.classList.contains("now"), getComputedStyle(one).strokeDasharray !== "none"])"""
    )
    assert [False, False] in drawn
    assert drawn[-1] == [True, True], "the day that is not over is dashed"
    await history.get_by_role("button", name="Stop keeping history").click()
    await expect(history.get_by_text("History is off")).to_be_visible()
    await expect(history.locator(".legend .done")).to_have_text("completed 4")  # by minute again
    assert not (await queue.history()).kept


async def test_the_last_report_of_an_autoscaler_replaces_the_one_before(
    visit: Visit, queue: AsyncWorkQueue
) -> None:
    async def report(number: int, wanted: int, why: str) -> None:
        tier = TierReport(deployment="media", tier="spot", ready=2, requested=3, wanted=wanted, why=why)
        found = PassReport(number=number, at=time.time(), copy="node/1/ab", tiers=(tier,), errors=())
        state = State(number=number, at=found.at, report=msgspec.to_builtins(found))
        await queue.add_item(Item(encode_state(state), id=PASS_ID), delay=3600, replace=True)

    await report(1, 5, "the queue grows")
    visitor = await visit(queue)
    page = await visitor.open("/autoscaler")
    row = page.locator("tr", has_text="media/spot")
    await expect(row).to_contain_text("the queue grows")
    await report(2, 17, "no quota")
    await expect(row).to_contain_text("no quota")
    await expect(row).to_contain_text("17")


async def test_a_delayed_item_is_run_now_and_followed_to_its_end(visit: Visit, queue: AsyncWorkQueue) -> None:
    worker, may_end = new_worker(name="packer"), asyncio.Event()

    @worker.handler(queue)
    async def pack(_: bytes) -> None:
        await may_end.wait()

    await queue.events.keep(count=100)
    await queue.add_item(Item(b"data", id="order/1"), delay=36_000)
    visitor = await visit(queue)
    page = await visitor.open(f"/queues/orders/jobs/{segment('order/1')}")
    async with working(worker):
        await expect(page.locator("dd", has_text=re.compile(r"in \d+ h"))).to_be_visible()
        await page.get_by_role("button", name="Run now").click()
        await expect(page.get_by_text("Items that wait at the front of the queue now: 1.")).to_be_visible()
        await expect(page.locator(".title").get_by_text("leased")).to_be_visible()
        may_end.set()
        await expect(page.locator(".title").get_by_text("completed")).to_be_visible()
