"""What the tests of the back end for Kubernetes share: an API server, and a back end for one Deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale.backends.kubernetes import KubernetesBackend, Limits
from tests.autoscale.kubernetes_server import KubernetesServer, Workload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: Pauses of a few milliseconds, so that a test of eight attempts is quick. The other limits are generous.
QUICK = Limits(first_pause=0.001, longest_pause=0.002)
#: Two tiers in a cluster.
CONFIGURATION = """
name = "{name}"
url = "{url}"
[jobs.work]
queue = "{name}-work"
service_time = "30s"
[deployments.media]
jobs = ["work"]
backend = "kubernetes"
workers_per_unit = 2
kubernetes = {{ namespace = "prod", kubeconfig = "{kubeconfig}" }}
[[deployments.media.tiers]]
name = "steady"
max_units = 4
[[deployments.media.tiers]]
name = "spot"
preemptible = true
kubernetes = {{ name = "media-spot" }}
"""


@pytest.fixture
async def cluster() -> AsyncIterator[KubernetesServer]:
    async with KubernetesServer([Workload("media", replicas=3, ready=2)]).serving() as one:
        yield one


@pytest.fixture
def kubeconfig(cluster: KubernetesServer, tmp_path: Path) -> str:
    file = tmp_path / "config"
    file.write_text(cluster.kubeconfig())
    return str(file)


@pytest.fixture
async def backend(kubeconfig: str) -> AsyncIterator[KubernetesBackend]:
    one = KubernetesBackend("media/spot", name="media", namespace="prod", kubeconfig=kubeconfig, limits=QUICK)
    yield one
    await one.close()


@pytest.fixture
def media(cluster: KubernetesServer) -> Workload:
    return cluster.workloads[0]
