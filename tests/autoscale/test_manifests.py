"""Manifests for Kubernetes: valid, as the API server reads them, and fitting the code. One concept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types
from lightkube.resources import apps_v1, core_v1, rbac_authorization_v1

from leasequeue.autoscale.config import load_config
from leasequeue.autoscale.manifests import DEFAULT_NODES, NODES, manifests, unreachable
from leasequeue.cli.app import load
from leasequeue.errors import InvalidArgument
from leasequeue.worker.signals import LAST_SECONDS
from tests.docs.pages import DOCS, blocks, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


PAGE = DOCS / "how-to" / "autoscale-kubernetes.md"
#: Twin tiers in Kubernetes, and a tier of KEDA.
TWO = """\
name = "media"
url = "redis://:${REDIS_PASSWORD}@redis:6379"  # ünïcode, "quotes" and \\\\ survive
every = "2.5s"

[jobs.resize]
[jobs.upload]
[jobs.mail]

[deployments.media]
jobs = ["resize", "upload"]
backend = "kubernetes"
workers_per_unit = 4
kubernetes = { namespace = "prod" }
[[deployments.media.tiers]]
name = "steady"
[[deployments.media.tiers]]
name = "spot"
preemptible = true
kubernetes = { name = "media-spot" }

[deployments.mail]
backend = "http"
min_units = 1
max_units = 40

[http]
address = "0.0.0.0:9090"
"""
ONE = """\
name = "{name}"
[jobs.one]
[deployments.one]
backend = "kubernetes"
{rest}
"""
TYPES: dict[str, Any] = {
    "ServiceAccount": core_v1.ServiceAccount,
    "ConfigMap": core_v1.ConfigMap,
    "Secret": core_v1.Secret,
    "Service": core_v1.Service,
    "Deployment": apps_v1.Deployment,
    "StatefulSet": apps_v1.StatefulSet,
    "Role": rbac_authorization_v1.Role,
    "RoleBinding": rbac_authorization_v1.RoleBinding,
}


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "hidden")
    monkeypatch.delenv("LEASEQUEUE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a configuration and returns its manifests as text."""

    def made(configuration: str, **options: Any) -> str:
        path = tmp_path / "autoscale.toml"
        path.write_text(configuration)
        return manifests(load_config(path), **options)

    return made


@pytest.fixture
def objects(text: Callable[..., str]) -> Callable[..., dict[tuple[str, str], Any]]:
    """Return a function that writes a configuration and returns its objects by kind and name."""

    def made(configuration: str, **options: Any) -> dict[tuple[str, str], Any]:
        documents = list(yaml.safe_load_all(text(configuration, **options)))
        found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
        assert len(found) == len(documents)
        return found

    return made


def pod_of(workload: dict[str, Any]) -> Any:
    return workload["spec"]["template"]["spec"]


# ------------------------------------------------------------------------------------------------------ valid


@pytest.mark.seed("RWQ-O27")
def test_there_is_a_deployment_for_each_tier_and_what_scales_them(objects: Any) -> None:
    assert [*objects(TWO)] == [
        ("ServiceAccount", "media-autoscaler"),
        ("Role", "media-autoscaler"),
        ("RoleBinding", "media-autoscaler"),
        ("ConfigMap", "media-autoscaler"),
        ("Deployment", "media-autoscaler"),
        ("Service", "media-autoscaler"),
        ("Deployment", "media"),
        ("Deployment", "media-spot"),
        ("Deployment", "mail"),
        ("ScaledObject", "mail"),
    ]


@pytest.mark.parametrize(
    "configuration",
    [
        TWO,
        ONE.format(name="A_b:{c}.d", rest='kubernetes = { name = "one-two", kind = "StatefulSet" }'),
        ONE.format(name="a", rest='[http]\naddress = "127.0.0.1:80"'),
    ],
)
def test_kubernetes_knows_each_field_and_its_type(objects: Any, configuration: str) -> None:
    for (kind, _), one in objects(configuration).items():
        if kind != "ScaledObject":
            # Made of the schemas of the API server; a field that they do not have would be lost.
            assert TYPES[kind].from_dict(one).to_dict() == one
            assert TYPES[kind]._api_info.resource.api_version == one["apiVersion"]


def test_the_text_is_always_the_same_and_names_no_password(text: Any) -> None:
    made = text(TWO)
    assert made == text(TWO)
    assert "hidden" not in made
    assert "${REDIS_PASSWORD}" in made
    literals = "--from-literal=LEASEQUEUE_URL=… --from-literal=REDIS_PASSWORD=…"
    assert made.splitlines()[:3] == [
        "# Made by `leasequeue autoscale manifests` for media. Before it is applied, once:",
        f"#   kubectl --namespace prod create secret generic media-env {literals}",
        "# Pre-emptible nodes need the label and taint leasequeue/nodes=preemptible:NoSchedule.",
    ]


def test_a_password_in_the_file_makes_it_a_secret(objects: Any, text: Any) -> None:
    configuration = TWO.replace("${REDIS_PASSWORD}", "swordfish")
    found = objects(configuration)
    assert found["Secret", "media-autoscaler"]["stringData"] == {"autoscale.toml": configuration}
    assert ("ConfigMap", "media-autoscaler") not in found
    [volume] = pod_of(found["Deployment", "media-autoscaler"])["volumes"]
    assert volume["secret"] == {"secretName": "media-autoscaler"}
    assert "# It contains a password." in text(configuration)


def test_the_configuration_arrives_as_it_is_and_replaces_the_pods_when_it_changes(
    objects: Any, text: Any
) -> None:
    found = objects(TWO)
    assert '  autoscale.toml: |\n    name = "media"\n' in text(TWO), "as text that can be read"
    assert found["ConfigMap", "media-autoscaler"]["data"] == {"autoscale.toml": TWO}
    changed = objects(TWO + "\n# a comment\n")
    before, after = (
        one["Deployment", "media-autoscaler"]["spec"]["template"]["metadata"]["annotations"]
        for one in (found, changed)
    )
    assert before != after
    assert found["Deployment", "media"] == changed["Deployment", "media"]


@pytest.mark.parametrize(
    "name", ["1e3", "0o17", "12", "1.5", "y", "n", "on", "no", "null", "true", "2026-01-01"]
)
def test_names_that_a_parser_of_yaml_reads_as_something_else_are_quoted(text: Any, name: str) -> None:
    configuration = ONE.format(name="a", rest=f'kubernetes = {{ name = "{name}" }}'.replace(".", "-"))
    made = text(configuration, image=name)
    assert f"image: '{name}'\n" in made
    assert f" name: {name}\n" not in made


# ----------------------------------------------------------------------------------------------------- rights


@pytest.mark.seed("RWQ-K7")
def test_the_role_permits_to_read_and_scale_these_objects_and_nothing_else(objects: Any) -> None:
    found = objects(TWO)
    names = ["media", "media-spot"]
    assert found["Role", "media-autoscaler"]["rules"] == [
        {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": names, "verbs": ["get"]},
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": names,
            "verbs": ["get", "update"],
        },
    ]
    binding = found["RoleBinding", "media-autoscaler"]
    account = found["ServiceAccount", "media-autoscaler"]["metadata"]
    assert binding["roleRef"]["name"] == found["Role", "media-autoscaler"]["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    assert pod_of(found["Deployment", "media-autoscaler"])["serviceAccountName"] == account["name"]
    assert pod_of(found["Deployment", "media"])["automountServiceAccountToken"] is False


@pytest.mark.seed("RWQ-K7")
def test_each_namespace_has_its_role_and_its_secret(text: Any) -> None:
    configuration = TWO.replace('{ name = "media-spot" }', '{ name = "media-spot", namespace = "other" }')
    made = text(configuration, namespace="tools")
    documents = list(yaml.safe_load_all(made))
    roles = {one["metadata"]["namespace"]: one for one in documents if one["kind"] == "Role"}
    assert {name: role["rules"][0]["resourceNames"] for name, role in roles.items()} == {
        "other": ["media-spot"],
        "prod": ["media"],
    }
    bindings = [one for one in documents if one["kind"] == "RoleBinding"]
    assert {one["subjects"][0]["namespace"] for one in bindings} == {"tools"}
    for namespace in ("other", "prod", "tools"):
        assert f"#   kubectl --namespace {namespace} create secret generic media-env" in made


def test_a_stateful_set_has_its_own_rules(objects: Any) -> None:
    found = objects(ONE.format(name="a", rest='kubernetes = { kind = "StatefulSet" }'))
    assert [rule["resources"] for rule in found["Role", "a-autoscaler"]["rules"]] == [
        ["statefulsets"],
        ["statefulsets/scale"],
    ]
    assert found["StatefulSet", "one"]["spec"]["podManagementPolicy"] == "Parallel"


# ------------------------------------------------------------------------------------------------------- pods


def test_everything_refers_to_what_is_there(objects: Any) -> None:
    found = objects(TWO)
    selectors = set()
    for (kind, name), one in found.items():
        if kind == "Deployment":
            template = one["spec"]["template"]
            labels = template["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"] == labels
            selectors.add(tuple(labels.items()))
            [container] = template["spec"]["containers"]
            [port] = container["ports"]
            for probe in (value for key, value in container.items() if key.endswith("Probe")):
                assert probe["httpGet"]["port"] == port["name"]
            assert container["envFrom"] == [{"secretRef": {"name": "media-env"}}], name
    assert len(selectors) == 4
    service = found["Service", "media-autoscaler"]["spec"]
    assert service["selector"] == found["Deployment", "media-autoscaler"]["metadata"]["labels"]
    assert service["ports"] == [{"name": "http", "port": 9090, "targetPort": "http"}]


def test_two_autoscalers_read_the_file_that_is_mounted(objects: Any) -> None:
    found = objects(TWO, autoscaler_image="registry.example.org/autoscaler:2")
    workload = found["Deployment", "media-autoscaler"]
    assert workload["spec"]["replicas"] == 2
    pod = pod_of(workload)
    [container] = pod["containers"]
    assert container["image"] == "registry.example.org/autoscaler:2"
    [volume], [mount] = pod["volumes"], container["volumeMounts"]
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    [file] = found["ConfigMap", volume["configMap"]["name"]]["data"]
    assert container["command"] == ["leasequeue", "autoscale", f"{mount['mountPath']}/{file}"]
    assert pod_of(found["Deployment", "media"])["containers"][0]["image"] == "registry.example.org/app:1"


@pytest.mark.seed("RWQ-O27")
@pytest.mark.parametrize("name", ["media", "media-spot", "mail"])
def test_the_workers_command_exists_and_its_pod_gives_it_time_to_stop(objects: Any, name: str) -> None:
    pod = pod_of(objects(TWO, workers={"mail": "mail.app:worker"})["Deployment", name])
    [container] = pod["containers"]
    program, command, target = container["command"]
    assert (program, command) == ("leasequeue", "worker")
    options = load(command).make_context(command, [target, *container["args"]]).params
    assert options["target"] == ("mail.app:worker" if name == "mail" else "app:worker")
    assert options["health_port"] == container["ports"][0]["containerPort"]
    assert options["health_host"] == "0.0.0.0"  # noqa: S104 - of a pod
    assert options["concurrency"] == (1 if name == "mail" else 4)
    assert pod["terminationGracePeriodSeconds"] >= options["grace"] + LAST_SECONDS + 5
    probes = {key: value["httpGet"]["path"] for key, value in container.items() if key.endswith("Probe")}
    assert probes == {"livenessProbe": "/live", "readinessProbe": "/ready"}


def test_no_number_of_replicas_is_applied_over_that_of_the_autoscaler(objects: Any) -> None:
    found = objects(TWO)
    assert all(
        "replicas" not in found["Deployment", name]["spec"] for name in ("media", "media-spot", "mail")
    )


@pytest.mark.seed("RWQ-O27", "RWQ-T8")
@pytest.mark.parametrize("nodes", [*NODES, "node-pool=spot"])
def test_pre_emptible_tiers_run_on_pre_emptible_nodes_of_any_platform_and_their_twins_do_not(
    objects: Any, nodes: str
) -> None:
    found = objects(TWO, nodes=nodes)
    key, _, value = NODES.get(nodes, nodes).partition("=")
    spot = pod_of(found["Deployment", "media-spot"])
    assert spot["nodeSelector"] == {key: value}
    assert spot["tolerations"] == [{"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}]
    # The platform announces the end 25 s before, or earlier.
    assert spot["terminationGracePeriodSeconds"] <= 25
    affinity = pod_of(found["Deployment", "media"])["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": key, "operator": "NotIn", "values": [value]}]
    assert "affinity" not in pod_of(found["Deployment", "mail"]), "it has no twin"


# ------------------------------------------------------------------------------------------------------- KEDA


@pytest.mark.seed("RWQ-O27")
def test_keda_asks_the_autoscaler_and_follows_it_at_once(objects: Any) -> None:
    found = objects(TWO)
    scaled = found["ScaledObject", "mail"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaled["spec"]
    assert spec["scaleTargetRef"] == {"name": found["Deployment", "mail"]["metadata"]["name"]}
    assert scaled["metadata"]["namespace"] == found["Deployment", "mail"]["metadata"]["namespace"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 40)
    assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (3, 0)
    [trigger] = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "AverageValue")
    # All values of a trigger are texts.
    assert trigger["metadata"] == {
        "url": "http://media-autoscaler.prod.svc:9090/units/mail/default",
        "valueLocation": "wanted",
        "targetValue": "1",
    }
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert {one["stabilizationWindowSeconds"] for one in behavior.values()} == {0}
    assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 40, "periodSeconds": 15}]


def test_a_tier_without_units_is_not_given_to_keda(objects: Any) -> None:
    tiers = '[[deployments.mail.tiers]]\nname = "a"\n[[deployments.mail.tiers]]\nname = "b"\nmax_units = 0\n'
    found = objects(TWO.replace("min_units = 1\nmax_units = 40\n", tiers))
    assert ("ScaledObject", "mail-a") in found
    assert ("Deployment", "mail-b") in found
    assert ("ScaledObject", "mail-b") not in found


# ------------------------------------------------------------------------------------------------ what cannot


@pytest.mark.parametrize(
    ("configuration", "options", "problem"),
    [
        (TWO, {"nodes": "spot"}, r"nodes: got 'spot', expected gke, eks, aks, karpenter, or KEY=VALUE"),
        (TWO, {"grace": -1}, "grace"),
        (TWO, {"grace": float("nan")}, "grace"),
        (TWO, {"workers": {"mial": "a:b"}}, "workers: got 'mial', expected deployments: media, mail"),
        (TWO, {"namespace": "a b"}, "namespace: got 'a b', expected a name of Kubernetes"),
        (
            ONE.format(name="a", rest='kubernetes = { name = "A_b" }'),
            {},
            "the tier default of one: got 'A_b'",
        ),
        (ONE.format(name="_", rest=""), {}, "config.name"),
        (
            TWO.replace("0.0.0.0", "127.0.0.1"),  # noqa: S104 - of a pod
            {},
            r"http\.address: got '127\.0\.0\.1:9090', expected an address for other pods",
        ),
        (
            TWO.replace("media-spot", "mail"),
            {},
            "the Deployment in namespace prod: got 'mail', expected another name for each tier",
        ),
    ],
)
def test_what_kubernetes_would_not_accept_is_refused(
    text: Any, configuration: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        text(configuration, **options)


def test_names_of_ours_become_names_of_kubernetes(objects: Any) -> None:
    found = objects(ONE.format(name="Media Server:{x}" + "y" * 60, rest=""))
    [name] = {name for kind, name in found if kind == "ServiceAccount"}
    assert name == f"media-server-x-{'y' * 37}-autoscaler"
    assert len(name) <= 63


def test_a_kubeconfig_of_this_machine_is_mentioned(text: Any) -> None:
    made = text(ONE.format(name="a", rest='kubernetes = { context = "here" }'))
    assert "# In a pod there is no kubeconfig: leave out `context` and `kubeconfig` of one." in made


# --------------------------------------------------------------------------------------------------- the page


def test_the_page_shows_configurations_and_objects_that_are_made(objects: Any) -> None:
    shown = {block.title: block.code for block in blocks(PAGE) if block.title}
    assert {*shown} == {"autoscale.toml", "keda.toml"}
    made = objects(shown["autoscale.toml"])
    told = [name for row in table(PAGE, "## Make the manifests") for name in row[0].split(", ")]
    assert [name.split()[0] for name in told[:6]] == [*dict.fromkeys(kind for kind, _ in made)]
    assert ("ScaledObject", "mail") in objects(shown["keda.toml"])


def test_the_page_names_the_nodes_of_each_platform() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in table(PAGE, "## Pre-emptible nodes")}
    assert told.pop("KEY=VALUE") == f"any other; by default `{DEFAULT_NODES}"
    assert told == NODES


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://localhost:6379", "localhost is this machine"),
        ("rediss://me:${REDIS_PASSWORD}@127.0.0.1:6379/2", "127.0.0.1 is this machine"),
        ("redis://127.1.2.3", "127.1.2.3 is this machine"),
        ("redis://[::1]:6379", "::1 is this machine"),
        ("redis://db.localhost:6379", "db.localhost is this machine"),
        ("redis://:6379", "localhost is this machine"),
        ("unix:///run/redis.sock", "a socket of this machine"),
        ("unix://me:${REDIS_PASSWORD}@/run/redis.sock", "a socket of this machine"),
        ("redis://redis:6379", ""),
        ("redis://10.0.0.7:6379", ""),
        ("redis://[fd00::7]:6379", ""),
        ("redis://localhost.example.org:6379", ""),
        ("redis://${REDIS_PASSWORD}:6379", ""),
        ("${REDIS_PASSWORD}", ""),
    ],
)
def test_a_server_on_this_machine_is_named_with_its_key(tmp_path: Path, url: str, why: str) -> None:
    path = tmp_path / "autoscale.toml"
    for key, place in (("url", "# all"), ("jobs.one.url", "[jobs.one]")):
        text = ONE.format(name="x", rest="").replace("[jobs.one]", "# all\n[jobs.one]")
        path.write_text(text.replace(place, f"{place}\nurl = {url!r}"))
        found = [*unreachable(load_config(path, expand=False))]
        assert found == ([f"{key}: {why}; in a cluster, pods cannot reach it"] if why else [])


def test_without_a_url_the_pods_have_that_of_their_environment(tmp_path: Path) -> None:
    path = tmp_path / "autoscale.toml"
    path.write_text(ONE.format(name="x", rest="[http]\naddress = '127.0.0.1:80'"))
    [only] = unreachable(load_config(path, expand=False))
    assert only.startswith("http.address: 127.0.0.1 is this machine; there are no probes and no Service")
