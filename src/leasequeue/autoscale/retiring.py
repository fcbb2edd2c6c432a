"""Tiers that were removed from the configuration: what they have left running is stopped, or reported.

The state names each tier that was asked for units. Of those that the configuration no longer has, the units
of processes are ours, and are scaled in as ever. What Kubernetes, a command or another scaler runs may belong
to another client by now, so that it is left alone, and reported in each pass until it is retired by hand.
"""

from __future__ import annotations

import hashlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.autoscale.backends.opening import open_backend
from leasequeue.autoscale.config.values import Config, DeploymentConfig, JobConfig, TierConfig
from leasequeue.autoscale.model import DeploymentPolicy, TierPolicy
from leasequeue.describing import counted
from leasequeue.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasequeue.autoscale.backends.processes import ProcessBackend
    from leasequeue.autoscale.backends.protocol import Backend
    from leasequeue.autoscale.parts import Parts
    from leasequeue.autoscale.report import TierReport

#: How long a call of a back end may take (s).
CALL_SECONDS = 10.0

log = Log("leasequeue.autoscale")


class KnownTier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tier that was asked for units, as the state remembers it."""

    deployment: str
    tier: str
    backend: str
    #: How many units were asked for last; None: the back end has never taken a request.
    units: int | None = None
    #: Processes: the machine, and the queues with digests of their servers, which may have passwords.
    host: str = ""
    queues: tuple[tuple[str, str], ...] = ()
    #: Kubernetes: the settings of the back end, which say what is scaled.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The deployment and the tier."""
        return f"{self.deployment}/{self.tier}"

    @property
    def key(self) -> str:
        """What tells it from others: one of the same name with another back end is another one."""
        return " ".join([self.name, self.backend, *map(str, self.settings.values())])

    @property
    def problem(self) -> str:
        """What to report of it, once it was removed."""
        what = f"{self.settings['kind']} {self.settings['name']}" if self.settings else "its back end"
        asked = f"{what} ({self.backend}) was asked for {counted(self.units or 0, 'unit')} last"
        if self.backend == "processes":
            asked = f"its processes are on {self.host}, where no copy leads"
        return (
            f"it is no longer in the configuration, and {asked}: stop them, "
            f"then `leasequeue autoscale FILE --retire {self.name}`"
        )


def known_tiers(
    config: Config, before: Mapping[str, KnownTier], reports: Iterable[TierReport]
) -> dict[str, KnownTier]:
    """Return the tiers of a configuration, with what was asked of them in a pass, or before."""
    asked = {(one.deployment, one.tier): one for one in reports if one.asked}
    found = {}
    for name, deployment in config.deployments.items():
        for tier, one in deployment.tiers.items():
            is_ours, is_object = one.backend == "processes", one.backend == "kubernetes"
            jobs = [config.jobs[job] for job in deployment.policy.jobs]
            known = KnownTier(
                deployment=name,
                tier=tier,
                backend=one.backend,
                host=socket.gethostname() if is_ours else "",
                queues=tuple(sorted({(job.queue, _digest(job.url)) for job in jobs})) if is_ours else (),
                settings={**one.settings} if is_object else {},
            )
            report, last = asked.get((name, tier)), before.get(known.key)
            units = report.wanted if report else last.units if last else None
            found[known.key] = msgspec.structs.replace(known, units=units)
    return found


def removed_tiers(config: Config, known: Mapping[str, KnownTier]) -> list[KnownTier]:
    """Return the tiers that were asked for units and that a configuration no longer has."""
    present = known_tiers(config, {}, ())
    objects = [one.settings for one in present.values() if one.settings]
    return [one for key, one in known.items() if key not in present and one.settings not in objects]


class Retirement:
    """Takes leave of the tiers that were removed from a configuration.

    Args:
        config: The configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._backends: dict[str, ProcessBackend] = {}

    async def act(self, known: Mapping[str, KnownTier], parts: Parts) -> dict[str, KnownTier]:
        """Stop the processes of tiers that were removed, and report the units of others.

        Args:
            known: The tiers that the state names.
            parts: Where problems are noted.

        Returns:
            The tiers that have units left.
        """
        left = {}
        for one in removed_tiers(self._config, known):
            if await self._is_left(one, parts):
                left[one.key] = one
        return left

    def report(self, known: Mapping[str, KnownTier], parts: Parts) -> None:
        """Report the tiers that were removed, and do nothing."""
        for one in removed_tiers(self._config, known):
            if one.backend == "processes":
                log.info("the tier %s is no longer in the configuration: its units will be stopped", one.name)
            elif one.units:
                parts.fail(f"tier {one.name}", one.problem)

    async def retire(self, one: KnownTier, parts: Parts) -> bool:
        """Ask Kubernetes for no unit of a tier that was removed. Return whether the tier may be forgotten."""
        if one.backend != "kubernetes":
            return True
        backend = open_backend(self._config_of(one), one.deployment, one.tier)
        try:
            done = await parts.call(f"tier {one.name}", partial(_stop, backend), limit=CALL_SECONDS)
        finally:
            await backend.close()
        return done is True

    async def close(self) -> None:
        """Disconnect. The units go on."""
        for backend in self._backends.values():
            await backend.close()

    # -------------------------------------------------------------------------- inside

    async def _is_left(self, one: KnownTier, parts: Parts) -> bool:
        part = f"tier {one.name}"
        if one.backend != "processes":
            if one.units:
                parts.fail(part, one.problem)
            return bool(one.units)
        if one.host != socket.gethostname():
            parts.fail(part, one.problem)
            return True
        backend = self._processes(one)
        done = await parts.call(part, partial(_stop, backend), limit=CALL_SECONDS)
        if done is not True or backend.count:
            return True
        await backend.close()
        del self._backends[one.key]
        log.info("%s: all units of the tier, which is no longer in the configuration, have stopped", one.name)
        return False

    def _processes(self, one: KnownTier) -> ProcessBackend:
        if one.key not in self._backends:
            # Imported only where it is needed, as other back ends are.
            from leasequeue.autoscale.backends.processes import ProcessBackend

            log.info("%s is no longer in the configuration: stopping its units", one.name)
            self._backends[one.key] = ProcessBackend(self._config_of(one), one.deployment, one.tier)
        return self._backends[one.key]

    def _config_of(self, one: KnownTier) -> Config:
        """Return a configuration that still has a tier, with those of its queues whose server is known."""
        servers = {self._config.url: self._config.cluster}
        servers |= {job.url: job.cluster for job in self._config.jobs.values()}
        by_digest = {_digest(url): (url, cluster) for url, cluster in servers.items()}
        jobs = {
            queue: JobConfig(queue=queue, url=by_digest[digest][0], cluster=by_digest[digest][1])
            for queue, digest in one.queues
            if digest in by_digest
        }
        settings = one.settings or {"command": ["leasequeue"], "on_exit": "leave"}
        policy = TierPolicy(name=one.tier, max_units=0)
        return Config(
            name=self._config.name,
            url=self._config.url,
            cluster=self._config.cluster,
            jobs=jobs,
            deployments={
                one.deployment: DeploymentConfig(
                    policy=DeploymentPolicy(name=one.deployment, jobs=tuple(jobs), tiers=(policy,)),
                    tiers={one.tier: TierConfig(policy=policy, backend=one.backend, settings=settings)},
                )
            },
        )


async def _stop(backend: Backend) -> bool:
    await backend.request(0)
    return True


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]
