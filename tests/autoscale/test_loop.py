"""A pass of the autoscaler: what it sees, asks for and keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.autoscale import Autoscaler, passes
from tests.autoscale.scaling import Platform, add_items, make_config
from tests.queue.fixtures import tidy
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
