"""Every page of a shop with a day's history: for all eyes, on all screens; and its pictures."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from PIL import Image

from tests import servers
from tests.browser.shop import Shop
from tests.browser.visitors import problems_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.conftest import Visit

#: Pages beside those of PAGES: a question, and what is not there.
OTHERS = ["/?show=attention&sort=oldest", "/queues/orders/purge?dead=1", "/queues/none"]
#: The pictures: their names, and the address and the height of each.
PICTURES = {"dashboard": ("/", 560), "dashboard-queue": ("/queues/orders", 860)}
#: How large a picture may be.
MAX_BYTES = 120_000


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """Fill a shop on a server of its own."""
    with servers.running(servers.wanted()) as running:
        shop = Shop(running.url)
        asyncio.run(shop.fill())
        yield shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where the pictures go."""
    return Path(os.environ.get("SCREENSHOTS") or tmp_path)


def shrink(file: Path) -> None:
    """Keep the 256 colours of a picture that are most frequent: a third of the bytes."""
    with Image.open(file) as picture:
        flat = picture.convert("RGB")
    counted: Any = flat.getcolors(1 << 24)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in sorted(counted, reverse=True)[:256] for part in colour])
    flat.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)


async def test_the_pictures_of_the_shop(visit: Visit, shop: Shop, folder: Path) -> None:
    visitor = await visit(shop.url, sampled=shop.samples, environment="production")
    async with shop.open():
        for scheme in ("light", "dark"):
            page = await visitor.open(scheme=scheme)
            for name, (address, height) in PICTURES.items():
                await page.set_viewport_size({"width": 1280, "height": height})
                await page.goto(address)
                await page.locator("#live.on").wait_for()
                file = folder / f"{name}-{scheme}.png"
                await page.screenshot(path=file)
                shrink(file)
                assert 5_000 < file.stat().st_size < MAX_BYTES


async def test_no_page_is_wider_than_the_screen_and_axe_finds_nothing_serious(
    visit: Visit, shop: Shop
) -> None:
    visitor = await visit(shop.url, environment="production")
    looks: list[tuple[Literal["light", "dark"], int]] = [
        ("light", 1280),
        ("dark", 1280),
        ("dark", 360),
        ("light", 360),
    ]
    async with shop.open():
        for scheme, width in looks:
            page = await visitor.open(scheme=scheme, width=width)
            for address in [*shop.addresses, *OTHERS]:
                await page.goto(address)
                where = f"{address}, {scheme}, {width}"
                assert await problems_of(page) == [], where
                wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, where
                ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (sum(map(int, ground[4:-1].split(","))) > 384) == (scheme == "light"), where
