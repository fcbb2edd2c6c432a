"""What a viewer does: with a mouse, with the keyboard alone, without JavaScript, and without the right to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from leasequeue import AsyncWorkQueue, Item
from leasequeue.dashboard import Rights
from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Page

    from tests.browser.conftest import Visit

expect.set_options(timeout=LIMIT_SECONDS * 1000)


async def filled(queue: AsyncWorkQueue) -> None:
    """Add items that wait, one that is scheduled, and a dead letter."""
    await queue.add_item(Item(b"data", id="dies"))
    lease = await queue.lease(30)
    assert lease is not None
    await queue.fail(lease, "the card was declined")
    await queue.add_items([Item(b"data", id=f"order-{number}") for number in range(3)])
    await queue.add_item(Item(b"data", id="later"), delay=3600)


@pytest.mark.parametrize("javascript", [True, False], ids=["script", "no script"])
async def test_a_queue_is_found_paused_resumed_and_purged(
    visit: Visit, queue: AsyncWorkQueue, *, javascript: bool
) -> None:
    await filled(queue)
    visitor = await visit(queue, rights=Rights.all.of("ann"))
    page = await visitor.open("/", javascript=javascript)
    await page.locator("main").get_by_role("searchbox").fill("none of this name")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_role("link", name="Show all").click()
    await page.get_by_role("link", name="Waiting", exact=True).click()
    await expect(page.get_by_role("columnheader", name="Waiting", exact=False).last).to_be_visible()
    await page.locator("main").get_by_role("link", name="orders", exact=True).click()

    await page.get_by_text("Pause…").click()
    await page.get_by_label("Reason").fill("moving house")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("moving house by ann")).to_be_visible()
    await expect(page.get_by_text("The queue is paused: nothing is leased.")).to_be_visible()
    assert (await queue.stats()).paused is not None
    await page.locator("main form").get_by_role("button", name="Resume").click()
    await expect(page.get_by_text("The queue is resumed")).to_be_visible()
    assert (await queue.stats()).paused is None

    await page.get_by_text("Purge…").click()
    await page.get_by_label("dead letters").check()
    await page.get_by_role("button", name="Look how many…").click()
    await expect(page.get_by_text("Remove 3 waiting items, 1 dead letters of the queue")).to_be_visible()
    await page.locator(".question a").click()
    assert (await queue.counts()).total == 4
    await page.get_by_text("Purge…").click()
    await page.get_by_label("dead letters").check()
    await page.get_by_role("button", name="Look how many…").click()
    await page.get_by_role("button", name="Remove 4").click()
    await expect(page.get_by_text("4 items were removed.")).to_be_visible()
    counts = await queue.counts()
    assert (counts.waiting, counts.scheduled, counts.dead) == (0, 1, 0)


async def focused(page: Page) -> str:
    """Return the text of what has the focus."""
    text: str = await page.evaluate(
        "document.activeElement.textContent.trim() || document.activeElement.name"
    )
    return text


async def tab_to(page: Page, text: str) -> None:
    """Press Tab until what has this text has the focus, which must be visible."""
    seen: list[str] = []
    while not seen or not seen[-1].startswith(text):
        assert len(seen) < 60, f"the Tab key never reaches {text!r}: {seen}"
        await page.keyboard.press("Tab")
        seen.append(await focused(page))
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


async def test_the_keyboard_alone_is_enough(visit: Visit, queue: AsyncWorkQueue) -> None:
    await filled(queue)
    visitor = await visit(queue)
    page = await visitor.open("/")
    await page.keyboard.press("Tab")
    assert await focused(page) == "Skip to the content"
    await expect(page.locator(".skip")).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.type") == "search"
    await tab_to(page, "find")
    await page.keyboard.type("ord")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile("find=ord"))
    await tab_to(page, "orders")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="orders")).to_be_visible()

    await tab_to(page, "Pause…")
    await page.keyboard.press("Enter")
    await tab_to(page, "reason")
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Reason")).to_be_hidden()
    await tab_to(page, "Pause…")
    await page.keyboard.press("Space")
    await tab_to(page, "reason")
    await page.keyboard.type("night")
    await page.keyboard.press("Enter")
    await expect(page.locator(".notice.paused")).to_contain_text("night")

    await tab_to(page, "Purge…")
    await page.keyboard.press("Enter")
    await tab_to(page, "Look how many…")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Are you sure?")).to_be_visible()
    await tab_to(page, "Remove 3")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("3 items were removed.")).to_be_visible()


async def test_what_is_read_only_offers_nothing_and_refuses_what_a_page_sends(
    visit: Visit, queue: AsyncWorkQueue
) -> None:
    await filled(queue)
    visitor = await visit(queue, rights=Rights.read_only)
    page = await visitor.open("/queues/orders")
    await expect(page.get_by_text("You may look, and change nothing.")).to_be_visible()
    assert await page.locator("main form, main button, main summary").count() == 0
    before = await queue.counts()
    for act in ("pause", "resume", "purge"):
        status = await page.evaluate(
            """act => fetch(location.pathname + "/" + act, {method: "POST", body: "sure=yes"})
            .then(answer => answer.status)""",
            act,
        )
        assert status == 403, act
    assert await queue.counts() == before
    assert (await queue.stats()).paused is None
    refused = await page.goto("/queues/orders/purge")
    assert refused is not None
    assert refused.status == 403
    await expect(page.get_by_role("heading", name="Not permitted")).to_be_visible()
