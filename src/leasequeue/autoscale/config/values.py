"""The values of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from leasequeue.autoscale.model import DeploymentPolicy, JobPolicy, Policy, TierPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The server, if neither the file nor the environment names one.
DEFAULT_URL = "redis://localhost:6379"


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One job: its queue, the queue's server, and what is wished."""

    #: The name of its queue, the prefix included.
    queue: str
    #: The queue's server. It may contain a password, so that `repr` leaves it out.
    url: str = field(repr=False)
    #: Whether that is a node of a cluster.
    cluster: bool = False
    policy: JobPolicy = field(default_factory=JobPolicy)


@dataclass(frozen=True, kw_only=True)
class TierConfig:
    """One tier: what is wished, and what starts and stops its units."""

    policy: TierPolicy
    #: The kind of back end: `processes`, `kubernetes`, `command` or `http`.
    backend: str
    #: The settings of the back end, checked, the defaults included; durations in seconds. The environment
    #: of processes may hold a password, so that `repr` leaves them out.
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class DeploymentConfig:
    """One deployment: what is wished, and its tiers by name, in their order."""

    policy: DeploymentPolicy
    tiers: Mapping[str, TierConfig]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the autoscaler is to do: the jobs, the deployments that do them, and how often to look."""

    #: The name of the autoscaler's own queue: copies with the same name and server take turns.
    name: str
    #: The server of that queue. It may contain a password, so that `repr` leaves it out.
    url: str = field(default=DEFAULT_URL, repr=False)
    #: Whether that is a node of a cluster.
    cluster: bool = False
    #: The time between two passes (s).
    every: float = 10.0
    #: The time between two light cleans, and between two deep cleans, of each job's queue (s); None: never.
    clean_every: float | None = 30.0
    deep_clean_every: float | None = 720.0
    #: By the names of the jobs.
    jobs: Mapping[str, JobConfig]
    #: By the names of the deployments.
    deployments: Mapping[str, DeploymentConfig]
    #: Where `leasequeue autoscale` listens for HTTP, as `0.0.0.0:8080`; None: nowhere.
    http: str | None = None
    #: The file from which it was read; None: it was made by a program.
    path: Path | None = None

    @cached_property
    def policy(self) -> Policy:
        """What is wished for all, as `plan` takes it."""
        return Policy(
            jobs={name: job.policy for name, job in self.jobs.items()},
            deployments={name: one.policy for name, one in self.deployments.items()},
            every=self.every,
        )
