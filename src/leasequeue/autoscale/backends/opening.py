"""Opening the back end of a tier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leasequeue.autoscale.backends.settings import KubernetesSettings, settings_of
from leasequeue.errors import BackendError

if TYPE_CHECKING:
    from leasequeue.autoscale.backends.protocol import Backend
    from leasequeue.autoscale.config import Config


def open_backend(config: Config, deployment: str, tier: str) -> Backend:
    """Open the back end of one tier. It connects on its first call.

    Args:
        config: The configuration.
        deployment: The name of the deployment.
        tier: The name of the tier.

    Raises:
        BackendError: If there is no back end of that kind, or its settings cannot be used.
        ExtraMissing: If it needs a library that is not installed.
    """
    found = config.deployments[deployment].tiers[tier]
    # Each branch imports only what it needs.
    if found.backend == "processes":
        from leasequeue.autoscale.backends.processes import ProcessBackend

        return ProcessBackend(config, deployment, tier)
    if found.backend == "command":
        from leasequeue.autoscale.backends.command import CommandBackend

        return CommandBackend(config, deployment, tier)
    if found.backend == "http":
        from leasequeue.autoscale.backends.http import HttpBackend

        return HttpBackend(config, deployment, tier)
    if found.backend == "kubernetes":
        from leasequeue.autoscale.backends.kubernetes import KubernetesBackend

        target = f"{deployment}/{tier}"
        settings = settings_of(KubernetesSettings, found.settings, "kubernetes", target)
        return KubernetesBackend(
            target,
            name=settings.name,
            namespace=settings.namespace,
            kind=settings.kind,
            context=settings.context,
            kubeconfig=settings.kubeconfig,
        )
    raise BackendError(found.backend, f"{deployment}/{tier}", "there is no back end of this kind")


def leaving_units(config: Config) -> Config:
    """Return the configuration with which closing leaves all units, unless it says that it stops them.

    For a program that makes one pass: what it has asked for is to last, also if it runs in a terminal.
    """
    found = {}
    for name, deployment in config.deployments.items():
        tiers = {
            tier: replace(one, settings={**one.settings, "on_exit": one.settings.get("on_exit") or "leave"})
            if one.backend == "processes"
            else one
            for tier, one in deployment.tiers.items()
        }
        found[name] = replace(deployment, tiers=tiers)
    return replace(config, deployments=found)
