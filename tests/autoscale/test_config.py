"""What the file of the autoscaler says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale import DeploymentPolicy, JobPolicy, TierPolicy, load_config
from tests.autoscale.config_files import SMALLEST, load, only_problem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.autoscale.config_files import Load

__all__ = ["load"]

#: A file that has every key.
LARGEST = """
name = "media"
url = "redis://localhost:6379/1"
every = "5s"
clean_every = "1m"
deep_clean_every = "never"
queue_prefix = "prod."

[jobs.resize]
age_target = "90s"
service_time = 30
confidence = 0.95
ignore_abandoned = true
children = { upload = 3.5, mail = "measured" }
url = "redis://other:6379"

[jobs.upload]
queue = "uploads"
service_time = "measured"

[jobs.mail]

[deployments.media]
jobs = ["resize", "upload"]
backend = "kubernetes"
workers_per_unit = 4
spin_up = "1m30s"
steady_share = 0.3
kubernetes = { name = "steady", namespace = "prod", kind = "Deployment" }

[[deployments.media.tiers]]
name = "steady"
min_units = 1
max_units = 20
slow_down = "10m"
slow_up = "500ms"

[[deployments.media.tiers]]
name = "spot"
preemptible = true
workers_per_unit = 8
kubernetes = { name = "media-spot", kind = "StatefulSet", context = "eu", kubeconfig = "/k" }

[deployments.mail]
backend = "command"
max_units = 3

[deployments.mail.command]
request = ["./scale", "{units}"]
ready = ["./ready"]
env = { ZONE = "b" }
directory = "/srv"
timeout = "5s"

[http]
address = "[::1]:8080"
"""


def test_the_smallest_file_has_the_defaults_of_the_page(load: Load, tmp_path: Path) -> None:
    config = load(SMALLEST)
    assert (config.name, config.url, config.http) == ("media", "redis://localhost:6379", None)
    assert (config.every, config.clean_every, config.deep_clean_every) == (10.0, 30.0, 720.0)
    assert config.path == tmp_path / "autoscale.toml"
    job = config.jobs["resize"]
    assert (job.queue, job.url, job.policy) == ("resize", config.url, JobPolicy())
    deployment = config.deployments["resize"]
    assert deployment.policy == DeploymentPolicy(
        name="resize", jobs=("resize",), tiers=(TierPolicy(name="default"),)
    )
    assert deployment.tiers["default"].backend == "processes"
    assert deployment.tiers["default"].settings == {
        "command": ["leasequeue", "worker", "app:worker"],
        "env": {},
        "directory": None,
        "on_exit": None,
        "stop_within": 60.0,
        "kill_after": None,
    }


@pytest.mark.seed("RWQ-K5")
def test_a_job_has_its_queue_and_its_wishes(load: Load) -> None:
    config = load(LARGEST)
    resize, upload = config.jobs["resize"], config.jobs["upload"]
    assert resize.policy == JobPolicy(
        age_target=90.0,
        service_time=30.0,
        confidence=0.95,
        ignore_abandoned=True,
        children={"upload": 3.5, "mail": None},
    )
    assert (upload.queue, upload.policy.service_time) == ("prod.uploads", None)
    assert {*config.policy.jobs} == {"resize", "upload", "mail"}


@pytest.mark.seed("RWQ-K6")
def test_a_tier_has_its_own_keys_and_those_of_its_deployment(load: Load) -> None:
    config = load(LARGEST)
    steady, spot = config.deployments["media"].tiers.values()
    assert steady.policy == TierPolicy(
        name="steady",
        min_units=1,
        max_units=20,
        workers_per_unit=4,
        spin_up=90.0,
        slow_down=600.0,
        slow_up=0.5,
    )
    assert (spot.policy.workers_per_unit, spot.policy.spin_up, spot.policy.preemptible) == (8, 90.0, True)
    assert config.policy.deployments["media"].steady_share == 0.3
    assert config.policy.deployments["media"].tiers == (steady.policy, spot.policy)


@pytest.mark.seed("RWQ-K7")
def test_servers_names_and_platforms_can_differ(load: Load) -> None:
    config = load(LARGEST)
    assert [(job.queue, job.url) for job in config.jobs.values()] == [
        ("prod.resize", "redis://other:6379"),
        ("prod.uploads", "redis://localhost:6379/1"),
        ("prod.mail", "redis://localhost:6379/1"),
    ]
    steady, spot = config.deployments["media"].tiers.values()
    assert steady.settings == {
        "name": "steady",
        "namespace": "prod",
        "kind": "Deployment",
        "context": None,
        "kubeconfig": None,
    }
    assert spot.settings == {
        "name": "media-spot",
        "namespace": "prod",
        "kind": "StatefulSet",
        "context": "eu",
        "kubeconfig": "/k",
    }
    command = config.deployments["mail"].tiers["default"]
    assert (command.policy.max_units, command.settings) == (
        3,
        {
            "request": ["./scale", "{units}"],
            "ready": ["./ready"],
            "env": {"ZONE": "b"},
            "directory": "/srv",
            "timeout": 5.0,
            "workers": None,
        },
    )
    assert (config.http, config.deep_clean_every) == ("[::1]:8080", None)
    assert config.policy.every == config.every == 5.0


def test_the_environment_names_the_server(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://second")
    assert load(SMALLEST).url == "redis://second"
    monkeypatch.setenv("LEASEQUEUE_URL", "redis://first")
    assert load(SMALLEST).jobs["resize"].url == "redis://first"


def test_a_password_need_not_stand_in_the_file_and_is_not_shown(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "p@ss/w:rd")
    monkeypatch.setenv("ELSEWHERE", "redis://:hidden@there:1")
    text = SMALLEST.replace("[jobs.resize]", '[jobs.resize]\nurl = "${ELSEWHERE}"')
    config = load(
        f'url = "redis://me:${{SECRET}}@${{HOST_NAME}}:6379"\n{text}'.replace("${HOST_NAME}", "host")
    )
    assert config.url == "redis://me:p%40ss%2Fw%3Ard@host:6379"
    assert config.jobs["resize"].url == "redis://:hidden@there:1"
    assert "p%40" not in repr(config)
    assert "hidden" not in repr(config)
    assert config.path is not None
    assert load_config(config.path, expand=False).url == "redis://me:${SECRET}@host:6379"


def test_names_on_a_cluster_have_a_hash_tag(load: Load) -> None:
    text = SMALLEST.replace('name = "media"', 'name = "{media}"\ncluster = true')
    found = only_problem(load, text)
    assert "on a cluster 'resize' has no slot of its own; expected a name with a hash tag" in found
    tagged = load(text.replace("[jobs.resize]", '[jobs.resize]\nqueue = "{resize}"'))
    assert (tagged.cluster, tagged.jobs["resize"].cluster) == (True, True)
    single = load(text.replace("[jobs.resize]", '[jobs.resize]\nurl = "redis://other:6379"'))
    assert (single.cluster, single.jobs["resize"].cluster) == (True, False)
