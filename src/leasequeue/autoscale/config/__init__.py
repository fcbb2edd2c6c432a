"""The configuration of the autoscaler: what a file `autoscale.toml` says, checked."""

from leasequeue.autoscale.config.loading import load_config
from leasequeue.autoscale.config.values import Config, DeploymentConfig, JobConfig, TierConfig

__all__ = ["Config", "DeploymentConfig", "JobConfig", "TierConfig", "load_config"]
