"""Manifests for Kubernetes: the Deployment of a tier's workers, and the object that makes KEDA scale it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasequeue.autoscale.model import TierPolicy

#: A worker ends within its grace time and 10 s; the kubelet kills it so long after the grace time (s).
TO_END: Final = 15
#: The grace time on pre-emptible nodes (s): they are gone 25 to 120 s after the announcement.
SHORT_GRACE: Final = 10
HEALTH_PORT: Final = 8080

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Manifest = dict[str, Any]


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


class WorkerManifests:
    """Makes the manifests of tiers.

    Args:
        whole: The name of the configuration.
        options: The arguments of `manifests`.
        environment: The name of the Secret that is the environment of the pods.
        scaler: The address at which KEDA asks the autoscaler, without a path.
        labels: Those of what belongs to the autoscaler.
        every: How often KEDA asks (s).
    """

    def __init__(
        self,
        whole: str,
        options: Options,
        *,
        environment: str,
        scaler: str,
        labels: Mapping[str, str],
        every: float,
    ) -> None:
        self._whole = whole
        self._options = options
        self._environment = environment
        self._scaler = scaler
        self._labels = labels
        self._every = every

    def workers(self, unit: Unit) -> Manifest:
        """Return the object whose pods are the workers of a tier."""
        labels = labels_of(unit.name, self._whole, "worker")
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
        return {**object_of("apps/v1", unit.kind, unit.name, unit.namespace, labels), "spec": spec}

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
                    "command": ["leasequeue", "worker", self._options.programs[unit.deployment]],
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

    def scaled(self, unit: Unit) -> Manifest:
        """Return the object that makes KEDA ask the autoscaler, and follow it at once: it has the windows."""
        at_once = {"stabilizationWindowSeconds": 0}
        policies = [{"type": "Pods", "value": unit.policy.max_units, "periodSeconds": 15}]
        return {
            **object_of("keda.sh/v1alpha1", "ScaledObject", unit.name, unit.namespace, self._labels),
            "spec": {
                "scaleTargetRef": {"name": unit.name},
                "pollingInterval": math.ceil(self._every),
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
                            "url": f"{self._scaler}/units/{unit.deployment}/{unit.policy.name}",
                            "valueLocation": "wanted",
                            "targetValue": "1",
                        },
                    }
                ],
            },
        }


def object_of(version: str, kind: str, name: str, namespace: str, labels: Mapping[str, str]) -> Manifest:
    """Return the head of an object."""
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def labels_of(name: str, whole: str, component: str) -> dict[str, str]:
    """Return the labels of an object."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/part-of": name_of(whole),
        "app.kubernetes.io/component": component,
    }


def name_of(text: str) -> str:
    """Return a name that Kubernetes accepts, made of one of ours."""
    return re.sub("[^a-z0-9-]+", "-", text.lower())[:63].strip("-")


def checked(place: str, name: str) -> str:
    """Return a name, if Kubernetes accepts it.

    Args:
        place: Where it comes from, for the error.
        name: The name.

    Raises:
        InvalidArgument: If it does not.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(place, name, "a name of Kubernetes: a-z, 0-9 and -, at most 63 characters")
    return name
