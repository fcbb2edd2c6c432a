"""Manifests for Kubernetes: what runs the workers of a configuration, and the autoscaler itself.

A tier of the back end `kubernetes` is a Deployment (or StatefulSet) that the autoscaler scales; a tier of
the back end `http` is a Deployment that KEDA scales, by a ScaledObject. Tiers of other back ends have none.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import re
import tomllib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from leasequeue.autoscale.worker_manifests import (
    Manifest,
    Options,
    Unit,
    WorkerManifests,
    checked,
    labels_of,
    name_of,
    object_of,
)
from leasequeue.autoscale.yaml_text import yaml_text
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasequeue.autoscale.config import Config

#: Where nodes run that the platform may take away: the label that they have, and, on some, as a taint.
NODES: Final[Mapping[str, str]] = {
    "gke": "cloud.google.com/gke-spot=true",
    "eks": "eks.amazonaws.com/capacityType=SPOT",
    "aks": "kubernetes.azure.com/scalesetpriority=spot",
    "karpenter": "karpenter.sh/capacity-type=spot",
}
DEFAULT_NODES: Final = "leasequeue/nodes=preemptible"
FOLDER: Final = "/etc/leasequeue"

_LABEL = re.compile(
    r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?=([A-Za-z0-9_.-]{0,63})"
)
#: A password in a URL, that is not taken from the environment.
_PASSWORD = re.compile(r"://[^\s\"'@/]*:(?!\$\{)[^\s\"'@]+@|[?&]password=(?!\$\{)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


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
        autoscaler_image: The image of the autoscaler, with `leasequeue[cli,kubernetes]`; None: `image`.
        worker: What `leasequeue worker` runs: `MODULE:WORKER`.
        workers: The same for single deployments, by their names in the configuration.
        namespace: The namespace of the autoscaler; None: that of the first Kubernetes tier.
        nodes: Where pre-emptible tiers run: `gke`, `eks`, `aks`, `karpenter`, or `KEY=VALUE`, a label and
            taint of the nodes.
        grace: How long a worker that is stopped waits for its runs, in seconds. At most 10 s on
            pre-emptible nodes.

    Raises:
        ExtraMissing: When the module is imported, if `leasequeue[kubernetes]` is not installed.
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


def unreachable(config: Config) -> Iterator[str]:
    """Yield what pods of a cluster cannot reach: servers on this machine only. A line each, with its key.

    Args:
        config: The configuration, read from a file. A URL that comes from the environment is not looked at:
            the pods have another one.
    """
    said = tomllib.loads(config.path.read_text(encoding="utf-8")) if config.path else {}
    urls = {
        "url": said.get("url"),
        **{f"jobs.{name}.url": one.get("url") for name, one in said["jobs"].items()},
    }
    for key, url in urls.items():
        if url and (why := _why_unreachable(url)):
            yield f"{key}: {why}; in a cluster, pods cannot reach it"
    if config.http and (why := _why_unreachable(f"http://{config.http}")):
        yield f"http.address: {why}; there are no probes and no Service, as other pods cannot reach it"


def _why_unreachable(url: str) -> str:
    """Return why only this machine can reach a URL; empty: others can."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return "a socket of this machine"
    if not parts.scheme:
        return ""  # all of it is in the environment
    host = parts.hostname or "localhost"
    with contextlib.suppress(ValueError):
        return f"{host} is this machine" if ipaddress.ip_address(host).is_loopback else ""
    return f"{host} is this machine" if host == "localhost" or host.endswith(".localhost") else ""


class _Manifests:
    """Makes the manifests of one configuration."""

    def __init__(self, config: Config, options: Options, text: str) -> None:
        self._config = config
        self._options = options
        self._text = text
        self._secret_file = bool(_PASSWORD.search(text))
        own = [tier.settings for one in config.deployments.values() for tier in one.tiers.values()]
        first = next((settings["namespace"] for settings in own if "namespace" in settings), "default")
        self._namespace = checked("namespace", options.namespace or str(first))
        base = name_of(config.name)
        self._name = checked("config.name", f"{base[:52]}-autoscaler")
        self._labels = labels_of(self._name, config.name, "autoscaler")
        self._environment = f"{base[:52]}-env"
        self._units = [*self._find_units()]
        _, _, port = (config.http or "").rpartition(":")
        self._port = int(port) if config.http else 0
        self._reachable = bool(config.http) and not _why_unreachable(f"http://{config.http}")
        if not self._reachable and any(unit.backend == "http" for unit in self._units):
            raise InvalidArgument("http.address", config.http, "an address for other pods: 0.0.0.0:8080")

    def heading(self) -> str:
        """Return the comment at the top: what is to be done before."""
        spaces = sorted({self._namespace, *(unit.namespace for unit in self._units)})
        variables = sorted({"LEASEQUEUE_URL", *_VARIABLE.findall(self._text)})
        literals = " ".join(f"--from-literal={name}=…" for name in variables)
        lines = [
            f"Made by `leasequeue autoscale manifests` for {self._config.name}. Before it is applied, once:",
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
        workers = WorkerManifests(
            self._config.name,
            self._options,
            environment=self._environment,
            scaler=f"http://{self._name}.{self._namespace}.svc:{self._port}",
            labels=self._labels,
            every=self._config.every,
        )
        for unit in self._units:
            yield workers.workers(unit)
        for unit in self._units:
            # KEDA scales to one at least.
            if unit.backend == "http" and unit.policy.max_units > 0:
                yield workers.scaled(unit)

    def _find_units(self) -> Iterator[Unit]:
        for name, one in self._config.deployments.items():
            for tier_name, tier in one.tiers.items():
                if tier.backend not in ("kubernetes", "http"):
                    continue
                place = f"the tier {tier_name} of {name}"
                settings = tier.settings
                derived = name_of(name if len(one.tiers) == 1 else f"{name}-{tier_name}")
                yield Unit(
                    deployment=name,
                    policy=tier.policy,
                    backend=tier.backend,
                    name=checked(place, str(settings.get("name", derived))),
                    namespace=checked(place, str(settings.get("namespace", self._namespace))),
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
        volume = (
            {"secret": {"secretName": self._name}}
            if self._secret_file
            else {"configMap": {"name": self._name}}
        )
        container: Manifest = {
            "name": "autoscaler",
            "image": self._options.autoscaler_image,
            "command": ["leasequeue", "autoscale", f"{FOLDER}/autoscale.toml"],
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
            **self._object("apps/v1", "Deployment", self._name, self._namespace),
            "spec": {
                # One works, by a lease; the other takes its place.
                "replicas": 2,
                "selector": {"matchLabels": self._labels},
                "template": {
                    "metadata": {
                        "labels": self._labels,
                        # With another configuration, its pods are replaced.
                        "annotations": {
                            "leasequeue/configuration": hashlib.sha256(self._text.encode()).hexdigest()
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
                                "labelSelector": {"matchLabels": self._labels},
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
                "selector": self._labels,
                "ports": [{"name": "http", "port": self._port, "targetPort": "http"}],
            },
        }

    def _object(
        self, version: str, kind: str, name: str, namespace: str, labels: Mapping[str, str] | None = None
    ) -> Manifest:
        return object_of(version, kind, name, namespace, labels or self._labels)


def _check_unique(found: list[Manifest]) -> None:
    seen = set()
    for one in found:
        metadata = one["metadata"]
        key = (one["kind"], metadata["namespace"], metadata["name"])
        if key in seen:
            raise InvalidArgument(f"the {key[0]} in namespace {key[1]}", key[2], "another name for each tier")
        seen.add(key)
