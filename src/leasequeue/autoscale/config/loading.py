"""Loading a configuration: reading the tables of a file, and checking what they say together."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from leasequeue.autoscale.config.file import ConfigFile, nearest
from leasequeue.autoscale.config.keys import (
    ABSENT,
    BACKEND,
    BACKENDS,
    CHILDREN,
    DEPLOYMENT_KEYS,
    FILE_KEYS,
    HTTP_KEYS,
    JOB_KEYS,
    ONE_TIER_KEYS,
    QUEUE_NAME,
    REQUIRED,
    SHORT_NAME,
    TIER_KEYS,
    Key,
    queue_name,
    short_name,
    table,
)
from leasequeue.autoscale.config.programs import program_problems
from leasequeue.autoscale.config.values import DEFAULT_URL, Config, DeploymentConfig, JobConfig, TierConfig
from leasequeue.autoscale.model import DeploymentPolicy, JobPolicy, TierPolicy
from leasequeue.errors import InvalidArgument
from leasequeue.keys import hash_tag
from leasequeue.scripting.urls import check_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasequeue.autoscale.config.file import Place

#: The name of the only tier of a deployment that lists none.
DEFAULT_TIER = "default"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_config(path: str | Path, *, expand: bool = True, programs: bool = False) -> Config:
    """Read the configuration of the autoscaler from a TOML file, and check it.

    In the URLs of servers, `${NAME}` stands for the environment variable NAME, so that no password need
    stand in the file; before an `@`, special characters of the variable are encoded. Without a URL, the
    server is that of `LEASEQUEUE_URL`, then `REDIS_URL`, then `redis://localhost:6379`.

    Args:
        path: The file.
        expand: Whether to replace `${NAME}` in URLs. False: they are left as they are, and are of no use.
        programs: Whether to check that the programs of the back ends `processes` and `command` are on this
            machine, and can be started.

    Raises:
        InvalidConfig: If it cannot be read, or something in it cannot be used. It says where, and what is
            accepted; all else that is wrong is in its attribute `others`.

    Example:
        config = load_config("autoscale.toml")
    """
    file = ConfigFile(Path(path))
    config = _Loading(file, expand=expand, programs=programs).config()
    file.finish()
    return config


class _Loading:
    """Reads the tables of a file, and checks what they say together."""

    def __init__(self, file: ConfigFile, *, expand: bool, programs: bool) -> None:
        self._file = file
        self._expand = expand
        self._programs = programs
        self._said = file.read((), file.values, FILE_KEYS)

    def config(self) -> Config:
        """Return what the file says. It is of use only if there was no problem."""
        said, file = self._said, self._file
        cluster = said["cluster"]
        url = self._url((), said, cluster=cluster)
        jobs = {name: self._job(name, value, url) for name, value in self._tables("jobs").items()}
        self._check_children(jobs)
        deployments = {
            name: self._deployment(name, value, jobs) for name, value in self._tables("deployments").items()
        }
        http = file.read(("http",), said["http"], HTTP_KEYS).get("address") if "http" in said else None
        name = said.get("name", "")
        self._check_tag(("name",), name, cluster=cluster)
        self._check_queues(name, url, jobs)
        self._check_deployments(jobs, deployments, http)
        return Config(
            name=name,
            url=url,
            cluster=cluster,
            every=said["every"],
            clean_every=said["clean_every"],
            deep_clean_every=said["deep_clean_every"],
            jobs=jobs,
            deployments=deployments,
            http=http,
            path=file.path,
        )

    # -------------------------------------------------------------------------- jobs

    def _job(self, name: str, values: dict[str, Any], url: str) -> JobConfig:
        place: Place = ("jobs", name)
        said = self._file.read(place, values, JOB_KEYS)
        queue = self._said["queue_prefix"] + said.get("queue", name)
        at = (*place, "queue") if "queue" in said else place
        self._file.fits(at, queue, Key(read=queue_name, expected=QUEUE_NAME))
        children = {
            child: self._file.fits((*place, "children", child), number, CHILDREN)
            for child, number in said["children"].items()
        }
        policy = JobPolicy(
            age_target=said["age_target"],
            service_time=said["service_time"],
            confidence=said["confidence"],
            ignore_abandoned=said["ignore_abandoned"],
            children={child: number for child, number in children.items() if number is not ABSENT},
        )
        cluster = said.get("cluster", "url" not in said and self._said["cluster"])
        if "url" in said:
            url = self._url(place, said, cluster=cluster)
        self._check_tag(at, queue, cluster=cluster)
        return JobConfig(queue=queue, url=url, cluster=cluster, policy=policy)

    def _check_tag(self, place: Place, queue: str, *, cluster: bool) -> None:
        """Check that all keys of a queue are in one slot of a cluster."""
        if cluster and queue and hash_tag(queue) is None:
            expected = f"a name with a hash tag, such as {'{' + queue + '}'!r}"
            self._file.note(place, f"on a cluster {queue!r} has no slot of its own", expected)

    def _check_children(self, jobs: Mapping[str, JobConfig]) -> None:
        for name, job in jobs.items():
            for child in job.policy.children:
                if child not in jobs:
                    self._unknown_job(("jobs", name, "children", child), child, jobs)
        for loop in _loops({name: [*job.policy.children] for name, job in jobs.items()}):
            place = ("jobs", loop[-2], "children", loop[-1])
            self._file.note(place, f"the jobs feed each other in a circle: {' → '.join(loop)}")

    def _check_queues(self, name: str, url: str, jobs: Mapping[str, JobConfig]) -> None:
        """Check that no two jobs have one queue, and none that of the autoscaler."""
        seen = {(url, name): "the autoscaler itself"}
        for one, job in jobs.items():
            if (other := seen.get((job.url, job.queue))) is not None:
                self._file.note(("jobs", one), f"its queue {job.queue!r} is that of {other}", "another queue")
            seen[job.url, job.queue] = f"the job {one!r}"

    def _unknown_job(self, place: Place, name: str, jobs: Mapping[str, JobConfig]) -> None:
        close = nearest(name, jobs)
        known = f"one of {', '.join(jobs)}" if jobs else "a job that is in the file"
        self._file.note(place, f"there is no job {name!r}", close or known)

    # -------------------------------------------------------------------------- deployments

    def _deployment(
        self, name: str, values: dict[str, Any], jobs: Mapping[str, JobConfig]
    ) -> DeploymentConfig:
        place: Place = ("deployments", name)
        self._file.fits(place, name, Key(read=short_name, expected=SHORT_NAME))
        said = self._file.read(place, values, DEPLOYMENT_KEYS)
        own = said.get("jobs", [name])
        for at, job in enumerate(own):
            where = (*place, "jobs", at) if "jobs" in said else place
            if job not in jobs:
                self._unknown_job(where, job, jobs)
            if job in own[:at]:
                self._file.note(where, f"the job {job!r} is in the list twice")
        shared = self._settings(place, said)
        tiers: dict[str, TierConfig] = {}
        for where, tier in self._tier_tables(place, said):
            if tier.get("name") in tiers:
                self._file.note((*where, "name"), f"two tiers are named {tier['name']!r}", "another name")
            tiers[tier.get("name", f"tier {len(tiers)}")] = self._tier(where, tier, place, said, shared)
        self._check_settings(place, shared, {tier.backend for tier in tiers.values()})
        policy = DeploymentPolicy(
            name=name,
            jobs=tuple(own),
            tiers=tuple(tier.policy for tier in tiers.values()),
            steady_share=said["steady_share"],
        )
        if all(tier.max_units == 0 for tier in policy.tiers):
            self._file.note(place, "all its tiers have max_units = 0", "a tier that may have units")
        if policy.steady_share and all(tier.preemptible for tier in policy.tiers):
            self._file.note(
                (*place, "steady_share"), "all tiers are pre-emptible", "a tier with preemptible = false"
            )
        return DeploymentConfig(policy=policy, tiers=tiers)

    def _tier_tables(self, place: Place, said: Mapping[str, Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the place of each tier and what it says; a deployment without tiers has one, `default`."""
        if "tiers" not in said:
            yield place, {"name": DEFAULT_TIER}
        for at, values in enumerate(said.get("tiers", ())):
            where = (*place, "tiers", at)
            yield where, self._file.read(where, values, ONE_TIER_KEYS)

    def _tier(
        self,
        where: Place,
        tier: Mapping[str, Any],
        place: Place,
        deployment: Mapping[str, Any],
        shared: Mapping[str, dict[str, Any]],
    ) -> TierConfig:
        said = {name: tier.get(name, deployment.get(name, key.default)) for name, key in TIER_KEYS.items()}
        policy = TierPolicy(name=tier.get("name", ""), **said)
        if policy.min_units > policy.max_units:
            at = where if {"min_units", "max_units"} & {*tier} else place
            units = f"min_units is {policy.min_units:,}, max_units is {policy.max_units:,}"
            self._file.note((*at, "min_units"), units, "min_units of at most max_units")
        backend = tier.get("backend", deployment.get("backend"))
        if backend is None:
            if not {(*where, "backend"), (*place, "backend")} & self._file.noted:
                self._file.note((*where, "backend"), "missing", BACKEND.expected)
            return TierConfig(policy=policy, backend="")
        own = self._settings(where, tier) if where != place else {}
        self._check_settings(where, own, {backend})
        given = {**shared.get(backend, {}), **own.get(backend, {})}
        settings = {}
        for name, key in BACKENDS[backend].items():
            default = place[-1] if (backend, name) == ("kubernetes", "name") else key.default
            settings[name] = given.get(name, default)
            noted = {(*where, backend, name), (*place, backend, name)} & self._file.noted
            if settings[name] is REQUIRED and not noted:
                self._file.note((*where, backend, name), "missing", key.expected)
        sound = {name: value for name, value in settings.items() if value is not REQUIRED}
        for name, problem, expected in program_problems(backend, sound) if self._programs else ():
            at = (*(where if name in own.get(backend, {}) else place), backend, name)
            if at not in self._file.noted:
                self._file.note(at, problem, expected)
        return TierConfig(policy=policy, backend=backend, settings=settings)

    def _settings(self, place: Place, said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return what is said of each back end in a deployment or a tier, without defaults."""
        return {
            name: self._file.read((*place, name), said[name], optional(BACKENDS[name]))
            for name in BACKENDS
            if name in said
        }

    def _check_settings(self, place: Place, settings: Mapping[str, object], backends: set[str]) -> None:
        """Check that all settings are for a back end that is used."""
        used = " and ".join(f'"{one}"' for one in sorted(filter(None, backends)))
        for name in settings.keys() - backends if used else ():
            problem = f"settings of another back end than {used}"
            self._file.note((*place, name), problem, f'backend = "{name}"')

    def _check_deployments(
        self, jobs: Mapping[str, JobConfig], deployments: Mapping[str, DeploymentConfig], http: str | None
    ) -> None:
        """Check what must hold among deployments."""
        done_by: dict[str, str] = {}
        objects: dict[tuple[object, ...], str] = {}
        for name, deployment in deployments.items():
            for job in deployment.policy.jobs:
                if (other := done_by.setdefault(job, name)) != name:
                    problem = f"the job {job!r} is also that of the deployment {other!r}"
                    self._file.note(("deployments", name, "jobs"), problem, "one deployment for each job")
            for at, (tier, one) in enumerate(deployment.tiers.items()):
                place = ("deployments", name, "tiers", at)
                if one.backend == "http" and http is None:
                    self._file.note((*place, "backend"), "nothing could ask for the number", "[http] address")
                if one.backend == "kubernetes":
                    target = tuple(one.settings.values())
                    if (other := objects.setdefault(target, f"{name}/{tier}")) != f"{name}/{tier}":
                        problem = f"its object {one.settings['name']!r} is that of {other}"
                        self._file.note((*place, "kubernetes", "name"), problem, "an object for each tier")
        for job in jobs.keys() - done_by.keys():
            expected = f"[deployments.{job}], or its name in the jobs of another one"
            self._file.note(("jobs", job), "no deployment has this job", expected)

    # -------------------------------------------------------------------------- inside

    def _tables(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the tables of a table."""
        key = table(f"a table: [{name}.NAME]")
        if not (found := self._said.get(name)):
            if found is not None:
                self._file.note((name,), "there is none", key.expected)
            return {}
        read = {one: self._file.fits((name, one), value, key) for one, value in found.items()}
        return {one: value for one, value in read.items() if value is not ABSENT}

    def _url(self, place: Place, said: Mapping[str, Any], *, cluster: bool) -> str:
        """Return the URL of a table, with the values of environment variables."""
        where = (*place, "url")
        url: str
        if "url" in said and not self._expand and _VARIABLE.search(said["url"]):
            return str(said["url"])
        if "url" in said:
            login, at, rest = said["url"].rpartition("@")
            url = self._with_values(where, login, quoted=True) + at
            url += self._with_values(where, rest, quoted=False)
        else:
            url = os.environ.get("LEASEQUEUE_URL") or os.environ.get("REDIS_URL") or DEFAULT_URL
        try:
            return check_url(url, cluster=cluster)
        except InvalidArgument as error:
            self._file.note(where, "this cannot be used", error.allowed)
            return url

    def _with_values(self, place: Place, text: str, *, quoted: bool) -> str:
        def value(match: re.Match[str]) -> str:
            if (found := os.environ.get(match[1])) is None:
                self._file.note(place, f"the environment variable {match[1]} is not set")
                return match[0]
            return quote(found, safe="") if quoted else found

        return _VARIABLE.sub(value, text)


def optional(keys: Mapping[str, Key]) -> dict[str, Key]:
    """Return keys without their defaults."""
    return {name: Key(read=key.read, expected=key.expected) for name, key in keys.items()}


def _loops(children: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield jobs that feed each other in a circle, the first one at the end again; each job at most once."""
    done: set[str] = set()
    for start in children:
        path: list[str] = []
        steps = [iter([start])]
        while steps:
            job = next(steps[-1], None)
            if job is None:
                steps.pop()
                if path:
                    done.add(path.pop())
            elif job in path:
                yield [*path[path.index(job) :], job]
            elif job not in done:
                path.append(job)
                steps.append(iter(children.get(job, [])))
