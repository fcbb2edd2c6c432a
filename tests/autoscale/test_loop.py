"""A pass of the autoscaler: what it sees, asks for and keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale import Autoscaler, PassError, passes
from leasequeue.autoscale.loop import FileChanges
from tests.autoscale.scaling import Platform, add_items, make_config
from tests.queue.fixtures import tidy
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from leasequeue.autoscale import PassReport

__all__ = ["tidy"]


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.mark.seed("RWQ-O22", "RWQ-O24", "RWQ-O25")
async def test_a_pass_asks_for_what_the_backlog_needs(redis_url: str, name: str, platform: Platform) -> None:
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        report = await autoscaler.once()
        assert report.leads
        assert report.errors == ()
        assert report.jobs[0].signals.waiting == 20
        assert platform["work", "main"].requests == [report.tiers[0].wanted]
        assert report.tiers[0].wanted >= 10  # 20 items of 30 s, within 60 s
        assert report.tiers[0].asked
        last = await autoscaler.last_report()
    assert last is not None
    assert (last.number, last.jobs, last.tiers, last.errors) == (1, report.jobs, report.tiers, ())


async def test_a_dry_run_changes_no_key_and_asks_for_nothing(
    redis_url: str, redis: Redis, name: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "DRY_PAUSE", 0.05)
    await add_items(redis_url, f"{name}-work", 20)
    for made in range(2):
        before = await snapshot(redis)
        async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
            report = await autoscaler.once(dry_run=True)
        assert await snapshot(redis) == before
        assert (report.number, report.dry_run, report.errors) == (made + 1, True, ())
        assert report.tiers[0].wanted >= 10
        assert not report.tiers[0].asked
        assert len(platform["work", "main"].requests) == made
        async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
            await autoscaler.once()


async def test_the_log_says_once_that_a_changed_file_is_not_used(
    redis_url: str, name: str, platform: Platform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "autoscale.toml"
    path.write_text("first")
    config = replace(make_config(name, redis_url, every=0.05), path=path)
    texts = iter(["first", "second", "second", "first", "third"])

    def after_a_pass(_: PassReport) -> None:
        if (text := next(texts, None)) is None:
            autoscaler.stop()
        else:
            path.write_text(text)

    async with Autoscaler(config, open_backend=platform) as autoscaler:
        await autoscaler.run(on_report=after_a_pass)
    said = f"{path} has changed: restart the autoscaler to use it"
    assert [one for one in caplog.messages if "has changed" in one] == [said] * 2, "not for what is used"


def test_a_file_that_is_gone_or_was_none_has_not_changed(tmp_path: Path) -> None:
    assert not FileChanges(None).found()
    path = tmp_path / "autoscale.toml"
    path.write_text("first")
    changes = FileChanges(path)
    path.unlink()
    assert not changes.found()
    path.write_text("second")
    assert changes.found()
    assert not changes.found()


async def test_units_that_a_removed_tier_has_left_are_reported_once(redis_url: str, name: str) -> None:
    platform = Platform()
    await add_items(redis_url, f"{name}-b", 20)
    async with Autoscaler(make_config(name, redis_url, "a", "b"), open_backend=platform) as autoscaler:
        asked = next(one.wanted for one in (await autoscaler.once()).tiers if one.deployment == "b")
        assert asked >= 10
    problem = f"it no longer has the tier b/main: stop the {asked} units it was asked for last"
    reported = [PassError(part="configuration", problem=problem)]
    for dry_run, expected in ((True, reported), (False, reported), (False, [])):
        async with Autoscaler(make_config(name, redis_url, "a"), open_backend=platform) as autoscaler:
            assert [*(await autoscaler.once(dry_run=dry_run)).errors] == expected
    assert platform["b", "main"].requests == [asked], "they may be another client's by now"
