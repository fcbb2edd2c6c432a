"""Manifests for Kubernetes: what runs the workers of a configuration, and the autoscaler itself. One concept.

A tier of the back end `kubernetes` is a Deployment (or StatefulSet) that the autoscaler scales; a tier of
the back end `http` is a Deployment that KEDA scales, by a ScaledObject. Tiers of other back ends have none.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leasehold.autoscale.yaml_text import yaml_text
from leasehold.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasehold.autoscale.config import Config
    from leasehold.autoscale.model import TierPolicy

#: Where nodes run that the platform may take away: the label that they have, and, on some, as a taint.
NODES: Final[Mapping[str, str]] = {
    "gke": "cloud.google.com/gke-spot=true",
    "eks": "eks.amazonaws.com/capacityType=SPOT",
    "aks": "kubernetes.azure.com/scalesetpriority=spot",
    "karpenter": "karpenter.sh/capacity-type=spot",
}
DEFAULT_NODES: Final = "leasehold/nodes=preemptible"
#: A worker ends within its grace time and 10 s; the kubelet kills it so long after the grace time (s).
TO_END: Final = 15
#: The grace time on pre-emptible nodes (s): they are gone 25 to 120 s after the announcement.
SHORT_GRACE: Final = 10
FOLDER: Final = "/etc/leasehold"
HEALTH_PORT: Final = 8080

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(
    r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?=([A-Za-z0-9_.-]{0,63})"
)
#: A password in a URL, that is not taken from the environment.
_PASSWORD = re.compile(r"://[^\s\"'@/]*:(?!\$\{)[^\s\"'@]+@|[?&]password=(?!\$\{)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")

Manifest = dict[str, Any]


def manifests(
    config: Config,
    *,
    image: str = "registry.example.org/app:1",
    autoscaler_image: str | None = None,
    worker: str = "app:worker",
    workers: Mapping[str, str] | None = None,
    namespace: str | None = None,
    nodes: str = DEFAULT_NODES,
    grace: float = 30.0,
) -> str:
    """Return manifests for Kubernetes as YAML: the same text for the same arguments.

    They contain a Deployment for each tier, without a number of replicas, so that applying them again does
    not undo what was asked for; two copies of the autoscaler, which take turns; the account and the role
    that permits to read and scale exactly these Deployments; the file of the configuration; and for tiers
    of the back end `http` the ScaledObjects of KEDA. The environment of all pods comes from a Secret, which
    is not printed; its name is in the first lines.

    Args:
        config: The configuration, read from a file.
        image: The image of the workers, with the program.
        autoscaler_image: The image of the autoscaler, with `leasehold[cli,kubernetes]`; None: `image`.
        worker: What `leasehold worker` runs: `MODULE:WORKER`.
        workers: The same for single deployments, by their names in the configuration.
        namespace: The namespace of the autoscaler; None: that of the first Kubernetes tier.
        nodes: Where pre-emptible tiers run: `gke`, `eks`, `aks`, `karpenter`, or `KEY=VALUE`, a label and
            taint of the nodes.
        grace: How long a worker that is stopped waits for its runs, in seconds. At most 10 s on
            pre-emptible nodes.

    Raises:
        ExtraMissing: When the module is imported, if `leasehold[kubernetes]` is not installed.
        InvalidArgument: If Kubernetes does not accept a name, two objects have one name, or the
            configuration is of no file.

    Example:
        print(manifests(load_config("autoscale.toml"), image="registry.example.org/media:7"))
    """
    if config.path is None:
        raise InvalidArgument("config", config.name, "a configuration that was read from a file")
    label = NODES.get(nodes, nodes)
    if not _LABEL.fullmatch(label):
        raise InvalidArgument("nodes", nodes, f"{', '.join(NODES)}, or KEY=VALUE")
    if not 0 <= grace <= 86_400:
        raise InvalidArgument("grace", grace, "0 to 86,400 seconds")
    program = dict.fromkeys(config.deployments, worker) | dict(workers or {})
    if unknown := program.keys() - config.deployments.keys():
        raise InvalidArgument("workers", min(unknown), f"deployments: {', '.join(config.deployments)}")
    made = _Manifests(
        config,
        Options(
            image=image,
            autoscaler_image=autoscaler_image or image,
            programs=program,
            namespace=namespace,
            nodes=label,
            grace=grace,
        ),
        config.path.read_text(encoding="utf-8"),
    )
    found = [*made.all()]
    _check_unique(found)
    return made.heading() + yaml_text(found)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `manifests`, checked."""

    image: str
    autoscaler_image: str
    programs: Mapping[str, str]
    namespace: str | None
    nodes: str
    grace: float


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One tier that has pods here."""

    deployment: str
    policy: TierPolicy
    backend: str
    name: str
    namespace: str
    kind: str
    #: Whether a sibling is pre-emptible, so that this one must keep off its nodes.
    has_twin: bool


class _Manifests:
    """Makes the manifests of one configuration."""

    def __init__(self, config: Config, options: Options, text: str) -> None:
        self._config = config
        self._options = options
        self._text = text
        self._secret_file = bool(_PASSWORD.search(text))
        own = [tier.settings for one in config.deployments.values() for tier in one.tiers.values()]
        first = next((settings["namespace"] for settings in own if "namespace" in settings), "default")
        self._namespace = _checked("namespace", options.namespace or str(first))
        base = _name_of(config.name)
        self._name = _checked("config.name", f"{base[:52]}-autoscaler")
        self._environment = f"{base[:52]}-env"
        self._units = [*self._find_units()]
        host, _, port = (config.http or "").rpartition(":")
        self._port = int(port) if config.http else 0
        self._reachable = bool(config.http) and host.strip("[]") not in ("127.0.0.1", "::1", "localhost")
        if not self._reachable and any(unit.backend == "http" for unit in self._units):
            raise InvalidArgument("http.address", config.http, "an address for other pods: 0.0.0.0:8080")

    def heading(self) -> str:
        """Return the comment at the top: what is to be done before."""
        spaces = sorted({self._namespace, *(unit.namespace for unit in self._units)})
        variables = sorted({"LEASEHOLD_URL", *_VARIABLE.findall(self._text)})
        literals = " ".join(f"--from-literal={name}=…" for name in variables)
        lines = [
            f"Made by `leasehold autoscale manifests` for {self._config.name}. Before it is applied, once:",
            *(
                f"  kubectl --namespace {one} create secret generic {self._environment} {literals}"
                for one in spaces
            ),
        ]
        if any(unit.policy.preemptible for unit in self._units) and self._options.nodes == DEFAULT_NODES:
            lines.append(f"Pre-emptible nodes need the label and taint {DEFAULT_NODES}:NoSchedule.")
        lines += [
            f"In a pod there is no kubeconfig: leave out `context` and `kubeconfig` of {name}."
            for name, one in self._config.deployments.items()
            for tier in one.tiers.values()
            if tier.settings.get("context") or tier.settings.get("kubeconfig")
        ]
        if self._secret_file:
            lines.append("It contains a password. Use ${NAME} in the URL, and put it into the secret above.")
        return "".join(f"# {line}\n" for line in dict.fromkeys(lines))

    def all(self) -> Iterator[Manifest]:
        """Yield all objects, in the order in which they need each other."""
        yield self._object("v1", "ServiceAccount", self._name, self._namespace)
        for namespace in sorted({unit.namespace for unit in self._units if unit.backend == "kubernetes"}):
            yield from self._rights(namespace)
        yield self._file()
        yield self._autoscaler()
        if self._reachable:
            yield self._service()
        for unit in self._units:
            yield self._workers(unit)
        for unit in self._units:
            # KEDA scales to one at least.
            if unit.backend == "http" and unit.policy.max_units > 0:
                yield self._scaled(unit)

    def _find_units(self) -> Iterator[Unit]:
        for name, one in self._config.deployments.items():
            for tier_name, tier in one.tiers.items():
                if tier.backend not in ("kubernetes", "http"):
                    continue
                place = f"the tier {tier_name} of {name}"
                settings = tier.settings
                derived = _name_of(name if len(one.tiers) == 1 else f"{name}-{tier_name}")
                yield Unit(
                    deployment=name,
                    policy=tier.policy,
                    backend=tier.backend,
                    name=_checked(place, str(settings.get("name", derived))),
                    namespace=_checked(place, str(settings.get("namespace", self._namespace))),
                    kind=str(settings.get("kind", "Deployment")),
                    has_twin=any(other.policy.preemptible for other in one.tiers.values()),
                )

    # ------------------------------------------------------------------------------------- the autoscaler

    def _rights(self, namespace: str) -> Iterator[Manifest]:
        """Yield the role that permits to read and scale the objects of one namespace, and who has it."""
        rules = []
        for plural in ("deployments", "statefulsets"):
            names = [
                unit.name
                for unit in self._units
                if (unit.backend, unit.namespace, f"{unit.kind.lower()}s")
                == ("kubernetes", namespace, plural)
            ]
            for resource, verbs in ((plural, ["get"]), (f"{plural}/scale", ["get", "update"])):
                if names:
                    rules.append(
                        {
                            "apiGroups": ["apps"],
                            "resources": [resource],
                            "resourceNames": names,
                            "verbs": verbs,
                        }
                    )
        group = "rbac.authorization.k8s.io"
        yield {**self._object(f"{group}/v1", "Role", self._name, namespace), "rules": rules}
        yield {
            **self._object(f"{group}/v1", "RoleBinding", self._name, namespace),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": self._name},
            "subjects": [{"kind": "ServiceAccount", "name": self._name, "namespace": self._namespace}],
        }

    def _file(self) -> Manifest:
        kind, key = ("Secret", "stringData") if self._secret_file else ("ConfigMap", "data")
        return {
            **self._object("v1", kind, self._name, self._namespace),
            key: {"autoscale.toml": self._text},
        }

    def _autoscaler(self) -> Manifest:
        labels = _labels(self._name, self._config.name, "autoscaler")
        volume = (
            {"secret": {"secretName": self._name}}
            if self._secret_file
            else {"configMap": {"name": self._name}}
        )
        container: Manifest = {
            "name": "autoscaler",
            "image": self._options.autoscaler_image,
            "command": ["leasehold", "autoscale", f"{FOLDER}/autoscale.toml"],
            "envFrom": [{"secretRef": {"name": self._environment}}],
            "volumeMounts": [{"name": "configuration", "mountPath": FOLDER, "readOnly": True}],
            "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        }
        if self._reachable:
            container["ports"] = [{"name": "http", "containerPort": self._port}]
            # It lives while its loop turns, and is asked while its last report is fresh.
            container["livenessProbe"] = {
                "httpGet": {"path": "/live", "port": "http"},
                "periodSeconds": 10,
                "failureThreshold": 6,
            }
            container["readinessProbe"] = {"httpGet": {"path": "/health", "port": "http"}}
        return {
            **self._object("apps/v1", "Deployment", self._name, self._namespace, labels),
            "spec": {
                # One works, by a lease; the other takes its place.
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {
                        "labels": labels,
                        # With another configuration, its pods are replaced.
                        "annotations": {
                            "leasehold/configuration": hashlib.sha256(self._text.encode()).hexdigest()
                        },
                    },
                    "spec": {
                        "serviceAccountName": self._name,
                        "terminationGracePeriodSeconds": 30,
                        "topologySpreadConstraints": [
                            {
                                "maxSkew": 1,
                                "topologyKey": "kubernetes.io/hostname",
                                "whenUnsatisfiable": "ScheduleAnyway",
                                "labelSelector": {"matchLabels": labels},
                            }
                        ],
                        "containers": [container],
                        "volumes": [{"name": "configuration", **volume}],
                    },
                },
            },
        }

    def _service(self) -> Manifest:
        return {
            **self._object("v1", "Service", self._name, self._namespace),
            "spec": {
                "selector": _labels(self._name, self._config.name, "autoscaler"),
                "ports": [{"name": "http", "port": self._port, "targetPort": "http"}],
            },
        }

    # ---------------------------------------------------------------------------------------- the workers

    def _workers(self, unit: Unit) -> Manifest:
        labels = _labels(unit.name, self._config.name, "worker")
        spec: Manifest = {"selector": {"matchLabels": labels}}
        if unit.kind == "StatefulSet":
            spec |= {"serviceName": unit.name, "podManagementPolicy": "Parallel"}
        spec["template"] = {
            "metadata": {
                "labels": labels,
                "annotations": {
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": str(HEALTH_PORT),
                    "prometheus.io/path": "/metrics",
                },
            },
            "spec": self._pod(unit),
        }
        return {**self._object("apps/v1", unit.kind, unit.name, unit.namespace, labels), "spec": spec}

    def _pod(self, unit: Unit) -> Manifest:
        """Return the pod of a tier: a worker with its probes, and the time that it needs to stop."""
        grace = min(self._options.grace, SHORT_GRACE) if unit.policy.preemptible else self._options.grace
        arguments = ["--concurrency", str(unit.policy.workers_per_unit), "--grace", f"{grace:g}s"]
        health = ["--health-port", str(HEALTH_PORT), "--health-host", "0.0.0.0", "--log-format", "json"]  # noqa: S104 - the kubelet asks
        return {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": math.ceil(grace) + TO_END,
            **self._placement(unit),
            "containers": [
                {
                    "name": "worker",
                    "image": self._options.image,
                    "command": ["leasehold", "worker", self._options.programs[unit.deployment]],
                    "args": [*arguments, *health],
                    "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
                    "envFrom": [{"secretRef": {"name": self._environment}}],
                    "livenessProbe": {
                        "httpGet": {"path": "/live", "port": "health"},
                        "periodSeconds": 10,
                        "failureThreshold": 6,
                    },
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": "health"}, "periodSeconds": 5},
                    "resources": {"requests": {"cpu": "250m", "memory": "128Mi"}},
                }
            ],
        }

    def _placement(self, unit: Unit) -> Manifest:
        """Return on which nodes the pods of a tier run: pre-emptible ones, others, or any."""
        key, _, value = self._options.nodes.partition("=")
        if unit.policy.preemptible:
            taint = {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
            return {"nodeSelector": {key: value}, "tolerations": [taint]}
        if not unit.has_twin:
            return {}
        term = {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}
        required = {"nodeSelectorTerms": [term]}
        return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}

    def _scaled(self, unit: Unit) -> Manifest:
        """Return the object that makes KEDA ask the autoscaler, and follow it at once: it has the windows."""
        at_once = {"stabilizationWindowSeconds": 0}
        policies = [{"type": "Pods", "value": unit.policy.max_units, "periodSeconds": 15}]
        address = f"{self._name}.{self._namespace}.svc:{self._port}"
        return {
            **self._object("keda.sh/v1alpha1", "ScaledObject", unit.name, unit.namespace),
            "spec": {
                "scaleTargetRef": {"name": unit.name},
                "pollingInterval": math.ceil(self._config.every),
                "cooldownPeriod": 0,
                "minReplicaCount": unit.policy.min_units,
                "maxReplicaCount": unit.policy.max_units,
                "advanced": {
                    "horizontalPodAutoscalerConfig": {
                        "behavior": {
                            "scaleUp": {**at_once, "policies": policies},
                            "scaleDown": {**at_once, "policies": policies},
                        }
                    }
                },
                "triggers": [
                    {
                        "type": "metrics-api",
                        "metricType": "AverageValue",
                        "metadata": {
                            "url": f"http://{address}/units/{unit.deployment}/{unit.policy.name}",
                            "valueLocation": "wanted",
                            "targetValue": "1",
                        },
                    }
                ],
            },
        }

    def _object(
        self, version: str, kind: str, name: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> Manifest:
        labels = labels or _labels(self._name, self._config.name, "autoscaler")
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _labels(name: str, whole: str, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/part-of": _name_of(whole),
        "app.kubernetes.io/component": component,
    }


def _name_of(text: str) -> str:
    """Return a name that Kubernetes accepts, made of one of ours."""
    return re.sub("[^a-z0-9-]+", "-", text.lower())[:63].strip("-")


def _checked(place: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(place, name, "a name of Kubernetes: a-z, 0-9 and -, at most 63 characters")
    return name


def _check_unique(found: list[Manifest]) -> None:
    seen = set()
    for one in found:
        metadata = one["metadata"]
        key = (one["kind"], metadata["namespace"], metadata["name"])
        if key in seen:
            raise InvalidArgument(f"the {key[0]} in namespace {key[1]}", key[2], "another name for each tier")
        seen.add(key)
