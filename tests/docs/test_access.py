"""The example of the access flow runs: parts that fail, are slow, limited and handed over."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import DOCS, ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from leasequeue.testing import Clock, Workers

FOLDER = ROOT / "docs" / "examples" / "access"
PAGE = DOCS / "how-to" / "example-access.md"


@pytest.fixture
def guild(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import the program, whose tasks are on the server of the tests."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("guild.flow")
    for name in ("guild.flow", "guild.platforms", "guild"):
        sys.modules.pop(name, None)


@pytest.fixture
def platforms(guild: ModuleType) -> Any:
    """Return the platforms, which answer at once."""
    return guild.Platforms(slow=0)


def entries(platforms: Any, start: str) -> list[str]:
    """Return the lines of the log of the platforms that begin so."""
    return [line for line in platforms.log if line.startswith(start)]


async def test_a_user_joins_although_parts_fail(
    guild: ModuleType, platforms: Any, leasequeue_worker: Workers, leasequeue_clock: Clock
) -> None:
    platforms.outages, platforms.strangers = 2, {62}
    worker = leasequeue_worker.like(guild.worker, provide={"platforms": platforms})
    run = await guild.access.start(user_id=62, roles=[1, 2, -3])
    for _ in range(3):  # Telegram answers the third attempt
        await worker.drain()
        leasequeue_clock.advance(10)
    assert await run.status() == "active", "it waits for the badge"
    [order] = entries(platforms, "badge")
    await guild.badge_minted(*order.removeprefix("badge builder: user 62: ").split("/", 1), "builder")
    await worker.drain()

    assert await run.result(timeout=120) == "user 62: 2 roles, badge, discord, telegram"
    assert len(entries(platforms, "link")) == 1, "each attempt sent the same link"
    assert entries(platforms, "member") == ["member 62: roles [1, 2]"]
    assert entries(platforms, "github") == []
    [found] = await guild.access.runs.find(roles=2)
    assert (found.id, found.state, found.attributes["user_id"]) == (run.id, "completed", 62)
    states = {
        path: stage.state
        for path, stage in (await guild.access.runs.get(run.id, children=True)).stages.items()
    }
    assert states["refuse"] == "skipped"
    assert [states[f"rewards/{child}"] for child in range(4)] == ["done", "done", "failed", "done"]


async def test_a_user_without_access_is_refused(
    guild: ModuleType, platforms: Any, leasequeue_worker: Workers
) -> None:
    platforms.banned = {63}
    worker = leasequeue_worker.like(guild.worker, provide={"platforms": platforms})
    run = await guild.access.start(user_id=63, roles=[1])
    await worker.drain()
    view = await guild.access.runs.get(run.id)
    assert view.state == "completed"
    assert view.stages["refuse"].result == "user 63 meets the requirements of none of the roles"
    assert {view.stages[name].state for name in ("member", "rewards", "finish")} == {"skipped"}
    assert platforms.log == []


async def test_each_server_is_called_10_times_in_10_s(
    guild: ModuleType, leasequeue_worker: Workers, leasequeue_clock: Clock
) -> None:
    class Watched(guild.Platforms):  # type: ignore[misc, name-defined]  # imported by the fixture
        """Platforms that note when they are called."""

        def __init__(self) -> None:
            super().__init__(slow=0)
            self.called = asyncio.Queue[float]()

        async def add_discord_role(self, server: str, user_id: int) -> None:
            await super().add_discord_role(server, user_id)
            self.called.put_nowait(leasequeue_clock())

    platforms, users = Watched(), 25
    worker = leasequeue_worker.like(guild.worker, provide={"platforms": platforms})
    await guild.limit_servers()
    runs = [await guild.access.start(user_id=user_id, roles=[1]) for user_id in range(1, users + 1)]
    working = asyncio.create_task(worker.run())
    times = [await platforms.called.get()]
    for _ in range(users - 1):
        await asyncio.sleep(0)
        leasequeue_clock.advance(1)
        times.append(await platforms.called.get())
    assert [await run.result(timeout=120) for run in runs] == [
        f"user {user_id}: 1 roles, discord, telegram" for user_id in range(1, users + 1)
    ]
    worker.stop()
    await working

    assert max(sum(since <= at < since + 10 for at in times) for since in times) == 10
    assert times == [times[0] + second for second in range(users)], "evenly, and no later than permitted"


async def ended(*command: str, url: str) -> str:
    """Run a command of the page, and return what it prints."""
    process = await started(*command, url=url)
    printed, _ = await process.communicate()
    assert process.returncode == 0, command
    return printed.decode()


async def started(*command: str, url: str) -> asyncio.subprocess.Process:
    """Start a command of the page."""
    env = {**os.environ, "REDIS_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command), cwd=FOLDER, env=env, stdout=asyncio.subprocess.PIPE
    )


@pytest.mark.slow
async def test_the_commands_of_the_page_run(redis_url: str) -> None:
    worker = await started("leasequeue.cli", "worker", "guild.flow:worker", url=redis_url)
    try:
        result, *diagram = (await ended("guild.join", "62", "1", url=redis_url)).splitlines()
        assert result == "user 62: 1 roles, discord, telegram"
        assert diagram[0].startswith("flowchart")
        found = await ended(
            "leasequeue.cli", "flow", "find", "{guild}:access", "access", "user_id=62", url=redis_url
        )
        assert "completed" in found
        active = await ended(
            "leasequeue.cli", "flow", "ls", "{guild}:access", "--state", "active", url=redis_url
        )
        assert "access" not in active.replace("{guild}:access", "")
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


def test_the_page_shows_the_files() -> None:
    shown = {block.title: block.code for block in blocks(PAGE) if block.title}
    files = [*FOLDER.rglob("*.py")]
    assert shown == {str(path.relative_to(FOLDER)): path.read_text() for path in files}


def test_the_page_shows_the_diagram(guild: ModuleType) -> None:
    [shown] = [block.code for block in blocks(PAGE) if block.language == "mermaid"]
    assert shown.strip() == guild.access.mermaid().strip()
