"""Pages that stay open: what changes on them by itself, and what they leave alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from playwright.async_api import expect

from leasequeue import AsyncWorkQueue, Item
from leasequeue.dashboard import dashboard
from tests.browser.visitors import Visitor, served
from tests.eventually import LIMIT_SECONDS
from tests.ports import free_port
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Locator, Page

    from tests.browser.conftest import Visit
    from tests.conftest import MakeServer

# A busy machine, and a page that asks every few seconds.
expect.set_options(timeout=LIMIT_SECONDS * 1000)


def figure(page: Page, kind: str) -> Locator:
    """Return a large number of a page."""
    return page.locator(f".figures .{kind} dd")


@asynccontextmanager
async def hosted(redis_url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run uvicorn with an application that has a dashboard, and give its process and its origin."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "tests.browser.host:app", "--port", str(port)),
        env={**os.environ, "HOST_URL": redis_url},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    reading: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while b"Uvicorn running on" not in await process.stderr.readline():
                assert process.returncode is None
        reading = asyncio.create_task(process.stderr.read())  # so that the pipe is never full
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


async def test_counts_change_while_a_worker_runs(visit: Visit, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"data", id=f"order-{number}") for number in range(5)])
    visitor = await visit(queue)
    overview = await visitor.open("/")
    page = await visitor.open_tab("/queues/orders")
    await expect(page.get_by_text("no worker serves this")).to_be_visible()
    begun, may_end = asyncio.Event(), asyncio.Event()
    worker = new_worker(concurrency=2, name="packer")

    @worker.handler(queue)
    async def pack(_: bytes) -> None:
        begun.set()
        await may_end.wait()

    async with working(worker):
        await begun.wait()
        for shown in (overview, page):
            await expect(figure(shown, "leased")).to_have_text("2")
            await expect(figure(shown, "waiting")).to_have_text("3")
        await expect(
            page.locator("section", has_text="Leased now").get_by_text("packer").first
        ).to_be_visible()
        await expect(page.get_by_text("no worker serves this")).to_have_count(0)
        may_end.set()
        for shown in (overview, page):
            await expect(figure(shown, "leased")).to_have_text("0")
            await expect(figure(shown, "waiting")).to_have_text("0")
        await expect(page.get_by_text("Nothing is leased.")).to_be_visible()


async def test_a_text_that_is_typed_is_not_lost_by_an_update(visit: Visit, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"data", id="one"))
    visitor = await visit(queue)
    page = await visitor.open("/")
    search, show = page.locator("main").get_by_role("searchbox"), page.get_by_label("Which queues")
    await search.fill("ord")
    await show.select_option("busy")
    await page.get_by_role("button", name="Show").focus()  # no field has the focus, so the page may change
    await queue.add_item(Item(b"data", id="two"))
    await expect(figure(page, "waiting")).to_have_text("2")
    await expect(search).to_have_value("ord")
    await expect(show).to_have_value("busy")
    page = await visitor.open_tab("/queues/orders")
    await page.get_by_text("Purge…").click()
    await page.get_by_label("dead letters").check()
    await page.get_by_text("Purge…").press("Escape")  # closed, so the page may change
    await queue.add_item(Item(b"data", id="three"))
    await expect(figure(page, "waiting")).to_have_text("3")
    await page.get_by_text("Purge…").click()
    await expect(page.get_by_label("dead letters")).to_be_checked()


async def test_a_page_waits_while_somebody_types_and_while_it_is_held(
    visit: Visit, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"data", id="one"))
    visitor = await visit(queue)
    page = await visitor.open("/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.clock.install()
    await page.reload()
    await page.locator("main").get_by_role("searchbox").fill("ord")
    asked.clear()
    await page.clock.run_for(60_000)
    assert asked == []
    # A click would take the focus from the field before the page is held.
    await page.get_by_role("button", name="Hold").evaluate("one => one.click()")
    await page.locator("main").get_by_role("searchbox").blur()
    await page.clock.run_for(60_000)
    assert asked == []
    await expect(page.locator("#live")).to_have_text("Held")
    async with page.expect_response("**"):
        await page.get_by_role("button", name="Resume").click()
    assert asked


async def test_a_server_that_was_killed_is_found_again_when_it_is_back(
    visit: Visit, make_server: MakeServer, tmp_path: Path
) -> None:
    port = free_port()
    server = await make_server(dir=tmp_path, port=port)
    async with AsyncWorkQueue.from_url(server.url, "orders") as queue:
        await queue.add_item(Item(b"data", id="one"))
        visitor = await visit(server.url)
        page = await visitor.open("/queues/orders")
        overview = await visitor.open_tab("/")
        await server.stop()
        for shown in (page, overview):
            await expect(shown.get_by_role("heading", name="The server is away")).to_be_visible()
            await expect(shown.locator("#live")).to_have_text("The server is away")
        await make_server(dir=tmp_path, port=port)
        for shown in (page, overview):
            await expect(shown.locator("#live")).to_have_text("Live")
            await expect(figure(shown, "waiting")).to_have_count(1)


async def test_an_application_that_was_restarted_is_found_again(
    browser: Browser, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"data", id="one"))
    port = free_port()
    async with served(dashboard(queue), port) as origin:
        visitor = Visitor(browser, origin)
        page = await visitor.open("/")
        await expect(figure(page, "waiting")).to_have_text("1")
    await expect(page.locator("#live")).to_have_text("No answer; trying again")
    await queue.add_item(Item(b"data", id="two"))
    async with served(dashboard(queue), port):
        await expect(figure(page, "waiting")).to_have_text("2")
        await expect(page.locator("#live")).to_have_text("Live")
        await page.close()
    assert visitor.complaints == []


async def test_seven_tabs_of_a_profile_do_not_block_the_application(browser: Browser, redis_url: str) -> None:
    async with hosted(redis_url) as (_, origin):
        visitor = Visitor(browser, origin)
        tabs = [await visitor.open("/queues/")]
        tabs += [await visitor.open_tab("/queues/") for _ in range(6)]
        for tab in tabs:  # each has asked again
            await tab.wait_for_event("response")
            await expect(tab.locator("#live")).to_have_text("Live")
        other = await visitor.open_tab("/hello")
        assert await other.locator("body").text_content() == '"hello"'
        assert visitor.complaints == []


async def test_sigterm_ends_uvicorn_while_three_pages_are_open(browser: Browser, redis_url: str) -> None:
    async with hosted(redis_url) as (process, origin):
        visitor = Visitor(browser, origin)
        tabs = [await visitor.open("/queues/"), *[await visitor.open_tab("/queues/") for _ in range(2)]]
        for tab in tabs:
            await tab.wait_for_event("response")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_SECONDS):
            assert await process.wait() in {0, -signal.SIGTERM}
        for tab in tabs:  # they are open, and wait for the application
            await expect(tab.locator("#live")).to_have_text("No answer; trying again")
            await expect(tab.get_by_role("heading", name="Queues")).to_be_visible()
