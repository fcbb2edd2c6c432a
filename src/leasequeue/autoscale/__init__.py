"""The autoscaler: how many workers the work needs, asked again and again, on whatever runs them."""

from typing import TYPE_CHECKING

from leasequeue.lazy import lazy_names

if TYPE_CHECKING:
    from leasequeue.autoscale.answer import wanted_workers
    from leasequeue.autoscale.backends import Backend
    from leasequeue.autoscale.config import (
        CommandSettings,
        Config,
        DeploymentConfig,
        HttpSettings,
        JobConfig,
        KubernetesSettings,
        ProcessSettings,
        TierConfig,
        load_config,
    )
    from leasequeue.autoscale.estimating import Estimate, estimate
    from leasequeue.autoscale.flow_children import FlowChildren
    from leasequeue.autoscale.loop import Autoscaler
    from leasequeue.autoscale.measuring import Measured, measure
    from leasequeue.autoscale.model import (
        Answer,
        DeploymentPolicy,
        JobPolicy,
        JobReport,
        Plan,
        Policy,
        Signals,
        TierPolicy,
        TierReport,
        TierUnits,
    )
    from leasequeue.autoscale.planning import plan
    from leasequeue.autoscale.report import MetricValue, PassError, PassReport, metric_values

__all__ = [
    "Answer",
    "Autoscaler",
    "Backend",
    "CommandSettings",
    "Config",
    "DeploymentConfig",
    "DeploymentPolicy",
    "Estimate",
    "FlowChildren",
    "HttpSettings",
    "JobConfig",
    "JobPolicy",
    "JobReport",
    "KubernetesSettings",
    "Measured",
    "MetricValue",
    "PassError",
    "PassReport",
    "Plan",
    "Policy",
    "ProcessSettings",
    "Signals",
    "TierConfig",
    "TierPolicy",
    "TierReport",
    "TierUnits",
    "estimate",
    "load_config",
    "measure",
    "metric_values",
    "plan",
    "wanted_workers",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    # A module that others depend on comes first; a function of a module's name is not shadowed by it.
    _MODULES = (
        *("model", "answer", "config", "backends", "estimating", "measuring", "planning"),
        *("flow_children", "report", "loop"),
    )
    __getattr__ = lazy_names(__name__, __all__, _MODULES)
