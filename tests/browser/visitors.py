"""Chromium as a visitor of a dashboard, and dashboards that are served to it."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import uvicorn
from playwright.async_api import async_playwright

from tests.eventually import LIMIT_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page, Request


class Visitor:
    """Opens pages in one profile of a browser, and notes what no page may do."""

    def __init__(self, browser: Browser, origin: str) -> None:
        self._browser = browser
        self.origin = origin
        #: Requests to other origins, errors of scripts, and what the policy of a page has refused.
        self.complaints: list[str] = []
        #: The context of the first pages: a profile.
        self._profile: Any = None

    async def open(
        self,
        path: str = "/",
        *,
        scheme: Literal["light", "dark"] = "light",
        width: int = 1280,
        javascript: bool = True,
    ) -> Page:
        """Open a page in a new profile."""
        self._profile = await self._browser.new_context(
            base_url=self.origin,
            color_scheme=scheme,
            java_script_enabled=javascript,
            locale="en",
            viewport={"width": width, "height": 800},
        )
        self._profile.set_default_timeout(LIMIT_SECONDS * 1000)
        self._profile.on("request", self._requested)
        self._profile.on("console", lambda one: self._said(one.type, one.text))
        self._profile.on("weberror", lambda one: self.complaints.append(f"error: {one.error}"))
        return await self.open_tab(path)

    async def open_tab(self, path: str = "/") -> Page:
        """Open another page in the profile of the last one."""
        page: Page = await self._profile.new_page()
        await page.goto(path)
        return page

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.origin + "/", "data:")):
            self.complaints.append(f"request to {request.url}")

    def _said(self, kind: str, text: str) -> None:
        # The browser reports each answer of status 4xx and 5xx, and each server that is away.
        if kind in {"error", "warning"} and not text.startswith("Failed to load resource:"):
            self.complaints.append(f"{kind}: {text}")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser inside the block."""
    program = shutil.which("chromium")
    assert program, "no chromium on the PATH: `tests/setup-machine.sh browser` installs it"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program,
            # Containers run as root, in which the sandbox does not work, and may have a small /dev/shm.
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=LIMIT_SECONDS * 1000,
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def served(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on this event loop inside the block, and give its origin."""
    config = uvicorn.Config(app, port=port, log_level="warning", ws="none", timeout_graceful_shutdown=1)
    listening = config.bind_socket()
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await eventually("it is served", lambda: server.started or serving.done())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


async def problems_of(page: Page) -> list[str]:
    """Return what axe finds that is serious or critical."""
    await page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text())
    found = await page.evaluate("() => axe.run({resultTypes: ['violations']})")
    return [
        f"{one['impact']}: {one['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"]
    ]
