"""Tiers that were removed from the configuration: their processes are stopped, other units are reported."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from leasequeue import Fleet, Item
from leasequeue.autoscale import Autoscaler, Config, DeploymentConfig, JobConfig, TierConfig
from leasequeue.autoscale.config import load_config
from leasequeue.autoscale.model import DeploymentPolicy, TierPolicy
from tests.autoscale.backend_bench import bench
from tests.autoscale.kubernetes_fixtures import CONFIGURATION, cluster, kubeconfig
from tests.autoscale.kubernetes_server import KubernetesServer, Workload
from tests.autoscale.scaling import Platform, add_items, make_config
from tests.eventually import eventually
from tests.queue.asking import until
from tests.queue.fixtures import tidy

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue import AsyncWorkQueue
    from leasequeue.autoscale import PassReport
    from tests.autoscale.backend_bench import ProcessBench

__all__ = ["bench", "cluster", "kubeconfig", "tidy"]


def problems(report: PassReport) -> list[tuple[str, str]]:
    return [(one.part, one.problem) for one in report.errors]


async def test_units_that_a_removed_tier_has_left_are_reported_in_each_pass_until_it_is_retired(
    redis_url: str, name: str
) -> None:
    platform = Platform()
    await add_items(redis_url, f"{name}-b", 20)
    async with Autoscaler(make_config(name, redis_url, "a", "b"), open_backend=platform) as autoscaler:
        asked = next(one.wanted for one in (await autoscaler.once()).tiers if one.deployment == "b")
        assert asked >= 10
        assert await autoscaler.removed_tiers() == []
    expected = f"its back end (memory) was asked for {asked} units last: stop them, then"
    for dry_run in (False, True, False):
        async with Autoscaler(make_config(name, redis_url, "a"), open_backend=platform) as autoscaler:
            [(part, problem)] = problems(await autoscaler.once(dry_run=dry_run))
            assert part == "tier b/main"
            assert problem.startswith(f"it is no longer in the configuration, and {expected}")
            assert problem.endswith("`leasequeue autoscale FILE --retire b/main`")
    assert platform["b", "main"].requests == [asked], "they may be another client's by now"
    async with Autoscaler(make_config(name, redis_url, "a"), open_backend=platform) as autoscaler:
        assert await autoscaler.retire("a/main") == ([], ()), "it is in the configuration"
        assert [one.name for one in (await autoscaler.retire("b/main"))[0]] == ["b/main"]
        assert problems(await autoscaler.once()) == []
        assert await autoscaler.removed_tiers() == []


async def test_a_removed_tier_without_units_or_that_is_back_is_no_problem(redis_url: str, name: str) -> None:
    platform = Platform()
    await add_items(redis_url, f"{name}-b", 20)
    for jobs, expected in ((("a", "b", "c"), 0), (("b",), 0), (("a",), 1), (("a", "b"), 0), (("b",), 0)):
        async with Autoscaler(make_config(name, redis_url, *jobs), open_backend=platform) as autoscaler:
            assert len(problems(await autoscaler.once())) == expected, jobs


def config_of(bench: ProcessBench, *, with_tier: bool) -> Config:
    """Return a configuration that always has a tier of another back end."""
    ours = TierPolicy(name="t1", min_units=2, max_units=2, slow_down=0.0)
    other = TierPolicy(name="main")
    queues = {"work": bench.queue, "other": f"{bench.queue}-other"}
    tiers: dict[str, tuple[TierPolicy, str, dict[str, Any]]] = {"other": (other, "http", {})}
    if with_tier:
        backend = bench.open([*bench.command, "--grace", "0"])
        tiers["work"] = (ours, "processes", msgspec.structs.asdict(backend._settings))  # type: ignore[attr-defined]
    return Config(
        name=f"scale-{bench.queue}",
        url=bench.url,
        clean_every=None,
        deep_clean_every=None,
        jobs={name: JobConfig(queue=queues[name], url=bench.url) for name in tiers},
        deployments={
            name: DeploymentConfig(
                policy=DeploymentPolicy(name=name, jobs=(name,), tiers=(policy,)),
                tiers={policy.name: TierConfig(policy=policy, backend=kind, settings=settings)},
            )
            for name, (policy, kind, settings) in tiers.items()
        },
    )


@pytest.mark.slow
async def test_the_processes_of_a_removed_deployment_are_scaled_in_and_no_run_is_interrupted(
    bench: ProcessBench, queue: AsyncWorkQueue
) -> None:
    async with Autoscaler(config_of(bench, with_tier=True)) as autoscaler:

        async def are_ready() -> bool:
            return [one.ready for one in (await autoscaler.once()).tiers if one.tier == "t1"] == [2]

        await until("both units are at work", are_ready)
    await queue.add_item(Item(b"hold", id="long"))
    await eventually("one of them has a run", lambda: bench.recorded("began") == ["long"])

    async def is_known() -> bool:
        return [run.item_id for one in await Fleet(queue).workers() for run in one.running] == ["long"]

    await until("its worker says so", is_known)
    without = config_of(bench, with_tier=False)
    async with Autoscaler(without) as autoscaler:
        [removed] = await autoscaler.removed_tiers()
        assert (removed.name, removed.backend, removed.units) == ("work/t1", "processes", 2)

        async def is_one_left() -> bool:
            assert problems(await autoscaler.once()) == []
            return len(bench.pids()) == 1

        await until("the idle one has stopped", is_one_left)
    async with Autoscaler(without) as autoscaler:  # a restart goes on with it
        for _ in range(3):
            assert problems(await autoscaler.once()) == []
        assert len(bench.pids()) == 1, "it finishes its run, though its grace time is 0 s"
        bench.release()

        async def are_gone() -> bool:
            assert problems(await autoscaler.once()) == []
            return not await autoscaler.removed_tiers()

        await until("the tier is forgotten", are_gone)
    assert bench.pids() == []
    assert bench.recorded("began") == bench.recorded("ended") == ["long"]


async def test_processes_on_another_machine_are_reported_with_its_name(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Autoscaler(config_of(bench, with_tier=True)) as autoscaler:
        await autoscaler.once()
    here = socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    async with Autoscaler(config_of(bench, with_tier=False)) as autoscaler:
        for _ in range(2):
            [(part, problem)] = problems(await autoscaler.once())
            assert part == "tier work/t1"
            assert f"its processes are on {here}, where no copy leads" in problem


async def test_a_removed_tier_of_kubernetes_is_named_and_retiring_it_scales_it_to_zero(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    cluster.workloads.append(Workload("media-spot", replicas=0))
    file = tmp_path / "autoscale.toml"
    text = CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig)
    file.write_text(text)
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(file)) as autoscaler:
        assert problems(await autoscaler.once()) == []
    units = cluster.workloads[1].replicas
    assert units > 0
    file.write_text(text[: text.rindex("[[")])
    async with Autoscaler(load_config(file)) as autoscaler:
        [(part, problem)] = problems(await autoscaler.once())
        assert part == "tier media/spot"
        assert f"Deployment media-spot (kubernetes) was asked for {units} unit" in problem
        assert cluster.workloads[1].replicas == units
        _, errors = await autoscaler.retire("media/spot")
        assert errors == ()
        assert cluster.workloads[1].replicas == 0
        assert problems(await autoscaler.once()) == []
    # Under another name, the object is still scaled.
    renamed = text.replace('name = "steady"', 'name = "first"\nkubernetes = { name = "media" }')
    file.write_text(renamed)
    async with Autoscaler(load_config(file)) as autoscaler:
        assert [part for part, _ in problems(await autoscaler.once()) if part == "tier media/steady"] == []


async def test_a_removed_object_that_is_gone_is_retired_all_the_same(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    cluster.workloads.append(Workload("media-spot", replicas=0))
    file = tmp_path / "autoscale.toml"
    text = CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig)
    file.write_text(text)
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(file)) as autoscaler:
        await autoscaler.once()
    file.write_text(text[: text.rindex("[[")])
    cluster.workloads.pop()
    async with Autoscaler(load_config(file)) as autoscaler:
        gone, errors = await autoscaler.retire("media/spot")
        assert ([one.name for one in gone], errors) == (["media/spot"], ())
        assert await autoscaler.removed_tiers() == []


async def test_a_removed_object_that_cannot_be_scaled_is_not_forgotten(
    cluster: KubernetesServer, kubeconfig: str, tmp_path: Path, redis_url: str, name: str
) -> None:
    cluster.workloads.append(Workload("media-spot", replicas=0))
    file = tmp_path / "autoscale.toml"
    text = CONFIGURATION.format(name=name, url=redis_url, kubeconfig=kubeconfig)
    file.write_text(text)
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(load_config(file)) as autoscaler:
        await autoscaler.once()
    file.write_text(text[: text.rindex("[[")])
    cluster.denied.add(("update", "deployments/scale"))
    async with Autoscaler(load_config(file)) as autoscaler:
        gone, [error] = await autoscaler.retire("media/spot")
        assert gone == []
        assert "the right to update deployments/scale is missing" in error.problem
        assert [one.name for one in await autoscaler.removed_tiers()] == ["media/spot"]
