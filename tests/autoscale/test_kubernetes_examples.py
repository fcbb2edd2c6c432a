"""The examples for Kubernetes: valid as its client reads them, and fitting the code and their page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types
from lightkube import codecs

from leasequeue.autoscale.config import load_config
from leasequeue.cli.app import load
from leasequeue.worker.signals import LAST_SECONDS
from tests.docs.pages import DOCS, ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue.autoscale.config import Config

FOLDER = ROOT / "docs" / "examples" / "kubernetes"
DEPLOYMENTS: list[dict[str, Any]] = [*yaml.safe_load_all((FOLDER / "deployments.yaml").read_text())]
KEDA: list[dict[str, Any]] = [*yaml.safe_load_all((FOLDER / "keda.yaml").read_text())]


def named(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return objects by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def config_of(objects: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return the configuration that a ConfigMap has."""
    [found] = [one for one in objects if one["kind"] == "ConfigMap"]
    monkeypatch.setenv("REDIS_PASSWORD", "hidden")
    path = folder / "autoscale.toml"
    path.write_text(found["data"]["autoscale.toml"])
    return load_config(path)


@pytest.mark.seed("RWQ-O27")
def test_kubernetes_knows_each_field_and_all_are_in_one_namespace() -> None:
    for one in DEPLOYMENTS:
        # Made from the schemas of the API server; a field that they do not have would be lost.
        made: Any = codecs.from_dict(one)
        assert made.to_dict() == one
    assert len(named([*DEPLOYMENTS, *KEDA])) == len(DEPLOYMENTS) + len(KEDA)
    assert {one["metadata"]["namespace"] for one in [*DEPLOYMENTS, *KEDA]} == {"prod"}


@pytest.mark.seed("RWQ-K7")
def test_the_role_permits_to_read_and_scale_the_tiers_of_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, config = named(DEPLOYMENTS), config_of(DEPLOYMENTS, tmp_path, monkeypatch)
    tiers: list[Any] = [tier.settings for tier in config.deployments["media"].tiers.values()]
    assert {(one.kind, one.namespace) for one in tiers} == {("Deployment", "prod")}
    names = [one.name for one in tiers]
    assert all(("Deployment", name) in found for name in names)
    rules = found["Role", "media-autoscaler"]["rules"]
    assert [one["resourceNames"] for one in rules] == [names, names]
    rights = {(one["apiGroups"][0], *one["resources"], *one["verbs"]) for one in rules}
    assert rights == {("apps", "deployments", "get"), ("apps", "deployments/scale", "get", "update")}
    binding = found["RoleBinding", "media-autoscaler"]
    pod = found["Deployment", "media-autoscaler"]["spec"]["template"]["spec"]
    account = pod["serviceAccountName"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("media-autoscaler", account)
    [container], [volume] = pod["containers"], pod["volumes"]
    [file] = found["ConfigMap", volume["configMap"]["name"]]["data"]
    assert container["command"][-1] == f"{container['volumeMounts'][0]['mountPath']}/{file}"
    assert config.http == f"0.0.0.0:{container['ports'][0]['containerPort']}"
    service = found["Service", "media-autoscaler"]["spec"]
    assert service["selector"] == {"app": "media-autoscaler"}
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]


@pytest.mark.seed("RWQ-O27", "RWQ-T8")
@pytest.mark.parametrize("name", ["media", "media-spot"])
def test_the_workers_command_exists_and_its_pod_gives_it_time_to_stop(name: str) -> None:
    workload = named(DEPLOYMENTS)["Deployment", name]["spec"]
    assert "replicas" not in workload, "it would be applied over that of the autoscaler"
    assert workload["selector"]["matchLabels"] == workload["template"]["metadata"]["labels"]
    pod = workload["template"]["spec"]
    [container] = pod["containers"]
    _, command, target = container["command"]
    options = load(command).make_context(command, [target, *container["args"]]).params
    assert options["health_port"] == container["ports"][0]["containerPort"]
    assert options["concurrency"] == 4, "workers_per_unit"
    assert pod["terminationGracePeriodSeconds"] >= options["grace"] + LAST_SECONDS + 5
    probes = {key: value["httpGet"]["path"] for key, value in container.items() if key.endswith("Probe")}
    assert probes == {"livenessProbe": "/live", "readinessProbe": "/ready"}
    if name == "media-spot":
        [(label, value)] = pod["nodeSelector"].items()
        assert (pod["tolerations"][0]["key"], pod["tolerations"][0]["value"]) == (label, value)
        assert pod["terminationGracePeriodSeconds"] <= 25, "the end of the node is announced 25 s before"


@pytest.mark.seed("RWQ-O27")
def test_keda_asks_for_the_units_of_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(KEDA, tmp_path, monkeypatch)
    spec = named(KEDA)["ScaledObject", "mail"]["spec"]
    [tier] = config.deployments["mail"].policy.tiers
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (tier.min_units, tier.max_units)
    assert spec["pollingInterval"] == config.every
    [trigger] = spec["triggers"]
    assert trigger["metadata"] == {  # all values of a trigger are texts
        "url": "http://letters-autoscaler.prod.svc:8080/units/mail/default",
        "valueLocation": "wanted",
        "targetValue": "1",
    }


def test_the_page_quotes_both_files() -> None:
    found = blocks(DOCS / "how-to" / "autoscale-kubernetes.md")
    shown = {one.title: one.code for one in found if one.title}
    for title, objects in (("autoscale.toml", DEPLOYMENTS), ("keda.toml", KEDA)):
        [file] = [one for one in objects if one["kind"] == "ConfigMap"]
        assert file["data"]["autoscale.toml"] == shown[title]
    quoted = [one.code for one in found if one.language == "yaml"]
    assert quoted
    text = (FOLDER / "deployments.yaml").read_text() + (FOLDER / "keda.yaml").read_text()
    assert all(one in text for one in quoted)
