"""The autoscaler on a queue with shards, which is one queue to it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.autoscale import Autoscaler, Config, queues
from leasequeue.autoscale.backends import open_backend
from leasequeue.autoscale.config import HttpSettings
from leasequeue.queue.views import Counts
from tests.autoscale.backend_bench import config_of
from tests.autoscale.scaling import Platform, make_config
from tests.faults.cluster_nodes import cluster, kind, nodes, owner, port_of  # noqa: F401 - fixtures
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis, RedisCluster

COUNT = 4


@pytest.fixture
async def queue(redis_url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue.from_url(redis_url, f"{name}-spread", shards=COUNT) as one:
        yield one


def items(count: int, begin: int = 0) -> list[Item]:
    return [Item(b"x", id=f"i{n}") for n in range(begin, begin + count)]


async def test_what_is_wanted_follows_from_the_sums_and_one_stream_of_arrivals(
    redis_url: str, name: str, queue: AsyncWorkQueue, platform: Platform
) -> None:
    now = 1_000_000.0
    config = make_config(name, redis_url, "spread", "plain")
    async with (
        AsyncWorkQueue.from_url(redis_url, f"{name}-plain") as plain,
        Autoscaler(config, open_backend=platform, clock=lambda: now) as autoscaler,
    ):
        reports = []
        for at in range(3):
            for one in (queue, plain):
                await one.add_items(items(40, at * 40))
                assert len(await one.lease_many(10, 600, block=False)) == 10
            reports.append(await autoscaler.once())
            assert reports[-1].errors == ()
            now += 10
        found = {one.job: one.signals for one in reports[-1].jobs}
        assert found["spread"].waiting == 90
        assert found["spread"].leased == 30
        assert found["spread"].arrival_rate == pytest.approx(4.0)
        assert replace(found["spread"], oldest_age=0) == replace(found["plain"], oldest_age=0)
        assert len({one.wanted for one in reports[-1].tiers}) == 1


async def test_shards_that_are_made_later_than_the_job_are_found(
    redis_url: str, name: str, queue: AsyncWorkQueue, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_EVERY", 0.0)
    config = make_config(name, redis_url, "spread")
    async with Autoscaler(config, open_backend=platform) as autoscaler:
        assert (await autoscaler.once()).jobs[0].signals.waiting == 0
        await queue.add_items(items(20))
        assert (await autoscaler.once()).jobs[0].signals.waiting == 20
        await queue.admin.delete()
        async with AsyncWorkQueue.from_url(redis_url, queue.name, shards=2) as other:
            await other.add_items(items(7))
            report = await autoscaler.once()
        assert (report.jobs[0].signals.waiting, report.errors) == (7, ())


async def test_all_shards_are_cleaned_without_a_worker(
    redis_url: str, name: str, queue: AsyncWorkQueue, platform: Platform
) -> None:
    await queue.add_items(items(20))
    for shard in queue.shards:
        assert await shard.lease_many(100, 0.001, block=False)
    config = make_config(name, redis_url, "spread", clean_every=0.05)
    async with Autoscaler(config, open_backend=platform) as autoscaler:
        running = asyncio.create_task(autoscaler.run())

        async def waits_again() -> bool:
            return await queue.counts() == Counts(20, 0, 0, 0)

        await until("the expired leases are reclaimed", waits_again)
        autoscaler.stop()
        await running


async def test_on_a_cluster_a_worker_is_counted_once_also_while_a_node_is_away(
    nodes: list[Redis],  # noqa: F811
    cluster: RedisCluster,  # noqa: F811
) -> None:
    """The number of units stays while a shard cannot be read."""
    for node in nodes:
        await node.config_set("cluster-require-full-coverage", "no")
    url = f"redis://127.0.0.1:{port_of(nodes[0])}"
    async with AsyncWorkQueue("emails", cluster, shards=6) as queue:
        await queue.add_items(items(60))
        worker = Worker(concurrency=8)

        @worker.handler(queue)
        async def handle(_: bytes) -> None:
            await asyncio.Event().wait()

        running = asyncio.create_task(worker.run())
        await worker.started()

        async def is_busy() -> bool:
            return (await queue.counts()).leased == 8

        await until("the worker is busy", is_busy)
        config = on_cluster(config_of(url, "emails", HttpSettings(), workers_per_unit=4))
        async with Autoscaler(config) as autoscaler:
            report = await autoscaler.once()
            assert report.errors == ()
            [tier] = report.tiers
            assert (tier.ready, report.jobs[0].signals.waiting) == (2, 52)
            lost = next(
                node
                for node in nodes
                if node not in {owner(nodes, queue.shards[0].name), owner(nodes, config.name)}
            )
            os.kill((await lost.info("server"))["process_id"], signal.SIGKILL)
            backend = open_backend(config, "work", "t1")
            assert await backend.ready() == 2, "the other shards know it"
            await backend.close()
            report = await autoscaler.once()
            assert {one.part for one in report.errors} == {"job job"}
            assert report.tiers[0].wanted == tier.wanted
        worker.stop(now=True)
        await running


def on_cluster(config: Config) -> Config:
    jobs = {name: replace(one, cluster=True) for name, one in config.jobs.items()}
    return replace(config, name="{autoscaler}", cluster=True, jobs=jobs)
