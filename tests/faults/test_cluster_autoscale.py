"""The autoscaler of queues on a cluster, each in its own slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Item
from leasequeue.autoscale import Autoscaler, load_config
from tests.faults.cluster_nodes import port_of

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis, RedisCluster


async def test_its_queue_and_those_of_the_jobs_are_on_any_nodes(
    nodes: list[Redis], cluster: RedisCluster, tmp_path: Path
) -> None:
    path, names = tmp_path / "autoscale.toml", [f"{{{n}}}" for n in range(8)]
    path.write_text(
        f"""name = "{{auto}}"
url = "redis://127.0.0.1:{port_of(nodes[0])}"
cluster = true
[http]
address = "127.0.0.1:0"
[deployments.all]
jobs = {names}
backend = "http"
max_units = 100
"""
        + "".join(f'[jobs."{name}"]\nservice_time = "30s"\n' for name in names)
    )
    for count, name in enumerate(names):
        async with AsyncWorkQueue(name, cluster) as queue:
            await queue.add_items([Item(b"x") for _ in range(count)])
    async with Autoscaler(load_config(path)) as autoscaler:
        for number in (1, 2):
            report = await autoscaler.once()
            assert (report.number, report.errors) == (number, ())
            assert [job.signals.waiting for job in report.jobs] == [*range(8)]
    async with Autoscaler(load_config(path)) as other:
        last = await other.last_report()
    assert last is not None
    assert last.number == 2
    assert last.tiers[0].wanted >= 14, "28 items of 30 s within a minute"
