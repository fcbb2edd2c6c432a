"""Another client that sets the units of a tier is noticed where the back end can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from leasequeue.autoscale import Autoscaler
from leasequeue.autoscale.backends import open_backend
from leasequeue.autoscale.config import load_config
from leasequeue.autoscale.model import TierUnits
from leasequeue.autoscale.others import changed_by_others
from tests.autoscale.backend_bench import bench, config_of, refusal
from tests.autoscale.kubernetes_fixtures import CONFIGURATION, cluster, kubeconfig
from tests.autoscale.kubernetes_server import KubernetesServer, Workload
from tests.autoscale.scaling import add_items
from tests.queue.fixtures import tidy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.autoscale.backend_bench import ProcessBench

__all__ = ["bench", "cluster", "kubeconfig", "tidy"]


async def test_a_second_autoscaler_on_one_deployment_is_reported(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    cluster.workloads.append(Workload("media-spot", replicas=0))
    files = []
    for owner, most in (("first", 4), ("second", 2)):
        text = CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig)
        files.append(tmp_path / f"{owner}.toml")
        files[-1].write_text(
            text.replace(f'name = "{name}"', f'name = "{name}-{owner}"').replace("= 4", f"= {most}")
        )
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(files[0])) as first, Autoscaler(load_config(files[1])) as second:
        for _ in range(2):
            assert (await first.once()).errors == (), "what it finds at its start is no client's"
        assert cluster.workloads[0].replicas == 4
        assert (await second.once()).errors == ()
        steady, spot = (await first.once()).errors
        assert (steady.part, spot.part) == ("tier media/steady", "tier media/spot")
        assert steady.problem.startswith(
            "another client has asked for 2 units, and this autoscaler for 4: only one may scale it"
        )
        assert cluster.workloads[0].replicas == 4
        assert (await first.once()).errors == (), "nothing has changed since"
        assert len((await second.once()).errors) == 2


async def test_a_request_that_was_never_taken_or_whose_answer_was_lost_is_no_other_client(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    file = tmp_path / "autoscale.toml"
    file.write_text(CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig))
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(file)) as autoscaler:
        assert {one.part for one in (await autoscaler.once()).errors} == {"tier media/spot"}, "there is none"
        cluster.workloads.append(Workload("media-spot", replicas=3))
        assert (await autoscaler.once()).errors == ()
        # As if the request of the last pass had changed the number, and its answer was lost.
        state = await autoscaler._leadership.read()
        assert state is not None
        assert state.report is not None
        steady = next(one for one in state.tiers.values() if one.tier == "steady")
        earlier = structs.replace(steady, units=1)
        unknown = TierUnits(ready=None, requested=None)
        units = {("media", "steady"): TierUnits(ready=0, requested=4), ("media", "spot"): unknown}
        before = structs.replace(state, tiers={**state.tiers, steady.key: earlier})
        assert [*changed_by_others(load_config(file), before, units)] == []


@pytest.mark.slow
async def test_units_of_another_autoscaler_for_the_same_queue_are_reported(bench: ProcessBench) -> None:
    first = bench.open()
    await bench.settled(first, 1)
    settings = {"command": bench.command, "on_exit": "leave"}
    config = config_of(bench.url, bench.queue, "processes", settings)
    second = open_backend(replace(config, name="another.one"), "work", "t1")
    try:
        said = await refusal(second, 0)
        assert said == f"units of another autoscaler work for the same queues: those of {config.name}"
        assert await refusal(second, 0) == said, "it is logged once"
        assert await second.ready() == 0
    finally:
        await second.close()
    assert await refusal(bench.open(), 1) == "", "they are its own"
