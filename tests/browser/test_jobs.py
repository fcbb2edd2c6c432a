"""One job, from the search for its id to its end; dead letters; a flow run that is followed to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from playwright.async_api import expect

from leasequeue import AsyncWorkQueue, Item, TaskQueue
from leasequeue.dashboard.view import segment
from tests.eventually import LIMIT_SECONDS
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from tests.browser.conftest import Visit

expect.set_options(timeout=LIMIT_SECONDS * 1000)


async def test_a_job_is_found_by_its_id_followed_and_cancelled_while_it_runs(
    visit: Visit, redis_url: str
) -> None:
    async with TaskQueue.from_url(redis_url, "orders") as tasks:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        @tasks.task
        async def pack(number: int) -> int:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return number

        await tasks.queue.events.keep(count=100)
        await pack.options(id="order/17 ü").add(17)
        visitor = await visit(tasks, show_data=True)
        page = await visitor.open("/")
        find = page.get_by_label("Find a job by its id")
        await find.fill("order/17 ü")
        await find.press("Enter")
        await expect(page.get_by_role("heading", name="pack")).to_be_visible()
        history = page.locator("section", has_text="History")
        await expect(history.get_by_text("added")).to_be_visible()
        async with working(new_worker(tasks, name="packer")):
            await begun.wait()
            await expect(history.get_by_text("leased")).to_be_visible()
            await expect(page.get_by_text("packer").first).to_be_visible()
            await page.get_by_role("button", name="Cancel…").click()
            await page.locator("main form button").click()
            await cancelled.wait()
            await expect(history.get_by_text("cancelled").first).to_be_visible()


async def test_dead_letters_are_requeued_and_dropped(visit: Visit, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"data", id=f"order-{number}") for number in range(5)])
    for lease in await queue.lease_many(5, 30):
        await queue.fail(lease, "CardDeclined: no money" if lease.id != "order-4" else "OSError: disk")
    visitor = await visit(queue)
    page = await visitor.open("/dead")
    await expect(page.locator(".letters tbody tr")).to_have_count(5)
    await page.get_by_label("Select order-0").check()
    await page.get_by_label("Select order-1").check()
    await page.get_by_role("button", name="Requeue selected").click()
    await expect(page.locator(".letters tbody tr")).to_have_count(3)
    counts = await queue.counts()
    assert (counts.waiting, counts.dead) == (2, 3)
    await page.locator(".groups").get_by_role("link", name="OSError").click()
    await expect(page.locator(".letters tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Drop all that match…").click()
    await expect(page.get_by_text("1", exact=False).first).to_be_visible()
    assert (await queue.counts()).dead == 3  # it was only asked
    await page.locator("main form button").click()
    await expect(page.get_by_text("Are you sure?")).to_have_count(0)
    await page.goto("/dead")
    await expect(page.locator(".letters tbody tr")).to_have_count(2)
    assert await queue.dead_letters.get("order-4") is None
    assert (await queue.counts()).dead == 2


async def test_a_flow_run_is_drawn_and_followed_to_its_end(visit: Visit, redis_url: str) -> None:
    async with TaskQueue.from_url(redis_url, "orders") as tasks:
        may_end = {"pick": asyncio.Event(), "pack": asyncio.Event()}

        @tasks.task
        async def pick(number: int) -> int:
            await may_end["pick"].wait()
            return number

        @tasks.task
        async def pack(number: int) -> int:
            await may_end["pack"].wait()
            return number

        run = await pick.call(7).then(pack).add()
        visitor = await visit(tasks)
        page = await visitor.open("/flows/orders")
        await page.locator("main").get_by_role("link", name=run.id[:8]).first.click()
        await expect(page).to_have_url(f"{visitor.origin}/flows/orders/{segment(run.id)}")
        drawn = page.locator("svg.flow.wide")
        await expect(drawn).to_be_visible()
        await expect(drawn.locator(".stage")).to_have_count(2)
        await page.get_by_role("link", name="pick").click()
        await expect(page.locator(".title").get_by_text("waiting")).to_be_visible()
        await page.get_by_role("link", name=run.id, exact=True).click()
        await expect(page).to_have_url(f"{visitor.origin}/flows/orders/{segment(run.id)}")
        async with working(new_worker(tasks)):
            await expect(drawn.locator(".s-running")).to_contain_text("pick")
            may_end["pick"].set()
            await expect(drawn.locator(".s-running")).to_contain_text("pack")
            await expect(drawn.locator(".s-done")).to_contain_text("pick")
            may_end["pack"].set()
            await expect(drawn.locator(".s-done")).to_have_count(2)
        await expect(page.locator(".title").get_by_text("completed")).to_be_visible()
