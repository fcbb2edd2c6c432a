"""The configuration of the autoscaler: the tables of `autoscale.toml`, and what they say. One concept.

The tables are msgspec's structs: the keys, their defaults, and what each accepts are declared once, here.
"""

from __future__ import annotations

import difflib
import graphlib
import math
import os
import re
import shutil
import tomllib
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta, structs

from leasequeue.autoscale.model import DeploymentPolicy, JobPolicy, Policy, TierPolicy
from leasequeue.durations import LONGEST_SECONDS, parse_duration
from leasequeue.errors import InvalidArgument, InvalidConfig
from leasequeue.keys import check_prefix, hash_tag
from leasequeue.wire.urls import check_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The server, if neither the file nor the environment names one.
DEFAULT_URL = "redis://localhost:6379"
#: The name of the only tier of a deployment that lists none.
DEFAULT_TIER = "default"
#: The largest numbers that are accepted: units of a tier, workers of a unit, children of an item.
MAX_UNITS, MAX_WORKERS, MAX_CHILDREN = 1_000_000, 100_000, 1_000_000

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
_Table = TypeVar("_Table", bound=msgspec.Struct)
_Policy = TypeVar("_Policy", JobPolicy, TierPolicy)


# -------------------------------------------------------------------------- what a key accepts

Text = Annotated[str, Meta(min_length=1)]
Words = Annotated[list[Text], Meta(min_length=1)]
Environment = dict[Annotated[str, Meta(pattern="^[^=\\x00]+$")], Annotated[str, Meta(pattern="^[^\\x00]*$")]]
Units = Annotated[int, Meta(ge=0, le=MAX_UNITS)]
#: How many items of another job one item adds.
Children = Annotated[float, Meta(ge=0, le=MAX_CHILDREN)] | Literal["measured"]


class Duration(float):
    """A duration in seconds, from 0; a file writes `"30s"`, `"5m"`, or a number of seconds.

    Attributes:
        bounds: The shortest and the longest one.
        word: What stands for `math.inf`: no duration.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, LONGEST_SECONDS)
    word: ClassVar[str] = ""

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the duration that a file says, or raise ValueError."""
        if cls.word and value == cls.word:
            return cls(math.inf)
        seconds = parse_duration(value) if isinstance(value, str) else value
        shortest, longest = cls.bounds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            seconds = math.nan
        if not shortest <= seconds <= longest:
            also = f', or "{cls.word}"' if cls.word else ""
            raise ValueError(
                f'expected a duration from {shortest:g} s to {longest:,.9g} s, such as "30s" or "5m"{also}'
            )
        return cls(seconds)


class TargetTime(Duration):
    """A time within which an item begins."""

    bounds = (0.001, LONGEST_SECONDS)


class ServiceTime(TargetTime):
    """How long one item takes."""

    word = "measured"


class Within(Duration):
    """A time to wait for something that another process does."""

    bounds = (0.1, LONGEST_SECONDS)


class Interval(Within):
    """The time between two of something that may be switched off."""

    word = "never"


class PassInterval(Duration):
    """The time between two passes."""

    bounds = (0.1, 86_400.0)


class CallTime(Duration):
    """How long a program may take."""

    bounds = (0.1, 3600.0)


class QueueName(str):
    """The name of a queue."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Self:
        """Return a name, or raise ValueError."""
        try:
            return cls(check_prefix(value))
        except InvalidArgument as error:
            raise ValueError(f"got {error.given}, expected {error.allowed}") from error


class Address(str):
    """An address and a port."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Self:
        """Return an address, or raise ValueError."""
        try:
            address(value)
        except ValueError:
            raise ValueError('expected an address and a port, such as "0.0.0.0:8080"') from None
        return cls(value)


def address(value: object) -> tuple[str, int]:
    """Return the host and the port of an address, as `0.0.0.0:8080` or `[::]:8080`, or raise ValueError."""
    parts = urlsplit(f"//{value}") if isinstance(value, str) else urlsplit("")
    if parts.port is None or not parts.hostname or parts.netloc != value or "@" in parts.netloc:
        raise ValueError(value)
    return parts.hostname, parts.port


# -------------------------------------------------------------------------- the settings of back ends


class _TableOfFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a file. Unknown keys are refused."""


class ProcessSettings(_TableOfFile, frozen=True, kw_only=True):
    """The settings of processes."""

    backend: ClassVar[str] = "processes"

    #: The program and its arguments. `{name}` becomes the unit's name; without it, `--name NAME` is added.
    command: Words
    #: Variables that are added to the environment.
    env: Environment = {}
    #: Where it is started; None: where the autoscaler runs.
    directory: Text | None = None
    #: Whether the units stop when the autoscaler ends; None: see `ProcessBackend.close`.
    on_exit: Literal["stop", "leave"] | None = None
    #: How long a unit may take to stop (s); then it is reported.
    stop_within: Within = Within(60.0)
    #: After how long a unit that has not stopped is killed with SIGKILL (s); infinite: never.
    kill_after: Interval = Interval(math.inf)


class KubernetesSettings(_TableOfFile, frozen=True, kw_only=True):
    """The settings of Kubernetes."""

    backend: ClassVar[str] = "kubernetes"

    #: The name of the object; empty in a file: that of the deployment.
    name: str = ""
    namespace: Text = "default"
    kind: Literal["Deployment", "StatefulSet"] = "Deployment"
    #: The context of the kubeconfig; None: the account of the pod that this runs in, or the current context.
    context: Text | None = None
    #: The file; None: the one that `KUBECONFIG` names, or `~/.kube/config`.
    kubeconfig: Text | None = None


class CommandSettings(_TableOfFile, frozen=True, kw_only=True):
    """The settings of commands. `{units}`, `{deployment}` and `{tier}` are replaced in all arguments."""

    backend: ClassVar[str] = "command"

    #: What asks for a number of units.
    request: Words
    #: What prints how many units work; None: see `CommandBackend.ready`.
    ready: Words | None = None
    #: Variables that are added to the environment.
    env: Environment = {}
    #: Where the programs are started; None: where the autoscaler runs.
    directory: Text | None = None
    #: How long a program may take (s).
    timeout: CallTime = CallTime(30.0)
    #: A pattern of the names of this tier's workers, such as `media-spot-*`; None: those of all tiers.
    workers: Text | None = None

    def __post_init__(self) -> None:
        """Refuse a request that would not say how many units."""
        if not any("{units}" in word for word in self.request):
            raise ValueError('request: expected {units} in a word, such as ["./scale", "{units}"]')


class HttpSettings(_TableOfFile, frozen=True, kw_only=True):
    """The settings of the HTTP answer."""

    backend: ClassVar[str] = "http"

    #: As in `CommandSettings`.
    workers: Text | None = None


#: The settings of any back end.
BackendSettings: TypeAlias = ProcessSettings | KubernetesSettings | CommandSettings | HttpSettings
BackendName: TypeAlias = Literal["processes", "kubernetes", "command", "http"]
BACKENDS: Final[dict[BackendName, type[BackendSettings]]] = {
    "processes": ProcessSettings,
    "kubernetes": KubernetesSettings,
    "command": CommandSettings,
    "http": HttpSettings,
}


# -------------------------------------------------------------------------- the tables of a file


class HttpTable(_TableOfFile, frozen=True, kw_only=True):
    """`[http]`."""

    address: Address


class FileTable(_TableOfFile, frozen=True, kw_only=True):
    """The whole file."""

    name: QueueName
    jobs: Annotated[dict[Text, dict[str, Any]], Meta(min_length=1)]
    deployments: Annotated[dict[Text, dict[str, Any]], Meta(min_length=1)]
    url: Text | None = None
    cluster: bool = False
    every: PassInterval = PassInterval(10.0)
    clean_every: Interval = Interval(30.0)
    deep_clean_every: Interval = Interval(720.0)
    queue_prefix: str = ""
    http: HttpTable | None = None


class JobTable(_TableOfFile, frozen=True, kw_only=True):
    """`[jobs.NAME]`."""

    queue: Text | None = None
    url: Text | None = None
    cluster: bool | None = None
    age_target: TargetTime = TargetTime(JobPolicy.age_target)
    service_time: ServiceTime = ServiceTime(math.inf)
    confidence: Annotated[float, Meta(ge=0.5, le=0.9999)] = JobPolicy.confidence
    ignore_abandoned: bool = JobPolicy.ignore_abandoned
    children: dict[str, Children] = {}


class DeploymentTable(_TableOfFile, frozen=True, kw_only=True):
    """`[deployments.NAME]`, without what holds for its tiers."""

    jobs: Words | None = None
    steady_share: Annotated[float, Meta(ge=0, le=1)] = DeploymentPolicy.steady_share
    tiers: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None


class TierTable(_TableOfFile, frozen=True, kw_only=True):
    """`[[deployments.NAME.tiers]]`, with what its deployment says for all, without the settings."""

    name: Text
    backend: BackendName
    min_units: Units = TierPolicy.min_units
    max_units: Units = TierPolicy.max_units
    workers_per_unit: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] = TierPolicy.workers_per_unit
    spin_up: Duration = Duration(TierPolicy.spin_up)
    preemptible: bool = TierPolicy.preemptible
    slow_down: Duration = Duration(TierPolicy.slow_down)
    slow_up: Duration = Duration(TierPolicy.slow_up)


_TABLES = (FileTable, JobTable, DeploymentTable, TierTable, HttpTable, *BACKENDS.values())
_KEYS = sorted({name for one in _TABLES for name in one.__struct_fields__} | {*BACKENDS})
#: The words that a key accepts: msgspec's message does not have them.
_ACCEPTED = {
    "backend": " or ".join(f'"{one}"' for one in BACKENDS),
    "on_exit": '"stop" or "leave"',
    "kind": '"Deployment" or "StatefulSet"',
    "children": 'a number or "measured"',
}


# -------------------------------------------------------------------------- what the file says


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
    #: The settings of the back end, which say which one it is. The environment of processes may hold a
    #: password, so that `repr` leaves them out.
    settings: BackendSettings = field(default_factory=HttpSettings, repr=False)

    @property
    def backend(self) -> str:
        """The kind of back end: `processes`, `kubernetes`, `command` or `http`."""
        return self.settings.backend


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


def load_config(path: str | Path, *, programs: bool = False) -> Config:
    """Read the configuration of the autoscaler from a TOML file, and check it.

    In the URLs of servers, `${NAME}` stands for the environment variable NAME, so that no password need
    stand in the file; before an `@`, special characters of the variable are encoded. Without a URL, the
    server is that of `LEASEQUEUE_URL`, then `REDIS_URL`, then `redis://localhost:6379`.

    Args:
        path: The file.
        programs: Whether to check that the programs of the back ends `processes` and `command` are on this
            machine, and can be started.

    Raises:
        InvalidConfig: If it cannot be read, or something in it cannot be used. It says where, and what is
            accepted.

    Example:
        config = load_config("autoscale.toml")
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InvalidConfig(path, "", error.strerror or str(error), "a file that can be read") from error
    except UnicodeDecodeError as error:
        raise InvalidConfig(path, "", "it is not UTF-8", "a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(path, "", f"it is not TOML: {error}") from error
    return _Loading(path, values, programs=programs).config()


class _Loading:
    """Reads the tables of a file one by one, and checks what they say together."""

    def __init__(self, path: Path, values: dict[str, Any], *, programs: bool) -> None:
        self._path = path
        self._programs = programs
        self._file = self._read("", values, FileTable)

    def config(self) -> Config:
        file = self._file
        url = self._url("", file.url, cluster=file.cluster)
        self._check_tag("name", file.name, cluster=file.cluster)
        jobs = {name: self._job(name, values, url) for name, values in file.jobs.items()}
        self._check_jobs(url, jobs)
        deployments = {
            name: self._deployment(name, values, jobs) for name, values in file.deployments.items()
        }
        self._check_deployments(jobs, deployments)
        return Config(
            name=str(file.name),
            url=url,
            cluster=file.cluster,
            every=float(file.every),
            clean_every=_finite(file.clean_every),
            deep_clean_every=_finite(file.deep_clean_every),
            jobs=jobs,
            deployments=deployments,
            http=None if file.http is None else str(file.http.address),
            path=self._path,
        )

    def _job(self, name: str, values: dict[str, Any], url: str) -> JobConfig:
        place = f"jobs.{name}"
        said = self._read(place, values, JobTable)
        try:
            queue = str(QueueName.read(self._file.queue_prefix + (said.queue or name)))
        except ValueError as error:
            raise self._wrong(f"{place}.queue" if said.queue else place, str(error)) from error
        cluster = self._file.cluster and said.url is None if said.cluster is None else said.cluster
        if "{" in queue:  # else it may have shards
            self._check_tag(place, queue, cluster=cluster)
        children = {child: None if n == "measured" else n for child, n in said.children.items()}
        service_time = _finite(said.service_time)
        policy = _policy(JobPolicy, said, service_time=service_time, children=children)
        own = url if said.url is None else self._url(place, said.url, cluster=cluster)
        return JobConfig(queue=queue, url=own, cluster=cluster, policy=policy)

    def _check_jobs(self, url: str, jobs: Mapping[str, JobConfig]) -> None:
        """Check that no two queues are one, and that no jobs feed each other in a circle."""
        seen = {(url, str(self._file.name)): "the autoscaler itself"}
        for name, job in jobs.items():
            if (other := seen.get((job.url, job.queue))) is not None:
                problem = f"its queue {job.queue!r} is that of {other}"
                raise self._wrong(f"jobs.{name}", problem, "another queue")
            seen[job.url, job.queue] = f"the job {name!r}"
            for child in job.policy.children.keys() - jobs.keys():
                raise self._unknown_job(f"jobs.{name}.children.{child}", child, jobs)
        try:
            graphlib.TopologicalSorter({name: job.policy.children for name, job in jobs.items()}).prepare()
        except graphlib.CycleError as error:
            circle = " → ".join(reversed(error.args[1]))
            problem = f"the jobs feed each other in a circle: {circle}"
            raise self._wrong(f"jobs.{error.args[1][0]}.children", problem) from error

    def _deployment(
        self, name: str, values: dict[str, Any], jobs: Mapping[str, JobConfig]
    ) -> DeploymentConfig:
        place = f"deployments.{name}"
        self._check_name(place, name)
        own = {key: value for key, value in values.items() if key in DeploymentTable.__struct_fields__}
        shared = {key: value for key, value in values.items() if key not in own}
        said = self._read(place, own, DeploymentTable)
        if "name" in shared:
            raise self._wrong(f"{place}.name", "unknown key: a deployment has the name of its table")
        for at, job in enumerate(said.jobs or [name]):
            where = place if said.jobs is None else f"{place}.jobs[{at}]"
            if job not in jobs:
                raise self._unknown_job(where, job, jobs)
            if said.jobs and job in said.jobs[:at]:
                raise self._wrong(where, f"the job {job!r} is in the list twice")
        tiers: dict[str, TierConfig] = {}
        for at, tier in enumerate(said.tiers or [{"name": DEFAULT_TIER}]):
            where = f"{place}.tiers[{at}]" if said.tiers else place
            found = self._tier(where, tier, place, shared)
            if found.policy.name in tiers:
                raise self._wrong(
                    f"{where}.name", f"two tiers are named {found.policy.name!r}", "another name"
                )
            tiers[found.policy.name] = found
        self._check_used(place, shared, {one.backend for one in tiers.values()})
        policy = DeploymentPolicy(
            name=name,
            jobs=tuple(said.jobs or [name]),
            tiers=tuple(tier.policy for tier in tiers.values()),
            steady_share=said.steady_share,
        )
        if policy.steady_share and all(tier.preemptible for tier in policy.tiers):
            raise self._wrong(
                f"{place}.steady_share", "all tiers are pre-emptible", "a tier with preemptible = false"
            )
        return DeploymentConfig(policy=policy, tiers=tiers)

    def _tier(self, where: str, tier: dict[str, Any], place: str, shared: dict[str, Any]) -> TierConfig:
        """Return a tier. A key that it does not have itself is that of its deployment, at `place`."""
        whole = {**shared, **tier}
        table = {key: value for key, value in whole.items() if key not in BACKENDS}
        said = self._read(where, table, TierTable, inherited=(place, shared.keys() - tier.keys()))
        self._check_name(f"{where}.name", said.name)
        if said.min_units > said.max_units:
            units = f"min_units is {said.min_units:,}, max_units is {said.max_units:,}"
            raise self._wrong(f"{where}.min_units", units, "min_units of at most max_units")
        self._check_used(where, tier, {said.backend})
        given: dict[str, Any] = {}
        for at, one in ((place, shared), (where, tier)):
            settings = one.get(said.backend, {})
            if not isinstance(settings, dict):
                raise self._wrong(f"{at}.{said.backend}", "expected a table of its settings")
            given |= settings
        found = self._read(f"{where}.{said.backend}", given, BACKENDS[said.backend])
        if isinstance(found, KubernetesSettings) and not found.name:
            found = structs.replace(found, name=place.removeprefix("deployments."))
        if self._programs:
            for key, problem, expected in program_problems(found):
                raise self._wrong(f"{where}.{said.backend}.{key}", problem, expected)
        return TierConfig(policy=_policy(TierPolicy, said), settings=found)

    def _check_deployments(
        self, jobs: Mapping[str, JobConfig], deployments: Mapping[str, DeploymentConfig]
    ) -> None:
        done_by: dict[str, str] = {}
        objects: dict[BackendSettings, str] = {}
        for name, deployment in deployments.items():
            place = f"deployments.{name}"
            for job in deployment.policy.jobs:
                if (other := done_by.setdefault(job, name)) != name:
                    problem = f"the job {job!r} is also that of the deployment {other!r}"
                    raise self._wrong(f"{place}.jobs", problem, "one deployment for each job")
            for tier, one in deployment.tiers.items():
                if one.backend == "http" and self._file.http is None:
                    raise self._wrong(
                        f"{place}.backend", "nothing could ask for the number", "[http] address"
                    )
                if not isinstance(one.settings, KubernetesSettings):
                    continue
                if (other := objects.setdefault(one.settings, f"{name}/{tier}")) != f"{name}/{tier}":
                    problem = f"the object {one.settings.name!r} of {tier} is that of {other}"
                    raise self._wrong(f"{place}.kubernetes.name", problem, "an object for each tier")
        for job in jobs.keys() - done_by.keys():
            expected = f"[deployments.{job}], or its name in the jobs of another one"
            raise self._wrong(f"jobs.{job}", "no deployment has this job", expected)

    def _read(
        self,
        place: str,
        values: dict[str, Any],
        kind: type[_Table],
        *,
        inherited: tuple[str, set[str]] = ("", set()),
    ) -> _Table:
        """Return a table. Its inherited keys stand in another place."""
        try:
            return msgspec.convert(values, kind, dec_hook=custom)
        except msgspec.ValidationError as error:
            problem, _, inside = str(error).partition(" - at `$")
            key = re.sub(r"^[.]|`$", "", inside)
            if unknown := re.fullmatch("Object contains unknown field `(.*)`", problem, re.DOTALL):
                close = difflib.get_close_matches(unknown[1].lower().replace("-", "_"), _KEYS, n=1)
                key = f"{key}.{unknown[1]}" if key else unknown[1]
                problem = "unknown key" + "".join(f"; did you mean `{one}`?" for one in close)
            elif accepted := _ACCEPTED.get(re.sub(r".*\.(?=\w)|\[.*", "", key)):
                problem = f"{problem}; expected {accepted}"
            elsewhere, keys = inherited
            at = elsewhere if re.split(r"[.\[]", key)[0] in keys else place
            raise self._wrong(".".join(filter(None, (at, key))), problem) from error

    def _wrong(self, place: str, problem: str, expected: str = "") -> InvalidConfig:
        return InvalidConfig(self._path, place, problem, expected)

    def _unknown_job(self, place: str, name: str, jobs: Mapping[str, JobConfig]) -> InvalidConfig:
        return self._wrong(place, f"there is no job {name!r}", f"one of {', '.join(jobs)}")

    def _check_name(self, place: str, name: str) -> None:
        """Check the name of a deployment or a tier, which is part of paths and of the names of workers."""
        if not _NAME.fullmatch(name):
            raise self._wrong(place, f"got {name!r}", "a name of 1 to 63 letters, digits, - and _")

    def _check_tag(self, place: str, queue: str, *, cluster: bool) -> None:
        """Check that all keys of a queue are in one slot of a cluster."""
        if cluster and hash_tag(queue) is None:
            expected = f"a name with a hash tag, such as {'{' + queue + '}'!r}"
            raise self._wrong(place, f"on a cluster {queue!r} has no separate slot", expected)

    def _check_used(self, place: str, said: Mapping[str, Any], used: set[str]) -> None:
        """Check that all settings are for a back end that is used."""
        for name in BACKENDS.keys() & said.keys() - used:
            backends = " and ".join(f'"{one}"' for one in sorted(used))
            problem = f"settings of another back end than {backends}"
            raise self._wrong(f"{place}.{name}", problem, f'backend = "{name}"')

    def _url(self, place: str, url: str | None, *, cluster: bool) -> str:
        where = f"{place}.url" if place else "url"

        def value(match: re.Match[str]) -> str:
            if (found := os.environ.get(match[1])) is None:
                raise self._wrong(where, f"the environment variable {match[1]} is not set")
            return quote(found, safe="") if match.end() <= at else found

        if url is None:
            url = os.environ.get("LEASEQUEUE_URL") or os.environ.get("REDIS_URL") or DEFAULT_URL
        else:
            at = url.rfind("@")
            url = _VARIABLE.sub(value, url)
        try:
            return check_url(url, cluster=cluster)
        except InvalidArgument as error:
            raise self._wrong(where, "this cannot be used", error.allowed) from error


def custom(kind: Any, value: object) -> object:
    """Return a value of one of the types of this module, for msgspec, which adds the place to an error."""
    return kind.read(value)


def _policy(kind: type[_Policy], said: _TableOfFile, **others: Any) -> _Policy:
    """Return a policy, whose attributes are those of its table, except for others."""
    names = [one.name for one in fields(kind) if one.name not in others]
    return kind(**{name: getattr(said, name) for name in names}, **others)


def _finite(duration: Duration) -> float | None:
    return None if math.isinf(duration) else float(duration)


# -------------------------------------------------------------------------- programs


def program_problems(settings: BackendSettings) -> Iterator[tuple[str, str, str]]:
    """Yield each setting whose program cannot be started here, with its problem and what to do."""
    if not isinstance(settings, (ProcessSettings, CommandSettings)):
        return
    directory = settings.directory
    if directory is not None and not os.path.isdir(directory):  # noqa: PTH112 - Path fails if it is too long
        yield "directory", f"there is no folder {directory!r}", "a folder on this machine"
        return
    if isinstance(settings, ProcessSettings):
        # `leasequeue worker` is run by the Python that runs this.
        programs = {} if settings.command[0] == "leasequeue" else {"command": settings.command[0]}
    else:
        programs = {"request": settings.request[0]} | ({"ready": settings.ready[0]} if settings.ready else {})
    for key, program in programs.items():
        if "{" not in program and (problem := _problem(program, directory or os.curdir, settings.env)):
            yield key, problem, "a program on this machine: a name in PATH, or a path"


def _problem(program: str, directory: str, env: Mapping[str, str]) -> str:
    """Return why a program cannot be started, as the system looks for it; empty: it can."""
    if os.sep not in program:
        folders = os.get_exec_path({**os.environ, **env})
        path = os.pathsep.join(str(Path(directory, one)) for one in folders)
        return "" if shutil.which(program, path=path) else f"there is no program {program!r} in PATH"
    place = Path(directory, program)
    if not os.path.isfile(place):  # noqa: PTH113 - as above
        return f"there is no file {program!r}"
    return "" if os.access(place, os.X_OK) else f"{program!r} is not executable"
